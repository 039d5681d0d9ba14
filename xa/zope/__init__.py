"""Queue spaces in the transactions of zope's package ``transaction``: ``join(space)``.

``join`` adds a data manager of the space to the current transaction. The data manager works in branches:

* ``join`` begins the first branch. A savepoint ends a branch that has work, and begins a further branch. A rollback to
  the savepoint rolls back the later branches.
* ``tpc_vote`` prepares the branches: each vote is durable. ``tpc_finish`` commits all branches as one commit.
* All branches have one gtrid. The data manager holds the lock on this gtrid until the branches have ended (Rule 6 of
  docs/architecture.md). If the process dies earlier, the next process that meets the branches rolls them back. zope has
  the same convention: a transaction without a decision is rolled back.
* If the commit fails after the votes, the decision stands, and a thread repeats the commit while the process lives. The
  lock has a separate descriptor, so a close of the space does not release the lock. The thread then opens the space.

The xids have the format ``FORMAT_LOCAL``: the limits of queues apply at the vote, and the commit never raises Full. For
branches of ``FORMAT_ROUND``, the limits apply at the commit, which is too late here.

Source: the interfaces of zope's ``transaction``: ``ISavepointDataManager``, ``IDataManagerSavepoint``,
``IRetryDataManager`` and ``ISynchronizer``.
"""

from contextlib import suppress
from typing import Any

import transaction

from spool import Space
from spool.engine import deferred
from spool.errors import InvalidArgument
from xa.manager import TransactionManager
from xa.zope.data_manager import DataManager, Savepoint

__all__ = ["DataManager", "Savepoint", "join"]


def join(
    space: Space, transaction_manager: Any = None, *, manager: TransactionManager | None = None, session: Any = None
) -> DataManager:
    """Make the caller's puts and gets part of the current zope transaction, from now on until the transaction ends.

    The caller is a thread or an asyncio task. A further call in the same transaction returns the same data manager. If
    another thread or task makes this call, its puts and gets are also part of the transaction.

    An abort, a failed commit and a rollback to a savepoint count an attempt for each message that returns to its queue,
    as ``Transaction.rollback`` does. So a repetition (``transaction.manager.attempts()``) gets the message again only
    after the queue's retry delay.

    A rollback to a savepoint that is older than ``join`` ends the space's part of the transaction. The caller's puts
    and gets then raise TransactionRolledBack until the next ``join``, or until the transaction ends.

    Limits:

    * zope's ``transaction`` keeps no log. If the process dies between the votes and ``tpc_finish``, the part of this
      space is rolled back, even if a database has committed its part. ``manager`` and ``session`` close this gap.
    * After a savepoint, a message that the transaction took before the savepoint still blocks later messages of its
      group. A second put of a deduplication key waits 30 s, and then raises MessageInUse.
    * Each branch with work costs a flush at the vote.
    * A future of ``Space.submit`` fails with ProtocolError at the vote, because its outcome is not decided then.

    Args:
        transaction_manager: a transaction manager of the package ``transaction``; None: ``transaction.manager``, which
            has one transaction for each thread.
        manager: with ``session``: the transaction manager whose decision is written in the session's transaction. After
            a crash, ``recover`` of the transaction manager gives the space and the database the same outcome.
        session: a session of SQLAlchemy (also a scoped one), registered with zope.sqlalchemy, whose database has
            the table of ``TransactionManager.prepare_database``. zope.sqlalchemy commits the session.

    Raises:
        InvalidArgument: this is no space, the session's database has no table of decisions, or the session has
            twophase=True.
        ProtocolError: the caller is in another transaction of this space.
        NotOpen: the space is closed.
        TransactionFailedError, ValueError: ``transaction`` refuses, because the transaction has failed, or commits.
    """
    if not isinstance(space, Space):
        raise InvalidArgument(f"join takes an open space, not {type(space).__name__}")
    zope_manager = transaction.manager if transaction_manager is None else transaction_manager
    txn = zope_manager.get()
    found: DataManager | None = None
    with suppress(KeyError):
        found = txn.data(space)
    if found is not None and not found.has_ended:
        found.enter()
        return found
    with deferred():
        found = _data_manager(space, zope_manager, manager, session)
        try:
            txn.join(found)
        except BaseException:
            found.tpc_abort(txn)
            raise
        txn.set_data(space, found)
        zope_manager.registerSynch(found)
    return found


def _data_manager(space: Space, zope_manager: Any, manager: TransactionManager | None, session: Any) -> DataManager:
    if manager is None and session is None:
        return DataManager(space, zope_manager)
    if manager is None or session is None:
        raise InvalidArgument("give both manager and session, or none of them")
    from xa.zope.decision_row import DecidingDataManager  # (imported here, because it needs zope.sqlalchemy)

    return DecidingDataManager(space, zope_manager, manager, session)
