"""The calls of Spark's processes: short requests, and rows, which go through threads in bounded pieces.

Arrow, the files of a space, and a disk's flush would block the loop, so threads do this work. While a client sends or
takes no rows, little memory is held: one piece is read ahead, and one piece is made ahead.
"""

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forwarder.network.arrow import Received, pieces, problem_piece
from forwarder.network.codes import MOST_BYTES, MSGPACK, encode, packed_vote
from forwarder.web.calls import Call, Gone, NoSpace, address, answer
from forwarder.web.connections import CONNECTION
from forwarder.web.tokens import Caller, Right
from spool.client.fields import ARROW
from spool.client.problems import TooMany, problem_of, status_of
from spool.engine.tasks import Vote
from spool.errors import DiskFailure, InvalidArgument, ProtocolError, SpoolError
from spool.workers.outcome import describe

MOST_READS, MOST_OF_A_TOKEN = 256, 64
"""The most reads in progress of clients that may not put: of all clients together, and of one token."""
_MOST_WRITES = 1024
_THREADS = 16
_PIECE, _PIECES = 2 << 20, 2  # the bytes that a thread takes at once, and the pieces that it makes at once
_PATIENCE = 5.0  # the seconds of silence after which a write checks whether it goes on
_DRAINED_BYTES, _DRAIN_SECONDS = 64 << 20, 2.0

log = logging.getLogger("spool.server")

Answer = Mapping[str, Any]


class Rows(Received):
    """The rows that a client sends, for a thread. The columns are read when the object is made."""

    def __init__(self, body: "_Body", most: int) -> None:
        super().__init__(body.piece)
        self._body, self._most = body, most

    def until(self, check: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """Yield the batches. ``check``: called after each batch, and in a silence; its error ends the call.

        InvalidArgument if the client sends more bytes than a task may.
        """
        self._body.check = check
        size = 0
        for batch in self.batches():
            size += batch.nbytes
            if size > self._most:
                raise InvalidArgument(
                    f"a task sends at most {self._most:,} bytes: divide the rows among more tasks (repartition), or "
                    "start spool-serve with a larger --max-write"
                )
            check()
            yield batch


class Transfers:
    """Answers the calls of Spark's processes. A subclass knows the calls: ``frames`` of spaces, ``offers`` of a round.

    ``most_bytes``: the most bytes that one task may send.
    """

    actions: ClassVar[Mapping[str, Callable[[Any, Call, bytes], Answer]]]
    """The calls with one answer."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._threads = ThreadPoolExecutor(_THREADS, "xaspool rows")
        self._writes = ThreadPoolExecutor(_MOST_WRITES, "xaspool write")
        self._readers: list[str] = []  # the tokens of the reads in progress

    async def end(self) -> None:
        """End the threads once their calls have ended."""
        for each in (self._threads, self._writes):
            each.shutdown(wait=False, cancel_futures=True)

    def read(self, call: Call, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns and the rows that a request names."""
        raise NotImplementedError

    def admit(self, call: Call) -> Callable[[], object]:
        """Raise an error unless the client may send rows now. Return a function that checks whether it still may."""
        return lambda: None

    def write(self, call: Call, rows: Rows) -> tuple[Vote | None, Answer]:
        """Write the rows of a task into a branch; return the vote, and further values for the answer.

        A second branch of one attempt at a task raises DiskFailure.
        """
        raise NotImplementedError

    async def answer(self, call: Call) -> Response:
        """Answer a call. If the client's values are wrong in a way that no check has found, that is no failure."""
        name = call.request.path_params["call"]
        try:
            if name == "write":
                return await self._write(call)
            with call.server.room() as room:
                data = await call.body(room, MOST_BYTES)
                if name == "read":
                    return await self._read(call, data)
                act = self.actions.get(name)
                if act is None:
                    raise NoSpace(f"there is no call {name[:100]!r}")
                return _answer(await self.in_thread(act, self, call, data))
        except (SpoolError, OSError):
            raise
        except (TypeError, ValueError, LookupError) as error:
            told = f"{call.caller.name}: the request has a wrong value: {describe(error)}"
            call.server.refuse(address(call.request), told, known=True)
            raise InvalidArgument(f"the request has a wrong value: {error}"[:1000]) from error

    async def in_thread(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    # -- rows to the client -------------------------------------------------------------------------------------------

    async def _read(self, call: Call, data: bytes) -> Response:
        with ExitStack() as held:
            held.enter_context(self._reading(call.caller))
            schema, batches = await self.in_thread(self.read, call, data)
            sent = pieces(schema, batches)
            first = await self.in_thread(_made, sent)  # (an error of the first rows is a plain answer)
            return _Sent(call, schema, first, sent, self._threads, held.pop_all())

    @contextmanager
    def _reading(self, caller: Caller) -> Iterator[None]:
        """Count a read during the block. TooMany if clients that may not put have too many reads."""
        may_put = caller.rights is None or any(kind is Right.PUT for some in caller.rights.values() for kind, _ in some)
        if not may_put:
            check_room(self._readers, caller.token, MOST_READS, MOST_OF_A_TOKEN, "reads in progress")
            self._readers.append(caller.token)
        try:
            yield
        finally:
            if not may_put:
                self._readers.remove(caller.token)

    # -- rows from the client -----------------------------------------------------------------------------------------

    async def _write(self, call: Call) -> Response:
        body = _Body(call)
        try:
            body.check = self.admit(call)
            connection_of(call).wait_long()
            vote, more = await asyncio.get_running_loop().run_in_executor(self._writes, self._voted, call, body)
        except Gone:
            raise
        except Exception:
            await body.drain()
            raise
        return _answer({"vote": packed_vote(vote), **more})

    def _voted(self, call: Call, body: "_Body") -> tuple[Vote | None, Answer]:
        try:
            return self.write(call, Rows(body, self.most_bytes))
        except DiskFailure as error:
            if error.errno != errno.EEXIST:
                raise
            raise ProtocolError("this attempt at the task has voted already") from None


def _answer(values: Answer) -> Response:
    return answer(200, encode(values), [("Content-Type", MSGPACK)])


def check_room(owners: Collection[str], token: str, most: int, most_of_a_token: int, things: str) -> None:
    """Raise TooMany if the server or the token already has the largest allowed number of things.

    ``owners``: the tokens of the present things. ``token``: "" if the server has no tokens.
    """
    if token and sum(owner == token for owner in owners) >= most_of_a_token:
        raise TooMany(f"the token has {most_of_a_token:,} {things}: end one, then try again")
    if len(owners) >= most:
        raise TooMany(f"the server has {most:,} {things}: end one, then try again")


def connection_of(call: Call) -> Any:
    """Return the connection of a call."""
    return call.request.scope["state"][CONNECTION]


class _Body:
    """The body of a request in pieces, for a thread. ``check``: called in a silence; its error ends the call."""

    check: Callable[[], object]

    def __init__(self, call: Call) -> None:
        self._chunks, self._loop = call.request.stream(), asyncio.get_running_loop()
        self._ahead: Future[bytes] | None = None

    def piece(self) -> bytes:
        """Return the next piece, or b"" at the end. Gone if the client has left."""
        ahead = self._ahead or self._begin()
        while True:
            try:
                found = ahead.result(_PATIENCE)
                break
            except TimeoutError:
                self.check()
        self._ahead = self._begin() if found else ahead
        return found

    def _begin(self) -> "Future[bytes]":
        self._ahead = asyncio.run_coroutine_threadsafe(self._gathered(), self._loop)
        return self._ahead

    async def _gathered(self) -> bytes:
        parts, size = list[bytes](), 0
        try:
            async for chunk in self._chunks:
                parts.append(chunk)
                size += len(chunk)
                if size >= _PIECE:
                    break
        except ClientDisconnect:
            raise Gone from None
        return b"".join(parts)

    async def drain(self) -> None:
        """Read on for a while, because a client reads an answer only after it has sent its rows."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                piece = await asyncio.wrap_future(self._ahead or self._begin())
                while piece and size < _DRAINED_BYTES:
                    size += len(piece)
                    piece = await self._gathered()


class _Sent(Response):
    """An answer with rows. It ends with the client, or with the first error."""

    def __init__(
        self, call: Call, schema: pa.Schema, first: Any, sent: Any, work: ThreadPoolExecutor, held: ExitStack
    ) -> None:
        self._call, self._schema, self._first, self._sent = call, schema, first, sent
        self._threads, self._held = work, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", ARROW.encode())]
        ahead: Future[Any] = Future()
        gone, connection = asyncio.ensure_future(self._call.wait_until_gone()), connection_of(self._call)
        connection.wait_long()

        def send_piece(piece: Any) -> Any:
            return send({"type": "http.response.body", "body": piece, "more_body": True})

        try:
            with self._held:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                made = self._first
                while made and not gone.done():
                    ahead = self._threads.submit(_made, self._sent)
                    for piece in made:
                        await send_piece(piece)
                    made = await asyncio.wrap_future(ahead)
                await send({"type": "http.response.body", "body": b""})
        except Exception as error:  # (the status is sent, so the client gets the error as the last rows)
            status = status_of(error)
            if status == 500:
                log.error("a read failed unexpectedly: %s", error, exc_info=error)
            await send_piece(problem_piece(self._schema, json.dumps(problem_of(error, status, {})).encode()))
            connection.transport.close()
            await asyncio.wait([gone], timeout=_DRAIN_SECONDS)
        finally:
            gone.cancel()
            ahead.cancel()
            ahead.add_done_callback(partial(_close, self._threads, self._sent))


def _made(sent: Iterator[Any]) -> list[Any]:
    return list(islice(sent, _PIECES))


def _close(threads: ThreadPoolExecutor, sent: "Generator[Any]", _: object) -> None:
    with suppress(RuntimeError):  # (the server has ended)
        threads.submit(sent.close)
