"""A global transaction whose last resource is committed by another transaction manager, e.g. by zope.sqlalchemy."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from spool.model.xid import Xid
from xa.manager.branches import ResourceBranch
from xa.manager.database_connections import Session, database_of
from xa.manager.decision_table import insert, settle
from xa.manager.ids import TransactionId
from xa.manager.outcomes import Outcomes


class ForeignTransaction:
    """The decision of a global transaction, as a row in the open transaction of a SQLAlchemy session.

    id: the id of the transaction.

    Args:
        space: the id of the space that takes part.
        session: the ``Session`` whose commit decides.
        table: the id of the table of decisions in the session's database.
    """

    def __init__(self, id: TransactionId, space: str, session: Any, table: str, outcomes: Outcomes) -> None:
        self.id = id
        self._space = space
        self._session = session
        self._table = table
        self._outcomes = outcomes
        self._decided_by: Any = None  # the session's transaction that has the row

    def write_decision(self) -> None:
        """Write the row. Raises DecisionTableMissing, and the driver's errors."""
        database = Session(self._session)
        database.write()
        insert(database, self._table, self.id.decider, self.id.serial, committed=True, spaces=[self._space])
        self._decided_by = self._session.get_transaction()

    def complete(self, branches: Sequence[ResourceBranch]) -> None:
        """Commit the prepared branches, because the session was committed. Raises no error: see ``Outcomes``."""
        self._outcomes.complete(self.id, branches, self._table if self._decided_by is not None else None)

    def branch(self, place: int) -> Xid:
        """Return the xid of a branch of the space."""
        return self.id.branch(place, self._space)

    def may_be_committed(self) -> bool:
        """Return whether the session may have committed the row."""
        return self._decided_by is not None and not (
            self._session.get_transaction() is self._decided_by and self._decided_by.is_active
        )

    def settle(self, branches: Sequence[ResourceBranch]) -> bool:
        """Learn the outcome from the table, by another connection; return whether the session was committed.

        If the session was committed, the branches are committed. If the database does not answer, the error is raised.
        The branches then remain prepared until ``TransactionManager.recover`` gets a connection.
        """
        try:
            with closing(self._session.get_bind().engine.connect()) as connection:
                committed = settle(database_of(connection), self._table, self.id.decider, self.id.serial)
        except Exception:
            self._outcomes.keep_unknown(self.id, branches, self._table)
            raise
        if committed:
            self.complete(branches)
        return committed

    def forget(self) -> None:
        """End the transaction, which was rolled back."""
        self._outcomes.forget(self.id)
