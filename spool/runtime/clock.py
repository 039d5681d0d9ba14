"""Time as the engine sees it: one object, so that tests can step it, even backwards.

Wall time is only ever compared with wall time that was stored (due times, ages); waiting and deadlines use the
monotonic clock, so a step of the wall clock neither ends nor prolongs a wait.
"""

import time
from collections.abc import Callable, Iterator

from spool.errors import SystemFailure
from spool.runtime import calls

POLL_MIN_SECONDS = 0.00005
POLL_MAX_SECONDS = 0.005


class Clock:
    """The machine's clocks."""

    def now(self) -> float:
        """Wall time, seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, woken: Callable[[float], bool], seconds: float) -> bool:
        """Sleep until an event: ``woken`` waits for it so many seconds at most, and says whether it came."""
        return woken(seconds)


class Deadline:
    """A point in monotonic time after which waiting stops; ``seconds=None`` never does.

    ``check`` is called after each pause, and raises if there is nothing to wait for any more.
    """

    def __init__(self, clock: Clock, seconds: float | None, check: Callable[[], None] | None = None) -> None:
        self._check = check or _no_check
        self.clock = clock
        self.seconds = seconds
        self._at = None if seconds is None else clock.monotonic() + seconds

    def without_close_check(self) -> "Deadline":
        """The same point in time, without the check: for what must not be abandoned once it has begun."""
        other = Deadline.__new__(Deadline)
        other._check, other.clock, other.seconds, other._at = _no_check, self.clock, self.seconds, self._at
        return other

    def remaining(self) -> float:
        """Seconds left: infinite without a limit, 0.0 when it has passed."""
        return float("inf") if self._at is None else max(0.0, self._at - self.clock.monotonic())

    def passed(self) -> bool:
        return self._at is not None and self.clock.monotonic() >= self._at

    def polls(
        self, slowest_seconds: float = POLL_MAX_SECONDS, pause_for: Callable[[float], bool | None] | None = None
    ) -> Iterator[None]:
        """Yield at once, then after growing pauses, until the deadline has passed. ``pause_for`` pauses instead of the
        clock; True means that something happened, and the pauses are short again.

        The last yield comes after the deadline, so a condition that became true during the last sleep is still seen.
        """
        pause_for = pause_for or self.clock.sleep
        pause = POLL_MIN_SECONDS
        while True:
            yield
            left = self.remaining()
            if left <= 0:
                return
            happened = pause_for(min(pause, left))
            calls.deliver_pending_signals()
            self._check()
            pause = POLL_MIN_SECONDS if happened else min(pause * 1.5, slowest_seconds)


def _no_check() -> None:
    pass


class WaitExpired(SystemFailure):
    """A lock or a number did not become free in time; the text names the holder."""
