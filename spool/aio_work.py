"""``spool.aio.Space.work``: the loop that takes messages and calls a function for each, in tasks.

One task takes; it starts a task for each message, up to a number that run side by side. A coroutine that takes too long
is cancelled, so its time limit is a real one. A plain function is called in a thread, which nothing can end.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from spool.choosing import Wanted
from spool.consume import IDLE_SECONDS
from spool.effects import Effect
from spool.ending import State
from spool.errors import Empty, TransactionTimeout
from spool.handling import Handling
from spool.message import Message
from spool.outcome import Outcome, Retried, of_error, of_value
from spool.work import ENDED, MOST_FAILED, WorkSummary, calling, check_at_once, check_work, left_after, log_failure

if TYPE_CHECKING:
    from spool.aio import Space


async def work(
    space: "Space",
    queue: str,
    function: Callable[[Message], Any],
    *,
    tasks: int = 1,
    once: bool = False,
    timeout: float | None = 30.0,
    stop: asyncio.Event | None = None,
) -> WorkSummary:
    """As ``spool.Space.work``, with ``function`` a coroutine function or a plain one, called in up to ``tasks`` tasks
    side by side. A coroutine that takes longer than ``timeout`` seconds is cancelled.

    If this is cancelled, so are the calls that are under way: their messages go back, with one try more.
    """
    check_at_once("tasks", tasks)
    await space._in_thread(partial(check_work, space.sync, queue, function, timeout))
    crew = _Crew(space, queue, function, timeout)
    try:
        while (stop is None or not stop.is_set()) and len(crew.passed) < MOST_FAILED:
            if len(crew.running) == tasks:
                await crew.wait_for_one()
            elif not await crew.take(once) and once:
                if not crew.running:
                    break
                await crew.wait_for_one()
        await crew.wait_for_all()
    finally:
        await crew.end()
    if once:
        crew.summary.left = left_after(await space.stats(queue), len(crew.passed))
    return crew.summary


class _TookTooLong(Exception):
    """The call has used up its time."""


class _Crew:
    """The calls that are under way, and what came of those before."""

    def __init__(self, space: "Space", queue: str, function: Callable[[Message], Any], timeout: float | None) -> None:
        self.summary = WorkSummary()
        self.running: dict[asyncio.Task[None], Handling] = {}
        self.passed: set[tuple[int, int]] = set()  # in a run with ``once``: messages that are not looked at again
        self._space = space
        self._queue = queue
        self._function = function
        self._is_coroutine = inspect.iscoroutinefunction(function)
        self._timeout = timeout

    # -- the task that takes ----------------------------------------------------------------------------------------

    async def take(self, once: bool) -> bool:
        """Begin with a message, waiting a little for one, or not with ``once``. False if there is none."""
        wanted = Wanted(self._queue, passed=frozenset(self.passed))
        try:
            await self._space._get(wanted, 0 if once else IDLE_SECONDS, partial(self._begin, wanted, once))
        except Empty:
            return False
        return True

    async def _begin(self, wanted: Wanted, once: bool) -> list[Message]:
        handling = Handling(self._space._store, self._space.sync._undertaker)
        found = None
        try:
            found = await self._space._to_the_end(partial(handling.take, wanted.queue, 0.0, frozenset(wanted.passed)))
        except TransactionTimeout:  # another process holds a lock for very long: look again
            pass
        finally:
            if handling.message is None:
                handling.abandon()
        if found is not None:
            self.summary.add(found, "its body was damaged: it is in quarantine")
            return []
        if handling.message is None:
            raise Empty(f"queue {self._queue} has no message that can be taken now")
        if once:
            self.passed.add(handling.message.position)
        self.running[asyncio.create_task(self._handle(handling, handling.message))] = handling
        return [handling.message]

    async def wait_for_one(self) -> None:
        await self._wait(asyncio.FIRST_COMPLETED)

    async def wait_for_all(self) -> None:
        while self.running:
            await self._wait(asyncio.ALL_COMPLETED)

    async def _wait(self, until: str) -> None:
        done, _ = await asyncio.wait(self.running, return_when=until)
        for task in done:
            del self.running[task]
        for task in done:
            task.result()  # raises if the disk failed, or the like

    async def end(self) -> None:
        """Nothing of it goes on: what is still under way is cancelled, and its messages go back."""
        for task in self.running:
            task.cancel()
        for task, handling in self.running.items():
            with suppress(BaseException):
                await task
            if handling.state is State.ACTIVE:  # it was cancelled before it began
                handling.abandon()

    # -- the tasks that call the function ---------------------------------------------------------------------------

    async def _handle(self, handling: Handling, message: Message) -> None:
        try:
            end = partial(handling.conclude, await self._call(handling, message))
        except _TookTooLong:
            end = partial(handling.expel, f"took longer than {self._timeout:g} s")
        except asyncio.CancelledError:
            await self._end(message, partial(handling.expel, ENDED))
            raise
        await self._end(message, end)

    async def _end(self, message: Message, end: Callable[[], tuple[Effect, str]]) -> None:
        effect, reason = await self._space._to_the_end(end)
        self.summary.add(effect, reason)
        if effect is not Effect.RETRIED:
            self.passed.discard(message.position)

    async def _call(self, handling: Handling, message: Message) -> Outcome:
        if handling.unreadable:
            return Retried(handling.unreadable)
        most = handling._store.config.max_body_bytes
        limit = asyncio.timeout(self._timeout)
        try:
            with calling(handling, self._space.sync):
                async with limit:
                    value = await self._value(message)
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

    async def _value(self, message: Message) -> object:
        if self._is_coroutine:
            return await self._function(message)
        value = await asyncio.to_thread(self._function, message)
        return await value if inspect.isawaitable(value) else value


def _is_cancelled() -> bool:
    """This task, and not only something that the function waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
