"""The breaker: decide how long a worker or route pauses, and how long it passes over one message. No I/O.

A worker or route pauses in three cases: its service cannot be reached, a queue has no room, or many messages have
failed one after another (``Streak``). Only the failed messages count attempts.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from spool.model.checks import number
from spool.model.position import Position
from spool.model.text import plural

log = logging.getLogger("spool")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""The first and the longest pause. Each pause for an unreachable service, or a full queue, doubles the last pause."""

MOST_WAITING = 10_000
"""The most messages that may wait for room in queues that no other message names. With more messages, the worker or
route pauses instead, because each claim has to pass over all these messages."""

PAUSE_AFTER = 10
"""The default number of messages that fail one after another before a worker or route pauses."""

PAUSES_AFTER = number(1_000, 0)
"""The values of the option ``pause_after``."""


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


class Breaker:
    """Decides whether a worker or route may claim messages now. All drivers of the loop use it. Not thread-safe.

    Args:
        name: the name of the worker or route in the log.
        monotonic: the clock of the space.
        is_resumed: whether an administrator has asked for an attempt now.
        once: whether each message is attempted only once. The first reason for a pause then ends the loop.
        pause_after: how many messages fail one after another before a pause; 0: any number. With ``once``, this number
            has no effect, because no message fails twice.

    is_over: whether a loop with ``once`` ends early.
    down: the reason of the last pause; "" if a message was handled after the pause.
    streak: the messages that failed one after another.
    """

    def __init__(
        self,
        name: str,
        monotonic: Callable[[], float],
        is_resumed: Callable[[], bool],
        *,
        once: bool,
        pause_after: int = PAUSE_AFTER,
    ) -> None:
        self.once, self.is_over, self.down = once, False, ""
        self.streak = Streak(0 if once else pause_after)
        # Messages that wait for room in a queue that no other message names: the end of the wait, and its length.
        self._waits: dict[Position, tuple[float, float]] = {}
        self._name, self._monotonic, self._is_resumed = name, monotonic, is_resumed
        self._probe: Position | None = None  # the message that shows whether a storm of failures is over
        self._until = self._last = 0.0  # the end of the pause, and the length of the last pause
        self._next = FIRST_PAUSE_SECONDS
        self._untold: tuple[str, float] | None = None

    @property
    def is_paused(self) -> bool:
        return self.is_over or self._until > self._monotonic()

    def pause_left(self) -> float:
        """Return the seconds of the pause that are left; 0 if messages may be claimed.

        The pause ends early if an administrator asks for an attempt now. The next pause is then short again.
        """
        if not self._until:
            return 0.0
        left = self._until - self._monotonic()
        if left > 0 and self._is_resumed():
            log.warning("%s: an administrator ended the pause; next attempt now", self._name)
            self._next, left = FIRST_PAUSE_SECONDS, 0.0
        if left <= 0:
            self._until = left = 0.0
        return left

    def begin(self, position: Position) -> bool:
        """Return whether a claimed message may be handled: no pause has begun since the claim began.

        In a storm of failures, all other messages wait for the end of this attempt, or for the time of a pause.
        """
        if self.is_over or (self._until and self.pause_left() > 0):
            return False
        if self.streak.failed and self.streak.is_storm:
            self._probe, self._until = position, self._monotonic() + self._last
        return True

    def wait(self, position: Position) -> bool:
        """Pass over a message for a second, because it waits for room in a queue that no other message names.

        Each further call for the message doubles the time, up to a minute. Return False if too many messages wait.
        """
        if len(self._waits) >= MOST_WAITING:
            return False
        _, before = self._waits.pop(position, (0.0, FIRST_PAUSE_SECONDS / 2))
        seconds = min(before * 2, LONGEST_PAUSE_SECONDS)
        self._waits[position] = (self._monotonic() + seconds, seconds)
        return True

    def passed(self) -> list[Position]:
        """Return the messages that wait now. Forget each message whose wait ended more than a minute ago."""
        if not self._waits:
            return []
        now = self._monotonic()
        self._waits = {one: wait for one, wait in self._waits.items() if wait[0] + LONGEST_PAUSE_SECONDS >= now}
        return [position for position, (until, _) in self._waits.items() if until > now]

    def seconds(self) -> float | None:
        """Return the seconds until the first wait ends, or None if no message waits. With ``once``, return 0."""
        if self.once or not self._waits:
            return 0.0 if self.once else None
        now = self._monotonic()
        return min((until - now for until, _ in self._waits.values() if until > now), default=None)

    def hold_back(self, reason: str, delay: float | None = None, position: Position | None = None) -> None:
        """Pause, because no message can be handled now. ``delay``: the shortest pause in seconds that the service asked
        for. ``position``: the message that showed the reason."""
        if self.once:
            self.is_over, self.down, self._untold = True, reason, (reason, 0.0)
        elif self._ends_probe(position) or self.pause_left() <= 0:  # otherwise another call has begun the pause
            self._pause(reason, delay)

    def note(self, failed: str, *positions: Position) -> None:
        """Note attempts that have ended. ``failed``: the reason of failed attempts; "" after any other outcome."""
        probed = self._probe is not None and any(map(self._ends_probe, positions))
        if failed:
            self.streak.fail(failed, *positions)
            if self.streak.is_storm and (probed or self.pause_left() <= 0):
                self._pause(self.streak.text)
        elif self.streak.failed:
            if self.streak.is_storm:
                self._until = 0.0
            self.streak.failed.clear()
        for position in positions if self._waits else ():
            self._waits.pop(position, None)
        if self.down and not (self.is_over or self.streak.is_storm or self.pause_left() > 0):
            self.down, self._next = "", FIRST_PAUSE_SECONDS

    def take_untold(self) -> tuple[str, float] | None:
        """Return the reason and the seconds of a pause that nobody has got yet, or None. 0 s: the loop ends."""
        untold, self._untold = self._untold, None
        return untold

    def _pause(self, reason: str, delay: float | None = None) -> None:
        self._last = max(self._next, delay or 0.0)
        self._next = min(self._next * 2, LONGEST_PAUSE_SECONDS)
        self._until, self.down, self._untold = self._monotonic() + self._last, reason, (reason, self._last)

    def _ends_probe(self, position: Position | None) -> bool:
        """Return whether the message is the probe of a storm, which has ended now."""
        if probed := position is not None and position == self._probe:
            self._probe = None
        return probed
