"""A transaction in a two-phase commit. A coordinator decides its outcome, or the transaction decides about branches.

The XA resource manager uses such a transaction for each branch, the forwarder for each round, and a worker for each
attempt for a message. Applications use ``Transaction``.
"""

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import NoReturn, TypeVar

from spool.errors import Full
from spool.index.stretch import Stretch
from spool.log.commit import write
from spool.log.quota import room_for
from spool.maintenance.reclaim import reclaim
from spool.model.position import Position, PositionRanges, positions
from spool.model.xid import Xid
from spool.policies.retries import add_failure_outcome
from spool.runtime.calls import public_call
from spool.store.settings import Settings
from spool.transactions import delivery, two_phase
from spool.transactions.branch import Branch
from spool.transactions.claiming import check_wanted
from spool.transactions.transaction import Transaction, TransactionState
from spool.transactions.waiting import wait_for

T = TypeVar("T")


class CoordinatedTransaction(Transaction):
    """A branch of a coordinator, or a coordinator's own transaction.

    on_rollback: called once when the transaction is rolled back, before it releases its messages.
    on_full: called when a queue has no room for the messages; returns True to roll back without counting an attempt.
    """

    on_rollback: Callable[[], object] | None = None
    on_full: Callable[[Full], bool] | None = None

    @property
    def mutex(self) -> "threading.RLock":
        """The lock that serialises calls of several threads."""
        return self._lock

    @property
    def lost(self) -> str | None:
        """The reason why the next call rolls the transaction back, or why a call did so; None if no reason is set."""
        return self._lost

    def lock_xid_now(self) -> bool:
        """Lock the xid of a new branch, inside a public call; returns False if another process holds the xid."""
        return self._branch.lock_xid_now()

    @public_call("taking from queue {queue}")
    def hold(
        self,
        queue: str,
        max_messages: int,
        *,
        timeout: float | None = 0,
        passed: Set[tuple[int, int]] = frozenset(),
        in_order: bool = False,
        check: Callable[[], object] = lambda: None,
    ) -> list[Stretch]:
        """Claim messages without taking them.

        Later ``conclude``, or a branch that this transaction adopts, determines the effect on each message. The end of
        the transaction releases each claimed message that no command addresses.

        Args:
            max_messages: the most messages to claim.
            timeout: the seconds to wait for the first message.
            passed: the positions of messages that must not be claimed.
            in_order: whether the caller handles the messages one after the other. If so, several messages of one group
                may be claimed. Otherwise at most one message of each group is claimed.
            check: called ten times a second during the wait; an exception from ``check`` ends the wait.

        Returns:
            The places of the messages' bodies, in the queue's order; [] if no message is free in time.

        Raises:
            QueueNotFound: the queue does not exist.
        """
        wanted = replace(check_wanted(queue, max_messages, timeout=timeout), spread=not in_order, passed=passed)

        def check_both() -> None:
            self._check_active()
            check()

        def look() -> PositionRanges:
            check()
            return self._claim(wanted)

        with self._lock:
            got = wait_for(self._store, wanted, self._store.clock.monotonic(), look, self._branch.groups, check_both)
            self._branch.claims += got
            return delivery.held_stretches(self._store, got)

    @public_call("recording that a call begins")
    def begin_call(self) -> None:
        """Record that a call with the held messages begins. If this process dies in the call, an attempt is counted."""
        with self._lock:
            self._branch.begin_journal()

    @public_call("recording that a call has ended")
    def end_call(self) -> None:
        """Record that the call has ended. If this process dies afterwards, no attempt is counted."""
        with self._lock:
            self._branch.end_journal()

    @public_call("committing")
    def conclude(self, record: Callable[[Branch], T], *, failed: bool) -> T:
        """Commit the commands that ``record`` adds to the branch; returns the result of ``record``.

        Raises like ``commit``.

        ``failed``: whether the call failed. After a failure only these commands are committed, so a transaction that
        was marked lost may commit them, too.
        """
        with self._lock:
            if failed:
                self._lost = None
            self._check_ending()
            try:
                result = record(self._branch)
                if self._branch.batch.sections:
                    self._branch.stream()
            except BaseException as error:
                self._fail("recording the outcome of a call", error)
            self.commit()
            return result

    def begin_anew(self, settings: Settings, own: Position, reason: str) -> None:
        """Undo all gets and puts, inside ``conclude``; count an attempt for each claimed message except ``own``."""
        store, branch = self._store, self._branch
        branch.begin_anew()
        if self._promises is not None:
            self._promises.roll_back(reason)
        with store.view.mutex:
            for position in positions(branch.claims):
                if position != own:
                    add_failure_outcome(branch.batch, store, settings, position, reason)

    def bar(self, reason: str | None) -> None:
        """Make puts and gets raise ProtocolError with this reason; None allows them again. The messages remain held."""
        self._barred = reason

    def work(self) -> tuple[int, int]:
        """Return how many messages the transaction has put and taken."""
        return self._branch.batch.messages, sum(count for _, _, count in self._branch.claims)

    def refuse(self, reason: str) -> None:
        """Make later calls raise ProtocolError. A call in progress ends as soon as it checks the transaction."""
        self._left = True
        self._lost = reason

    def _fail(self, doing: str, error: BaseException) -> NoReturn:
        if isinstance(error, Full) and self.on_full is not None and self.on_full(error):
            self.abandon()
        super()._fail(doing, error)

    def _end(self, state: TransactionState, why: str = "") -> None:
        on_rollback, self.on_rollback, self.on_full = self.on_rollback, None, None
        if state is TransactionState.ROLLED_BACK and on_rollback is not None:
            on_rollback()
        super()._end(state, why)

    @public_call("preparing")
    def prepare(self) -> bool:
        """Vote. Returns True once the yes is durable; False if the transaction was empty and has ended (XA_RDONLY).

        Raises like ``commit``; the transaction is then rolled back.
        """
        store = self._store
        with self._lock:
            try:
                page = self._check_ending()
                if self._branch.is_empty:
                    self._end(TransactionState.COMMITTED)
                    return False
                self._branch.lock_xid()
                file = self._branch.new_file()
                write(store, file, self._branch.batch, page, make_room=partial(reclaim, store))
                settings = self._store.settings.current(page)
                check = None
                if settings.config.has_limits:  # without limits, the vote needs no number lock
                    check = partial(room_for(store, lambda: file.tables), settings)
                two_phase.vote(store, file, self._branch.xid, check=check)
                self._end(TransactionState.PREPARED)
                return True
            except BaseException as error:
                self._fail("preparing", error)

    @public_call("committing")
    def commit(
        self,
        adopt: Sequence[Xid] = (),
        record: Callable[[Branch], object] | None = None,
        check: Callable[[Settings], object] | None = None,
        copied: Sequence[Xid] = (),
    ) -> None:
        """Commit as ``Transaction.commit`` does, together with prepared branches whose votes the caller got.

        Args:
            adopt: the xids of the prepared branches.
            record: a function that adds commands to this branch before the commit.
            check: a function that raises if the commit must not happen. It is called under the number lock, once every
                issued number is settled.
            copied: the xids of the prepared branches whose contents ``record`` copies into this branch.
        """
        if not adopt and record is None and check is None:
            super().commit()
            return
        store, branch = self._store, self._branch
        with self._lock:
            try:
                self._check_ending()
                self._branch.lock_xid()
                if record is not None:
                    record(branch)
                deadline = store.deadline()
                self.number = two_phase.adopt(store, branch.new_file(), branch.batch, adopt, deadline, check, copied)
                two_phase.move_adopted(store, self.number, enumerate(adopt, 1))
                self._end(TransactionState.COMMITTED)
            except BaseException as error:
                self._fail("committing", error)
