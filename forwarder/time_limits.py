"""Limit the time of a Python function: first raise an exception in the function, later end the process.

The exception ends Python code, and a system call that a signal can interrupt. The exception ends neither C code that
runs no Python, nor a function that catches every exception. In these two cases the `Watchdog` ends the process.
"""

# The C half of ``signal``. The Python half also converts numbers to names. The conversion takes as long as a short
# call.
import _signal as raw  # type: ignore[import-not-found]
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, TextIO

from spool.workers.outcome import took_too_long

GRACE_SECONDS = 5.0
"""The seconds from the time limit of a function to the end of its process."""

# The watchdog is set again only after this time, because setting a watchdog costs more than a short call.
_SLACK_SECONDS = 1.0
_SHORTEST_SECONDS = 0.01


class TookTooLong(BaseException):
    """Raised inside a function at its time limit. ``except Exception`` does not catch this class."""


def _run(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


class TimeLimit:
    """Calls a function with a time limit in seconds; None means no limit. Only the main thread can limit a call.

    reason: why the time limit ended the function; "" if the function returned or raised in time.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.reason = ""

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call the function. At the time limit, raise `TookTooLong` inside the function."""
        if self.seconds is None:
            return _run(function, argument)
        handler = self._on_alarm  # one bound method, so that it can be compared later
        try:
            previous = raw.signal(signal.SIGALRM, handler)
        except ValueError:  # this is not the main thread
            return _run(function, argument)
        begun = time.monotonic()
        left, interval = raw.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            return _run(function, argument)
        finally:
            if raw.getsignal(signal.SIGALRM) is handler:  # (otherwise the function has set another alarm)
                raw.setitimer(signal.ITIMER_REAL, 0)
                raw.signal(signal.SIGALRM, previous)
                if left:
                    left = max(left - (time.monotonic() - begun), _SHORTEST_SECONDS)
                    signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not _run.__code__:
            frame = frame.f_back
        if frame is not None:  # (otherwise the function has just returned)
            assert self.seconds is not None
            self.reason = took_too_long(self.seconds)
            raise TookTooLong(self.reason)


@cache
def _trace_file() -> TextIO:
    """Return the file for the traceback of a call that takes too long."""
    if os.environ.get("SPOOL_DEBUG") and sys.__stderr__ is not None:
        return sys.__stderr__
    return open(os.devnull, "w")


class Watchdog:
    """Ends this process when a call of a service takes too long, even if the call runs C code.

    Args:
        seconds: the time limit of one call; the process ends `GRACE_SECONDS` later. None means no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._set_at = float("-inf")

    def __enter__(self) -> "Watchdog":
        return self

    def begin_call(self) -> None:
        """Start the time limit of a call."""
        now = time.monotonic()
        if self._seconds is None or now < self._set_at + _SLACK_SECONDS:
            return
        seconds = self._seconds + GRACE_SECONDS + _SLACK_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=_trace_file())
        self._set_at = now

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()
