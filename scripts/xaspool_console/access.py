"""The guard of the console: hosts, logins, sessions and limits, checked before any page is computed.

``Guard`` is the outermost layer of the application. A request that ``Guard`` refuses reaches no page and no engine
call. A POST reaches a page only with a form whose token belongs to the session.

Cookies do not distinguish ports. A browser sends the cookie of one server to every server of the same host, e.g. to a
server of another user of the machine. So each login has a secret address, ``/s/SECRET``, and all pages of the login are
below this address. The browser sends the cookie of the login only with requests below this address, which no other
server knows. A page needs the address and the cookie, so a copied address is of no use without the cookie.
"""

import asyncio
import hmac
import os
import re
import secrets
import shlex
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forwarder.web.sockets import in_url
from spool.errors import InvalidArgument

LOGIN, COOKIE = "/login", "xaspool"
_STATIC = "/static/"
_LOGGED_IN = re.compile(r"(/s/([A-Za-z0-9_-]{43}))(/.*)", re.DOTALL)
_LEAST_TOKEN, _MOST_TOKEN_FILE = 16, 1 << 20
_MOST_FORM_BYTES, _MOST_FIELDS, _FORM_SECONDS = 16 << 10, 20, 10.0
_MOST_COOKIES = 4 << 10
_SESSION_SECONDS, _MOST_SESSIONS = 8 * 3600.0, 100
_ATTEMPTS, _ATTEMPT_SECONDS, _MOST_ADDRESSES = 5, 60.0, 1_000
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # (With no-referrer, browsers would send the console's own forms with the Origin "null".)
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}


def token_of_file(path: str) -> str:
    """Return the first line with text of a file that only its owner may read.

    Raises:
        InvalidArgument: the file is not regular, other users may read the file, the file cannot be read, or the token
            is missing or short.
    """
    advice = "write one line of text into the file, e.g. that of openssl rand -hex 32"
    try:
        text = _private_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(f"the token cannot be read, because {path} is no text in UTF-8: {advice}") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "the system gives no reason"
        raise InvalidArgument(f"the token cannot be read from {path}: {reason}") from None
    token = next((line.strip() for line in text.splitlines() if line.strip()), None)
    if token is None:
        raise InvalidArgument(f"{path} has no token: {advice}")
    if len(token) < _LEAST_TOKEN:
        raise InvalidArgument(f"the token in {path} has less than {_LEAST_TOKEN} characters: {advice}")
    return token


def _private_bytes(path: str) -> bytes:
    """Return the first bytes of a regular file that only its owner may read. InvalidArgument; OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # (a pipe without a writer would block)
    with open(handle, "rb") as file:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidArgument(f"{path} is no regular file: name a file with the token")
        if stat.S_IMODE(mode) & 0o077:
            raise InvalidArgument(f"other users may read {path}: chmod 600 {shlex.quote(path)}")
        return file.read(_MOST_TOKEN_FILE)


def known_hosts(host: str, port: int, further: Collection[str]) -> frozenset[str]:
    """Return the values of the header Host that the console accepts.

    A name in `further` without a port is accepted with the console's port, and also without a port.
    """
    found = set()
    for name in {in_url(host), "localhost", "127.0.0.1", "[::1]", *further}:
        named = name.lower()
        has_port = re.search(r":[0-9]+$", named) is not None
        found |= {named} if has_port else {f"{named}:{port}"}
        if not has_port and (name in further or port == 80):
            found.add(named)
    return frozenset(found)


@dataclass
class Session:
    """A login.

    key: the secret part of the login's address.
    cookie: the value of the login's cookie.
    csrf: the token that each form of the login has to contain.
    notice: the result of the last change, which the next page shows once.
    """

    key: str
    cookie: str
    csrf: str
    until: float
    notice: str = ""

    @property
    def root(self) -> str:
        """The beginning of all page addresses of the login."""
        return f"/s/{self.key}"


@dataclass
class Access:
    """The settings of the guard, the logins, and the failed attempts.

    hosts: see ``known_hosts``.
    token: the token of the login; None if no login exists.
    """

    hosts: frozenset[str]
    token: str | None = None
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, Session] = field(default_factory=dict)
    _failed: dict[str, deque[float]] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def session(self, key: str, headers: Headers) -> Session | None:
        """Return the session of an address, if the request has the session's cookie.

        Another server of this host can set a further cookie of the same name, so each cookie of this name is compared.
        (``http.cookies`` is not used, because for some cookies its time grows with the square of the length,
        CVE-2024-7592.)
        """
        cookies = headers.get("cookie", "")[:_MOST_COOKIES]
        given = re.findall(rf"(?:^|;) *{COOKIE}=([A-Za-z0-9_-]{{1,100}}) *(?=;|$)", cookies)
        found = self._sessions.get(key)
        if found is None or found.until <= self.clock():
            return None
        return found if any(hmac.compare_digest(each, found.cookie) for each in given) else None

    def log_in(self, token: str, address: str) -> Session | float:
        """Return a new session. For a wrong token, return the seconds until the address may try again.

        The right token is always accepted. Otherwise another user could lock the administrator out. A token is too long
        to be guessed.
        """
        given, expected = (text.encode("utf-8", "surrogateescape") for text in (token, self.token or ""))
        with self._mutex:
            if self.token is None or not hmac.compare_digest(given, expected):
                wait = self._wait_seconds(address)
                if not wait:
                    self._count_failure(address)
                return wait
            self._failed.pop(address, None)
            return self._new_session(self.clock())

    def _new_session(self, now: float) -> Session:
        self._sessions = {key: each for key, each in self._sessions.items() if each.until > now}
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        key, cookie, csrf = (secrets.token_urlsafe(32) for _ in range(3))
        session = Session(key, cookie, csrf, now + _SESSION_SECONDS)
        self._sessions[session.key] = session
        return session

    def log_out(self, session: Session) -> None:
        with self._mutex:
            self._sessions.pop(session.key, None)

    def _wait_seconds(self, address: str) -> float:
        failed = self._failed.get(address)
        return max(0.0, failed[0] + _ATTEMPT_SECONDS - self.clock()) if failed and len(failed) == _ATTEMPTS else 0.0

    def _count_failure(self, address: str) -> None:
        if address not in self._failed and len(self._failed) >= _MOST_ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed.setdefault(address, deque(maxlen=_ATTEMPTS)).append(self.clock())


class Guard:
    """The outermost layer. It refuses a request, or passes it on with session and form in ``scope["state"]``."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # (the server sends no lifespan events, and accepts no web sockets)

        headers = Headers(scope=scope)
        scope, session = self._within(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered[name] = value
            await send(message)

        form: dict[str, str] = {}
        refused = self._refusal(scope, headers, session)
        if refused is None and scope["method"] == "POST":
            try:
                form = await _form(headers, receive)
            except ValueError as error:
                refused = _refused(413, str(error))
            else:
                refused = self._form_refusal(scope["path"], session, form)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
            return
        scope["state"] = {"session": session, "form": form}
        await self._app(scope, receive, send_with_headers)

    def _within(self, scope: Scope, headers: Headers) -> tuple[Scope, Session | None]:
        """Return the request with the login's part removed from the address, and the login if it is valid."""
        found = _LOGGED_IN.fullmatch(scope["path"]) if self._access.token is not None else None
        if found is None:
            return scope, None
        return {**scope, "path": found[3]}, self._access.session(found[2], headers)

    def _refusal(self, scope: Scope, headers: Headers, session: Session | None) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._access.hosts:
            return _refused(421, "this console does not serve this host name: start it with --host NAME to allow one")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _refused(405, "the console answers GET, HEAD and POST only")
        if scope["method"] == "POST" and not _is_of_this_site(headers, hosts[0]):
            return _refused(403, "the request comes from another site, so nothing was changed")
        path = scope["path"]
        if self._access.token is None or session is not None or path == LOGIN or path.startswith(_STATIC):
            return None
        if scope["method"] == "POST" or "x-fragment" in headers:
            return _refused(403, "log in first, nothing was changed")
        if _LOGGED_IN.fullmatch(f"{path}/"):  # (the browser has sent no cookie, which belongs to /s/SECRET/)
            return RedirectResponse(f"{path}/", status_code=303)
        query = scope["query_string"].decode("ascii", "replace")
        return RedirectResponse(f"{LOGIN}?next={quote(f'{path}?{query}' if query else path, safe='')}", status_code=303)

    def _form_refusal(self, path: str, session: Session | None, form: Mapping[str, str]) -> Response | None:
        if path == LOGIN:
            return None  # (the login form has no session yet, and changes nothing in the space)
        if session is None:
            return _refused(403, "log in first, nothing was changed")
        given = form.get("csrf", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, session.csrf.encode("ascii")):
            return _refused(403, "the form does not belong to this login, so nothing was changed: load the page again")
        return None


def _refused(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status)


def _is_of_this_site(headers: Headers, host: str) -> bool:
    """Return whether the browser reports that the form comes from this console. Every current browser reports this."""
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    if not origins and not sites:
        return False
    if any(site != "same-origin" for site in sites):
        return False
    ours = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
    return all(origin.lower() in ours for origin in origins)


async def _bytes_of_form(receive: Receive) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ValueError("the form is not complete")
        data += message.get("body", b"")
        more = message.get("more_body", False)
        if len(data) > _MOST_FORM_BYTES:
            raise ValueError(f"a form has at most {_MOST_FORM_BYTES:,} bytes")
    return data


async def _form(headers: Headers, receive: Receive) -> dict[str, str]:
    """Return the fields of the form. Raises ValueError if the form is too large or of another type."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ValueError("the console takes forms of type application/x-www-form-urlencoded only")
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            data = await _bytes_of_form(receive)
    except TimeoutError:
        raise ValueError(f"a form has to arrive within {_FORM_SECONDS:g} seconds") from None
    return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
