"""The result of a round and the summary of a forwarder: effects on messages, and failures by kind."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spool.model.message import Message
from spool.model.position import Position
from spool.workers.conclusion import Conclusion
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Retried
from spool.workers.pauses import Streak
from spool.workers.states import Event

_IN_A_QUEUE = frozenset({Effect.RETRIED, Effect.DEAD_LETTERED})  # the message can be claimed again
log = logging.getLogger("spool.forwarder")

_MAX_KINDS = 100
_OTHERS = "others"


class FailureKind(NamedTuple):
    """A kind of failure, with its last reason and the number of its messages."""

    effect: str
    reason: str
    messages: int


@dataclass
class Failures:
    """The failures of one queue.

    Failures whose reasons differ only in digits are one kind. Beyond a hundred kinds, all other failures are one kind.
    """

    kinds: dict[tuple[str, str], FailureKind] = field(default_factory=dict)

    def add(self, effect: str, reason: str, messages: int = 1) -> bool:
        """Count a failure. Return whether it is the first failure of its kind."""
        kind = str(effect), re.sub(r"[0-9]+", "0", reason)
        if len(self.kinds) >= _MAX_KINDS and kind not in self.kinds:
            kind = str(effect), _OTHERS
        before = self.kinds.get(kind)
        self.kinds[kind] = FailureKind(kind[0], reason, messages + (before.messages if before else 0))
        return before is None

    def merge(self, other: "Failures") -> list[FailureKind]:
        """Add all failures of `other`. Return the failures that are the first of their kind."""
        return [failure for failure in other if self.add(*failure)]

    def last(self, effect: str) -> str | None:
        """Return the reason of the newest kind of failure with the given effect, or None."""
        return next((failure.reason for failure in reversed(list(self)) if failure.effect == effect), None)

    def __iter__(self) -> Iterator[FailureKind]:
        return iter(self.kinds.values())


@dataclass
class RoundResult:
    """The result of a round, or of a part of a round.

    effects: the number of messages for each `Effect`.
    attempted: the failed messages that are still in a queue.
    kept: why messages were kept, so that the route has to pause; None if no message holds up the route.
    waiting: the kept messages whose own reply queue or failure queue is full. The route goes on with other messages.
    over_network: the number of messages whose workers do not see the space.
    streak: the failed attempts since the last other outcome.
    has_answers: whether an attempt had another outcome than a failed attempt.
    """

    effects: dict[str, int] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    attempted: list[Position] = field(default_factory=list)
    kept: Conclusion | None = None
    waiting: list[Position] = field(default_factory=list)
    over_network: int = 0
    streak: Streak = field(default_factory=Streak)
    has_answers: bool = False

    @property
    def messages(self) -> int:
        return sum(self.effects.values())

    @property
    def down(self) -> str:
        """The reason why no message can be forwarded now, or "" if messages can be forwarded."""
        return "" if self.kept is None else self.kept.pause

    @property
    def is_unreached(self) -> bool:
        """Whether messages were kept because the service was not reached."""
        return self.kept is not None and self.kept.event is Event.UNREACHED

    @property
    def full(self) -> str:
        """The reason why a queue had no room for replies, or "" if every queue had room."""
        return "" if self.kept is None else self.kept.full

    def conclude(self, conclusion: Conclusion, position: Position | None = None, messages: int = 1) -> None:
        """Count the end of an attempt, or of the attempts of several messages."""
        effect = conclusion.effect
        add_counts(self.effects, {str(effect): messages})  # (the effect's text, which users see)
        if conclusion.reason and not conclusion.full:
            self.failures.add(effect, conclusion.reason, messages)
        if effect is Effect.KEPT:
            self.kept = conclusion if conclusion.pause else self.kept
        if position is not None and conclusion.waits:
            self.waiting.append(position)
        elif position is not None and effect in _IN_A_QUEUE:
            self.attempted.append(position)

    def count(self, effect: Effect, reason: str, position: Position | None = None) -> None:
        """Count the effect on one message. ``reason``: why the message failed; "" if it did not fail."""
        self.conclude(Conclusion(effect, reason), position)

    def count_all(self, effects: Iterable[tuple[tuple[Effect, str], Message]]) -> None:
        """Count the effects on messages, each with its reason."""
        delivered = 0  # (counted together, because these messages are many)
        for (effect, reason), message in effects:
            if reason or effect is not Effect.DELIVERED:
                self.count(effect, reason, message.position)
            else:
                delivered += 1
        if delivered:
            add_counts(self.effects, {str(Effect.DELIVERED): delivered})

    def note(self, outcome: Outcome, message: Message) -> None:
        """Note the end of a call in the streak. A call that did not reach the service is neither."""
        if not isinstance(outcome, Retried):
            self.has_answers = True
            if self.streak.failed:
                self.streak.end()
        elif outcome.counted:
            self.streak.fail(outcome.reason, message.position)

    def add(self, part: "RoundResult") -> None:
        """Add the result of a part."""
        add_counts(self.effects, part.effects)
        self.failures.merge(part.failures)
        self.attempted += part.attempted
        self.waiting += part.waiting
        self.kept = part.kept or self.kept
        self.over_network += part.over_network
        self.has_answers = self.has_answers or part.has_answers
        if part.streak.failed and not self.streak.is_storm:  # the failures of several parts did not follow each other
            self.streak.most = part.streak.most if part.streak.is_storm else 0
            self.streak.fail(part.streak.reason, *part.streak.failed)


def add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the second counts to the first counts, name by name."""
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


@dataclass
class Summary:
    """The effects of a forwarder, for each queue.

    effects: the number of messages for each `Effect`.
    failures: the failures by kind.
    left: after a run with ``once``, the number of messages that remain because they failed or are held. Messages with
        their own delay are not counted.
    down: the reason why the last round of a queue could forward no message, by queue.
    errors: the errors that ended a route.
    full: the queues in ``down`` that are down because another queue had no room.
    """

    effects: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    down: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    _further: dict[tuple[str, str], FailureKind] = field(default_factory=dict, repr=False, compare=False)

    @property
    def handled(self) -> int:
        """The number of messages with an effect other than ``KEPT``."""
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
        """Add the effects of a round. The first failure of each kind is logged, and ``log_further`` logs the others."""
        add_counts(self.effects.setdefault(queue, {}), result.effects)
        firsts = self.failures.setdefault(queue, Failures()).merge(result.failures)
        for failure in result.failures:
            if failure.effect == Effect.KEPT:  # the reason of a kept message is logged when the route pauses
                continue
            if failure in firsts:
                log.warning("%s: a message was %s: %s", queue, Effect(failure.effect).words, failure.reason)
            if (further := failure.messages - (failure in firsts)) > 0:
                before = self._further.get((queue, failure.effect))
                of_all = further + (before.messages if before else 0)
                self._further[queue, failure.effect] = failure._replace(messages=of_all)
        if result.down or result.messages:
            self.full.discard(queue)
            self.down.pop(queue, None)
        if result.down:
            self.down[queue] = result.down
        if result.full:
            self.full.add(queue)

    def log_further(self, services: Mapping[str, str]) -> None:
        """Log how many messages failed since the last call, besides the failures that ``add`` logged.

        ``services``: the name of each queue's service.
        """
        further, self._further = self._further, {}
        for (queue, effect), (_, reason, messages) in further.items():
            log.warning(
                "%s: %s more %s by %s, the last: %s",
                queue, f"{messages:,}", f"{'was' if messages == 1 else 'were'} {Effect(effect).words}",
                services[queue], reason,
            )  # fmt: skip
