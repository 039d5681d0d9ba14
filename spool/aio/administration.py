"""What an administrator asks of a space, for asyncio: each call, and its ``progress``, in a thread, to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

import spool.space
from spool.admin.listing import QueueEntry
from spool.admin.stats import QueueStats
from spool.aio.tasks import finish
from spool.model.message import Message
from spool.model.options import MessageFilters
from spool.store.store import Store

_BROWSED_AT_ONCE = 64

P = ParamSpec("P")
T = TypeVar("T")


def _threaded(
    call: "Callable[Concatenate[spool.space.Space, P], T]",
) -> "Callable[Concatenate[Administration, P], Coroutine[Any, Any, T]]":
    """A call of ``spool.Space``, done in a thread, to its end."""

    @wraps(call)
    async def threaded(self: "Administration", /, *args: P.args, **options: P.kwargs) -> T:
        self._store.gate.check()
        return await self._to_the_end(partial(call, self.sync, *args, **options))

    threaded.__module__, threaded.__qualname__ = __name__, f"Space.{call.__name__}"
    return threaded


class Administration:
    """The part of ``spool.aio.Space`` that administers it."""

    sync: "spool.space.Space"
    _store: Store
    _loop: asyncio.AbstractEventLoop
    _threads: ThreadPoolExecutor

    async def browse(self, queue: str, **filters: Unpack[MessageFilters]) -> AsyncIterator[Message]:
        """As ``spool.Space.browse``."""
        async for message in self._each(self.sync.browse(queue, **filters)):
            yield message

    async def entries(self, queue: str, **filters: Unpack[MessageFilters]) -> AsyncIterator[QueueEntry]:
        """As ``spool.Space.entries``."""
        async for entry in self._each(self.sync.entries(queue, **filters)):
            yield entry

    async def _each(self, found: Iterator[T]) -> AsyncIterator[T]:
        while some := await self._in_thread(lambda: list(islice(found, _BROWSED_AT_ONCE))):
            for one in some:
                yield one

    @overload
    async def stats(self) -> dict[str, QueueStats]: ...
    @overload
    async def stats(self, queue: str) -> QueueStats: ...
    async def stats(self, queue: str | None = None) -> dict[str, QueueStats] | QueueStats:
        """As ``spool.Space.stats``."""
        return await self._in_thread(self.sync.stats if queue is None else partial(self.sync.stats, queue))

    queues = _threaded(spool.space.Space.queues)
    create_queue = _threaded(spool.space.Space.create_queue)
    change_queue = _threaded(spool.space.Space.change_queue)
    delete_queue = _threaded(spool.space.Space.delete_queue)
    open_drop = _threaded(spool.space.Space.open_drop)
    holders = _threaded(spool.space.Space.holders)
    entry = _threaded(spool.space.Space.entry)
    show = _threaded(spool.space.Space.show)
    delete = _threaded(spool.space.Space.delete)
    move = _threaded(spool.space.Space.move)
    change = _threaded(spool.space.Space.change)
    purge = _threaded(spool.space.Space.purge)
    redrive = _threaded(spool.space.Space.redrive)
    check = _threaded(spool.space.Space.check)
    quarantined = _threaded(spool.space.Space.quarantined)
    quarantined_file = _threaded(spool.space.Space.quarantined_file)
    restore_quarantined = _threaded(spool.space.Space.restore_quarantined)
    delete_quarantined = _threaded(spool.space.Space.delete_quarantined)
    export = _threaded(spool.space.Space.export)

    # -- threads ----------------------------------------------------------------------------------------------------

    async def _in_thread(self, call: Callable[[], T]) -> T:
        self._store.gate.check()
        return await self._loop.run_in_executor(self._threads, call)

    async def _to_the_end(self, call: Callable[[], T]) -> T:
        """In a thread. A task that is cancelled meanwhile hears the outcome, and is cancelled where it waits next."""
        return await finish(self._loop.run_in_executor(self._threads, call))
