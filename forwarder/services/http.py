"""A web service. The caller POSTs the message's body, and the status of the response decides the outcome.

An HTTP header cannot contain control characters, characters outside ASCII, or blanks at its ends. In `Spool-Queue`,
`Spool-Correlation-Id` and `Spool-Header-<name>`, these characters are percent-encoded UTF-8, as in a URL. A "%" becomes
"%25", so that percent-decoding always returns the original text.
"""

import email.utils
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import spool
from forwarder.services.proxies import is_refusal, proxy_for
from forwarder.services.service import MAX_REPLY, Request, Service, ServiceError
from spool.client.fields import IN_NAMES, header_value
from spool.model.message import Message
from spool.model.text import one_line
from spool.workers.outcome import Outcome, Rejected, Replied, Retried, bounded, describe, replied, too_large

if TYPE_CHECKING:
    import httpx

RETRIABLE = frozenset({408, 425, 429})
"""The 4xx statuses that do not depend on the message, so a later attempt may succeed."""

THREADS = 32
"""The number of calls that one task makes at a time. A service that answers in 20 ms gets 1,600 calls a second."""

_SHOWN_CHARACTERS = 200  # of a server's answer in the reason of a failure


@dataclass(frozen=True)
class HttpService(Service):
    """`http://…` or `https://…`; `timeout` is in seconds.

    The timeout limits the connection setup, each wait for the server, and the read of the whole response body.
    threads: the number of calls that one task makes at a time.
    """

    url: str
    timeout: float = 30.0
    threads: int = THREADS

    @property
    def shown_name(self) -> str:
        return shown_url(self.url)

    def check(self) -> None:
        try:
            import httpx
        except ImportError:
            raise ServiceError(
                "services over HTTP need httpx: install xaspool with the extra [http] (spool-admin docs install)"
            ) from None
        try:
            url = httpx.URL(self.url)
            # httpx quotes characters that cannot be in the name of a host.
            valid = re.fullmatch(r"[\w.:-]+", url.host) and (url.port is None or 0 < url.port < 65536)
        except (httpx.InvalidURL, ValueError):
            valid = False
        if not valid:
            raise ServiceError(f"{self.url!r} is no URL of a web service: write http://host:port/path")
        self.open().close()

    def open(self) -> "HttpCaller":
        return HttpCaller(self.url, self.timeout)


def shown_url(url: str) -> str:
    """Return a URL without its password and its query, which may have a key."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


class HttpCaller:
    """Makes the calls. Each thread has a client, with one connection for all its calls.

    Raises ServiceError if the certificates of the machine, or the proxy, cannot be used.
    """

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        import httpx

        self.timeout = timeout
        self._url = httpx.URL(url)
        port = self._url.port or {"http": 80, "https": 443}.get(self._url.scheme, 0)
        self.address = (shown_url(url), self._url.host, port)
        self._extensions = {"timeout": httpx.Timeout(timeout).as_dict(), "trace": self._note}
        self._agent = ("User-Agent", f"xaspool/{spool.__version__}")  # firewalls refuse requests without this header
        self._threads = threading.local()
        self._proxy = proxy_for(url)
        self._through = f", through the proxy {shown_url(self._proxy)}" if self._proxy else ""
        try:
            self._trusted = httpx.create_ssl_context()  # created once: this reads all certificates of the machine
        except Exception as error:
            raise ServiceError(f"no certificates can be read ({describe(error)}): correct SSL_CERT_FILE") from error
        try:
            self._client()
        except Exception as error:
            raise ServiceError(
                f"the proxy {shown_url(self._proxy or '')} cannot be used ({describe(error)}): "
                f"correct {self._url.scheme.upper()}_PROXY or ALL_PROXY"
            ) from error

    def _client(self) -> "httpx.Client":
        import httpx

        client: httpx.Client | None = getattr(self._threads, "client", None)
        if client is None:
            proxy = None if self._proxy is None else httpx.Proxy(self._proxy)
            if proxy is not None and proxy.url.scheme == "https":
                proxy.ssl_context = self._trusted
            client = httpx.Client(verify=self._trusted, proxy=proxy, trust_env=False, follow_redirects=False)
            self._threads.client = client
        return client

    def __call__(self, request: Request) -> Outcome:
        import httpx

        headers = [self._agent, *headers_for(request.message)]
        # `client.post` would take twice as long, because it merges in further settings.
        posted = httpx.Request("POST", self._url, content=request.raw, headers=headers, extensions=self._extensions)
        try:
            response = self._send(posted)
            try:
                return self._judge(response)
            finally:
                response.close()
        except Exception as error:
            is_reached = self._threads.is_sent or not isinstance(error, httpx.TransportError)
            is_counted = is_reached and not _refused_by_tls(error)
            return Retried(f"{describe(error)}{self._through}", counted=is_counted)

    def _note(self, event: str, info: dict[str, Any]) -> None:
        """Note whether the request is sent, and whether on a new connection. A request CONNECT asks a proxy for one.

        httpx calls this method for each event of a request. Source: "trace" of
        https://www.python-httpx.org/advanced/extensions.
        """
        if event.endswith("send_request_headers.started") and info["request"].method == b"POST":
            self._threads.is_sent = True
        elif event == "connection.connect_tcp.started":
            self._threads.is_new = True

    def _send(self, posted: "httpx.Request") -> "httpx.Response":
        """Send a request; return the response when its headers have arrived.

        A server may close an idle connection of earlier calls at any moment. The service may then not have read the
        request, so this method sends the request again on a new connection. Source: RFC 9112, section 9.3.1. A service
        that has already read the request recognizes it by the `Idempotency-Key`.
        """
        import httpx

        self._threads.is_sent = self._threads.is_new = False
        try:
            return self._client().send(posted, stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            if self._threads.is_new:
                raise
            self.close()
            self._threads.is_sent = False
            return self._client().send(posted, stream=True)

    def _judge(self, response: "httpx.Response") -> Outcome:
        status, headers = response.status_code, response.headers
        is_seen = self._proxy is not None and self._url.scheme == "http"
        if is_refusal(status, headers, behind_proxy=is_seen):
            proxy = f"the proxy {shown_url(self._proxy or '')}" if is_seen else "a proxy before the service"
            return Retried(f"HTTP {status} of {proxy}: see its log, and HTTP_PROXY", counted=False)
        return judge(status, self._read(response), headers)

    def close(self) -> None:
        """Close this thread's connection. Each other connection ends with its thread."""
        if (client := self._threads.__dict__.pop("client", None)) is not None:
            client.close()

    def _read(self, response: "httpx.Response") -> bytes | None:
        """Read the response's body. Return None as soon as the body is too large."""
        deadline = time.monotonic() + self.timeout
        if int(response.headers.get("Content-Length", 0)) > MAX_REPLY:
            return None
        chunks, size = [], 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > MAX_REPLY:
                return None
            if time.monotonic() > deadline:
                raise TimeoutError(f"the response took longer than {self.timeout:g} s")
            chunks.append(chunk)
        return b"".join(chunks)


def judge(status: int, body: bytes | None, headers: "httpx.Headers") -> Outcome:
    """Return the outcome of a response. `body` is None if the response's body has more than `MAX_REPLY` bytes."""
    content_type = headers.get("Content-Type")
    if 200 <= status < 300:
        return too_large(MAX_REPLY) if body is None else replied(body, content_type, None, MAX_REPLY)
    if 400 <= status < 500 and status not in RETRIABLE:
        return Rejected(_failure(status, body), None if body is None else Replied(body, content_type))
    if 300 <= status < 400:
        # A redirect is not followed, because a redirected POST may become a GET, or send the message to another host.
        # The route is wrong, and not the message, so the failure is not final. The attempt is counted because the
        # service did answer. Without counted attempts, a message that is always redirected would block its queue.
        location = headers.get("Location", "none")
        return Retried(one_line(f"HTTP {status}: put the URL it redirects to into the route ({location})"))
    # (a service that asks for no wait, e.g. because its clock is late, gets the wait of the queue)
    return Retried(_failure(status, body), retry_after(headers.get("Retry-After"), time.time()) or None)


def _failure(status: int, body: bytes | None) -> str:
    """Return the reason of a failure: the status, and the beginning of the server's answer in one line."""
    text = one_line((body or b"")[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace"))[:_SHOWN_CHARACTERS]
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


def retry_after(value: str | None, now: float) -> float | None:
    """Return how many seconds a `Retry-After` header asks to wait.

    Return None if the value is neither a number of seconds nor a date.
    """
    if value is None:
        return None
    if re.fullmatch(r"[0-9]+", value := value.strip()):
        return bounded(float(value))
    try:
        return bounded(max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now))
    except (ValueError, OverflowError):
        return None


def headers_for(message: Message) -> list[tuple[str, str]]:
    """Return the names and values of the request's headers, all in ASCII."""
    headers = [
        ("Content-Type", header_value(message.content_type)),
        ("Idempotency-Key", message.id),
        ("Spool-Queue", header_value(message.queue)),
        ("Spool-Attempts", str(message.attempts)),
    ]
    if message.correlation_id is not None:
        headers.append(("Spool-Correlation-Id", header_value(message.correlation_id)))
    for name, value in message.headers.items():
        headers.append((f"Spool-Header-{quote(name, safe=IN_NAMES, errors='replace')}", header_value(value)))
    return headers


def _refused_by_tls(error: BaseException) -> bool:
    """Return whether the server refused the client's certificate, which TLS 1.3 reports only after the handshake."""
    return any(isinstance(cause, ssl.SSLError) and "ALERT" in str(cause.reason) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
