"""The time that a Python function may take: first an exception inside it; then, if it does not stop, its process ends.

The exception reaches whatever Python runs, and whatever waits in a system call that a signal ends. It does not reach C
code that lets no Python run, nor a function that catches everything; for those is the ``Watchdog``.
"""

# The C half of ``signal``: its Python half takes as long as a short call, to tell numbers from names.
import _signal as raw  # type: ignore[import-not-found]
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TextIO

from spool.runtime import interrupts

GRACE_SECONDS = 5.0
"""How long after its time is up a function may go on before its process is ended."""

# While the time was last set less than this ago it is left as it is: to set it costs more than a short call.
_SLACK_SECONDS = 1.0
_SHORTEST_SECONDS = 0.01


class TookTooLong(BaseException):
    """Raised inside a function whose time is up. No ``Exception``, so that ``except Exception`` does not keep it."""


def _run(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


class TimeLimit:
    """Calls a function with a time limit in seconds; None: without one, as in any thread but the main one.

    ``reason``: "" until the time was up, then what to say of it.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.reason = ""

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Its value, or what it raises; TookTooLong inside it when its time is up."""
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            return _run(function, argument)
        begun = time.monotonic()
        ring = self._ring  # bound once, to be known again
        handler = raw.signal(signal.SIGALRM, ring)
        left, interval = raw.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            return _run(function, argument)
        finally:
            if raw.getsignal(signal.SIGALRM) is ring:  # (else the function has an alarm of its own now)
                raw.setitimer(signal.ITIMER_REAL, 0)
                raw.signal(signal.SIGALRM, handler)
                if left:
                    left = max(left - (time.monotonic() - begun), _SHORTEST_SECONDS)
                    signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if interrupts.inside():  # the function uses a space: what is raised into a step of it would tear it
            signal.setitimer(signal.ITIMER_REAL, _SHORTEST_SECONDS)
            return
        while frame is not None and frame.f_code is not _run.__code__:
            frame = frame.f_back
        if frame is not None:  # (else the function has just returned)
            assert self.seconds is not None
            self.reason = took_too_long(self.seconds)
            raise TookTooLong(self.reason)


def took_too_long(seconds: float) -> str:
    """The reason of a try whose time was up."""
    return f"took longer than {seconds:g} s"


class Watchdog:
    """Ends this process, at once, when a call takes too long, whatever code is running.

    ``seconds``: the time limit of one call, None for none; the process ends ``GRACE_SECONDS`` after it.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._set_at = float("-inf")
        self._file: TextIO | None = None

    def __enter__(self) -> "Watchdog":
        return self

    def begin_call(self) -> None:
        """A call begins now."""
        now = time.monotonic()
        if self._seconds is None or now < self._set_at + _SLACK_SECONDS:
            return
        seconds = self._seconds + GRACE_SECONDS + _SLACK_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._where())
        self._set_at = now

    def _where(self) -> TextIO:
        """Where Python tells which line did not end."""
        if os.environ.get("SPOOL_DEBUG") and sys.__stderr__ is not None:
            return sys.__stderr__
        if self._file is None:
            self._file = open(os.devnull, "w")  # noqa: SIM115 (open until the end)
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
