"""``spool.aio.Space.work``: the loop that takes messages and calls a function for each, in tasks.

One task takes; it starts a task for each message, up to a number that run side by side. A coroutine that takes too long
is cancelled, so its time limit is a real one. A plain function is called in a thread, which nothing can end: one that
takes too long is given up, as ``spool.workers.worker`` does it.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import spool.space
from spool.aio.receiver import Receiver
from spool.errors import Empty, TransactionTimeout
from spool.model.message import Message
from spool.transactions.claiming import Wanted
from spool.transactions.waiting import IDLE_SECONDS
from spool.workers.attempt import Attempt
from spool.workers.call_threads import CallThreads
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Retried, of_error, of_value
from spool.workers.single_pass import SinglePass
from spool.workers.worker import (
    ENDED,
    MOST_ABANDONED,
    WorkSummary,
    calling,
    check_at_once,
    check_work,
    log_abandoned,
    log_failure,
    too_many_hang,
)


class _TookTooLong(Exception):
    """The call has used up its time."""


class TaskWorker:
    """The calls of one worker that are under way, and what came of those before. See ``spool.aio.Space.work``."""

    def __init__(
        self,
        space: "spool.space.Space",
        receiver: Receiver,
        queue: str,
        function: Callable[[Message], Any],
        timeout: float | None,
        *,
        once: bool,
    ) -> None:
        self.summary = WorkSummary()
        self.running: dict[asyncio.Task[None], Attempt] = {}
        self.once = SinglePass() if once else None
        self._space = space
        self._receiver = receiver
        self._run_to_end = receiver.threads.run_to_end
        self._queue = queue
        self._function = function
        self._is_coroutine = inspect.iscoroutinefunction(function)
        self._timeout = timeout
        self._threads = CallThreads(f"spool-aio-work-{queue}")
        self._most_hanging = 0

    async def work(self, tasks: int, stop: asyncio.Event | None) -> WorkSummary:
        """Call the function in up to ``tasks`` tasks, until the event ``stop`` is set, or once for each message."""
        check_at_once("tasks", tasks)
        await self._receiver.threads.run(partial(check_work, self._space, self._queue, self._function, self._timeout))
        try:
            while not (self.is_at_end() or (stop is not None and stop.is_set())):
                if len(self.running) == tasks:
                    await self.wait_for_one()
                elif not await self.take() and self.once is not None:
                    if not self.running:
                        break
                    await self.wait_for_one()
            await self.wait_for_all()
        finally:
            await self.end()
        self.check_hanging()
        if self.once is not None:
            stats = await self._receiver.threads.run(lambda: self._space.stats(self._queue))
            self.summary.left = self.once.count_left(stats, was_stopped=stop is not None and stop.is_set())
        return self.summary

    # -- the task that takes ----------------------------------------------------------------------------------------

    def is_at_end(self) -> bool:
        """Whether no further message is to be taken. Raises what a call that is over has raised."""
        self._collect()
        return self._too_many_hang or (self.once is not None and self.once.is_enough())

    async def take(self) -> bool:
        """Begin with a message, waiting a little for one, or not with ``once``. False if there is none."""
        if self.once is None:
            wanted = Wanted(self._queue, timeout=IDLE_SECONDS)
        else:
            wanted = Wanted(self._queue, passed=frozenset(self.once.passed))
        try:
            await self._receiver.receive(wanted, partial(self._begin, wanted))
        except Empty:
            return False
        return True

    async def _begin(self, wanted: Wanted) -> list[Message]:
        attempt = Attempt(self._receiver.core)
        found = None

        def take() -> Effect | None:
            found = attempt.take(wanted.queue, 0.0, frozenset(wanted.passed))
            if attempt.message is not None:
                attempt.begin_call()
            return found

        try:
            found = await self._run_to_end(take)
        except TransactionTimeout:  # another process holds a lock for very long: look again
            pass
        finally:
            if attempt.message is None:
                attempt.abandon()
        if found is not None:
            self.summary.add(found, "its body was damaged: it is in quarantine")
            return []
        if attempt.message is None:
            raise Empty(f"queue {self._queue} has no message that can be taken now")
        if self.once is not None:
            self.once.begin(attempt.message.position)
        self.running[asyncio.create_task(self._handle(attempt, attempt.message))] = attempt
        return [attempt.message]

    async def wait_for_one(self) -> None:
        await self._wait(asyncio.FIRST_COMPLETED)

    async def wait_for_all(self) -> None:
        while self.running:
            await self._wait(asyncio.ALL_COMPLETED)

    async def _wait(self, until: str) -> None:
        await asyncio.wait(self.running, return_when=until)
        self._collect()

    def _collect(self) -> None:
        """Remove the tasks that are done. Raises what a task has raised, e.g. DiskFailure."""
        done = [task for task in self.running if task.done()]
        for task in done:
            del self.running[task]
        for task in done:
            task.result()

    def check_hanging(self) -> None:
        """Raise SystemFailure if too many calls have not ended."""
        if self._too_many_hang:
            raise too_many_hang(self._most_hanging, self._queue)

    @property
    def _too_many_hang(self) -> bool:
        return self._most_hanging > MOST_ABANDONED

    async def end(self) -> None:
        """Cancel the calls under way; their messages go back to the queue."""
        for task in self.running:
            task.cancel()
        for task, attempt in self.running.items():
            with suppress(BaseException):
                await task
            attempt.abandon()  # if it was cancelled before it began
        self._threads.end()

    # -- the tasks that call the function ---------------------------------------------------------------------------

    async def _handle(self, attempt: Attempt, message: Message) -> None:
        try:
            end = partial(attempt.conclude, await self._call(attempt, message))
        except _TookTooLong:
            end = partial(attempt.withdraw, f"took longer than {self._timeout:g} s")
        except asyncio.CancelledError:
            await self._end(message, partial(attempt.withdraw, ENDED))
            raise
        await self._end(message, end)

    async def _end(self, message: Message, end: Callable[[], tuple[Effect, str]]) -> None:
        effect, reason = await self._run_to_end(end)
        self.summary.add(effect, reason)
        if self.once is not None:
            self.once.end(message.position, effect)

    async def _call(self, attempt: Attempt, message: Message) -> Outcome:
        if attempt.unreadable:
            return Retried(attempt.unreadable)
        most = self._receiver.core.store.settings.known.config.max_body_bytes
        limit = asyncio.timeout(self._timeout)
        try:
            with calling(attempt, self._space):
                async with limit:
                    value = await self._value(attempt, message)
        except BaseException as error:
            if limit.expired():
                raise _TookTooLong from None
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            log_failure(message, error)
            return of_error(error, most)
        if limit.expired():  # the function has swallowed its cancellation
            raise _TookTooLong
        return of_value(value, most)

    async def _value(self, attempt: Attempt, message: Message) -> object:
        if self._is_coroutine:
            return await self._function(message)
        try:
            value = await self._threads.call(partial(self._function, message), attempt.finish_withdrawn)
        except asyncio.CancelledError:
            if _is_cancelled():
                self._abandon(message)
            raise
        return await value if inspect.isawaitable(value) else value

    def _abandon(self, message: Message) -> None:
        """Count a call in a thread that is given up; its thread goes on."""
        self.summary.abandoned += 1
        hanging = self._threads.hanging
        self._most_hanging = max(self._most_hanging, hanging)
        log_abandoned(message, "its function has not ended in time", hanging)


def _is_cancelled() -> bool:
    """Whether this task is cancelled, and not only something that the function waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
