"""Exactly once with zope.sqlalchemy: the decision is a row in the session's transaction, which zope.sqlalchemy commits.

The steps of a commit, in the order of the sort keys:

1. Phase ``commit``: the data manager of the space writes the row, and marks the session as changed.
2. Phase ``tpc_vote``: the data manager of the space votes; afterwards zope.sqlalchemy commits the session, which is the
   decision.
3. Phase ``tpc_finish``: the data manager commits the branches of the space.

If phase 2 fails, the session may have been committed or not. Then the row tells the outcome.
"""

import logging
from typing import Any

from zope.sqlalchemy import mark_changed

from spool import Space
from spool.model.xid import Xid
from xa.manager import TransactionManager
from xa.manager.space_branch import DoubtfulInSpace, resource_of
from xa.zope.data_manager import DataManager
from xa.zope.gtrid_lock import GtridLock

log = logging.getLogger("spool")


class DecidingDataManager(DataManager):
    """A data manager whose branches have the outcome of a session.

    Raises InvalidArgument if the session cannot decide: see ``TransactionManager.begin_foreign``.
    """

    def __init__(self, space: Space, transaction_manager: Any, manager: TransactionManager, session: Any) -> None:
        self._session = session() if hasattr(session, "registry") else session
        self._decision = manager.begin_foreign(space, self._session)
        try:
            super().__init__(space, transaction_manager)
        except BaseException:
            self._decision.forget()
            raise

    def _next_xid(self, coordinator: GtridLock) -> Xid:
        return self._decision.branch(next(self._ordinals))

    def commit(self, txn: object) -> None:
        """Write the decision, if both the space and the database have work. zope.sqlalchemy commits the decision."""
        has_work = any(part.transaction.is_active and part.transaction.work() != (0, 0) for part in self._parts)
        if has_work and self._session.in_transaction():
            self._decision.write_decision()
            mark_changed(self._session, self.transaction_manager)

    def _commit_voted(self) -> None:
        self._decision.complete(self._branches())

    def _roll_back_parts(self) -> None:
        if self._voted and self._decision.may_be_committed():
            try:
                if self._decision.settle(self._branches()):
                    return
            except Exception as error:
                log.error(
                    "%s: a session may or may not have committed (%s); the branches remain prepared: give the space "
                    "and a connection to recover of the transaction manager",
                    self.space.path,
                    error,
                )
                return
        super()._roll_back_parts()
        self._decision.forget()

    def _branches(self) -> "list[_Voted]":
        return [_Voted(self, xid) for xid in self._voted]


class _Voted:
    """A voted branch of the space, as the transaction manager commits it."""

    def __init__(self, manager: DataManager, xid: Xid) -> None:
        self.xid = xid
        self.name = resource_of(manager.space)
        self._branch = DoubtfulInSpace(manager.space.engine, xid, vote_known=True)

    def leave(self) -> None:
        """Do nothing: the data manager has ended the caller's work."""

    def prepare(self) -> bool:
        return True

    def commit_one_phase(self) -> None:
        self.commit()

    def commit(self) -> None:
        self._branch.finish(committed=True)

    def rollback(self, reason: str) -> None:
        self._branch.finish(committed=False)
