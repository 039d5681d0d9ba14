"""How tasks get messages. A thread claims the messages of a task. If several tasks wait for one queue, only one task
checks the queue. When this task has got a message, the next task checks the queue. One thread listens for the commits
of all queues. Some tasks wait for a message by its id or correlation id. A separate task (``_listen_for_all``) wakes
these tasks.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from spool.aio.tasks import Threads, wait_to_end
from spool.errors import Empty, MessageInUse
from spool.model.message import Message
from spool.runtime.calls import public_call
from spool.runtime.clock import LockTimeout
from spool.store.sought import Sought
from spool.transactions.claiming import Wanted, is_there
from spool.transactions.core import Core
from spool.transactions.delivery import get_alone
from spool.transactions.requests import PendingRequest, is_held, no_reply, reply_now
from spool.transactions.waiting import IDLE_SECONDS, pause_seconds, wake_arrived

_PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS = 0.001, 0.02

T = TypeVar("T")


class Receiver:
    """The gets of one space's tasks. Each argument ``get_once`` is a function that gets messages without waiting. The
    function raises Empty if no message can be taken."""

    def __init__(self, core: Core, threads: Threads) -> None:
        self.core = core
        self.threads = threads
        self._store = core.store
        self._listener = ThreadPoolExecutor(1, "spool-aio-listener")
        self._listening: asyncio.Future[None] | None = None
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting_by_key = 0
        self._listening_for_all: asyncio.Task[None] | None = None

    async def take(self, wanted: Wanted) -> list[Message]:
        """Get messages outside of any transaction."""
        now = replace(wanted, timeout=0)  # the task waits, so no thread has to wait
        get = partial(get_alone, self.core, now)
        return await self.receive(wanted, partial(self._get_unless_cancelled, wanted.queue, get))

    async def take_reply(self, request: PendingRequest) -> Message:
        """Wait for the reply of a request, and take the reply."""
        get_once = partial(self._get_unless_cancelled, request.reply_queue, partial(reply_now, self.core, request))
        try:
            held = partial(is_held, self._store.view, self._store.clock, request)
            return await self.wait_by_key(request.sought, held, self.until(request.timeout), get_once)
        except Empty:
            raise await self.threads.run(partial(no_reply, self._store.view, request)) from None

    async def _get_unless_cancelled(self, queue: str, get: Callable[[Callable[[], object]], T]) -> T:
        """Claim messages in a thread. Commit unless the task was cancelled during the claim.

        ``get``: a function that claims messages, calls its argument, and then commits.
        """
        self._store.guard.check()
        mutex = threading.Lock()
        is_cancelled = has_begun = False

        def give_up() -> bool:  # returns False if the commit has begun: then the commit completes
            nonlocal is_cancelled
            with mutex:
                is_cancelled = not has_begun
            return is_cancelled

        def begin_commit() -> None:
            nonlocal has_begun
            with mutex:
                if is_cancelled:
                    raise _Cancelled
                has_begun = True

        return await wait_to_end(self.threads.submit(partial(self._get, queue, partial(get, begin_commit))), give_up)

    @public_call("taking from queue {queue}")
    def _get(self, queue: str, get: Callable[[], T]) -> T:
        return get()

    async def receive(self, wanted: Wanted, get_once: Callable[[], Awaitable[list[Message]]]) -> list[Message]:
        """Get messages. If no message can be taken at once, wait for this task's turn at the queue. Then check the
        queue each time when a message may have arrived."""
        try:
            return await get_once()
        except (Empty, MessageInUse, LockTimeout):  # (LockTimeout: a lock did not become free, nothing happened)
            if wanted.timeout == 0:
                raise
        until = self.until(wanted.timeout)
        if wanted.by_key:
            is_held = partial(is_there, self._store.view, self._store.clock, wanted)
            return await self.wait_by_key((wanted.sought,), is_held, until, get_once)
        turn = self._turns.setdefault(wanted.queue, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await turn.acquire()
        except TimeoutError:
            return await get_once()
        try:
            return await self._wait(wanted, until, get_once)
        finally:
            turn.release()

    def until(self, timeout: float | None) -> float | None:
        """Return the time on the loop's clock when a wait that begins now ends, or None if the wait has no end."""
        return None if timeout is None else self.threads.loop.time() + timeout

    async def _wait(
        self, wanted: Wanted, until: float | None, get_once: Callable[[], Awaitable[list[Message]]]
    ) -> list[Message]:
        pause = _PAUSE_MIN_SECONDS
        while True:
            heard = self._store.shared.notifier.generation
            try:
                return await get_once()
            except (Empty, LockTimeout):
                left = IDLE_SECONDS if until is None else until - self.threads.loop.time()
                if left <= 0:
                    raise
            seconds = min(left, await self.threads.run(partial(self._pause_seconds, wanted, pause)))
            if self._store.shared.notifier.generation == heard:
                await self._listen_for(seconds)
            pause = min(pause * 1.5, _PAUSE_MAX_SECONDS)

    @public_call("waiting for a message")
    def _pause_seconds(self, wanted: Wanted, short: float) -> float:
        return pause_seconds(self._store.view, self._store.clock, wanted, short)

    async def _listen_for(self, seconds: float) -> None:
        """Wait until a message may have arrived, or until the time is over."""
        if self._listening is None or self._listening.done():
            self._listening = self.threads.loop.run_in_executor(self._listener, self._listen)
            self._listening.add_done_callback(asyncio.Future.exception)  # if the space is closed, the next get raises
        await asyncio.wait((self._listening,), timeout=seconds)

    @public_call("waiting for a message")
    def _listen(self) -> None:
        notifier = self._store.shared.notifier
        notifier.wait(notifier.generation, IDLE_SECONDS, seconds_without_inotify=_PAUSE_MAX_SECONDS)

    # -- one message, by its id or correlation id --------------------------------------------------------------------

    async def wait_by_key(
        self,
        sought: Collection[Sought],
        is_held: Callable[[], bool],
        until: float | None,
        get_once: Callable[[], Awaitable[T]],
    ) -> T:
        """Repeat the get each time when one of these messages may have arrived. While one of these messages exists but
        is held, repeat the get often.

        Raises the last attempt's error, Empty or MessageInUse.
        """
        arrived = asyncio.Event()
        wake = partial(self.threads.notify, arrived.set)
        pause = _PAUSE_MIN_SECONDS
        with self._store.view.sought.entered(sought, wake):
            self._waiting_by_key += 1
            try:
                while True:
                    arrived.clear()
                    try:
                        return await get_once()
                    except (Empty, MessageInUse, LockTimeout):
                        left = IDLE_SECONDS if until is None else until - self.threads.loop.time()
                        if left <= 0:
                            raise
                    if await self.threads.run(is_held):
                        await asyncio.sleep(min(pause, left))
                        pause = min(pause * 1.5, _PAUSE_MAX_SECONDS)
                        continue
                    self._let_listen()
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(until):
                            await arrived.wait()
            finally:
                self._waiting_by_key -= 1
                if not self._waiting_by_key and self._listening_for_all is not None:
                    self._listening_for_all.cancel()
                    self._listening_for_all = None

    def _let_listen(self) -> None:
        """Start the task ``_listen_for_all`` unless it runs."""
        if self._listening_for_all is None or self._listening_for_all.done():
            self._listening_for_all = self.threads.loop.create_task(self._listen_for_all())
            # Mark an error of this task as seen, because the calls that the task wakes raise the error.
            self._listening_for_all.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _listen_for_all(self) -> None:
        """Wake the tasks whose messages have arrived. ``wait_by_key`` ends this task when no task waits by id or
        correlation id any more."""
        notifier, pause = self._store.shared.notifier, _PAUSE_MIN_SECONDS
        looked = self.threads.loop.time()
        try:
            while True:
                heard = notifier.generation
                now = self.threads.loop.time()
                thorough = now - looked >= IDLE_SECONDS
                looked = now if thorough else looked
                if await self.threads.run(partial(self._wake_arrived, thorough)):
                    pause = _PAUSE_MIN_SECONDS
                if notifier.generation == heard:
                    await self._listen_for(IDLE_SECONDS)
                else:  # in a busy space, check once for several commits
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSE_MAX_SECONDS)
        finally:
            self._store.view.sought.wake_all()  # each woken task raises the error that ended this task

    @public_call("waiting for a message")
    def _wake_arrived(self, thorough: bool) -> bool:
        return wake_arrived(self._store, thorough=thorough)

    def end(self) -> None:
        """End the listener thread, because the space is closed."""
        self._listener.shutdown(wait=False)


class _Cancelled(Exception):
    """The task was cancelled before the commit of its get began."""
