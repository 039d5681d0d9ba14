"""The writes in progress of a server's clients. All of them belong to the loop of the server.

A write of a DataFrame has a coordinator, whose lock the server holds. The branches of the write are undecided while the
write is in progress. If the server dies, the kernel releases the lock, and the branches are rolled back. If the client
dies, the write's lease ends, and the server ends the write.

A client renews the lease several times during the lease, so the network may fail for a moment. While rows arrive, the
lease needs no renewal.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import spool
from forwarder.web.limits import check_room
from forwarder.web.web_call import Server, WebCall
from spool.errors import SpoolError, TransactionRolledBack
from spool.model.xid import FORMAT_ROUND, Xid

MOST_WRITES, MOST_OF_A_TOKEN = 1024, 256
_LOOKS_A_LEASE = 6
_ENDED = (
    "nothing was written: the write has ended, because its client was away for too long, or the server has started "
    "again; write the DataFrame again"
)

log = logging.getLogger("spool.server")

T = TypeVar("T")
Name = tuple[str, str, str]
"""The name of a write: its space, its token, and the session in the addresses of its calls."""


class OpenWrite:
    """One write. ``id``: the gtrid of its branches. ``key``: the name of the stream that writes, or None."""

    def __init__(self, space: spool.Space, call: WebCall, key: str | None) -> None:
        self._coordinator = space.engine.coordinate()
        self.id, self.key, self._space = self._coordinator.id, key, space
        self.name = call.space, call.client.token, call.server.prefix + self.id.hex()
        self._used, self._work = time.monotonic(), set[object]()
        self.has_ended = False

    def check(self) -> None:
        """Raise TransactionRolledBack if the write has ended."""
        if self.has_ended:
            raise TransactionRolledBack(_ENDED)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Let the lease begin again behind the block. TransactionRolledBack if the write has ended. For any thread."""
        self.check()
        work = object()
        self._work.add(work)
        try:
            yield
        finally:
            self._work.remove(work)
            self._used = time.monotonic()

    def is_expired(self, seconds: float) -> bool:
        return not self._work and time.monotonic() - self._used > seconds

    def renewed_by(self, rows: Iterable[T]) -> Iterator[T]:
        """Yield the rows of a task. Each batch renews the lease, so a call without rows does not keep the write."""
        for each in rows:
            with self.renewed():
                yield each

    def xid(self, partition: int, attempt: int) -> Xid:
        return Xid(FORMAT_ROUND, self.id, f"{partition}.{attempt}".encode())

    def close(self) -> None:
        """Release the lock, and roll back the branches that are not committed."""
        with suppress(SpoolError, OSError):
            self._coordinator.close()
            self._space.engine.resolve_orphans()


class Writes:
    """The writes of a server by their names."""

    def __init__(self, server: Server) -> None:
        self.lease_seconds, self._threads = server.lease_seconds, server.in_thread
        self._writes: dict[Name, OpenWrite] = {}
        self._commits: OrderedDict[Name, asyncio.Task[bool]] = OrderedDict()
        self._expiring = asyncio.get_running_loop().create_task(self._end_expired())

    async def begin(self, space: spool.Space, call: WebCall, key: str | None) -> OpenWrite:
        """Begin a write. End an earlier write of the same stream and the same token.

        TooMany if too many writes are in progress, either in total or with the client's token.
        """
        await self.end_stream(call, key)
        check_room([owner for _, owner, _ in self._writes], call.client.token, MOST_WRITES, MOST_OF_A_TOKEN, "writes")
        write: OpenWrite = await self._threads(OpenWrite, space, call, key)
        self._writes[write.name] = write
        return write

    def find(self, call: WebCall) -> OpenWrite:
        """Return the write in the address of a call. TransactionRolledBack if the client has no such write."""
        found = self._writes.get(_name(call))
        if found is None:
            raise TransactionRolledBack(_ENDED)
        return found

    async def commit(self, call: WebCall, adopt: Callable[[OpenWrite], bool]) -> bool:
        """Commit a write, and end it. A repeated call gets the same answer.

        ``adopt`` commits the branches, in another thread, and returns whether the rows were written.
        """
        name = _name(call)
        if name not in self._commits:
            self._commits[name] = asyncio.create_task(self._committed(self.find(call), adopt))
            if len(self._commits) > MOST_WRITES:
                self._commits.popitem(last=False)
        return await asyncio.shield(self._commits[name])

    async def _committed(self, write: OpenWrite, adopt: Callable[[OpenWrite], bool]) -> bool:
        try:
            with write.renewed():
                is_written: bool = await self._threads(adopt, write)
        except BaseException:
            self._commits.pop(write.name, None)
            raise
        await self._end([write])
        return is_written

    async def end(self, call: WebCall) -> None:
        """End the write in the address of a call, if it is in progress."""
        await self._end([each for name, each in self._writes.items() if name == _name(call)])

    async def end_stream(self, call: WebCall, key: str | None) -> None:
        """End the writes of a stream. A stream of another token may have the same name; its writes go on."""
        named = call.space, call.client.token, key
        if key is not None:
            await self._end([each for each in self._writes.values() if (*each.name[:2], each.key) == named])

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(self.lease_seconds / _LOOKS_A_LEASE)
            expired = [each for each in self._writes.values() if each.is_expired(self.lease_seconds)]
            await self._end(expired)
            for each in expired:
                log.warning("the write %s has ended, because its client was away", each.id.hex())

    async def _end(self, writes: list[OpenWrite]) -> None:
        for each in writes:
            each.has_ended = True
            self._writes.pop(each.name, None)
        for each in writes:
            await self._threads(each.close)

    async def close(self) -> None:
        """End all writes. Uncommitted writes are rolled back."""
        self._expiring.cancel()
        await self._end(list(self._writes.values()))


def _name(call: WebCall) -> Name:
    return call.space, call.client.token, call.request.path_params.get("receipt", "")
