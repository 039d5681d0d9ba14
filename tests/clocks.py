"""The clocks of the tests: moved by a test, passing only where a program sleeps, or waiting for an event alone."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spool.disk import Disk
from spool.runtime.clock import Clock

LONG = 60.0  # a test that waits so long in vain fails


def until(is_so: Callable[[], object], program: Any = None) -> None:
    """Wait until another thread or process has done its work. program: its ``log`` is shown if it does not."""
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end, program.log if program else "it did not come"
        time.sleep(0.01)


def timed(path: str | Path | Disk, clock: Clock) -> Disk:
    """Return the disk of a directory, with this clock: for ``spool.open`` and ``spool.create``. A missing directory is
    made."""
    if not isinstance(path, Disk):
        os.makedirs(path, mode=0o700, exist_ok=True)
    disk = Disk.of(path)
    disk.clock = clock
    return disk


class MovedClock(Clock):
    """The machine's clocks, moved by a test.

    later: seconds by which the wall clock is ahead.
    ahead: seconds by which the monotonic clock is ahead.
    wall: the wall time, which does not pass then; None: that of the machine.
    """

    def __init__(self, *, later: float = 0.0, wall: float | None = None) -> None:
        self.later = later
        self.ahead = 0.0
        self.wall = wall

    def now(self) -> float:
        return (super().now() if self.wall is None else self.wall) + self.later

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class SimulatedClock(Clock):
    """Time passes only where a program sleeps.

    later: seconds by which the wall clock is ahead.
    least_sleep: seconds that a sleep takes at least.
    """

    def __init__(self, now: float = 1_700_000_000.0, *, least_sleep: float = 0.0) -> None:
        self.time = now
        self.later = 0.0
        self.least_sleep = least_sleep

    def now(self) -> float:
        return self.time + self.later

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(seconds, self.least_sleep)

    def wait(self, woken: Callable[[float], bool], seconds: float) -> bool:
        if woken(0.0):
            return True
        self.sleep(seconds)
        return woken(0.0)


class PatientClock(Clock):
    """A call that waits does not check by itself: an event wakes it, or it waits too long.

    waits: set once so many calls wait.
    was_woken: for each wait that ended, whether an event ended it.
    """

    def __init__(self, waiters: int = 1) -> None:
        self.waits = threading.Event()
        self.was_woken: list[bool] = []
        self._missing = waiters

    def wait(self, woken: Callable[[float], bool], seconds: float) -> bool:
        self._missing -= 1
        if self._missing == 0:
            self.waits.set()
        self.was_woken.append(woken(LONG))
        return self.was_woken[-1]
