"""How tasks get messages. A thread claims the messages of a task. ``spool.transactions.waiting`` decides when a task
attempts again. If several tasks wait for one queue, only one task checks the queue. When this task has got a message,
the next task checks the queue. One thread listens for commits, and wakes the tasks whose messages have arrived.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from spool.admin.reads import find_now, is_never_held
from spool.aio.threads import Threads, wait_to_end
from spool.errors import Empty, MessageInUse
from spool.model.message import Message
from spool.runtime.call_guard import public_call
from spool.runtime.clock import Deadline, LockTimeout
from spool.store.awaited import Awaited
from spool.transactions.claiming import Wanted, is_there
from spool.transactions.core import Core
from spool.transactions.hold import get_alone
from spool.transactions.request_reply import PendingRequest, is_held, no_reply, reply_now
from spool.transactions.waiting import IDLE_SECONDS, Pause, Pauses, listen_for_all, pauses

T = TypeVar("T")


class Receiver:
    """The gets of one space's tasks. Each argument ``get_once`` is a function that gets messages without waiting. The
    function raises Empty if no message can be taken."""

    def __init__(self, core: Core, threads: Threads) -> None:
        self.core = core
        self.threads = threads
        self._store = core.store
        self._listener = ThreadPoolExecutor(1, "spool-aio-listener")
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting = 0
        self._listening: asyncio.Task[None] | None = None

    async def take(self, wanted: Wanted) -> list[Message]:
        """Get messages outside of any transaction."""
        get = partial(get_alone, self.core, replace(wanted, timeout=0))  # the task waits, so no thread has to wait
        return await self.receive(wanted, partial(self._get_unless_cancelled, wanted.queue, get))

    async def take_reply(self, request: PendingRequest) -> Message:
        """Wait for the reply of a request, and take the reply."""
        get_once = partial(self._get_unless_cancelled, request.reply_queue, partial(reply_now, self.core, request))
        try:
            held = partial(is_held, self._store.view, self._store.clock, request)
            return await self._repeat(request.awaited, held, get_once, self._store.deadline(request.timeout))
        except Empty:
            raise await self.threads.run(partial(no_reply, self._store.view, request)) from None

    async def find(self, wanted: Wanted, other_than: str | None) -> Message | None:
        """Find the newest message with a correlation id; wait for it up to ``wanted.timeout`` seconds."""
        look = partial(self.threads.run, partial(self._find, wanted.queue, wanted, other_than))
        try:
            deadline = self._store.deadline(wanted.timeout)
            return await self._repeat((wanted.awaited,), is_never_held, look, deadline)
        except Empty:
            return None

    @public_call("looking into queue {queue}")
    def _find(self, queue: str, wanted: Wanted, other_than: str | None) -> Message:
        if (found := find_now(self._store, wanted, other_than)) is None:
            raise Empty(f"queue {queue} has no message with this correlation id")
        return found

    async def _get_unless_cancelled(self, queue: str, get: Callable[[Callable[[], object]], T]) -> T:
        """Claim messages in a thread. Commit unless the task was cancelled during the claim.

        ``get``: a function that claims messages, calls its argument, and then commits.
        """
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

    async def receive(
        self, wanted: Wanted, get_once: Callable[[], Awaitable[list[Message]]], *, alone: bool = False
    ) -> list[Message]:
        """Get messages. If no message can be taken at once, wait for this task's turn at the queue, unless it checks
        the queue ``alone``. Then check the queue each time when a message may have arrived."""
        try:
            return await get_once()
        except (Empty, MessageInUse, LockTimeout):  # (LockTimeout: a lock did not become free, nothing happened)
            if wanted.timeout == 0:
                raise
        deadline = self._store.deadline(wanted.timeout)
        held = partial(is_there, self._store.view, self._store.clock, wanted)
        wait = partial(self._repeat, (wanted.awaited,), held, get_once, deadline, wanted.head)
        if wanted.by_key or alone:
            return await wait()
        turn = self._turns.setdefault(wanted.queue, asyncio.Lock())
        with self._store.meters.consumers.waiting(wanted.queue):
            try:
                async with asyncio.timeout(wanted.timeout):
                    await turn.acquire()
            except TimeoutError:
                return await get_once()
            try:
                return await wait()
            finally:
                turn.release()

    async def _repeat(
        self,
        awaited: Collection[Awaited],
        is_held: Callable[[], bool],
        get_once: Callable[[], Awaitable[T]],
        deadline: Deadline,
        head: str | None = None,
    ) -> T:
        """Repeat the get until it gets something. Raise the error of the last get when the time is over.

        A get follows each arrival of a message that ``awaited`` names. ``is_held``, ``head``: as for ``pauses``.
        """
        event = asyncio.Event()
        arrived: bool | None = None
        # An attempt of a task uses two threads, so the pauses are longer than those of a thread.
        steps = pauses(self._store, head, is_held, deadline, shortest=0.001, slowest=0.02)
        with self._store.view.awaited.entered(awaited, partial(self.threads.notify, event.set)):
            self._waiting += 1
            try:
                while True:
                    try:
                        return await get_once()
                    except (Empty, MessageInUse, LockTimeout):
                        if deadline.remaining() <= 0:
                            raise
                    pause = await self.threads.run(partial(self._next_pause, steps, arrived))
                    await asyncio.sleep(pause.deaf)
                    arrived = pause.seconds > 0 and await self._wait(event, pause.seconds)
            finally:
                self._waiting -= 1

    @public_call("waiting for a message")
    def _next_pause(self, steps: Pauses, arrived: bool | None) -> Pause:
        return steps.send(arrived)

    async def _wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until the event is set or the time is over; return whether it was set, and clear it."""
        if self._listening is None or self._listening.done():
            self._listening = self.threads.loop.create_task(self._listen())
            # Mark an error of this task as seen, because the gets that the task wakes raise it.
            self._listening.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout(seconds if seconds < float("inf") else None):
                await event.wait()
        except TimeoutError:
            return False
        event.clear()
        return True

    async def _listen(self) -> None:
        """Wake the tasks whose messages have arrived, as long as a task waits."""
        try:
            while self._waiting:
                await self.threads.loop.run_in_executor(self._listener, self._listen_for_all)
        finally:
            self._store.view.awaited.wake_all()  # each task attempts a get, and raises the error that ended this task

    @public_call("waiting for a message")
    def _listen_for_all(self) -> None:
        listen_for_all(self._store, threading.Event(), IDLE_SECONDS)

    def end(self) -> None:
        """End the listener thread, because the space is closed."""
        self._listener.shutdown(wait=False)


class _Cancelled(Exception):
    """The task was cancelled before the commit of its get began."""
