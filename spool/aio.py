"""A queue space for asyncio: ``async with spool.aio.open(path) as space: await space.put(…)``.

The engine is the same. A put joins the line of what is committed next, and the loop hears once of all that a commit
did, not once a message. A get works in a thread, since it reads and locks.
"""

import asyncio
import os
import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import spool.space
from spool.arguments import check_wanted
from spool.association import associated
from spool.errors import Empty
from spool.gate import step
from spool.gathering import Puts, Work
from spool.message import Message

_GETTERS = 4
_PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS = 0.001, 0.02


class Space:
    """An open queue space, for the tasks of one loop. ``sync`` is the same space as threads see it."""

    def __init__(self, space: "spool.space.Space") -> None:
        self.sync = space
        self._store = space._store
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_GETTERS, "spool-aio")

    # -- putting ----------------------------------------------------------------------------------------------------

    async def put(self, queue: str, body: Any, **options: Any) -> str:
        """As ``spool.Space.put``. A put that is cancelled before its commit has begun leaves nothing."""
        return (await self.put_many(queue, (body,), **options))[0]

    async def put_many(self, queue: str, bodies: Iterable[Any], **options: Any) -> list[str]:
        """As ``spool.Space.put_many``."""
        transaction = associated(self._store)
        if transaction is not None:
            return transaction.put_many(queue, bodies, **options)
        work = self._send(queue, list(bodies), options)
        await work.future
        return work.ids

    @step
    def _send(self, queue: str, bodies: list[Any], options: dict[str, Any]) -> Puts:
        work = self.sync._puts(queue, bodies, **options)
        work.future = future = self._loop.create_future()
        work.begin = lambda: not future.cancelled()
        work.told = self._told
        self._store.group.send(work)
        return work

    def _told(self, works: Sequence[Work]) -> None:
        """In another thread; of all that one commit did."""
        try:
            self._loop.call_soon_threadsafe(self._resolve, works)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _resolve(self, works: Sequence[Work]) -> None:
        for work in works:
            if work.future.done():
                continue  # cancelled, too late
            if work.error is None:
                work.future.set_result(None)
            else:
                work.future.set_exception(self._store.group.spoken(work.error))

    # -- getting ----------------------------------------------------------------------------------------------------

    async def get(self, queue: str, **options: Any) -> Message:
        """As ``spool.Space.get``. Cancelled, it gives back what it has claimed; once its commit has begun it comes to
        its end and returns the message, and the task is cancelled where it waits next."""
        return (await self.get_many(queue, 1, **options))[0]

    async def get_many(
        self, queue: str, max_messages: int, *, timeout: float | None = 0, **options: Any
    ) -> list[Message]:
        """As ``spool.Space.get_many``."""
        check_wanted(queue, max_messages, timeout, options.get("message_id"), options.get("correlation_id"))
        until = None if timeout is None else self._loop.time() + timeout
        pause = _PAUSE_MIN_SECONDS
        while True:
            try:
                transaction = associated(self._store)
                if transaction is not None:
                    return transaction.get_many(queue, max_messages, **options)
                return await _Taking(self, queue, max_messages, options).take()
            except Empty:
                left = pause if until is None else until - self._loop.time()
                if left <= 0:
                    raise
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _PAUSE_MAX_SECONDS)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """As ``spool.Space.close``: what was put is committed first."""
        await asyncio.to_thread(self.sync.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Taking:
    """One attempt to get messages: claimed in a thread, and committed unless the task was cancelled meanwhile."""

    def __init__(self, space: Space, queue: str, count: int, options: dict[str, Any]) -> None:
        self.space = space
        self.asked = (queue, count, options)
        self.mutex = threading.Lock()
        self.cancelled = self.begun = False

    async def take(self) -> list[Message]:
        loop = self.space._loop
        claiming = loop.run_in_executor(self.space._threads, self._claim)
        while not claiming.done():
            try:
                await asyncio.shield(claiming)
            except asyncio.CancelledError as error:
                with self.mutex:
                    self.cancelled = not self.begun
                if self.cancelled:
                    claiming.add_done_callback(asyncio.Future.exception)  # nobody asks any more
                    raise
                loop.call_soon(_cancel_again, asyncio.current_task(), *error.args)
        return claiming.result()

    def _claim(self) -> list[Message]:
        queue, count, options = self.asked
        own = self.space.sync._own_transaction()
        try:
            found = own.get_many(queue, count, **options)
            with self.mutex:
                if self.cancelled:
                    return []
                self.begun = True
            own.commit()
            return found
        finally:
            own.abandon()


def _cancel_again(task: "asyncio.Task[Any] | None", *why: object) -> None:
    """Unless who cancelled it (a timeout, say) has taken that back, because the task came to its end in time."""
    if task is not None and task.cancelling():
        task.uncancel()
        task.cancel(*why)


class _Opening:
    """``await`` it, or enter it with ``async with``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._space: Space | None = None

    def __await__(self) -> Generator[Any, None, Space]:
        return self._open().__await__()

    async def _open(self) -> Space:
        opening = asyncio.get_running_loop().run_in_executor(None, spool.space.open, self._path)
        try:
            return Space(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unseen)
            raise

    async def __aenter__(self) -> Space:
        self._space = await self._open()
        return self._space

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._space is not None
        await self._space.close()


def _close_unseen(opening: "asyncio.Future[spool.space.Space]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.get_loop().run_in_executor(None, opening.result().close)


def open(path: str | os.PathLike[str]) -> _Opening:
    """An existing queue space, for ``async with`` or ``await``; errors as ``spool.open``."""
    return _Opening(path)
