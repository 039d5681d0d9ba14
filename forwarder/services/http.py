"""A web service: the message's body is POSTed to it, and the status of the response is the outcome.

A header value or name that HTTP cannot carry as it is (control characters, anything but ASCII, blanks at its ends) is
sent as percent-encoded UTF-8, as in a URL; a "%" itself becomes "%25", so that percent-decoding always gives back what
was put. That goes for `Spool-Queue`, `Spool-Correlation-Id` and `Spool-Header-<name>`.
"""

import email.utils
import os
import re
import ssl
import string
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from forwarder.services.service import MAX_REPLY, Message, Request, ServiceError
from spool.workers.outcome import Outcome, Rejected, Replied, Retried, bounded, describe, one_line, replied, too_large

if TYPE_CHECKING:
    import httpx

RETRIABLE = frozenset({408, 425, 429})
"""The 4xx that are about the moment and not about the message."""

_IN_VALUES = "".join(sorted(set(string.ascii_letters + string.digits + string.punctuation + " ") - {"%"}))
_IN_NAMES = "!#$&'*+-.^_`|~"


@dataclass(frozen=True)
class HttpService:
    """`http://…` or `https://…`; `timeout` is in seconds, `max_reply` in bytes.

    The timeout holds for making the connection, for each silence of the server, and for the response's body as a whole.
    """

    url: str
    timeout: float = 30.0
    max_reply: int = MAX_REPLY
    watched = None  # the client limits the time

    def check(self) -> None:
        """Raise `ServiceError` if the URL is malformed, or httpx is not installed."""
        try:
            import httpx
        except ImportError:
            raise ServiceError(
                "services over HTTP need httpx: install xaspool with the extra [http] (spool-admin docs install)"
            ) from None
        try:
            url = httpx.URL(self.url)
            # httpx quotes what cannot stand in the name of a host.
            valid = re.fullmatch(r"[\w.:-]+", url.host) and (url.port is None or 0 < url.port < 65536)
        except (httpx.InvalidURL, ValueError):
            valid = False
        if not valid:
            raise ServiceError(f"{self.url!r} is no URL of a web service: write http://host:port/path")
        self._client()

    def open(self) -> "HttpCaller":
        """Return a caller that shares its process's connections; `ServiceError` as for `check`."""
        self.check()
        return HttpCaller(self._client(), self.url, self.timeout, self.max_reply)

    def _client(self) -> "httpx.Client":
        try:
            return _client(os.getpid(), self.timeout)
        except Exception as error:
            raise ServiceError(
                f"no HTTP client can be made ({describe(error)}): correct SSL_CERT_FILE and the like, or HTTP_PROXY"
            ) from error


@dataclass(frozen=True)
class HttpCaller:
    """Makes the calls."""

    client: "httpx.Client"
    url: str
    timeout: float = 30.0
    max_reply: int = MAX_REPLY

    def __call__(self, request: Request) -> Outcome:
        import httpx

        headers = headers_for(request.message)
        try:
            with self.client.stream("POST", self.url, content=request.raw, headers=headers) as response:
                return judge(response.status_code, self._read(response), response.headers, self.max_reply)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            return Retried(describe(error), counted=False)
        except Exception as error:
            return Retried(describe(error), counted=not _refused_by_tls(error))

    def close(self) -> None:
        """Do nothing: the connections stay open for the worker's next calls."""

    def _read(self, response: "httpx.Response") -> bytes | None:
        """Return the response's body, or None as soon as it is known to be too large."""
        deadline = time.monotonic() + self.timeout
        if int(response.headers.get("Content-Length", 0)) > self.max_reply:
            return None
        chunks, size = [], 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > self.max_reply:
                return None
            if time.monotonic() > deadline:
                raise TimeoutError(f"the response took longer than {self.timeout:g} s")
            chunks.append(chunk)
        return b"".join(chunks)


def judge(status: int, body: bytes | None, headers: "httpx.Headers", max_reply: int) -> Outcome:
    """Return the outcome of a response; `body` is None if it has more than `max_reply` bytes."""
    content_type = headers.get("Content-Type")
    if 200 <= status < 300:
        return too_large(max_reply) if body is None else replied(body, content_type, None, max_reply)
    if 400 <= status < 500 and status not in RETRIABLE:
        return Rejected(f"HTTP {status}", None if body is None else Replied(body, content_type))
    if 300 <= status < 400:
        # Not followed: a redirected POST may turn into a GET, or send the message to another host. The route is wrong,
        # not the message, so the failure is not final. It counts as a try, because the service did answer: a message
        # that is always redirected must not block its queue.
        location = headers.get("Location", "none")
        return Retried(one_line(f"HTTP {status}: put the URL it redirects to into the route ({location})"))
    return Retried(f"HTTP {status}", retry_after(headers.get("Retry-After"), time.time()))


def retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds to wait that a `Retry-After` header asks for: seconds or a date; None if it is neither."""
    if value is None:
        return None
    if re.fullmatch(r"[0-9]+", value := value.strip()):
        return bounded(float(value))
    try:
        return bounded(max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now))
    except (ValueError, OverflowError):
        return None


def headers_for(message: Message) -> list[tuple[str, str]]:
    """Return the names and values of the request's headers, all of them ASCII."""
    headers = [
        ("Content-Type", header_value(message.content_type)),
        ("Idempotency-Key", message.id),
        ("Spool-Queue", header_value(message.queue)),
        ("Spool-Attempts", str(message.attempts)),
    ]
    if message.correlation_id is not None:
        headers.append(("Spool-Correlation-Id", header_value(message.correlation_id)))
    for name, value in message.headers.items():
        headers.append((f"Spool-Header-{quote(name, safe=_IN_NAMES, errors='replace')}", header_value(value)))
    return headers


def header_value(text: str) -> str:
    """Return `text` as HTTP can carry it; `urllib.parse.unquote` gives it back."""
    quoted = quote(text, safe=_IN_VALUES, errors="replace")
    # HTTP strips the blanks at a value's ends.
    return re.sub(r"^ +| +$", lambda blanks: "%20" * len(blanks[0]), quoted)


def _refused_by_tls(error: BaseException) -> bool:
    """Tell whether the server refused the client's certificate, which TLS 1.3 reports only after the handshake."""
    return any(isinstance(cause, ssl.SSLError) and "ALERT" in str(cause.reason) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@cache
def _client(pid: int, timeout: float) -> "httpx.Client":
    """One pool of connections a process, kept from round to round; `pid` keeps a forked child off its parent's."""
    import httpx

    return httpx.Client(timeout=timeout, follow_redirects=False)
