"""The last resource: a database whose ordinary commit decides a global transaction.

The decision is a row in the same database transaction as the program's work. So the commit of the database is atomic
with the decision, and the database needs no two-phase commit. All other branches are prepared before. A transaction has
at most one last resource.

Source: the logging last resource of Oracle WebLogic Server, "Developing JTA Applications".
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from spool.errors import CommitUnknown, ProtocolError
from xa.manager import decision_table
from xa.manager.database_connections import Database

log = logging.getLogger("spool")

_REMOVE_AT_ONCE = 32


def resource_of(table: str) -> str:
    """Return the name under which a log registers a table of decisions. ``table``: the id of the table."""
    return f"table {table}"


def table_of(resource: str) -> str | None:
    """Return the id of the table that a log has registered under this name; None for another kind of resource."""
    kind, _, table = resource.partition(" ")
    return table if kind == "table" else None


class EndedDecisions:
    """The rows of one table whose branches have ended. A later transaction of any thread removes them."""

    def __init__(self) -> None:
        self._serials: list[int] = []

    def __len__(self) -> int:
        return len(self._serials)

    def add(self, *serials: int) -> None:
        self._serials.extend(serials)

    def remove_all(self, database: Database, decider: str) -> None:
        """Remove all rows now. ``decider``: see ``TransactionId``."""
        taken, self._serials = self._serials, []
        if taken:
            try:
                with database.own():
                    decision_table.remove(database, decider, taken)
            except BaseException:
                self._serials += taken
                raise

    def take(self) -> list[int]:
        """Return enough rows for one removal, or no row."""
        taken: list[int] = []
        while len(self._serials) + len(taken) >= _REMOVE_AT_ONCE > len(taken):
            try:
                taken.append(self._serials.pop(0))
            except IndexError:  # another thread took it
                break
        return taken


class LastResource:
    """The work on a connection, from the constructor to the end of the global transaction.

    table: the id of the table of decisions.

    Raises ProtocolError if the connection is in a transaction, and the driver's errors.
    """

    def __init__(self, database: Database, table: str, ended: EndedDecisions) -> None:
        self.table = table
        self._database = database
        self._ended = ended
        self._has_ended = False
        database.begin()

    def commit_one_phase(self) -> None:
        """Commit without a decision, because the transaction has no other branch."""
        self._check_open()
        self._has_ended = True
        try:
            self._database.commit()
        except Exception as error:
            if self._database.is_broken_by(error):
                raise CommitUnknown(f"the database may or may not have committed: {error}") from error
            with suppress(Exception):
                self._database.rollback()
            raise

    def decide(self, coordinator: str, serial: int, spaces: Collection[str]) -> BaseException | None:
        """Commit the work together with the decision to commit the transaction.

        ``spaces``: the ids of the spaces with a prepared branch, which the decision names.

        After any error but CommitUnknown, the transaction was not committed. An exception from outside, e.g.
        SystemExit, may come during a commit that succeeds. This method then returns the exception, and the caller
        raises it later.

        Raises:
            CommitUnknown: the connection broke during the commit.
            DecisionTableMissing: the table does not exist any more.
        """
        self._check_open()
        removed = self._ended.take()
        try:
            self._write(coordinator, serial, spaces, removed)
        except BaseException:
            self._ended.add(*removed)
            raise
        self._has_ended = True
        try:
            self._database.commit()
        except BaseException as error:
            self._ended.add(*removed)
            if not self._was_committed(coordinator, serial, error):
                self._ended.add(serial)  # the row of the rollback
                raise
            return None if isinstance(error, Exception) else error
        return None

    def forget_table(self, forget: Callable[[Database], object]) -> None:
        """Have the table of the database looked up again at its next use."""
        forget(self._database)

    def _write(self, coordinator: str, serial: int, spaces: Collection[str], removed: list[int]) -> None:
        try:
            decision_table.insert(self._database, self.table, coordinator, serial, committed=True, spaces=spaces)
        except decision_table.DecisionTableMissing:
            raise
        except Exception as error:
            self.rollback("")
            if decision_table.identity_of(self._database) != self.table:
                raise decision_table.DecisionTableMissing from error
            raise
        if removed:
            decision_table.remove(self._database, coordinator, removed)

    def _was_committed(self, coordinator: str, serial: int, error: BaseException) -> bool:
        """Return the outcome of a failed commit, from the table; raises CommitUnknown if the connection is broken."""
        try:
            self._database.rollback()  # otherwise a transaction that is still open would find its own row
            self._database.check_idle()
            return decision_table.settle(self._database, self.table, coordinator, serial)
        except Exception:
            self._database.close()  # (an open transaction would hold the row, and a recovery would wait for its end)
            raise CommitUnknown(
                f"the database may or may not have committed ({error}); the branches remain prepared: connect again, "
                "and give the space and the new connection to recover of the transaction manager"
            ) from error

    def _check_open(self) -> None:
        if not self._database.is_open():
            raise ProtocolError(
                "the database's transaction cannot be committed: a statement has failed, the connection broke, or the "
                "program has ended the transaction itself, which is left to the transaction manager"
            )

    def rollback(self, reason: str) -> None:
        """Roll back the work. Does nothing if the work has ended."""
        if not self._has_ended:
            self._has_ended = True
            if self._database.was_ended():
                log.warning(
                    "the program itself has ended the database's transaction, and then the transaction with the space "
                    "was rolled back: if the program has committed rows, they remain, and the taken messages return, "
                    "so the work is repeated. Leave the commit to the transaction manager (%s)",
                    reason,
                )
            self._database.rollback()
