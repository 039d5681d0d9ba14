"""Waiting for the disk: what a case wrote or removed keeps it busy for a while, and the next should not pay for it."""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

from bench.peers.raw import RawLine

_APPENDS = 40
_TOLERATED = 1.5


class Calm:
    """How long a raw append takes at its best here; ``wait`` returns when it does so again, or the time is over."""

    def __init__(self, append: Callable[[], float]) -> None:
        self._append = append
        self._best = float("inf")

    def wait(self, most_seconds: float) -> bool:
        """False if the disk did not calm down."""
        deadline = time.monotonic() + most_seconds
        while True:
            median = statistics.median(self._append() for _ in range(_APPENDS))
            self._best = min(self._best, median)
            if median <= _TOLERATED * self._best:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(1.0, most_seconds))


def calm_of(directory: str) -> Calm:
    """Of the disk under a directory; what was written before is on it first."""

    def append() -> float:
        begun = time.perf_counter()
        line.put(1)
        return time.perf_counter() - begun

    os.sync()
    path = f"{directory}/calm"
    line = RawLine(path)
    with suppress(OSError):
        os.unlink(path)  # it stays open, and is gone with the process
    return Calm(append)
