"""The calls of Spark's processes: short requests, and rows, which go through threads in bounded pieces.

Arrow, the files of a space, and a disk's flush would block the loop, so threads do this work. While a client sends no
rows, little memory is held: one piece is read ahead.
"""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa
from starlette.responses import Response

from forwarder.network.arrow import Received
from forwarder.web.web_call import Refusal, WebCall, address
from spool.client.problems import problem_of, status_of
from spool.errors import DiskFailure, InvalidArgument, ProtocolError, SpoolError
from spool.model.checks import whole
from spool.workers.outcome import describe

_MOST_WRITES = 1024
_PIECE = 2 << 20
_PATIENCE = 5.0  # the seconds of silence after which a write checks whether it goes on
_MOST_TASKS, MOST_COUNTED = 2**31 - 1, 2**63 - 1  # the largest Java int and Java long

_Found = TypeVar("_Found")


class Rows(Received):
    """The rows that a client sends, for a thread. The columns are read when the object is made.

    most: the most bytes of the rows. check: called after each batch, and in a silence; its error ends the call.
    """

    def __init__(self, call: WebCall, loop: asyncio.AbstractEventLoop, most: int, check: Callable[[], object]) -> None:
        self._call, self._loop, self._most, self._check = call, loop, most, check
        self._ahead = self._begun()
        super().__init__(self._piece)

    def _begun(self) -> "Future[bytes]":
        return asyncio.run_coroutine_threadsafe(self._call.piece(_PIECE), self._loop)

    def _piece(self) -> bytes:
        while True:
            try:
                found = self._ahead.result(_PATIENCE)
                break
            except TimeoutError:
                self._check()
        if found:
            self._ahead = self._begun()
        return found

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the batches. InvalidArgument if the client sends more bytes than a task may."""
        size = 0
        for batch in super().batches():
            size += batch.nbytes
            if size > self._most:
                raise InvalidArgument(
                    f"a task sends at most {self._most:,} bytes: divide the rows among more tasks (repartition), or "
                    "start spool-serve with a larger --max-write"
                )
            self._check()
            yield batch


class Transfers:
    """Answers the calls of Spark's processes. A subclass knows the calls: ``spark`` of spaces, ``offers`` of a round.

    most_bytes: the most bytes that one task may send.
    """

    calls: Mapping[str, Callable[[Any, WebCall], Awaitable[Response]]]

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._writes = ThreadPoolExecutor(_MOST_WRITES, "xaspool write")

    async def end(self) -> None:
        """End the threads once their calls have ended."""
        self._writes.shutdown(wait=False, cancel_futures=True)

    async def answer(self, call: WebCall) -> Response:
        """Answer a call. If the client's values are wrong in a way that no check has found, that is no failure."""
        name = call.request.path_params["call"]
        if name not in self.calls:
            raise Refusal(404, f"there is no call {name[:100]!r}")
        try:
            return await self.calls[name](self, call)
        except (SpoolError, OSError):
            raise
        except (TypeError, ValueError, LookupError) as error:
            told = f"{call.client.name}: the request has a wrong value: {describe(error)}"
            call.server.refuse(address(call.request), told, known=True)
            raise InvalidArgument(f"the request has a wrong value: {error}"[:1000]) from error

    async def received(
        self, call: WebCall, work: Callable[[Rows], _Found], check: Callable[[], object] = lambda: None
    ) -> _Found:
        """Do ``work`` with the rows of a task in a thread. Raises ProtocolError if the task's attempt has voted."""
        loop = asyncio.get_running_loop()
        call.connection.wait_long()
        try:
            return await loop.run_in_executor(self._writes, lambda: work(Rows(call, loop, self.most_bytes, check)))
        except DiskFailure as error:
            if error.errno != errno.EEXIST:
                raise
            raise ProtocolError("this attempt at the task has voted already") from None


def problem(error: Exception) -> bytes:
    """Return the body of an error's answer."""
    return json.dumps(problem_of(error, status_of(error), {})).encode()


def attempt_of(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of a task, and the number of the attempt."""
    return whole(int(values["task"]), _MOST_TASKS), whole(int(values["attempt"]), MOST_COUNTED)
