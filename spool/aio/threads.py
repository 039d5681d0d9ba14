"""The threads that work for asyncio tasks.

If a task is cancelled while a thread works for the task, it first gets the outcome, and is cancelled at its next wait.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from spool.runtime.call_guard import CallGuard

_MOST_THREADS = {"prompt": 4, "patient": 32, "holding": 1000}

P = ParamSpec("P")
T = TypeVar("T")


async def wait_to_end(work: "asyncio.Future[T]", give_up: Callable[[], bool] = lambda: False) -> T:
    """Wait for a thread's work, and return the result.

    ``give_up`` is called if the task is cancelled during the wait. If ``give_up`` returns True, the task is cancelled
    at once. If ``give_up`` returns False, the task gets the result, and is cancelled at its next wait.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            if cancelled is None and give_up():
                work.add_done_callback(asyncio.Future.exception)  # no task waits for the result any more
                raise
            cancelled = error
        except BaseException:
            break  # the work has raised this error, and ``result`` raises the error again
    if cancelled is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, asyncio.current_task(), *cancelled.args)
    return work.result()


def _cancel_again(task: "asyncio.Task[Any] | None", *why: object) -> None:
    """Cancel the task at its next wait, unless the cancellation was withdrawn. For example, ``asyncio.timeout``
    withdraws a cancellation if the task ends in time."""
    if task is not None and task.cancelling():
        task.uncancel()
        task.cancel(*why)


class Threads:
    """The threads that make the calls of a space for the tasks of one loop.

    A ``patient`` call may wait for another commit, so patient calls have separate threads. So have the patient calls of
    transactions, which may hold the key or the message for which all others wait.
    """

    def __init__(self, guard: CallGuard) -> None:
        self.loop = asyncio.get_running_loop()
        self.guard = guard
        self._pools = {kind: ThreadPoolExecutor(most, f"spool-aio-{kind}") for kind, most in _MOST_THREADS.items()}

    def submit(self, call: Callable[[], T], kind: str = "prompt") -> "asyncio.Future[T]":
        """Begin the call. Raises NotOpen if the space is closed."""
        self.guard.check()
        return self.loop.run_in_executor(self._pools[kind], call)

    async def run(self, call: Callable[[], T]) -> T:
        """Wait for the call in a thread. A cancelled task stops waiting."""
        return await self.submit(call)

    async def run_to_end(self, call: Callable[[], T], kind: str = "prompt") -> T:
        """Wait for the call in a thread. A cancelled task gets the outcome, and is cancelled at its next wait."""
        return await wait_to_end(self.submit(call, kind))

    def notify(self, call: Callable[..., object], *args: object) -> None:
        """Call a function in the loop's thread. Any thread may call this method."""
        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            self.loop.call_soon_threadsafe(call, *args)

    def end(self) -> None:
        """End the threads, because the space is closed."""
        for threads in self._pools.values():
            threads.shutdown(wait=False)


def threaded(call: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turn a method of a class for threads into a coroutine method of the class for tasks. A thread makes the call."""

    @wraps(call)
    async def in_thread(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        threads: Threads = self._threads
        return await threads.run_to_end(partial(call, self.sync, *args, **options))

    return in_thread


async def call_in_thread(
    name: str, function: Callable[[], Any], give_up: Callable[[threading.Thread], object], late: Callable[[], object]
) -> Any:
    """Call a plain function in a new thread. Return the function's result, or raise its exception.

    The thread is a daemon, so a function that never ends delays neither the interpreter's exit nor another call.

    Args:
        name: the name of the thread.
        give_up: called if the task is cancelled during the call, which then goes on in its thread.
        late: called by the thread of a call that was given up, when the function has ended.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    is_given_up = False

    def run() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:
            error = raised
        if is_given_up:
            late()
        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result((value, error)))

    thread = threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True)
    thread.start()
    try:
        value, error = await ended
    except asyncio.CancelledError:
        is_given_up = True
        give_up(thread)
        raise
    if error is not None:
        raise error
    return value
