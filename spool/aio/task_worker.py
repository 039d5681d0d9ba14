"""``spool.aio.Space.work``: the loop that takes messages, and starts a task that calls a function for each message.

One task claims messages and starts a task for each message, up to a limit of concurrent tasks. A coroutine that takes
too long is cancelled, so its time limit is strict. A plain function is called in a thread, and Python cannot end a
thread. So the worker does not wait longer for a call that takes too long, like ``spool.workers.worker``.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import spool.space
from spool.aio.receiver import Receiver
from spool.aio.threads import call_in_thread
from spool.errors import Empty
from spool.model.checks import check
from spool.model.message import Message
from spool.transactions.claiming import Wanted
from spool.transactions.waiting import IDLE_SECONDS
from spool.workers.attempt import Attempt
from spool.workers.handler import Handler
from spool.workers.next_step import DriverStep
from spool.workers.outcome import took_too_long
from spool.workers.states import Event
from spool.workers.worker import AT_ONCE, check_work
from spool.workers.worker_run import ENDED, WorkerRun, WorkSummary


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
        stop: asyncio.Event | None,
        pause_after: int,
    ) -> None:
        self._run = WorkerRun(receiver.core.store, queue, function, once=once, pause_after=pause_after, event=stop)
        self._under_way: dict[asyncio.Task[None], Attempt] = {}
        self._space = space
        self._receiver = receiver
        self._run_to_end = receiver.threads.run_to_end
        self._queue, self._name = queue, f"spool-aio-work-{queue}"
        self._is_coroutine = inspect.iscoroutinefunction(function)
        self._timeout = timeout

    async def work(self, tasks: int) -> WorkSummary:
        """Call the function in up to ``tasks`` tasks, until the event ``stop`` is set. With ``once``, end after one
        call for each message."""
        check("tasks", tasks, AT_ONCE)
        await self._receiver.threads.run(partial(check_work, self._space, self._queue, self._timeout))
        with self._run.shown(tasks):
            try:
                await self._call_until_the_end(tasks)
            finally:
                await self._end()
        self._run.raise_error()
        if self._run.breaker.once:
            self._run.count_left(await self._receiver.threads.run(lambda: self._space.stats(self._queue)))
        return self._run.summary

    async def _call_until_the_end(self, tasks: int) -> None:
        empty_at: int | None = None  # the number of ended attempts, before the last claim found no message
        while (step := self._next(tasks, empty_at)) is not DriverStep.END:
            if step is DriverStep.TAKE:
                ended = self._run.ended
                empty_at = None if await self._take() else ended
            elif step is DriverStep.CALL:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            else:  # a short sleep, so that the loop checks ``stop``
                await asyncio.sleep(min(self._run.breaker.pause_left(), IDLE_SECONDS))
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._collect()

    def _next(self, tasks: int, empty_at: int | None) -> DriverStep:
        """Return the next step. If a call has failed, raise its error."""
        self._collect()
        calls = len(self._under_way)
        return self._run.next_step(empty_at, is_full=calls == tasks, is_busy=calls > 0)

    # -- the task that claims ---------------------------------------------------------------------------------------

    async def _take(self) -> bool:
        """Claim a message, and begin its call. Return False if no message can be claimed, even after a short wait."""
        seconds, (_, passed) = 0 if self._run.breaker.once else IDLE_SECONDS, self._run.wanted()
        wanted = Wanted(self._queue, timeout=seconds, passed=passed)
        try:
            await self._receiver.receive(wanted, self._begin)
        except Empty:
            return False
        return True

    async def _begin(self) -> list[Message]:
        attempt = Attempt(self._receiver.core, self._run)
        is_begun = await self._run_to_end(partial(attempt.claim, self._queue, waits=False))
        if attempt.message is None:
            if attempt.abandoned is None:
                raise Empty(f"queue {self._queue} has no message that can be taken now")
        elif is_begun:
            self._under_way[asyncio.create_task(self._handle(attempt, attempt.message))] = attempt
        return []

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
            end = await self._call(attempt, message)
        except asyncio.CancelledError:
            await self._run_to_end(partial(attempt.withdraw, ENDED, Event.END))
            raise
        await self._run_to_end(end)

    async def _call(self, attempt: Attempt, message: Message) -> Callable[[], object]:
        """Call the function; return the function that ends the attempt."""
        limit = asyncio.timeout(self._timeout)
        try:
            with attempt.calling(self._space):
                async with limit:
                    value = await self._value(attempt, message)
        except BaseException as error:
            if limit.expired():
                return self._late(attempt)
            # (If the function waited for another task or future, a cancellation of that one does not count.)
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0:
                raise
            return partial(attempt.conclude, attempt.failure(error))
        # If the time is over, the function has caught its cancellation.
        return self._late(attempt) if limit.expired() else partial(attempt.conclude, attempt.answer(value))

    def _late(self, attempt: Attempt) -> Callable[[], object]:
        return partial(attempt.withdraw, took_too_long(self._timeout))

    async def _value(self, attempt: Attempt, message: Message) -> object:
        call = partial(self._run.handler.handle, message, attempt.unreadable)

        def give_up(thread: threading.Thread) -> None:
            self._run.give_up(message, "its function has not ended in time", thread)

        late = attempt.finish_withdrawn
        value = call() if self._is_coroutine else await call_in_thread(self._name, call, give_up, late)
        return await value if inspect.isawaitable(value) else value
