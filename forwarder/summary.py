"""The summary of a forwarder. Each kind of failure is logged once."""

import logging
from dataclasses import dataclass, field

from forwarder.result import Failures, RoundResult, add_counts
from spool.workers.effects import Effect

log = logging.getLogger("spool.forwarder")


@dataclass
class Summary:
    """The effects of a forwarder, for each queue.

    effects: the number of messages for each `Effect`.
    failures: the failures by kind.
    left: after a run with ``once``, the number of messages left for later because they failed or are held. Messages
        that are delayed by their own control field are not counted.
    down: why the last round could forward no message, by queue.
    errors: the errors that ended a route.
    full: the queues of ``down`` whose messages or replies found no room in another queue.
    """

    effects: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    down: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    full: set[str] = field(default_factory=set)

    @property
    def handled(self) -> int:
        return sum(n for counts in self.effects.values() for effect, n in counts.items() if effect != Effect.KEPT)

    @property
    def moved(self) -> dict[str, int]:
        """The number of messages that have left each queue."""
        stay = (Effect.KEPT, Effect.RETRIED)
        return {
            queue: sum(n for effect, n in counts.items() if effect not in stay)
            for queue, counts in self.effects.items()
        }

    def add(self, queue: str, result: RoundResult) -> None:
        """Add the effects of a round. The first failure of each kind is logged."""
        add_counts(self.effects.setdefault(queue, {}), result.effects)
        for failure in self.failures.setdefault(queue, Failures()).merge(result.failures):
            if failure.effect != Effect.KEPT:  # the reason of a kept message is logged when the route pauses
                log.warning("%s: a message was %s: %s", queue, Effect(failure.effect).words, failure.reason)
        if result.down or result.messages:
            self.full.discard(queue)
            self.down.pop(queue, None)
        if result.down:
            self.down[queue] = result.down
        if result.full:
            self.full.add(queue)
