"""How tasks get messages: each claims in a thread; of the tasks that wait at one queue, one looks for all.

A task that gets a message lets the next one look. One thread listens for commits, for all queues.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import spool.transactions.transaction
from spool.aio.tasks import Threads, wait_to_end
from spool.engine import Engine
from spool.errors import Empty
from spool.model.message import Message
from spool.runtime.calls import public_call
from spool.transactions.claiming import Wanted
from spool.transactions.delivery import get_alone
from spool.transactions.waiting import IDLE_SECONDS, pause_seconds

_PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS = 0.001, 0.02


class Receiver:
    """The gets of one space's tasks. ``attempt`` is called to look once; it raises Empty if there is no message."""

    def __init__(self, engine: Engine, threads: Threads) -> None:
        self.engine = engine
        self.threads = threads
        self._store = engine.store
        self._listener = ThreadPoolExecutor(1, "spool-aio-listener")
        self._listening: asyncio.Future[None] | None = None
        self._turns: dict[str, asyncio.Lock] = {}

    async def take(self, wanted: Wanted) -> list[Message]:
        """Get messages in no transaction."""
        return await self.receive(wanted, partial(self._take, wanted))

    def _take(self, wanted: Wanted) -> Awaitable[list[Message]]:
        self._store.guard.check()
        return _GetAttempt(self.engine, self.threads, wanted).take()

    async def receive(self, wanted: Wanted, attempt: Callable[[], Awaitable[list[Message]]]) -> list[Message]:
        """Look; then, while there is none, wait for the queue's turn, and look whenever a message may have come."""
        try:
            return await attempt()
        except Empty:
            if wanted.timeout == 0:
                raise
        until = None if wanted.timeout is None else self.threads.loop.time() + wanted.timeout
        turn = self._turns.setdefault(wanted.queue, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await turn.acquire()
        except TimeoutError:
            return await attempt()
        try:
            return await self._wait(wanted, until, attempt)
        finally:
            turn.release()

    async def _wait(
        self, wanted: Wanted, until: float | None, attempt: Callable[[], Awaitable[list[Message]]]
    ) -> list[Message]:
        pause = _PAUSE_MIN_SECONDS
        while True:
            heard = self._store.shared.notifier.generation
            try:
                return await attempt()
            except Empty:
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
        """Wait until a message may have come, or until the time is over."""
        if self._listening is None or self._listening.done():
            self._listening = self.threads.loop.run_in_executor(self._listener, self._listen)
            self._listening.add_done_callback(asyncio.Future.exception)  # of a closed space: the next look raises it
        await asyncio.wait((self._listening,), timeout=seconds)

    @public_call("waiting for a message")
    def _listen(self) -> None:
        notifier = self._store.shared.notifier
        notifier.wait(notifier.generation, IDLE_SECONDS, seconds_without_inotify=_PAUSE_MAX_SECONDS)

    def end(self) -> None:
        """End the listener thread: the space is closed."""
        self._listener.shutdown(wait=False)


class _Cancelled(Exception):
    """The task was cancelled before the commit of its get began."""


class _GetAttempt:
    """One attempt to get messages: claimed in a thread, and committed unless the task was cancelled meanwhile."""

    def __init__(self, engine: Engine, threads: Threads, wanted: Wanted) -> None:
        self._engine = engine
        self._store = engine.store
        self._threads = threads
        self._wanted = replace(wanted, timeout=0)  # the task waits, and no thread
        self._mutex = threading.Lock()
        self._cancelled = self._begun = False

    async def take(self) -> list[Message]:
        return await wait_to_end(self._threads.submit(partial(self._get, self._wanted.queue)), self._give_up)

    def _give_up(self) -> bool:
        """Cancel the attempt; False if its commit has begun, which is then finished."""
        with self._mutex:
            self._cancelled = not self._begun
        return self._cancelled

    @public_call("taking from queue {queue}")
    def _get(self, queue: str) -> list[Message]:
        try:
            return get_alone(self._engine, self._wanted, self._begin_commit)
        except _Cancelled:
            return []

    def _begin_commit(self) -> None:
        with self._mutex:
            if self._cancelled:
                raise _Cancelled
            self._begun = True


def get_now(transaction: "spool.transactions.transaction.Transaction", wanted: Wanted) -> list[Message]:
    """Get messages without waiting; in a thread."""
    return transaction.get_many(
        wanted.queue, wanted.count, message_id=wanted.message_id, correlation_id=wanted.correlation_id
    )
