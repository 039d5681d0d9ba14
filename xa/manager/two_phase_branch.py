"""The branch of a global transaction in a database, by PEP 249's two-phase methods.

A global transaction id is written in hex, because PEP 249's transaction ids are texts of at most 64 characters.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from spool.errors import CommitUnknown, ProtocolError
from spool.model.xid import FORMAT_MANAGED, Xid
from xa.manager.database_connections import database_of
from xa.manager.decision_table import first

log = logging.getLogger("spool")

_NOT_OPEN = (0, 3)  # psycopg's IDLE and INERROR


def has_two_phases(connection: Any) -> bool:
    """Return whether a connection has PEP 249's two-phase methods."""
    return all(hasattr(connection, f"tpc_{name}") for name in ("begin", "prepare", "commit", "rollback", "recover"))


def resource_of(connection: Any) -> str:
    """Return the name under which a log registers a database.

    PostgreSQL: the number of the cluster and the name of the database, so the name does not depend on the host. Any
    other database: the module of its driver.
    """
    statement = "select 'PostgreSQL ' || system_identifier || ' ' || current_database() from pg_control_system()"
    with suppress(Exception):
        return str(first(database_of(connection), statement))
    return f"driver {type(connection).__module__}"


def is_ambiguous(resource: str) -> bool:
    """Return whether several databases may have this name, so that a log with the name must remain."""
    return resource.startswith("driver ")


class TwoPhaseBranch:
    """The work on a connection, from the constructor to the end of the global transaction.

    Raises the errors of the driver; ProtocolError if the connection is in a transaction.
    """

    def __init__(self, connection: Any, xid: Xid, name: str) -> None:
        self.xid = xid
        self.name = name
        self._connection = connection
        self._id = connection.xid(xid.format_id, xid.gtrid.hex(), xid.bqual.hex())
        self._autocommit = getattr(connection, "autocommit", None)
        self._stage = "ended"
        if self._autocommit is True:
            connection.autocommit = False
        try:
            connection.tpc_begin(self._id)
        except BaseException:
            self._restore()
            raise
        self._stage = "active"

    def leave(self) -> None:
        """Do nothing: the connection belongs to the caller, not to the caller's thread."""

    def prepare(self) -> bool:
        self._check_open()
        self._stage = "failed"
        try:
            self._connection.tpc_prepare()
        except getattr(self._connection, "NotSupportedError", ()) as error:  # PostgreSQL's hint names its setting only
            error.add_note("or call the manager's prepare_database(connection) once, and enlist without two_phase")
            raise
        self._stage = "prepared"
        return True

    def _check_open(self) -> None:
        """Raise ProtocolError if PostgreSQL would roll back instead of committing, without an error. The cause is a
        failed statement, or a transaction that the program itself has ended."""
        status = getattr(getattr(self._connection, "info", None), "transaction_status", None)
        if status is not None and int(status) in _NOT_OPEN:
            raise ProtocolError(
                "the database's transaction cannot be committed: a statement has failed, or the program has ended it"
            )

    def commit_one_phase(self) -> None:
        self._check_open()
        try:
            self._end(self._connection.tpc_commit)
        except Exception as error:
            is_broken = bool(getattr(self._connection, "closed", False))
            self._leave(error)
            if is_broken:
                raise CommitUnknown(f"the database may or may not have committed: {error}") from error
            raise

    def commit(self) -> None:
        self._end(self._connection.tpc_commit)

    def rollback(self, reason: str) -> None:
        if self._stage == "prepared":
            self._end(self._connection.tpc_rollback)
        elif self._stage != "ended":
            try:
                self._end(self._connection.tpc_rollback)
            except Exception as error:
                self._leave(error)

    def _leave(self, error: Exception) -> None:
        """End a transaction that has no vote, and that the connection could not end.

        The server has rolled the transaction back, or does so when the connection ends. But psycopg cannot leave a
        transaction whose vote failed, so every later call would fail. If the server voted and the connection broke, a
        recovery rolls the branch back.
        """
        self._stage = "ended"
        try:
            self._connection.rollback()  # refused if the connection has not left the transaction
            self._restore()
        except Exception:
            log.warning("a connection cannot leave its transaction, so it is closed: connect again (%s)", error)
            with suppress(Exception):
                self._connection.close()

    def _end(self, call: Any) -> None:
        if self._stage == "ended":
            raise ProtocolError("the branch has ended")
        call()
        self._stage = "ended"
        self._restore()

    def _restore(self) -> None:
        if self._autocommit is True:
            self._connection.autocommit = True


class DoubtfulInDatabase:
    """A prepared branch in a database. ``found``: the driver's object for its xid."""

    is_at_home = True

    def __init__(self, connection: Any, xid: Xid, found: Any) -> None:
        self.xid = xid
        self._connection = connection
        self._found = found

    def finish(self, *, committed: bool) -> None:
        """Commit the branch, or roll it back. A branch that another recovery has ended meanwhile is no error."""
        try:
            (self._connection.tpc_commit if committed else self._connection.tpc_rollback)(self._found)
        except Exception:
            if any(other.xid == self.xid for other in doubtful_in(self._connection)):
                raise


def doubtful_in(connection: Any) -> Iterator[DoubtfulInDatabase]:
    """Yield the prepared branches of a database that have an xid of a transaction manager of ours."""
    here = getattr(getattr(connection, "info", None), "dbname", None)
    for found in connection.tpc_recover():
        format_id, gtrid, bqual = found[0], found[1], found[2]
        is_elsewhere = here is not None and getattr(found, "database", here) != here
        if format_id == FORMAT_MANAGED and not is_elsewhere:
            with suppress(ValueError, TypeError):
                yield DoubtfulInDatabase(
                    connection, Xid.checked(format_id, bytes.fromhex(gtrid), bytes.fromhex(bqual)), found
                )
