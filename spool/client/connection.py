"""The connection of a client to a space of a server: the address, the token, TLS, and calls that raise our errors.

A connection is a plain value, which can be pickled, e.g. for the tasks of Spark. Each process connects when it makes
its first call, and keeps its connections alive.
"""

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from spool.client.problems import TooMany, Unreachable, error_of
from spool.errors import AccessDenied, BadMessageId, CommitUnknown, InvalidArgument, NotOpen

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE = "XASPOOL_TOKEN"
CALL_SECONDS = 300.0
"""The longest wait for the server during a call. A commit with a full disk or a long recovery needs minutes."""
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 3.0  # a server closes idle connections after 5 s; a call that it does not read may have taken effect
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
_ADDRESS = re.compile(
    r"(https?)://(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+)(?::([0-9]{1,5}))?/([A-Za-z0-9_-][A-Za-z0-9._-]{0,63})/?"
)
_OLD = re.compile(r"spool\+grpc(\+tls)?://(.*)")


def is_address(path: str) -> bool:
    """Return whether the path of a space is an address, and not a directory. Only addresses begin with a scheme."""
    return re.match(r"(spool\+[a-z+]*|https?|grpc[a-z+]*)://", path) is not None


@dataclass(frozen=True)
class HttpConnection:
    """A connection to one space.

    server: the address of the server, e.g. ``https://queue.example:8815``. space: the name of the space.
    token: the client's token; "" if the server asks for none.
    certificate: the certificate of the server's authority, as PEM; b"" stands for the authorities of the system.
    token_place, certificate_file: the sources of the token and the certificate, for the texts of errors.
    """

    server: str
    space: str
    token: str = ""
    certificate: bytes = b""
    token_place: str = ""
    certificate_file: str = ""

    @classmethod
    def of(
        cls, address: str, token: str | None = None, token_file: str | None = None, certificate_file: str | None = None
    ) -> Self:
        """Return the connection for the options of a program. Without a token, the environment variable XASPOOL_TOKEN
        is used if it is set.

        Raises:
            InvalidArgument: the address is none, or a file cannot be read.
        """
        server, space = _parsed(address)
        place = f"the environment variable {TOKEN_VARIABLE}" if token is None else "the option token"
        if token_file is not None:
            place = f"the file {token_file}"
            token = _read(token_file, "the token").decode("ascii", "replace").strip()
        certificate = b"" if certificate_file is None else _read(certificate_file, "the certificate")
        if certificate_file is not None and b"-----BEGIN CERTIFICATE-----" not in certificate:
            raise InvalidArgument(f"{certificate_file} has no certificate as PEM: give another file")
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if not re.fullmatch("[!-~]+" if token_file is not None else "[!-~]*", token):
            raise InvalidArgument(f"{place} has no token: a token is one line of letters, digits and signs")
        return cls(server, space, token, certificate, place if token else "", certificate_file or "")

    def __repr__(self) -> str:  # (without the token, because logs may show the connection)
        return f"HttpConnection({self.server}/{self.space})"

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, method: str, *path: str, **given: Any) -> "httpx.Response":
        """Make a call, and return its whole answer.

        Args:
            path: the parts of the address below the space; a part may have any characters.
            given: arguments of ``httpx.Client.request``, e.g. content, headers, params.

        Raises:
            SpoolError: the error of the server.
            AccessDenied: the server refuses the client.
            Unreachable: the server cannot be reached, or ended during the call.
        """
        with self.calling(method, *path, **given) as response:
            response.read()
            return response

    def repeated(
        self, method: str, *path: str, seconds: float = 0.0, goes_on: Callable[[], bool] = lambda: True, **given: Any
    ) -> "httpx.Response":
        """Make a call that may be repeated, because the server answers both the same; repeat it until it is answered.

        seconds: how long to repeat the call. goes_on: whether to go on. Raises as ``call`` does, or CommitUnknown: an
        answer was lost, and no later call was answered, or the server has started again meanwhile.
        """
        until, pause, is_sent = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                return self.call(method, *path, **given)
            except BadMessageId as error:
                if is_sent:
                    raise CommitUnknown(f"the server started again before it had answered: {error}") from error
                raise
            except (Unreachable, CommitUnknown, TooMany, NotOpen) as error:
                is_sent = is_sent or getattr(error, "is_sent", isinstance(error, CommitUnknown))
                if time.monotonic() + pause > until or not goes_on():
                    if is_sent and not isinstance(error, CommitUnknown):
                        raise CommitUnknown(f"the call may have taken effect, or not: {error}") from error
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    @contextmanager
    def calling(self, method: str, *path: str, **given: Any) -> "Iterator[httpx.Response]":
        """Make a call whose answer the block reads, e.g. in parts. Raises as ``call`` does."""
        import httpx

        address = "/".join([self.server, "v1", self.space, *(quote(part, safe="") for part in path)])
        timeout = httpx.Timeout(given.pop("timeout", CALL_SECONDS), connect=_CONNECT_SECONDS)
        try:
            client = _client(self.server, self.certificate, self.token, os.getpid())
            with client.stream(method, address, timeout=timeout, **given) as response:
                if response.status_code >= 400:
                    self._raise(response.status_code, response.read())
                yield response
        except (httpx.HTTPError, ssl.SSLError) as error:
            unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)
            text = f"{self.server} {_reason(error, self.certificate_file)}"
            raise Unreachable(text, is_sent=not isinstance(error, unsent)) from error

    def _raise(self, status: int, body: bytes) -> None:
        error = error_of(status, body)
        if status in (401, 403):
            place = f" (it comes from {self.token_place})" if self.token_place else ""
            raise AccessDenied(f"{self.server} refuses the call: {error}{place}")
        raise error


_UNSIGNED = (
    "no authority that this client knows has signed its certificate: give the option tlsCertificate (in Python, "
    "certificate_file), a file with the certificate of its authority"
)
_ADVICE = (
    ("mismatch", "its certificate is for another name: use the name in the certificate"),
    ("certificate has expired", "its certificate has expired: give the server a new one"),
    ("certificate verify failed", _UNSIGNED),
    ("wrong version number", "it does not speak TLS: write http:// in the address, or give it --tls-cert"),
    ("record layer failure", "it does not speak TLS: write http:// in the address, or give it --tls-cert"),
    ("name or service not known", "its name has no address: correct the name"),
    ("nodename nor servname", "its name has no address: correct the name"),
    ("temporary failure in name resolution", "its name has no address: correct the name"),
    ("disconnected without", "start it, then try again; if it has a certificate, write https:// in the address"),
)  # fmt: skip
"""Parts of the texts about an unreachable server, in small letters, and the advice for each part."""


def _reason(error: Exception, certificate_file: str) -> str:
    text = str(error) or type(error).__name__
    advice = next((advice for part, advice in _ADVICE if part in text.lower()), "")
    if certificate_file and advice == _UNSIGNED:
        advice = f"{certificate_file} did not sign its certificate: give tlsCertificate the one of its authority"
    return f"cannot be used: {advice} ({text})" if advice else f"cannot be reached: start it, then try again ({text})"


@lru_cache(maxsize=64)
def _client(server: str, certificate: bytes, token: str, process: int) -> "httpx.Client":
    """Return the connections of this process to a server. A call connects if no connection is free, or one is lost.

    ``process``: the id of this process. A connection of the parent process can be neither used nor closed in a child.
    """
    try:
        import httpx
    except ImportError:
        raise InvalidArgument(
            "a space by HTTP needs httpx: install xaspool with the extra [http] (spool-admin docs install)"
        ) from None
    context = httpx.create_ssl_context()
    if certificate:
        context = ssl.create_default_context(cadata=certificate.decode("ascii", "replace"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_SECONDS)
    return httpx.Client(verify=context, headers=headers, limits=limits, trust_env=False, follow_redirects=False)


def _parsed(address: str) -> tuple[str, str]:
    """Return the address of the server, and the name of the space."""
    if old := _OLD.fullmatch(address):
        raise InvalidArgument(
            f"{address!r} is an address of Arrow Flight, which is gone: write http{'s' if old[1] else ''}://{old[2]}"
        )
    found = _ADDRESS.fullmatch(address)
    if found is None or (found[3] is not None and not 0 < int(found[3]) < 65_536):
        raise InvalidArgument(
            f"{address!r} is not the address of a space, which is written https://HOST:PORT/NAME, "
            "or http://HOST:PORT/NAME without encryption"
        )
    port = f":{found[3]}" if found[3] is not None else ""
    return f"{found[1]}://{found[2]}{port}", found[4]


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise InvalidArgument(f"{what} cannot be read: {error}") from None
