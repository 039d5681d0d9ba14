"""The pace of a route's rounds. The results of earlier rounds determine the next round. This module does no I/O."""

from forwarder.result import RoundResult
from forwarder.round import RoundSize
from spool.workers.pauses import Pauses, Streak

ROUND_SECONDS = 2.0  # rounds shorter than this grow; rounds longer than twice this shrink
FIRST_ROUND_MESSAGES, MOST_ROUND_MESSAGES = 128, 65_536
LEAST_RATE = 0.75
"""If the rate after a halving is below this share of the rate before, the fixed cost is most of a round's duration."""


class Pace(Pauses):
    """Decides the size and the time of a route's next round, and the pause before the round.

    Args:
        tasks: the number of tasks that run at the same time, until the loop updates the number.

    tasks: the present number of tasks, which the loop updates.
    limit: the largest number of messages for the next round, unless a storm of failures goes on.
    streak: the failures since the last other outcome, over several rounds.
    pause: the seconds of the pause before the next round.
    """

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.limit = FIRST_ROUND_MESSAGES
        self.tasks = tasks
        self.pause = 0.0
        self.streak = Streak()
        self._is_steady = False
        self._halved: tuple[int, float] | None = None  # the limit and the messages per second before the last halving

    @property
    def most(self) -> int:
        """The largest number of messages for the next round. During a storm of failures, one message shows whether the
        service works again."""
        return 1 if self.streak.is_storm else self.limit

    def claims_ahead(self, calling: RoundSize) -> bool:
        """Return whether the next round is claimed while this round calls the service.

        A prefetched round saves time under three conditions. The present round is full, so that more messages are
        likely. The previous round handled all its messages. And rounds no longer grow. If the present round is not
        full, messages that arrive during the round are claimed afterwards, together in one round.
        """
        if calling.in_order or calling.is_bounded or self.down:
            return False
        return self._is_steady and calling.messages >= calling.limit

    def note(self, calling: RoundSize, result: RoundResult, seconds: float) -> None:
        """Record the result of a round. ``seconds``: the duration of its calls."""
        before, probing, self._is_steady = self.limit, self.streak.is_storm, False
        self.down, self.pause = "", 0.0
        if result.has_answers and not result.streak.is_storm:
            self.streak.end()
        elif result.streak.failed:
            self.streak.fail(result.streak.reason, *result.streak.failed)
        if result.full and calling.messages > 1:
            self.limit = max(1, calling.messages // 2)  # the queues may have room for fewer replies
        elif result.down:
            self.pause = self.find_down(result.down, result.retry_after)
        elif self.streak.is_storm and result.messages:
            self.pause = self.find_down(self.streak.text)
        else:
            self.find_up()
            if not probing:
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
