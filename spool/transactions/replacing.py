"""Replace a message: one commit takes the messages with a correlation id, and puts a new message with this id.

A transaction that replaces a message holds a byte lock for the queue and the correlation id until the transaction ends.
So two transactions never put two new messages in place of one, even if the queue has no old message. If two
transactions wait for each other's correlation ids, only their deadlines end the wait.
"""

from collections.abc import Mapping
from typing import Any

from spool.coordination.locks import replacement_byte
from spool.errors import Argument, InvalidArgument, MessageInUse, ProtocolError
from spool.log.visibility import revalidate
from spool.log.write_set import WriteSet
from spool.model.checks import SHORT_TEXT, check
from spool.model.layout import MAX_ORDINAL
from spool.model.position import PositionRanges, positions
from spool.model.text import shown
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.store import Store
from spool.transactions.claiming import Wanted, check_wanted
from spool.transactions.hold import Hold
from spool.transactions.waiting import repeat_when_arrived


def check_replace(queue: str, timeout: float | None, options: Mapping[str, Any]) -> Wanted:
    """Check the arguments of ``Space.replace``; returns the messages to take."""
    key = check("correlation_id", options.get("correlation_id"), SHORT_TEXT)  # (here None is not allowed)
    if options.get("deduplication_key") is not None:
        name = Argument("deduplication_key")
        raise InvalidArgument("replace takes no ", name, ": it leaves one message for each correlation id anyway")
    return check_wanted(queue, MAX_ORDINAL, correlation_id=key, timeout=timeout)


class Replacements:
    """The correlation ids that one transaction holds, the messages that it has replaced, and those that it has put."""

    def __init__(self, hold: Hold) -> None:
        self._hold, self._store = hold, hold.store
        self._ordinals: dict[tuple[str, str | None], int] = {}

    def lock(self, wanted: Wanted, deadline: Deadline) -> None:
        """Lock the correlation id until the transaction ends.

        Raises:
            MessageInUse: another transaction did not release the correlation id in time.
        """
        assert wanted.correlation_id is not None
        byte, locks = replacement_byte(wanted.queue, wanted.correlation_id), self._hold.locks
        if byte not in locks:
            what = f"the correlation id {shown(wanted.correlation_id)} of queue {wanted.queue}"
            try:
                self._store.shared.xids.lock(byte, deadline, what)
            except WaitExpired as error:
                raise MessageInUse(f"{error}: try again later") from None
            locks.append(byte)
        revalidate(self._store)  # the last holder may have died before the publication of its numbered commit

    def take(self, wanted: Wanted, deadline: Deadline) -> PositionRanges:
        """Claim all messages with the correlation id, and wait for those that other transactions hold. No attempts are
        recorded, because the program does not see these messages.

        Raises:
            MessageInUse: another transaction held a message all the time.
        """
        hold, got = self._hold, PositionRanges()

        def look() -> bool:
            got.extend(hold.claim(wanted))
            return not _others_hold(self._store, wanted, set(positions(hold.claims)))

        try:
            if not look() and not repeat_when_arrived(self._store, (wanted.awaited,), lambda: True, look, deadline):
                raise MessageInUse(
                    f"a message with the correlation id {shown(wanted.correlation_id)} of queue {wanted.queue} is held "
                    "by a transaction: try again later"
                )
        except BaseException:
            hold.give_back(got)
            raise
        hold.replaced = [*hold.replaced, *got]
        return got

    def own(self, wanted: Wanted, batch: WriteSet) -> int | None:
        """Return the ordinal of the message that an earlier call in this transaction has put, or None.

        Raises:
            ProtocolError: the message is on the disk already, because the transaction is large.
        """
        ordinal = self._ordinals.get((wanted.queue, wanted.correlation_id))
        if ordinal is not None and not batch.is_open(ordinal):
            raise ProtocolError(
                "this transaction is large, and its message with the correlation id "
                f"{shown(wanted.correlation_id)} is on the disk: commit the transaction, and replace the message in a "
                "new one"
            )
        return ordinal

    def remember(self, wanted: Wanted, ordinal: int) -> None:
        """Remember the message that the transaction has put."""
        self._ordinals[wanted.queue, wanted.correlation_id] = ordinal


def _others_hold(store: Store, wanted: Wanted, own: set[Any]) -> bool:
    """Return whether a message with the correlation id is held by another transaction, or will be put by a prepared
    branch."""
    queue, key = wanted.queue, wanted.correlation_id
    assert key is not None
    now = store.clock.now()
    with store.view.mutex:
        for run in store.view.index.messages.correlated(queue, key):
            if not run.is_expired(now) and any((run.number, ordinal) not in own for ordinal in run.ordinals):
                return True
        return any(
            table.queues[queue_at] == queue and table.attributes[attributes_at].get("correlation_id") == key
            for contents in store.view.prepared.branches.values()
            for table in contents.tables
            for queue_at, attributes_at, _ in table.runs
        )
