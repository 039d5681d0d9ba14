"""``spool.aio.Space.work``: the loop that takes messages, and starts a task that calls a function for each message.

One task claims messages and starts a task for each message, up to a limit of concurrent tasks. A coroutine that takes
too long is cancelled, so its time limit is strict. A plain function is called in a thread, and Python cannot end a
thread. So the worker does not wait longer for a call that takes too long, like ``spool.workers.worker``.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import spool.space
from spool.aio.receiver import Receiver
from spool.aio.tasks import FunctionThreads
from spool.errors import Empty, SystemFailure, TransactionTimeout
from spool.model.checks import check
from spool.model.message import Message
from spool.tracing import instrument
from spool.transactions.claiming import Wanted
from spool.transactions.waiting import IDLE_SECONDS
from spool.workers.attempt import Attempt
from spool.workers.handler import Conclusion, Handler
from spool.workers.outcome import Outcome, of_error, of_value, took_too_long
from spool.workers.pauses import PAUSES_AFTER
from spool.workers.run import ENDED, Run, WorkSummary
from spool.workers.states import Event
from spool.workers.worker import AT_ONCE, check_work, log_failure


class _TookTooLong(Exception):
    """The call has used up its time."""


class TaskWorker:
    """One run of a worker, with the calls under way. See ``spool.aio.Space.work``."""

    def __init__(
        self,
        space: "spool.space.Space",
        receiver: Receiver,
        queue: str,
        function: Callable[[Message], Any] | Handler,
        timeout: float | None,
        *,
        once: bool,
        pause_after: int,
    ) -> None:
        instrument()  # (the module of the function may have imported OpenTelemetry)
        check("pause_after", pause_after, PAUSES_AFTER)
        self._run = Run(receiver.core.store, queue, function, once=once, pause_after=pause_after)
        self._under_way: dict[asyncio.Task[None], Attempt] = {}
        self._space = space
        self._receiver = receiver
        self._run_to_end = receiver.threads.run_to_end
        self._queue = queue
        self._is_coroutine = inspect.iscoroutinefunction(function)
        self._timeout = timeout
        self._threads = FunctionThreads(f"spool-aio-work-{queue}")
        self._stop: asyncio.Event | None = None
        self._error: SystemFailure | None = None

    async def work(self, tasks: int, stop: asyncio.Event | None) -> WorkSummary:
        """Call the function in up to ``tasks`` tasks, until the event ``stop`` is set. With ``once``, end after one
        call for each message."""
        check("tasks", tasks, AT_ONCE)
        await self._receiver.threads.run(partial(check_work, self._space, self._queue, self._timeout))
        self._stop = stop
        with self._run.shown(tasks):
            try:
                await self._call_until_the_end(tasks)
            finally:
                await self._end()
        if self._error is not None:
            raise self._error
        if self._run.once:
            stats = await self._receiver.threads.run(lambda: self._space.stats(self._queue))
            self._run.count_left(stats, was_stopped=self._is_stopping)
        return self._run.summary

    async def _call_until_the_end(self, tasks: int) -> None:
        while not self._is_at_end():
            if len(self._under_way) == tasks:
                await self._wait(asyncio.FIRST_COMPLETED)
            elif (pause := self._run.pause_left()) > 0:
                await asyncio.sleep(min(pause, IDLE_SECONDS))  # a short sleep, so that the loop checks ``stop``
            elif not await self._take() and self._run.once:
                if not self._under_way:
                    break
                await self._wait(asyncio.FIRST_COMPLETED)
        while self._under_way:
            await self._wait(asyncio.ALL_COMPLETED)

    @property
    def _is_stopping(self) -> bool:
        return self._error is not None or (self._stop is not None and self._stop.is_set())

    # -- the task that claims ---------------------------------------------------------------------------------------

    def _is_at_end(self) -> bool:
        """Return whether the worker claims no more messages. If a call has failed, raise its error."""
        self._collect()
        return self._is_stopping or self._run.is_over

    async def _take(self) -> bool:
        """Claim a message, and begin its call. Return False if no message can be claimed, even after a short wait."""
        passed = self._run.passed()
        wanted = Wanted(self._queue, timeout=0 if self._run.once else IDLE_SECONDS, passed=passed)
        try:
            await self._receiver.receive(wanted, partial(self._begin, wanted))
        except Empty:
            return False
        return True

    async def _begin(self, wanted: Wanted) -> list[Message]:
        attempt = Attempt(self._receiver.core, self._run, lambda: self._is_stopping)
        is_begun = False

        def take() -> bool:
            attempt.take(wanted.queue, 0.0, frozenset(wanted.passed))
            return attempt.message is not None and self._run.begin(attempt.position) and attempt.begin()

        try:
            is_begun = await self._run_to_end(take)
        except TransactionTimeout:  # another process holds a lock for very long: claim again
            pass
        finally:
            if not is_begun:
                attempt.release()
        if attempt.abandoned is not None:
            self._run.end(attempt.position, attempt.abandoned, attempt.claimed_at)
        elif attempt.message is None:
            raise Empty(f"queue {self._queue} has no message that can be taken now")
        if not is_begun or attempt.message is None:
            return []
        self._under_way[asyncio.create_task(self._handle(attempt, attempt.message))] = attempt
        return [attempt.message]

    async def _wait(self, until: str) -> None:
        await asyncio.wait(self._under_way, return_when=until)
        self._collect()

    def _collect(self) -> None:
        """Remove the tasks that are done. Raises the error of a task, e.g. DiskFailure."""
        done = [task for task in self._under_way if task.done()]
        for task in done:
            del self._under_way[task]
        for task in done:
            task.result()

    async def _end(self) -> None:
        """Cancel the calls under way. The messages of these calls return to the queue with one more attempt."""
        for task in self._under_way:
            task.cancel()
        for task, attempt in self._under_way.items():
            with suppress(BaseException):
                await task
            attempt.release()  # (needed if the task was cancelled before it began)

    # -- the tasks that call the function ---------------------------------------------------------------------------

    async def _handle(self, attempt: Attempt, message: Message) -> None:
        try:
            end = partial(attempt.conclude, await self._call(attempt, message))
        except _TookTooLong:
            end = partial(attempt.withdraw, took_too_long(self._timeout))
        except asyncio.CancelledError:
            await self._finish(attempt, partial(attempt.withdraw, ENDED, Event.END))
            raise
        await self._finish(attempt, end)

    async def _finish(self, attempt: Attempt, end: Callable[[], Conclusion | None]) -> None:
        conclusion = await self._run_to_end(end)
        if conclusion is not None:
            self._run.end(attempt.position, conclusion, attempt.claimed_at)

    async def _call(self, attempt: Attempt, message: Message) -> Outcome:
        most = self._receiver.core.store.settings.known.config.max_body_bytes
        limit = asyncio.timeout(self._timeout)
        try:
            with attempt.calling(self._space):
                async with limit:
                    value = await self._value(attempt, message)
        except BaseException as error:
            if limit.expired():
                raise _TookTooLong from None
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            log_failure(message, error)
            return of_error(error, most)
        if limit.expired():  # the function has caught its cancellation
            raise _TookTooLong
        return of_value(value, most)

    async def _value(self, attempt: Attempt, message: Message) -> object:
        call = partial(self._run.handler.handle, message, attempt.unreadable)
        try:
            value = call() if self._is_coroutine else await self._threads.call(call, attempt.finish_withdrawn)
        except asyncio.CancelledError:
            if _is_cancelled():
                hanging = self._threads.hanging
                self._error = self._run.give_up(message, "its function has not ended in time", hanging) or self._error
            raise
        return await value if inspect.isawaitable(value) else value


def _is_cancelled() -> bool:
    """Return whether this task is cancelled. If the function waited for another task or future, a cancellation of that
    task or future does not count."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
