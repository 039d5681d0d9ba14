"""The subscription of a stream: register, renew and check the subscription, and advance it after each batch."""

import logging
from collections.abc import Mapping, Sequence

from forwarder.dataframes.columns import StreamOptions
from spool import Space
from spool.engine import Subscription
from spool.engine.tasks import Backlog, Item
from spool.errors import CorruptedFile, InvalidArgument

NUMBER, SINCE = "number", "since"
"""The keys of a stream's offset: the last commit that it has read, and the commit that registered the subscription."""

GO_ON = "to continue with the readable messages, start the query with .option('failOnDataLoss', 'false')"
"""The advice if messages that were kept for a subscription are lost."""

log = logging.getLogger("spool")


class Subscriber:
    """The subscription of a query, on the side of the query."""

    def __init__(self, space: Space, options: StreamOptions) -> None:
        self._engine, self._options, self._name = space.engine, options, options.subscription
        self._queues = tuple(sorted(options.queues))

    def begin(self) -> int:
        """Register the subscription for a query without a checkpoint; return the number of the registering commit.

        InvalidArgument if a subscription of this name has read commits.
        """
        return self._register(anew=not self._options.fail_on_loss)

    def renew(self, start: Mapping[str, int]) -> int:
        """Return the commit that registered the subscription, for a query that continues after ``start``.

        Renew the subscription when half of its time has passed. If a commit after ``start`` was not kept, raise
        InvalidArgument, or register the subscription again if the query goes on after a loss.
        """
        known, wrong = self._check(start)
        if known is None:
            if self._options.fail_on_loss:
                raise InvalidArgument(wrong)
            log.warning("%s. The subscription is registered again, and the query goes on", wrong)
            return self._register(anew=True)
        if known.expires - self._engine.clock.now() < self._options.expiry / 2:
            self._engine.advance_subscription(self._name, known.since, known.after, self._options.expiry)
        return known.since

    def kept(self, backlog: Backlog, begin: int, end: Mapping[str, int]) -> list[tuple[Item, int]]:
        """Return the places of the messages in the commits after ``begin`` up to ``end``.

        Each place has the size of its bodies in bytes. InvalidArgument if a commit was not kept. CorruptedFile if a
        commit is damaged.
        """
        found, lost = backlog.kept_items(begin + 1, end[NUMBER])
        # Check after the reading: a subscription that still exists has kept all commits that were read.
        known, wrong = self._check({**end, NUMBER: begin})
        if known is None or lost:
            wrong = wrong or f"commit {lost[0]} is kept for the subscription {self._name!r}, and cannot be read"
            if self._options.fail_on_loss:
                raise InvalidArgument(wrong) if known is None else CorruptedFile(f"{wrong}; {GO_ON}")
            log.warning("%s. The query goes on with the readable messages", wrong)
        return found

    def read(self, end: Mapping[str, int]) -> None:
        """Record that the query has read all commits up to ``end``.

        If the subscription has ended, this method does nothing, and the next check reports the end.
        """
        self._engine.advance_subscription(self._name, end[SINCE], end[NUMBER], self._options.expiry)

    def _register(self, *, anew: bool) -> int:
        return self._engine.register_subscription(self._name, self._queues, self._options.expiry, anew=anew)

    def _check(self, start: Mapping[str, int]) -> tuple[Subscription | None, str]:
        """Return the subscription if it has kept all commits after ``start`` since its registration.

        Otherwise return None and the reason.
        """
        known, begin = self._engine.subscription(self._name), start[NUMBER]
        if known is None:
            wrong = "it was deleted, or it ended because no query came back in time"
        elif SINCE not in start:
            wrong = "the query has read without a subscription until now"
        elif known.since != start[SINCE]:
            wrong = f"commit {known.since} registered it again"
        elif known.queues != self._queues:
            wrong = f"it was registered for {_named(known.queues)}, and the query reads {_named(self._queues)}"
        elif known.after > max(begin, known.since):
            wrong = f"it has been read up to commit {known.after}, by another query or with a later checkpoint"
        else:
            return known, ""
        return None, (
            f"the subscription {self._name!r} has not kept all messages that were put after commit {begin}, where the "
            f"query is: {wrong}. Messages that were consumed since then may have been removed; {GO_ON}"
        )


def _named(queues: Sequence[str]) -> str:
    return ", ".join(queues) or "all queues"
