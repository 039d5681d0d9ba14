"""A transaction whose outcome a coordinator decides, or that decides others': two-phase commit, in X/Open's terms.

The XA resource manager and the forwarder drive branches and rounds by it. What applications use is ``Transaction``.
"""

from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial

from spool.coordination.counters import Page
from spool.log.quota import room_for
from spool.model.xid import Xid
from spool.runtime.calls import public_call
from spool.transactions import claiming, delivery, two_phase
from spool.transactions.delivery import HeldMessage
from spool.transactions.transaction import Transaction, TransactionState
from spool.transactions.validation import check_wanted


class CoordinatedTransaction(Transaction):
    """A branch of a coordinator, or a coordinator's own transaction."""

    @public_call("looking for the branch")
    def lock_xid_now(self) -> bool:
        """Lock the xid of a coordinator's branch; False if another process has it."""
        return self._branch.lock_xid_now()

    @public_call("taking from queue {queue}")
    def hold(
        self, queue: str, max_messages: int, *, timeout: float | None = 0, passed: Set[tuple[int, int]] = frozenset()
    ) -> list[HeldMessage]:
        """Claim messages without taking them: branches that this transaction will adopt say what becomes of each.

        Returns where their bodies lie, in the queue's order; [] if there is no message within ``timeout`` seconds.
        Messages in ``passed`` stay. What no adopted branch mentions is free again when the transaction ends.
        """
        wanted = replace(check_wanted(queue, max_messages, timeout=timeout), spread=True, passed=passed)
        with self._lock:
            deadline = self._store.deadline(timeout)
            got = claiming.wait_for(
                self._store, wanted, lambda: self._claim(wanted), deadline, self._branch.groups, self._check_active
            )
            self._branch.claims += got
            return delivery.held_messages(self._store, got)

    @public_call("preparing")
    def prepare(self) -> bool:
        """Vote: True, yes, durably; False: there was nothing to do, and the transaction has ended (XA_RDONLY).

        Raises like ``commit``; the transaction is then rolled back.
        """
        with self._lock:
            try:
                page = self._check_ending()
                if self._branch.empty:
                    self._end(TransactionState.COMMITTED)
                    return False
                self._vote(page)
                self._end(TransactionState.PREPARED)
                return True
            except BaseException as error:
                self._fail("preparing", error)

    def _vote(self, page: Page) -> None:
        store = self._store
        self._branch.lock_xid()
        file = self._branch.write_vote(page)
        settings = store.settings.current()
        check = None
        if settings.config.limited:  # or the vote needs no number lock
            check = partial(room_for(store, lambda: file.tables), settings)
        two_phase.vote(store, file, self.xid, check=check)

    @public_call("committing")
    def commit(self, adopt: Sequence[Xid] = ()) -> None:
        """Commit as ``Transaction.commit`` does, together with prepared branches, whose votes the caller was told.

        Args:
            adopt: the xids of the branches.
        """
        if not adopt:
            super().commit()
            return
        with self._lock:
            try:
                self._check_ending()
                self._branch.lock_xid()
                self._commit_with(adopt)
                self._end(TransactionState.COMMITTED)
            except BaseException as error:
                self._fail("committing", error)

    def _commit_with(self, adopt: Sequence[Xid]) -> None:
        store, branch = self._store, self._branch
        self.number = two_phase.adopt(store, branch.new_file(), branch.draft, adopt, store.deadline())
        two_phase.move_adopted(store, self.number, enumerate(adopt, 1))
