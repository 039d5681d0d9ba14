"""The data manager of one space in one zope transaction, and its savepoints.

Source: the interfaces of zope's ``transaction``: ``ISavepointDataManager``, ``IDataManagerSavepoint``,
``IRetryDataManager`` and ``ISynchronizer``.
"""

import logging
from contextlib import suppress
from itertools import count
from typing import Any

from transaction.interfaces import IDataManagerSavepoint, IRetryDataManager, ISavepointDataManager, ISynchronizer
from zope.interface import implementer

from spool import Space
from spool.engine import Engine, deferred
from spool.errors import MessageInUse, ProtocolError, SpoolError, TransactionRolledBack, TransactionTimeout
from spool.model.xid import FORMAT_LOCAL, Xid
from xa.branch import Branch
from xa.zope.gtrid_lock import GtridLock
from xa.zope.repetition import commit_later

log = logging.getLogger("spool")

_ABORTED = "its zope transaction was aborted"
_UNDONE = "its zope transaction was rolled back to a savepoint"


@implementer(ISavepointDataManager, IRetryDataManager, ISynchronizer)
class DataManager:
    """The part of one zope transaction in one space. Applications call ``join``; ``transaction`` calls the methods."""

    def __init__(self, space: Space, transaction_manager: Any) -> None:
        self.space = space
        self.transaction_manager = transaction_manager
        self._engine: Engine = space.engine
        self._parts: list[_Part] = []
        self._voted: list[Xid] = []
        self._ordinals = count(1)
        self._is_completing = False
        self._check_caller()
        self._coordinator: GtridLock | None = GtridLock(self._engine)  # None: the part of the space has ended
        # No path contains the character NUL. So the order of two spaces depends only on their paths.
        self._key = f"xaspool:{space.path}\0{self._coordinator.id.hex()}"
        self._begin_part(self._coordinator)

    def __repr__(self) -> str:
        return f"<zope data manager of {self.space.path}{', ended' if self.has_ended else ''}>"

    @property
    def has_ended(self) -> bool:
        """Whether the part of the transaction in this space was committed or rolled back."""
        return self._coordinator is None

    def _open_coordinator(self) -> "GtridLock":
        if self._coordinator is None:
            raise ProtocolError("the zope transaction has ended for this space: call xa.zope.join(space) again")
        return self._coordinator

    def _begin_part(self, coordinator: "GtridLock") -> None:
        xid = self._next_xid(coordinator)
        with self._engine.call:
            self._parts.append(_Part(self._engine, self._engine.begin_branch(xid)))
        self.enter()

    def _next_xid(self, coordinator: GtridLock) -> Xid:
        return Xid(FORMAT_LOCAL, coordinator.id, b"%d" % next(self._ordinals))

    # -- the caller ---------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Make the caller's puts and gets part of the transaction.

        Raises ProtocolError if the caller is in another transaction of this space.
        """
        self._check_caller()
        self._engine.join(self._parts[-1].transaction)

    def _check_caller(self) -> None:
        joined = self._engine.joined()
        if joined is not None and joined.is_active and not self._has(joined):
            raise ProtocolError(f"the caller is in another transaction of {self.space.path}: end it first")

    def _leave(self) -> None:
        if self._has(self._engine.joined()):
            self._engine.join(None)
        self._parts = []

    def _has(self, joined: object) -> bool:
        return any(part.transaction is joined for part in self._parts)

    # -- savepoints ---------------------------------------------------------------------------------------------------

    def savepoint(self) -> "Savepoint":
        """Return a savepoint, and begin a further branch if the last branch has work.

        Raises TransactionRolledBack if a failure has rolled back the last branch; ProtocolError as ``join``.
        """
        coordinator, last = self._open_coordinator(), self._parts[-1].transaction
        self._check_caller()
        if not last.is_active:
            raise TransactionRolledBack("a failure has rolled back a branch: abort the zope transaction")
        if last.work() != (0, 0):
            last.barred = "the zope transaction has a new savepoint: call xa.zope.join(space) again in this thread"
            self._begin_part(coordinator)
        return Savepoint(self, len(self._parts) - 1)

    def roll_back_to(self, kept: int) -> None:
        """Roll back all branches except the first ``kept`` branches, and begin a new branch."""
        coordinator = self._open_coordinator()
        self._check_caller()
        for part in reversed(self._parts[kept:]):
            if part.transaction.is_active:
                part.transaction.rollback(_UNDONE)
        del self._parts[kept:]
        self._begin_part(coordinator)

    # -- the two phases: IDataManager ---------------------------------------------------------------------------------

    def tpc_begin(self, txn: object) -> None:
        """Do nothing: the vote ends the work."""

    def commit(self, txn: object) -> None:
        """Do nothing: the vote writes the work."""

    def tpc_vote(self, txn: object) -> None:
        """Prepare the branches: their work is durable and undecided.

        Raises:
            Full, QueueNotFound, TransactionRolledBack, DiskFailure: a branch cannot be committed.
            NotOpen: the space was closed, or the process was forked, so the work is lost.
            ProtocolError: the part of this space has ended.
        """
        self._open_coordinator()
        for part in self._parts:
            part.transaction.barred = None
            if part.transaction.prepare():
                self._voted.append(part.transaction.xid)

    def tpc_finish(self, txn: object) -> None:
        """Commit the branches. Raises no error: a commit that fails is logged, and a thread repeats the commit."""
        with deferred():
            self._leave()
            coordinator, self._coordinator = self._coordinator, None
            if coordinator is None:
                return
            try:
                self._commit_voted()
                coordinator.close()
            except BaseException as error:
                commit_later(self._engine, self._voted, coordinator, error)
                if not isinstance(error, Exception):  # Ctrl-C
                    raise

    def tpc_abort(self, txn: object) -> None:
        """Roll back all work, voted or not. Raises no error, and does nothing once the part of this space has ended."""
        self._roll_back(leave=True)

    def abort(self, txn: object) -> None:
        """Roll back all work, as ``tpc_abort`` does.

        ``transaction`` also calls ``abort`` in a rollback to a savepoint that is older than ``join``. The caller then
        remains in the ended branch, so that the caller's next put raises an error instead of being committed
        separately.
        """
        self._roll_back(leave=self._is_completing)

    def _roll_back(self, *, leave: bool) -> None:
        with deferred():
            coordinator, self._coordinator = self._coordinator, None
            if coordinator is not None:
                self._roll_back_parts()
                coordinator.close()
            if leave:
                self._leave()

    def _commit_voted(self) -> None:
        if self._voted:
            self._engine.commit_together(self._voted)

    def _roll_back_parts(self) -> None:
        for part in reversed(self._parts):
            try:
                if not self._engine.closed:  # (the next process that opens a closed space rolls back)
                    part.roll_back()
            except (SpoolError, OSError) as error:
                log.warning("the branch %s is rolled back later: %s", part.transaction.xid, error)

    # -- order and repetition -----------------------------------------------------------------------------------------

    def sortKey(self) -> str:
        """Return ``xaspool:``, the path of the space, and an id.

        Two spaces have the same order in every process. The one-phase data managers of zope.sqlalchemy have later keys,
        because they commit when they vote.
        """
        return self._key

    def should_retry(self, error: BaseException) -> bool:
        """Return whether another transaction held a lock or a message, so that a repetition may succeed."""
        return isinstance(error, TransactionTimeout | MessageInUse)

    # -- the end of the transaction: ISynchronizer --------------------------------------------------------------------

    def newTransaction(self, txn: object) -> None:
        """Do nothing."""

    def beforeCompletion(self, txn: object) -> None:
        """Note that the transaction ends. If its part in this space has ended before, the caller leaves the branch."""
        self._is_completing = True
        if self.has_ended:
            self._leave()

    def afterCompletion(self, txn: object) -> None:
        """Register for no further transaction."""
        with suppress(KeyError):
            self.transaction_manager.unregisterSynch(self)


@implementer(IDataManagerSavepoint)
class Savepoint:
    """A savepoint of a data manager. ``kept``: the number of branches that a rollback keeps."""

    def __init__(self, manager: DataManager, kept: int) -> None:
        self._manager = manager
        self._kept = kept

    def rollback(self) -> None:
        """Undo the puts and gets since the savepoint, and count an attempt for each message that was taken."""
        self._manager.roll_back_to(self._kept)


class _Part(Branch):
    """A branch of the transaction."""

    __slots__ = ()

    def roll_back(self) -> None:
        """Roll back the branch, prepared or not, and count an attempt for each message that it has taken."""
        xid = self.transaction.xid
        if self.transaction.is_active:
            self.transaction.rollback(_ABORTED)
        elif self._engine.is_prepared(xid):
            self._engine.roll_back_branch(xid, _ABORTED)
