"""Threads in which the tasks of a loop call plain functions.

They are daemons: a function that does not end delays neither the interpreter's exit nor another call. All methods are
called in the loop's thread.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any


@dataclass(eq=False)
class _Call:
    """One call. ``late``: what its thread calls when the function has ended, if the call was given up before."""

    function: Callable[[], Any]
    late: Callable[[], None]
    future: "asyncio.Future[tuple[Any, BaseException | None]]"
    is_given_up: bool = False


@dataclass(eq=False)
class _Caller:
    """A thread and its calls; None ends it."""

    thread: threading.Thread
    calls: "SimpleQueue[_Call | None]" = field(default_factory=SimpleQueue)


class FunctionThreads:
    """As many threads as there are calls at a time. A thread that has ended its call makes the next one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._free: list[_Caller] = []
        self._hanging: list[threading.Thread] = []

    async def call(self, function: Callable[[], Any], late: Callable[[], None]) -> Any:
        """Call a function in a thread; return or raise what it does.

        If the task is cancelled meanwhile, the call is given up: its thread goes on, and calls ``late`` when the
        function has ended.
        """
        caller = self._free.pop() if self._free else self._begin()
        call = _Call(partial(copy_context().run, function), late, self._loop.create_future())
        caller.calls.put(call)
        try:
            value, error = await call.future
        except asyncio.CancelledError:
            call.is_given_up = True
            caller.calls.put(None)
            self._hanging.append(caller.thread)
            raise
        self._free.append(caller)
        if error is not None:
            raise error
        return value

    @property
    def hanging(self) -> int:
        """Return how many calls were given up and have not ended."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        return len(self._hanging)

    def end(self) -> None:
        """End the threads. Every call has ended or was given up."""
        for caller in self._free:
            caller.calls.put(None)
        self._free.clear()

    def _begin(self) -> _Caller:
        caller = _Caller(threading.Thread(target=lambda: self._serve(caller), name=self._name, daemon=True))
        caller.thread.start()
        return caller

    def _serve(self, caller: _Caller) -> None:
        while (call := caller.calls.get()) is not None:
            value, error = None, None
            try:
                value = call.function()
            except BaseException as raised:
                error = raised
            if call.is_given_up:
                call.late()
            with suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self._loop.call_soon_threadsafe(_complete, call, value, error)
            del call, value, error


def _complete(call: _Call, value: Any, error: BaseException | None) -> None:
    if not call.future.done():
        call.future.set_result((value, error))
