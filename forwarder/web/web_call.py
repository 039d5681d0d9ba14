"""One call of a client: who calls, which space, and the body, which is read within limits after the token is known."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import spool.aio
from forwarder.refusals import Refusals
from forwarder.web.connection_limits import CONNECTION
from forwarder.web.leases import Leases
from forwarder.web.limits import SMALL_BODY, Looks, check_once, check_room
from forwarder.web.tokens import NO_TOKEN, UNKNOWN_TOKEN, Client, Right, Tokens
from spool.client.problems import TooLarge, TooMany
from spool.errors import AccessDenied, CommitUnknown, InvalidArgument, SpoolError, SystemFailure
from spool.model.text import shown

MOST_BYTES_AT_ONCE = 256 << 20
"""The most bytes of all bodies that the server has in memory."""
_ROOM_AT_ONCE = 64 << 10
_SENT_AT_ONCE = 256 << 10
MOST_STREAMS, MOST_OF_A_TOKEN = 256, 64
"""The most long answers in progress for clients that may not put: for all clients together, and for one token."""
_THREADS = 16

log = logging.getLogger("spool.server")


class Refusal(Exception):
    """A call is refused with this status: e.g. the server has no such address, or needs a package that is missing."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers


@dataclass
class Served:
    """A space of the server: its name, the open space, and the messages that clients hold."""

    name: str
    space: spool.aio.Space
    leases: Leases


@dataclass
class Server:
    """The state that all calls share.

    most_bytes: the most bytes that one task of Spark may send.
    index: the number of this process of the server; receipts begin with ``prefix``.
    peers: the private Unix sockets of all processes of the server; () if there is only this one.
    spaces: the spaces by name; those that are not open yet are missing.
    lease_seconds: a write of Spark ends if its client sends nothing for this time.
    transfers: the object that answers Spark's processes (``web.transfers.Transfers``); None until the first call.
    bytes_held: the bytes of the bodies that calls have read or are about to read, and of answers on their way.
    streams: the tokens of the long answers in progress.
    threads: make the parts of long answers, and the calls of Spark, which would block the loop.
    is_ending: whether the server ends, so that no call waits any more.
    """

    tokens: Tokens
    most_bytes: int = 16 << 30
    index: int = 0
    peers: Sequence[str] = ()
    lease_seconds: float = 30.0
    transfers: Any = None
    spaces: dict[str, Served] = field(default_factory=dict)
    bytes_held: int = 0
    streams: list[str] = field(default_factory=list)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "xaspool web"))
    looks: Looks = field(default_factory=Looks)
    is_ending: bool = False

    def __post_init__(self) -> None:
        self._strangers = _logged(" without a known token")
        self._refused = _logged(" of known tokens")

    @property
    def prefix(self) -> str:
        """The beginning of the names of everything that only this process has, e.g. receipts."""
        return f"{self.index}."

    def peer(self, name: str) -> str | None:
        """Return the socket of the process that made a name; None for this process."""
        return {str(n): peer for n, peer in enumerate(self.peers) if n != self.index}.get(name.partition(".")[0])

    def client(self, request: Request) -> Client:
        """Return the client of a request. Refusal if the server has tokens, and the request has none of them."""
        given = request.headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        try:
            return self.tokens.known(token.strip() if scheme.lower() == "bearer" else "")
        except KeyError:
            self._strangers.record(f"{address(request)}: " + ("its token is unknown" if given else "it has no token"))
            text = UNKNOWN_TOKEN if scheme.lower() == "bearer" else NO_TOKEN
            raise Refusal(401, text, ("WWW-Authenticate", "Bearer")) from None

    def refuse(self, address: str, sentence: str, *, known: bool = False) -> None:
        """Log the fault of a client. ``known``: whether the client has a known token."""
        (self._refused if known else self._strangers).record(f"{address}: {sentence}")

    async def in_thread(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *given)

    def room(self) -> "BodyMemory":
        """Return the room for a body; use ``with``, whose end makes the room free."""
        return BodyMemory(self)


def _logged(clients: str) -> Refusals:
    return Refusals(
        lambda sentence: log.warning("a call was refused: %s", sentence),
        lambda count: log.warning("%d further calls%s were refused", count, clients),
    )


def cut(request: Request, text: str) -> SpoolError:
    """Return the error of a call without an outcome: CommitUnknown if the call may still change the space."""
    path, harmless = request.scope["path"], ("/claims", "/extend", "/release")
    changes = request.method not in ("GET", "HEAD") and "/spark/" not in path and not path.endswith(harmless)
    return CommitUnknown(f"{text}: it may have taken effect, or not") if changes else SystemFailure(text)


def address(request: Request) -> str:
    """Return the address of a client, for the log."""
    return request.client.host if request.client else "a client of this machine"


class BodyMemory:
    """The bytes that one call may have in memory."""

    def __init__(self, server: Server) -> None:
        self._server, self.taken = server, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.bytes_held -= self.taken

    def take(self, size: int) -> None:
        """Take room for the first ``size`` bytes of the body. TooMany if other calls need the room now."""
        more = size - self.taken
        if more > 0:
            if self._server.bytes_held + more > MOST_BYTES_AT_ONCE:
                raise TooMany("the server reads the bodies of many calls at this moment: try again")
            self.hold(size)

    def hold(self, size: int) -> None:
        """Count bytes that are already in memory, e.g. of an answer."""
        self._server.bytes_held += size - self.taken
        self.taken = size


class WebCall:
    """A call of a known client."""

    def __init__(self, server: Server, request: Request) -> None:
        self.server, self.request = server, request
        self.client = server.client(request)
        self.query = _query(request.scope["query_string"], request.scope["arguments"])
        self._headers: list[tuple[bytes, bytes]] = request.scope["headers"]
        self._size, self._has_more = 0, True  # of the body

    # -- where --------------------------------------------------------------------------------------------------------

    def served(self, right: Right | None = None, queue: str | None = None) -> Served:
        """Return the space of the address. The client needs the right, or any right if ``right`` is None.

        Raises AccessDenied; Refusal if the server has no such space.
        """
        name = self.space
        if right is not None:
            self.client.check(name, right, queue)
        found = self.server.spaces.get(name)
        if found is None or not self.client.may_enter(name):
            known = ", ".join(each for each in self.server.spaces if self.client.may_enter(each))
            text = f"the server has no space {name[:64]!r} for this client: it serves {known or 'none'}"
            raise Refusal(404, text[:1000])
        return found

    def check_answers(self, options: Any) -> None:
        """Raise AccessDenied unless the client may take from, or put into, the queues that a put names for answers.

        The worker that handles the message puts the answers into these queues by its own rights.
        """
        for name in ("reply_queue", "failure_queue"):
            if (queue := options.get(name)) is not None:
                try:
                    self.served(Right.TAKE, str(queue))
                except AccessDenied:
                    self.served(Right.PUT, str(queue))

    @property
    def space(self) -> str:
        """The name of the space in the address."""
        return str(self.request.path_params["space"])

    @property
    def queue(self) -> str:
        """The queue of the address."""
        return str(self.request.path_params["queue"])

    # -- arguments ----------------------------------------------------------------------------------------------------

    def number(self, name: str, default: float, most: float, least: float = 0.0) -> float:
        """Return a number of the query. InvalidArgument if it is none, or beyond its bounds."""
        text = self.query.get(name)
        try:
            found = default if text is None else float(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            raise InvalidArgument(f"{name} is a number from {least:g} to {most:g}, not {str(text)[:40]!r}")
        return found

    def headers(self) -> list[tuple[str, str]]:
        """The names, in lower case, and the values of the headers, among them the options of a put.

        Raises InvalidArgument if the request has several headers of a name.
        """
        return check_once([(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers])

    def header(self, name: bytes) -> str | None:
        """Return the first value of a header, whose name is in lower case."""
        return next((value.decode("latin-1") for each, value in self._headers if each == name), None)

    @property
    def content_type(self) -> str | None:
        return self.header(b"content-type")

    def accepts(self, media_type: str) -> bool:
        """Return whether the client names this media type among those that it accepts."""
        return media_type in (self.header(b"accept") or "").lower()

    # -- the body -----------------------------------------------------------------------------------------------------

    async def chunks(self, room: BodyMemory, most: int) -> AsyncIterator[bytes]:
        """Yield the body. TooLarge if it has more than ``most`` bytes."""
        self._check_length(most)
        while self._has_more:
            yield await self._chunk(room, most)

    async def body(self, room: BodyMemory, most: int) -> bytes:
        """Read the whole body. TooLarge; TooMany."""
        return b"".join([chunk async for chunk in self.chunks(room, most)])

    def _check_length(self, most: int) -> None:
        if (coding := self.header(b"content-encoding")) not in (None, "identity"):
            raise Refusal(415, f"a body has no content encoding, so not {shown(coding)}: send it as it is")
        told = self.header(b"content-length") or ""
        if told.isdigit() and int(told) > most:
            raise TooLarge(f"the body has {int(told):,} bytes, and the limit is {most:,}")

    async def _chunk(self, room: BodyMemory, most: int) -> bytes:
        chunk = await self._received()
        self._size += len(chunk)
        if self._size > most:
            raise TooLarge(f"the body has more than {most:,} bytes, the limit")
        room.take(-(-self._size // _ROOM_AT_ONCE) * _ROOM_AT_ONCE)
        return chunk

    async def _received(self) -> bytes:
        message = await self.request.receive()
        if message["type"] == "http.disconnect":
            raise Gone
        self._has_more = message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def piece(self, size: int) -> bytes:
        """Read about ``size`` bytes of a body without a limit; b"" at the end. Gone."""
        parts, found = list[bytes](), 0
        while self._has_more and found < size:
            parts.append(await self._received())
            found += len(parts[-1])
        return b"".join(parts)

    async def json_body(self, most: int = SMALL_BODY) -> dict[str, Any]:
        """Read a JSON object; {} for an empty body. InvalidArgument."""
        with self.server.room() as room:
            raw = await self.body(room, most)
        return json_object(raw)

    @property
    def connection(self) -> Any:
        return self.request.scope["state"][CONNECTION]

    async def wait_until_gone(self) -> None:
        """Return once the client has left. The body was read before."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


def _query(query: bytes, known: Collection[str] | None) -> dict[str, str]:
    """Return the arguments of an address. InvalidArgument if one is not ``known``, or not percent-encoded UTF-8."""
    try:
        found = dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")) if query else {}
    except ValueError:
        raise InvalidArgument("an argument of the address is no percent-encoded UTF-8, as gr%C3%BCn is") from None
    if known is not None and (unknown := found.keys() - known):
        told = ", ".join(known) or "none; the options of a put are headers"
        raise InvalidArgument(f"this address has no argument {shown(unknown.pop())}; there are {told}")
    return found


class Gone(Exception):
    """The client has left, so nobody reads the answer."""


class Answer(Response):
    """An answer: its content, and parts that follow. It is sent in pieces, as fast as the client takes them."""

    def __init__(
        self, status: int, body: bytes, headers: list[tuple[bytes, bytes]], parts: AsyncGenerator[bytes] | None = None
    ) -> None:
        self.status_code, self.body, self.raw_headers, self._parts = status, body, headers, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _sent(send, bytes(self.body))
        if self._parts is not None:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    if scope["state"][CONNECTION].transport.is_closing():
                        return
                    await _sent(send, part)
        await send({"type": "http.response.body", "body": b""})


async def _sent(send: Send, content: bytes) -> None:
    for start in range(0, len(content), _SENT_AT_ONCE):
        part = content[start : start + _SENT_AT_ONCE]
        await send({"type": "http.response.body", "body": part, "more_body": True})


def stream(call: WebCall, kind: str, parts: Generator[bytes]) -> Response:
    """Return an answer whose parts a thread makes while the client takes them. One part is made ahead.

    TooMany if clients that may not put have too many such answers.
    """
    rights = call.client.rights
    may_put = rights is None or any(each is Right.PUT for some in rights.values() for each, _ in some)
    if not may_put:
        check_room(call.server.streams, call.client.token, MOST_STREAMS, MOST_OF_A_TOKEN, "reads")
    return Answer(200, b"", [(b"content-type", kind.encode())], _made(call, parts, is_counted=not may_put))


async def _made(call: WebCall, parts: Generator[bytes], *, is_counted: bool) -> AsyncGenerator[bytes]:
    threads, counted = call.server.threads, [call.client.token] if is_counted else []
    call.server.streams += counted
    ahead = threads.submit(next, parts, b"")
    try:
        while part := await asyncio.wrap_future(ahead):
            ahead = threads.submit(next, parts, b"")
            yield part
    finally:
        for each in counted:
            call.server.streams.remove(each)
        ahead.cancel()
        ahead.add_done_callback(lambda _: parts.close())


def joined(parts: Iterator[bytes]) -> Generator[bytes]:
    """Yield small parts together."""
    waiting, size = list[bytes](), 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _SENT_AT_ONCE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


async def optional(name: str, status: int, extra: str) -> Any:
    """Return a module of this package. Refusal with this status if the packages of the extra are not installed."""
    try:
        return await asyncio.to_thread(import_module, f"{__package__}.{name}")
    except ImportError as error:
        text = f"the server cannot do this: install xaspool there with the extra [{extra}] ({error})"
        raise Refusal(status, text) from None


def json_object(raw: bytes, what: str = "the body") -> dict[str, Any]:
    """Return a JSON object; {} for no bytes. InvalidArgument."""
    found = json_of(raw, what) if raw.strip() else {}
    if not isinstance(found, dict):
        raise InvalidArgument(f"{what} is a JSON object")
    return found


def json_of(raw: bytes, what: str) -> Any:
    """Return a JSON value. InvalidArgument, with the place of the fault."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} is no JSON: {str(error) or 'it is nested too deeply'}"[:300]) from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"it has the number {text}")


def answer(status: int, content: bytes = b"", headers: Iterable[tuple[str, str]] = ()) -> Response:
    """Return an answer. The headers are all in ASCII."""
    found = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if status != 204:
        found.append((b"content-length", b"%d" % len(content)))
    return Answer(status, content, found)


def json_answer(status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """Return an answer with a JSON value."""
    content = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return answer(status, content, [("Content-Type", "application/json"), *headers])
