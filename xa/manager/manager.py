"""``TransactionManager``: begin global transactions, and recover the transactions of dead programs."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Any, Self

from spool import Space
from spool.decisions import DecisionLog, open_directory, translated
from spool.errors import InvalidArgument, SpoolError
from xa.manager import decision_table, last_resource
from xa.manager.database_connections import Session, database_of
from xa.manager.foreign import ForeignTransaction
from xa.manager.global_transaction import NO_TABLE, GlobalTransaction
from xa.manager.ids import TransactionId
from xa.manager.outcomes import Outcomes
from xa.manager.recovery import Participants, Recovery, check_places, recover_dead
from xa.manager.resources import Resources

_CLOSE_SECONDS = 30.0


class TransactionManager:
    """Transactions over queue spaces and databases: all of their work is committed, or none of it.

    Many threads may use one manager; each transaction belongs to one thread or task. A manager belongs to the process
    that created it. Any number of processes may share a log directory.

    Args:
        log_directory: the directory of the decision logs, on a local disk of the machine that has the spaces. A missing
            directory is created. Keep the directory as carefully as a space: a branch in doubt cannot be decided
            without its log.

    Raises:
        InvalidArgument: the directory has other files.
        CorruptedFile: the directory's file ``manager`` is damaged.
        UnsafeFileSystem: the directory lies on a network file system.
        DiskFailure: the directory cannot be created, read or written.
    """

    def __init__(self, log_directory: str | os.PathLike[str]) -> None:
        self._directory = open_directory(log_directory)
        self._clock = self._directory.disk.clock
        with translated("creating a decision log", self._directory.disk.root):
            self._log = DecisionLog(self._directory)
        self._resources = Resources(self._log)
        self._serials = count(1)
        self._connects: list[Callable[[], Any]] = []
        self._recovering = threading.Lock()
        repeat = weakref.WeakMethod(self._repeat)  # (the background thread does not keep the manager alive)
        self._outcomes = Outcomes(self._log, self._clock, lambda: (found := repeat()) and found())
        self._end = weakref.finalize(self, _close, self._log, self._outcomes)  # also at the end of the program

    def transaction(self, timeout: float | None = 30.0) -> GlobalTransaction:
        """Begin a transaction. Its ``with`` block commits at the end; an exception rolls the transaction back.

        ``timeout``: the time limit in seconds; None sets no limit. After the limit, the next call in a space, or the
        commit, rolls the transaction back and raises TransactionTimeout.
        """
        id = self._begin()
        found = GlobalTransaction(id, timeout, self._log, self._resources, self._outcomes, self._clock)
        found.manager = self  # the manager lives as long as its transactions
        return found

    def _begin(self) -> TransactionId:
        id = TransactionId(self._directory.id, self._log.coordinator, next(self._serials))
        self._log.check()
        self._outcomes.begin(id.serial)
        return id

    def begin_foreign(self, space: Space, session: Any) -> ForeignTransaction:
        """Begin a transaction over a space and a last resource: a session that another transaction manager commits.

        ``session``: a ``Session`` of SQLAlchemy. Raises InvalidArgument if its database has no table of decisions.
        """
        self._resources.register_space(space)
        with closing(Session(session).connection.get_bind().engine.connect()) as connection:
            table = self._resources.register_table(database_of(connection))
        if table is None:
            raise InvalidArgument(NO_TABLE)
        return ForeignTransaction(self._begin(), space.id, session, table, self._outcomes)

    def prepare_database(self, connection: Any) -> None:
        """Create the table of decisions in a database, unless it exists. The program does this once.

        In place of a session that is registered with zope.sqlalchemy, give a connection of its engine, because only
        zope's transaction manager may commit the session.

        Afterwards a connection to the database can be the last resource of a transaction: see
        ``GlobalTransaction.enlist``. The user of the database needs the right to create a table. The other programs
        need the rights to select, insert and delete rows of ``xaspool_decisions``.

        Raises the errors of the driver; ProtocolError if the connection is in a transaction.
        """
        database = database_of(connection)
        database.check_idle()
        if decision_table.identity_of(database) is None:  # (PostgreSQL checks the right even if the table exists)
            decision_table.create(database)
        self._resources.forget_table(database)

    def recover(self, *resources: Any) -> Recovery:
        """Commit or roll back each branch in doubt that a dead program left in one of the given resources.

        A program calls this with its space and a connection, at its start and after a CommitUnknown. Branches of living
        programs, and branches of other log directories, are not touched.

        Args:
            resources: open spaces and connections, as ``GlobalTransaction.enlist`` takes them. A resource may also be a
                function without arguments that returns a new connection. The manager closes such a connection, and
                calls the function again when a branch in a database could not be finished.

        Returns:
            The branches that were committed, rolled back, and left in doubt. A branch is left in doubt if its program
            lives, or if its decision is in a database that was not given.

        Raises:
            ProtocolError: a connection is in a transaction.
            SpoolError, or an error of a database's driver: a resource failed. Call again later.
        """
        self._log.check()  # (a closed manager, or its copy in a forked child, counts as dead itself)
        with ExitStack() as opened, self._recovering:
            participants = Participants(self._opened(resource, opened) for resource in resources)
            own = self._outcomes.recover(self._directory, participants)
            others = recover_dead(self._directory, participants, self._log.coordinator)
            for table, database in participants.tables.items():
                self._outcomes.ended_decisions(table).remove_all(database, self._decider)
            check_places(self._directory, participants, self._log.coordinator)
            return own.joined(others)

    def _opened(self, resource: Any, opened: ExitStack) -> Any:
        """Return the resource. If the resource is a function, return the new connection that the function returns."""
        is_resource = isinstance(resource, Space) or hasattr(resource, "cursor") or hasattr(resource, "get_bind")
        if is_resource or not callable(resource):
            return resource
        if resource not in self._connects:
            self._connects.append(resource)
        connection = resource()
        opened.callback(connection.close)
        return connection

    @property
    def _decider(self) -> str:
        return TransactionId(self._directory.id, self._log.coordinator, 0).decider

    def _repeat(self) -> None:
        """Finish the branches whose resources failed. The background thread calls this again and again."""
        self._outcomes.unfinished.repeat_all()
        for connect in list(self._connects):
            if not self._outcomes.is_empty:
                with suppress(Exception):  # (an unreachable database must not delay the others)
                    self.recover(connect)

    def close(self) -> None:
        """Wait until the branches of committed transactions have ended, for at most 30 seconds, and release the log.

        If no branch and no row of a decision is left, the log is removed. Otherwise ``recover`` of the next manager on
        this directory ends the branches, and removes the rows and the log. A second call does nothing.
        """
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()


def _close(log: DecisionLog, outcomes: Outcomes) -> None:
    if log.is_disowned:
        return  # (a forked child has only copies)
    if outcomes.close(_CLOSE_SECONDS):
        tables = outcomes.tables_with_rows() if outcomes.is_empty else []
        if tables:
            with suppress(SpoolError, OSError):  # (then the log names more resources than are needed)
                log.keep_only(list(map(last_resource.resource_of, tables)))
        log.close(remove=outcomes.is_empty and not tables)
    # Otherwise a transaction still decides. The log remains locked until the process ends, so no recovery decides
    # against the transaction.
