"""The pace of a route's rounds. The results of earlier rounds determine the next round. This module does no I/O."""

from forwarder.result import RoundResult
from forwarder.round import RoundSize

ROUND_SECONDS = 2.0  # rounds shorter than this grow; rounds longer than twice this shrink
FIRST_ROUND_MESSAGES, MOST_ROUND_MESSAGES = 128, 65_536
LEAST_RATE = 0.75
"""If the rate after a halving is below this share of the rate before, the fixed cost is most of a round's duration."""


class Pace:
    """Decides the size of a route's next round, and whether the round is claimed while the present round calls.

    Args:
        tasks: the number of tasks that run at the same time, until the loop updates the number.

    tasks: the present number of tasks, which the loop updates.
    limit: the largest number of messages for the next round, unless a storm of failures goes on.
    """

    def __init__(self, tasks: int) -> None:
        self.limit = FIRST_ROUND_MESSAGES
        self.tasks = tasks
        self._is_steady = False
        self._halved: tuple[int, float] | None = None  # the limit and the messages per second before the last halving

    def claims_ahead(self, calling: RoundSize) -> bool:
        """Return whether the next round is claimed while this round calls the service.

        A prefetched round saves time under three conditions. The present round is full, so that more messages are
        likely. The previous round handled all its messages. And rounds no longer grow. If the present round is not
        full, messages that arrive during the round are claimed afterwards, together in one round.
        """
        if calling.in_order or calling.is_bounded:
            return False
        return self._is_steady and calling.messages >= calling.limit

    def note(self, calling: RoundSize, result: RoundResult, seconds: float, *, in_storm: bool = False) -> None:
        """Record the result of a round.

        Args:
            seconds: the duration of the calls.
            in_storm: whether a storm of failures goes on, or the round was to show whether the storm is over.
        """
        before, self._is_steady = self.limit, False
        if halves(calling, result):
            self.limit = calling.messages // 2
        elif not (result.down or in_storm):
            self.limit = self._next_limit(calling.limit, result.messages, seconds)
            self._is_steady = is_through(calling.messages, result) and self.limit == before

    def _next_limit(self, limit: int, messages: int, seconds: float) -> int:
        """Return the limit of the next round. Undo the last halving if the smaller round was slower per message.

        Otherwise rounds on a busy machine, where starting the tasks takes seconds, would shrink to a few messages.
        """
        halved, self._halved = self._halved, None
        if halved and messages >= limit and messages < LEAST_RATE * halved[1] * seconds:
            return halved[0]
        following = next_limit(limit, messages, seconds, self.tasks)
        if following < limit:
            self._halved = (limit, messages / seconds)
        return following


def halves(calling: RoundSize, result: RoundResult) -> bool:
    """Return whether a smaller round follows without a pause: the full queues may have room for fewer replies."""
    return bool(result.full) and calling.messages > 1


def is_through(messages: int, result: RoundResult) -> bool:
    """Return whether each message of a round has an answer or a counted attempt.

    Otherwise some messages remain in the queue, and have to be claimed again before the messages of a prefetched round.
    """
    return not result.down and result.messages >= messages


def next_limit(limit: int, messages: int, seconds: float, tasks: int) -> int:
    """Return the largest number of messages for the next round, so that the round lasts two to four seconds.

    This time is much longer than the fixed cost of a round, and so short that a killed forwarder repeats little work.
    Even with a slow service, each task has at least one message.

    Args:
        limit, messages, seconds: the last round's limit, number of handled messages, and duration.
    """
    if seconds > ROUND_SECONDS * 2:
        return max(limit // 2, min(limit, tasks))
    return min(limit * 2, MOST_ROUND_MESSAGES) if seconds < ROUND_SECONDS and messages >= limit else limit
