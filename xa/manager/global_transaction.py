"""One global transaction: enlist resources, work, and commit all of them or none.

The commit has four steps:

1. Each branch votes. An empty branch ends here (a read-only vote).
2. The decision is made durable: as a row in the last resource's own commit, or as a slot in the log.
3. Each branch commits.
4. The decision is removed once all branches have ended.

A transaction with one branch commits in one phase, without a decision. Before the decision, any failure rolls all
branches back. After the decision, failures do not matter to the caller: the manager repeats the commit of a branch.
"""

import logging
import os
from enum import Enum
from typing import Any, Self
from weakref import finalize

from spool import Space
from spool.decisions import DecisionLog
from spool.engine import Clock, deferred
from spool.errors import (
    CommitUnknown,
    InvalidArgument,
    NotOpen,
    ProtocolError,
    TransactionRolledBack,
    TransactionTimeout,
)
from spool.model.checks import check_time_limit
from spool.model.text import class_name, storable
from spool.model.xid import Xid
from xa.dbapi import Connection
from xa.manager.branches import ResourceBranch, spaces_of
from xa.manager.database_connections import database_of, find_database
from xa.manager.decision_table import DecisionTableMissing
from xa.manager.ids import TransactionId
from xa.manager.last_resource import LastResource
from xa.manager.outcomes import Outcomes
from xa.manager.resources import Resources
from xa.manager.space_branch import SpaceBranch
from xa.manager.two_phase_branch import TwoPhaseBranch, has_two_phases

log = logging.getLogger("spool")


NO_TABLE = (
    "the database has no table of decisions yet: call prepare_database(connection) of the transaction manager once"
)


_used: dict[int, TransactionId] = {}  # connections of transactions that have not ended, by the id of the object


class GlobalState(Enum):
    ACTIVE = "active"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "in an unknown state"


class GlobalTransaction:
    """A transaction over spaces and databases: see ``TransactionManager.transaction``.

    One thread or task uses the transaction. id: its id, unique for all time. manager: the transaction manager.
    """

    def __init__(
        self,
        id: TransactionId,
        timeout: float | None,
        decisions: DecisionLog,
        resources: Resources,
        outcomes: Outcomes,
        clock: Clock,
    ) -> None:
        check_time_limit(timeout)
        self.id = id
        self._decisions = decisions
        self._resources = resources
        self._outcomes = outcomes
        self._clock = clock
        self._timeout = timeout
        self._until = None if timeout is None else clock.monotonic() + timeout
        self._branches: list[ResourceBranch] = []
        self._last: LastResource | None = None
        self._single: ResourceBranch | None = None  # the branch that commits in one phase
        self._voted: list[ResourceBranch] = []
        self._enlisted: list[object] = []
        self._uses: list[finalize[Any, Any]] = []  # of connections
        self._rollback_only: str | None = None
        self.manager: object = None
        self._process = os.getpid()
        self.state = GlobalState.ACTIVE
        # Forget a transaction that the program drops; the housekeeper rolls back its branches in spaces. A transaction
        # that has ended runs no code when it is freed: Python would ignore a signal handler's exception there.
        self._when_dropped = finalize(self, outcomes.drop, id)
        self._when_dropped.atexit = False

    def __repr__(self) -> str:
        return f"<global transaction {self.id}: {self.state.value}>"

    def enlist(self, resource: Any, *, two_phase: bool = False) -> None:
        """Make a resource part of the transaction. A second call for the same resource changes nothing.

        A space: the caller's puts and gets join the transaction from now on.

        A connection to a database: its work from now on belongs to the transaction, and the manager commits it. The
        connection must not be in a transaction. The first connection whose database has the table of decisions (see
        ``TransactionManager.prepare_database``) is the *last resource*, which needs no two-phase commit. Every other
        connection takes part with PEP 249's two-phase methods.

        Args:
            resource: an open ``spool.Space`` or a connection of ``xa.connect``; a connection of psycopg, sqlite3 or
                another driver with PEP 249; or a ``Connection`` or ``Session`` of SQLAlchemy.
            two_phase: whether a connection uses two-phase commit, even if it could be the last resource.

        Raises:
            InvalidArgument: the resource is of another kind. Or the resource can only be a last resource, but the
                transaction has a last resource already, or the database has no table of decisions.
            ProtocolError: the transaction has ended, the connection is in a transaction, or the caller is in another
                transaction of the space.
        """
        self._check_active()
        if isinstance(resource, Connection):
            resource = resource.space
        if any(resource is enlisted for enlisted in self._enlisted):
            return
        with deferred():
            if isinstance(resource, Space):
                self._enlist_space(resource)
            else:
                self._enlist_connection(resource, two_phase)
            self._enlisted.append(resource)

    def _enlist_space(self, space: Space) -> None:
        self._resources.register_space(space)
        left = None if self._until is None else self._until - self._clock.monotonic()
        self._branches.append(SpaceBranch(space, self._next_xid(space.id), left))

    def _enlist_connection(self, connection: Any, two_phase: bool) -> None:
        if _used.setdefault(id(connection), self.id) != self.id:  # (two threads would share one database transaction)
            raise ProtocolError("the connection is in a transaction: another global transaction uses it")
        self._uses.append(finalize(self, _used.pop, id(connection), None))
        can_prepare = has_two_phases(connection)
        database = find_database(connection) if can_prepare else database_of(connection)
        if database is not None:
            database.check_idle()
            table = None if two_phase else self._resources.register_table(database)
            if table is not None and self._last is None:
                self._last = LastResource(database, table, self._outcomes.ended_decisions(table))
                return
        if not can_prepare:
            raise InvalidArgument(self._no_two_phases(two_phase))
        name = self._resources.register_two_phase(connection)
        self._branches.append(TwoPhaseBranch(connection, self._next_xid(), name))

    def _no_two_phases(self, two_phase: bool) -> str:
        if two_phase:
            return "the connection has no two-phase methods (PEP 249, tpc_begin)"
        if self._last is not None:
            return (
                "a transaction has at most one database without two-phase commit, and it has one already: enlist this "
                "connection in a separate transaction"
            )
        return NO_TABLE

    def _next_xid(self, space: str = "") -> Xid:
        return self.id.branch(len(self._branches), space)

    def set_rollback_only(self, reason: str = "the transaction was marked rollback-only") -> None:
        """Mark the transaction, so that ``commit``, or the end of its ``with`` block, rolls it back."""
        self._rollback_only = reason

    # -- ending ------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit all branches. When this returns, the decision is durable, and no failure undoes it.

        Messages that the transaction put are visible then. If a branch cannot commit now, e.g. because a disk is full
        or a database is unreachable, a warning is logged, and the manager repeats the commit.

        Raises:
            TransactionTimeout: the time limit has passed; all branches were rolled back.
            CommitUnknown: it is not known yet whether the decision is durable. The branches remain prepared, until
                ``TransactionManager.recover`` finds the decision.
            SpoolError, or an error of the database's driver: all branches were rolled back.
        """
        with deferred():
            self._check_active()
            try:
                self._check_may_commit()
                for branch in self._branches:
                    branch.leave()
                self._vote()
            except BaseException as error:
                self._roll_back(f"its commit failed: {storable(error)}")
                if isinstance(error, CommitUnknown):  # (the vote may exist, but nothing was committed)
                    raise TransactionRolledBack(f"the transaction was rolled back: {error}") from error
                raise
            try:
                self._outcomes.decide(self.id)
                interrupt = self._decide()
            except CommitUnknown:
                self._end(GlobalState.UNKNOWN)
                self._outcomes.keep_unknown(self.id, self._voted, self._table)
                self._free()
                raise
            except BaseException as error:
                self._roll_back(f"its commit failed: {storable(error)}")
                raise
            self._end(GlobalState.COMMITTED)
            self._outcomes.complete(self.id, self._voted, self._table)
            self._free()
            if interrupt is not None:
                raise interrupt

    def rollback(self, reason: str = "its transaction was rolled back") -> None:
        """Undo all work. Taken messages are available again after their retry delay, with one more attempt counted."""
        with deferred():
            self._check_active()
            self._roll_back(reason)

    def _end(self, state: GlobalState) -> None:
        self.state = state
        self._when_dropped.detach()

    def _free(self) -> None:
        """Free the branches in this call, because their ``__del__`` runs code. Free the connections for others."""
        for use in self._uses:
            use()
        self._branches, self._voted, self._single = [], [], None

    def _check_active(self) -> None:
        if os.getpid() != self._process:
            raise NotOpen("the transaction belongs to the process that began it: begin another one in a forked child")
        if self.state is not GlobalState.ACTIVE:
            raise ProtocolError(f"the transaction is {self.state.value}: begin a new one")

    def _check_may_commit(self) -> None:
        if self._until is not None and self._clock.monotonic() >= self._until:
            raise TransactionTimeout(f"the transaction took longer than {self._timeout:g} s and was rolled back")
        if self._rollback_only is not None:
            raise TransactionRolledBack(f"the transaction was rolled back: {self._rollback_only}")

    def _vote(self) -> None:
        """Let each branch vote, except a branch that can commit in one phase because no other branch has work."""
        for place, branch in enumerate(self._branches, 1):
            if self._last is None and not self._voted and place == len(self._branches):
                self._single = branch
            elif branch.prepare():
                self._voted.append(branch)

    def _decide(self) -> BaseException | None:
        """Make the decision to commit durable. After any error but CommitUnknown, no decision exists.

        Returns an interrupt that the caller raises at the end.
        """
        self._decisions.check()  # (after a close, a recovery may have removed the traces of this coordinator)
        if self._last is not None:
            if self._voted:
                try:
                    return self._last.decide(self.id.decider, self.id.serial, spaces_of(self._voted))
                except DecisionTableMissing:
                    self._last.forget_table(self._resources.forget_table)
                    raise
            self._last.commit_one_phase()
        elif self._single is not None:
            self._single.commit_one_phase()
        elif self._voted:
            self._decisions.record(self.id.serial)
        return None

    @property
    def _table(self) -> str | None:
        """The id of the table that has the decision; None if the log has the decision."""
        return None if self._last is None else self._last.table

    def _roll_back(self, reason: str) -> None:
        """Roll back every branch. The failure of one branch does not prevent the rollback of the others."""
        self._end(GlobalState.ROLLED_BACK)
        interrupt: BaseException | None = None
        if self._last is not None:
            try:
                self._last.rollback(reason)
            except Exception as error:
                log.warning("%r: the rollback failed, so the database rolls back by itself: %s", self, error)
        for branch in self._branches:
            try:
                branch.leave()
                branch.rollback(reason)
            except BaseException as error:
                self._outcomes.roll_back_later(branch, error)
                interrupt = interrupt or (None if isinstance(error, Exception) else error)
        self._outcomes.forget(self.id)
        self._free()
        if interrupt is not None:
            raise interrupt

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.state is not GlobalState.ACTIVE or os.getpid() != self._process:
            return
        if kind is None:
            self.commit()
        else:
            self.rollback(f"{class_name(error)}: {storable(error)}")
