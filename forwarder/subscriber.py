"""A reader with a subscription, for which the space keeps all messages until the reader has read them.

An offset has the number of the last commit that was read, and the number of the commit that registered the
subscription. The second number distinguishes subscriptions with the same name.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spool.engine import Subscription
from spool.engine.remote import Item
from spool.errors import CorruptedFile, InvalidArgument

if TYPE_CHECKING:
    from spool.engine import Engine
    from spool.engine.remote import Backlog

NUMBER, SINCE = "number", "since"
"""The keys of an offset: the last commit that was read, and the commit that registered the subscription."""

Offset = dict[str, int]

log = logging.getLogger("spool")


class Subscriber:
    """Registers, renews and checks a subscription.

    Args:
        queues: the names of the queues; empty for all queues.
        expiry: the seconds after which the subscription ends unless it is renewed.
        go_on: the advice after a loss; None if the reader continues after a loss.
        directory: the directory of an archive; "" for a query.
    """

    def __init__(
        self, engine: "Engine", name: str, queues: Iterable[str], expiry: float, go_on: str | None, directory: str = ""
    ) -> None:
        self._engine, self.name, self._expiry, self._go_on = engine, name, expiry, go_on
        self._queues, self._directory = tuple(sorted(queues)), directory
        query = ("query", "query", "where the query is", "another query or with a later checkpoint")
        archive = ("archive", "run", "the last one in the archive", "a run with a later record")
        self._reader, self._visit, self._where, self._other = archive if directory else query

    def begin(self) -> int:
        """Register the subscription for a reader without a checkpoint; return the number of the commit that did this.

        InvalidArgument if a subscription of this name belongs to the archive of another directory, or if it has read
        commits and this reader may not continue after a loss.
        """
        return self._engine.register_subscription(
            self.name, self._queues, self._expiry, anew=self._go_on is None, directory=self._directory
        )

    def renew(self, start: Mapping[str, int]) -> int:
        """Return the commit that registered the subscription, for a query that continues after ``start``.

        Renew the subscription when half of its time has passed. If a commit after ``start`` was not kept, raise
        InvalidArgument. If the query is to continue after a loss, register the subscription again instead.
        """
        known, wrong = self._check(start)
        if known is None:
            if self._go_on is not None:
                raise InvalidArgument(wrong)
            log.warning("%s. The subscription is registered again, and the %s goes on", wrong, self._reader)
            return self.begin()
        if known.expires - self._engine.clock.now() < self._expiry / 2:
            self.read({SINCE: known.since, NUMBER: known.after})
        return known.since

    def places(
        self, backlog: "Backlog", start: Mapping[str, int], end: Mapping[str, int]
    ) -> tuple[list[tuple[Item, int]], list[tuple[Item, int]]]:
        """Return the places of the messages between two offsets: those that were put before the subscription began and
        are still in the queues, and those that were kept. The errors are the same as in ``kept``."""
        begin, last = start[NUMBER], end[NUMBER]
        kept_from = max(begin, end[SINCE])
        present = backlog.items(begin + 1, min(last, kept_from)) if begin < min(last, kept_from) else []
        return present, self.kept(backlog, kept_from, end) if kept_from < last else []

    def kept(self, backlog: "Backlog", begin: int, end: Mapping[str, int]) -> list[tuple[Item, int]]:
        """Return the places of all messages in the commits from ``begin + 1`` to ``end``.

        Each place is paired with the size of its bodies in bytes. InvalidArgument if a commit was not kept.
        CorruptedFile if a commit is damaged.
        """
        found, lost = backlog.kept_items(begin + 1, end[NUMBER])
        # Check after the read, because a subscription that still exists has kept all commits that were read.
        known, wrong = self._check({**end, NUMBER: begin})
        if known is None or lost:
            wrong = wrong or f"commit {lost[0]} is kept for the subscription {self.name!r}, and cannot be read"
            if self._go_on is not None:
                raise InvalidArgument(wrong) if known is None else CorruptedFile(f"{wrong}; {self._go_on}")
            log.warning("%s. The %s goes on with the readable messages", wrong, self._reader)
        return found

    def read(self, end: Mapping[str, int]) -> None:
        """Record that the reader has read all commits up to ``end``.

        If the subscription has ended, this method does nothing, and the next check reports the end.
        """
        since, number = end[SINCE], end[NUMBER]
        self._engine.advance_subscription(self.name, since, number, self._expiry, directory=self._directory)

    def _check(self, start: Mapping[str, int]) -> tuple[Subscription | None, str]:
        """Return the subscription if it has kept all commits after ``start``; otherwise return None and the reason.

        ``start`` may lie before the registration; commits before the registration do not count.
        """
        known, begin = self._engine.subscription(self.name), start[NUMBER]
        if SINCE not in start:
            wrong = "the query has read without a subscription until now"
        elif known is None:
            wrong = f"it was deleted, or it ended because no {self._visit} came in time"
        elif known.since != start[SINCE]:
            wrong = f"commit {known.since} registered it again"
        elif known.queues != self._queues:
            wrong = f"it was registered for {_named(known.queues)}, and the {self._reader} reads {_named(self._queues)}"
        elif known.after > max(begin, known.since):
            where = f" in {known.directory}" if known.directory else ""
            wrong = f"it has been read up to commit {known.after}, by {self._other}{where}"
        else:
            return known, ""
        wrong = (
            f"the subscription {self.name!r} has not kept all messages that were put after commit {begin}, "
            f"{self._where}: {wrong}. Messages that were consumed since then may have been removed"
        )
        return None, wrong if self._go_on is None else f"{wrong}; {self._go_on}"


def _named(queues: Sequence[str]) -> str:
    return ", ".join(queues) or "all queues"
