"""A worker's run with ``once``: which messages it does not look at again, when it ends, and what it leaves."""

import logging
from collections.abc import Iterable

from spool.admin.stats import QueueStats
from spool.workers.effects import Effect

log = logging.getLogger("spool")

MOST_FAILED = 10_000
"""Messages that may fail in one run. Each look for another message has to pass them all; and if so many fail, the cause
is not in the messages."""


class SinglePass:
    """One pass over a queue. ``passed``: positions of messages that failed or are being handled; the pass does not take
    them again. An earlier pass may have left some."""

    def __init__(self, passed: Iterable[tuple[int, int]] = ()) -> None:
        self.passed = set(passed)
        self._failed = 0
        self._is_cut_short = False

    def is_enough(self) -> bool:
        """Return whether so many failed that the run ends. Called before each look."""
        self._is_cut_short = self._failed >= MOST_FAILED
        return self._is_cut_short

    def begin(self, position: tuple[int, int]) -> bool:
        """Note that a message is being handled; False if it was before."""
        if position in self.passed:
            return False
        self.passed.add(position)
        return True

    def end(self, position: tuple[int, int], effect: Effect) -> None:
        """Note what became of a message that was being handled."""
        if effect is Effect.RETRIED:
            self._failed += 1
        else:
            self.passed.discard(position)

    def count_left(self, stats: QueueStats, *, was_stopped: bool) -> int:
        """Return how many messages the run leaves in its queue.

        Args:
            stats: the figures of the queue now.
            was_stopped: a caller ended the run before its end.
        """
        if not (self._is_cut_short or was_stopped):
            return self._failed + stats.claimed + stats.in_doubt
        if self._is_cut_short:
            log.warning(
                "%s messages failed: the run ends, and leaves the rest of the queue as it is", f"{self._failed:,}"
            )
        return stats.ready + stats.delayed + stats.claimed + stats.in_doubt
