"""Threads that wait for each other without sleeps: a lock that announces its waiters, and a disk that holds calls."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from spool.decisions import DecisionLog, LogContents, LogDirectory
from spool.disk.disk import Disk
from tests.clocks import LONG
from tests.held import Caller


class AnnouncedLock:
    """A lock that calls ``came`` before a thread waits for it."""

    def __init__(self, lock: Any, came: Callable[[], object]) -> None:
        self._lock = lock
        self._came = came

    def __enter__(self) -> None:
        self._came()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Arrivals:
    """Counts threads that have come to the lock that a flush and a new file need, and threads that have ended."""

    def __init__(self) -> None:
        self._came = threading.Semaphore(0)

    def come(self) -> None:
        self._came.release()

    def wait_for(self, threads: int = 1) -> None:
        for _ in range(threads):
            assert self._came.acquire(timeout=LONG)

    def starting(self, *calls: Callable[[], object]) -> list[Caller]:
        """Start each call in a separate thread, and wait until each thread has come or ended."""

        def to_its_end(call: Callable[[], object]) -> None:
            try:
                call()
            finally:
                self.come()

        callers = [Caller(partial(to_its_end, call)) for call in calls]
        for caller in callers:
            caller.start()
        self.wait_for(len(callers))
        return callers


@contextmanager
def announced(log: DecisionLog) -> Iterator[Arrivals]:
    arrivals, lock = Arrivals(), log._flushing
    log._flushing = AnnouncedLock(lock, arrivals.come)  # type: ignore[assignment]
    try:
        yield arrivals
    finally:
        log._flushing = lock


class HeldDisk(Disk):
    """A disk of real files that holds the next such call until ``go_on`` is set.

    fails: raised by the held call, if not None. calls: the calls so far of the kinds that may be held.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.arrived, self.go_on = threading.Event(), threading.Event()
        self.held = ""
        self.fails: OSError | None = None
        self.calls: list[str] = []

    def _passes(self, call: str) -> None:
        self.calls.append(call)
        if self.held == call:
            self.held = ""
            self.arrived.set()
            assert self.go_on.wait(LONG)
            if self.fails is not None:
                raise self.fails

    @contextmanager
    def holding(self, call: str, by: Callable[[], object]) -> Iterator[Caller]:
        """Start a caller and hold its next such call while the block runs."""
        self.arrived.clear()
        self.go_on.clear()
        self.held = call
        caller = Caller(by)
        caller.start()
        assert self.arrived.wait(LONG)
        try:
            yield caller
        finally:
            self.go_on.set()
            ended(caller)

    def flush(self, handle: int, *, data_only: bool = False) -> None:
        self._passes("flush")
        super().flush(handle, data_only=data_only)

    def rename(self, source: str, target: str) -> None:
        self._passes("rename")
        super().rename(source, target)


def found_after_the_end(log: DecisionLog) -> LogContents:
    """Close the log; return its contents as a recovery reads them."""
    log.close(remove=False)
    return read_dead(LogDirectory(Disk(log.directory.disk.root)), log.coordinator)


def read_dead(directory: LogDirectory, coordinator: bytes) -> LogContents:
    """Return the log of a dead coordinator, which exists."""
    found = directory.read_dead(coordinator)
    assert found is not None
    return found


def ended(*callers: Caller) -> None:
    """Wait for the end of callers."""
    for caller in callers:
        caller.join(LONG)
        assert not caller.is_alive()
