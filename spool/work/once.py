"""What a worker's run with ``once`` steps over, when it ends, and what it leaves."""

import logging

from spool.admin.stats import QueueStats
from spool.work.effects import Effect

log = logging.getLogger("spool")

MOST_FAILED = 10_000
"""Messages that may fail in one run. Each further look for a message steps over all of them; and where so many fail, it
is not the messages that are wrong."""


class Once:
    """``passed``: the places of messages that are not looked at again: those that failed, and those under way."""

    def __init__(self) -> None:
        self.passed: set[tuple[int, int]] = set()
        self._failed = 0
        self._is_cut_short = False

    def is_enough(self) -> bool:
        """Asked before each look: whether so many failed that the run ends."""
        self._is_cut_short = self._failed >= MOST_FAILED
        return self._is_cut_short

    def begin(self, place: tuple[int, int]) -> bool:
        """False if this message has been begun with before."""
        if place in self.passed:
            return False
        self.passed.add(place)
        return True

    def end(self, place: tuple[int, int], effect: Effect) -> None:
        """What became of a message that was begun with."""
        if effect is Effect.RETRIED:
            self._failed += 1
        else:
            self.passed.discard(place)

    def left(self, stats: QueueStats) -> int:
        """How many messages the run leaves in its queue, which has these figures now."""
        if not self._is_cut_short:
            return self._failed + stats.claimed + stats.in_doubt
        log.warning("%s messages failed: the run ends, and leaves the rest of the queue as it is", f"{self._failed:,}")
        return stats.ready + stats.delayed + stats.claimed + stats.in_doubt
