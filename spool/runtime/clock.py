"""The clock of the engine, as one object, so that tests can step the time, even backwards.

Wall time is compared only with stored wall time, e.g. due times. Waits and deadlines use the monotonic clock. So a step
of the wall clock neither ends nor prolongs a wait.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from spool.errors import SystemFailure, TransactionTimeout
from spool.runtime import call_guard

POLL_MIN_SECONDS = 0.00005
POLL_MAX_SECONDS = 0.005


class Clock:
    """The machine's clocks. ``now`` and ``monotonic`` are the system's own functions, because each commit calls
    them."""

    now: Callable[[], float] = staticmethod(time.time)  # wall time, seconds since the epoch
    monotonic: Callable[[], float] = staticmethod(time.monotonic)  # seconds from an arbitrary start; never steps back

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, woken: Callable[[float], bool], seconds: float) -> bool:
        """Wait for an event. ``woken`` waits for the event, for at most ``seconds``, and returns whether the event
        happened."""
        return woken(seconds)


class Deadline(NamedTuple):
    """A point in monotonic time after which waiting stops.

    at: the point in monotonic time; None if waiting never stops.
    seconds: the length of the whole wait, for error texts.
    check: called after each pause; raises if waiting has become pointless. None if the wait cannot be abandoned.
    """

    clock: Clock
    seconds: float | None
    at: float | None
    check: Callable[[], object] | None = None

    def remaining(self) -> float:
        """Return the seconds that are left: infinite without a limit, 0.0 when the deadline has passed."""
        return float("inf") if self.at is None else max(0.0, self.at - self.clock.monotonic())

    def polls(self, slowest_seconds: float = POLL_MAX_SECONDS) -> Iterator[bool]:
        """Yield at once, then after each of ``pauses``."""
        yield True
        yield from self.pauses(slowest_seconds)

    def pauses(
        self, slowest_seconds: float = POLL_MAX_SECONDS, pause_for: Callable[[float], object] | None = None
    ) -> Iterator[bool]:
        """Yield True after each pause, until the deadline has passed; the pauses grow.

        The last yield comes after the deadline, so the caller notices a condition that became true in the last sleep.

        ``pause_for``: a function that pauses in place of the clock.
        """
        pause_for = pause_for or self.clock.sleep
        pause = POLL_MIN_SECONDS
        while (left := self.remaining()) > 0:
            pause_for(min(pause, left))
            call_guard.raise_interrupt()
            if self.check is not None:
                self.check()
            yield True
            pause = min(pause * 1.5, slowest_seconds)


class WaitExpired(SystemFailure):
    """A lock or a number did not become free in time; the text names the holder."""


class LockTimeout(TransactionTimeout):
    """A lock or a number did not become free in time for a transaction, which was rolled back. No attempt is counted,
    because the transaction only waited for another process."""
