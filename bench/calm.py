"""Wait for the disk. The writes and removals of a case keep the disk busy, which must not slow down the next case."""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

from bench.peers.raw import RawLine

_APPENDS = 40
_TOLERATED = 1.5


class Calm:
    """Knows the best time of a raw append; ``wait`` waits until appends are almost as fast again."""

    def __init__(self, append: Callable[[], float]) -> None:
        self._append = append
        self._best = float("inf")

    def wait(self, most_seconds: float) -> bool:
        """Return False if the disk was still busy at the end of the time."""
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
    """Return a ``Calm`` for the disk under a directory, after a flush of all earlier writes."""

    def append() -> float:
        begun = time.perf_counter()
        line.put(1)
        return time.perf_counter() - begun

    os.sync()
    path = f"{directory}/calm"
    line = RawLine(path)
    with suppress(OSError):
        os.unlink(path)  # the open file remains until the process ends
    return Calm(append)
