"""How the rounds of a route follow each other: decided from what the last ones came to, without touching anything."""

from dataclasses import dataclass

from forwarder.round import RoundResult
from spool.workers.pauses import Pauses

ROUND_SECONDS = 2.0
FIRST_ROUND_MESSAGES, MOST_ROUND_MESSAGES = 128, 65_536


@dataclass(frozen=True)
class RoundSize:
    """A round whose calls are under way, as far as the next one depends on it.

    limit: the most messages that it could claim. messages: how many it has claimed.
    in_order: the next one may begin only after its commit.
    is_bounded: there is room for the answers to some messages only.
    """

    limit: int
    messages: int
    in_order: bool = False
    is_bounded: bool = False


class Pace(Pauses):
    """Decides how many messages the next round of a route claims, when, and how long the route pauses before it.

    Args:
        tasks: how many tasks a round has at a time, as it is known now.

    tasks: the same; the loop changes it when there are more or fewer.
    limit: the most messages of the next round.
    """

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.limit = FIRST_ROUND_MESSAGES
        self.tasks = tasks
        self._is_steady = False

    def claims_ahead(self, calling: RoundSize) -> bool:
        """Return whether the next round is claimed while this one calls.

        Only where it is of use: this one has as many messages as it could have, so that more are likely, the one
        before it came through all of its own, and the size of rounds has been found: each may be larger than the one
        before it until then. What comes in during a smaller round is claimed behind it, in one round.
        """
        if calling.in_order or calling.is_bounded or self.down:
            return False
        return self._is_steady and calling.messages >= calling.limit

    def note(self, calling: RoundSize, result: RoundResult, seconds: float) -> None:
        """Take in what a round came to.

        Args:
            seconds: how long its calls took.
        """
        before, self._is_steady = self.limit, False
        self.down, self._pause = "", 0.0
        if result.full and result.messages >= calling.messages > 1:
            self.limit = max(1, calling.messages // 2)  # fewer replies may fit
        elif result.down:
            self.find_down(result.down, result.retry_after)
        else:
            self.find_up()
            self.limit = next_limit(calling.limit, result.messages, seconds, self.tasks)
            self._is_steady = is_through(calling.messages, result) and self.limit == before


class IdleTime:
    """Decides when a forwarder ends because there was nothing to do.

    Args:
        limit: the seconds without a message after which it ends; None for never.
        now: seconds of the monotonic clock, here and below.
    """

    def __init__(self, limit: float | None, now: float) -> None:
        self.limit = limit
        self._active_at = now

    def is_over(self, now: float, messages: int, is_busy: bool) -> bool:
        """Take in that a route found so many messages; return whether the forwarder ends.

        Args:
            is_busy: a route has messages claimed, or pauses because its service is down.
        """
        if messages or is_busy:
            self._active_at = now
        return self.limit is not None and now - self._active_at >= self.limit


def is_through(messages: int, result: RoundResult) -> bool:
    """Return whether a round came through all of its messages: each has an answer, or was an attempt.

    Otherwise the first ones that are left come before those that are claimed already.
    """
    return not result.down and result.messages >= messages


def next_limit(limit: int, messages: int, seconds: float, tasks: int) -> int:
    """Return the number of messages of the next round, so that a round lasts about two seconds.

    That is long against the cost of a round, and short enough that little work is undone when the forwarder is killed.
    There is at least one message for each task, however slow the service is.

    Args:
        limit: the limit of the last round.
        messages: how many messages it came through.
        seconds: how long it took.
    """
    if seconds > ROUND_SECONDS * 2:
        return max(limit // 2, min(limit, tasks))
    return min(limit * 2, MOST_ROUND_MESSAGES) if seconds < ROUND_SECONDS / 2 and messages >= limit else limit
