"""Decide how long a worker or route pauses, and how long it passes over one message. No space is changed.

A worker or route pauses in three cases: its service cannot be reached, a queue has no room, or many messages have
failed one after another (``Streak``). Only the failed messages count attempts.
"""

import re
from dataclasses import dataclass, field

from spool.model.checks import number
from spool.model.position import Position
from spool.model.text import plural

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""The first and the longest pause. Each pause for an unreachable service, or a full queue, doubles the last pause."""

MOST_WAITING = 10_000
"""The most messages that may wait for room in queues that no other message names. With more messages, the worker or
route pauses instead, because each claim has to pass over all these messages."""

PAUSE_AFTER = 10
"""The default number of messages that fail one after another before a worker or route pauses."""

PAUSES_AFTER = number(1_000, 0)
"""The values of the option ``pause_after``."""


def not_reached(reason: str) -> str:
    """Return why a worker or route pauses while its service cannot be reached."""
    return f"the service was not reached ({reason})"


def no_room(full: str) -> str:
    """Return why a worker or route pauses, or one message waits, while a queue is full."""
    return f"there is no room ({full})"


@dataclass
class Streak:
    """The messages that failed one after another with the same kind of failure, without another outcome in between.

    If there are ``most`` of them, the cause is the service and not the messages: further calls would use up the
    attempts of all messages. Each message counts once, so a message that fails for ever causes no pause.

    The kind of a failure is its reason, up to the first colon and without digits: ``HTTP 503`` and ``HTTP 502`` are the
    same kind, and so are all exceptions of one type.

    most: 0 for no pause.
    reason: the reason of the last failure.
    is_probe: whether the last failure came after ``most`` others: the message was to show whether the service works.
    """

    most: int = 0
    reason: str = ""
    is_probe: bool = False
    failed: set[Position] = field(default_factory=set)

    @property
    def is_storm(self) -> bool:
        return 0 < self.most <= len(self.failed)

    @property
    def text(self) -> str:
        """The reason for a pause."""
        if self.is_probe:
            return f"the service still fails: one more message failed with: {self.reason}"
        return f"{plural(self.most, 'message')} failed one after another, the last with: {self.reason}"

    def fail(self, reason: str, *positions: Position) -> None:
        """Record failed attempts of one kind."""
        if _kind_of(reason) != _kind_of(self.reason):
            self.failed.clear()
        self.reason, self.is_probe = reason, self.is_storm
        if not self.is_probe:
            self.failed.update(positions)

    def end(self) -> None:
        """Record an outcome that is no failed attempt: a reply, or a final rejection."""
        self.failed.clear()


def _kind_of(reason: str) -> str:
    return re.sub("[0-9]+", "", reason.partition(":")[0])


class Pauses:
    """The pauses of a worker or route while nothing can be handled.

    down: the reason of the last pause; "" if a message was handled after the pause.
    last: the length of the last pause in seconds.
    """

    def __init__(self) -> None:
        self.down = ""
        self.last = 0.0
        self._next_pause = FIRST_PAUSE_SECONDS

    def find_down(self, reason: str, retry_after: float | None = None) -> float:
        """Record that nothing can be handled now; return the seconds of the pause that begins now.

        ``retry_after``: the shortest pause in seconds, if the service named one.
        """
        self.down = reason
        pause, self._next_pause = self._next_pause, min(self._next_pause * 2, LONGEST_PAUSE_SECONDS)
        self.last = max(pause, retry_after or 0.0)
        return self.last

    def find_up(self) -> None:
        """Record that a message was handled, so that the next pause is short again."""
        self.down, self._next_pause = "", FIRST_PAUSE_SECONDS


class WaitingMessages:
    """Messages that wait for room in a queue that no other message names.

    A worker or route passes over these messages, each for a growing time. Times are in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._waits: dict[Position, tuple[float, float]] = {}  # when the wait ends, and how long it is

    @property
    def is_full(self) -> bool:
        return len(self._waits) >= MOST_WAITING

    def add(self, position: Position, now: float) -> None:
        """Pass over a message for a second. Each further call for the message doubles the time, up to a minute."""
        _, before = self._waits.pop(position, (0.0, FIRST_PAUSE_SECONDS / 2))
        seconds = min(before * 2, LONGEST_PAUSE_SECONDS)
        self._waits[position] = (now + seconds, seconds)

    def remove(self, position: Position) -> None:
        self._waits.pop(position, None)

    def positions(self, now: float) -> list[Position]:
        """Return the messages to be passed over now. Forget each message whose wait ended more than a minute ago."""
        for position, (until, _) in list(self._waits.items()):
            if until + LONGEST_PAUSE_SECONDS < now:
                del self._waits[position]
        return [position for position, (until, _) in self._waits.items() if until > now]

    def seconds(self, now: float) -> float | None:
        """Return the seconds until the first wait ends, or None if no message waits."""
        return min((until - now for until, _ in self._waits.values() if until > now), default=None)
