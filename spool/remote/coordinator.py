"""A coordinator: it claims messages, has processes without an index write branches, and commits those branches.

A coordinator lives as long as a process holds the lock on its id (Rule 6). Once the lock is free, the next process that
meets an undecided branch of the coordinator rolls the branch back. The lock belongs to an open file description, which
other processes may inherit. So its holder need not be the process that began the coordinator.
"""

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress

from spool.coordination.locks import LockFile, OpenLock, coordinator_byte
from spool.disk.disk import Disk
from spool.errors import NotOpen, ProtocolError, SpoolError
from spool.index.stretch import Stretch
from spool.model import layout
from spool.model.position import positions
from spool.model.xid import Xid
from spool.policies.claim_journal import CallMarks, read_journal
from spool.policies.retries import count_failures
from spool.store.store import Store
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core

_ID_BYTES = 16


class Coordinator:
    """A coordinator of this process. Not thread-safe; the caller closes it.

    id: the gtrid of its branches. This process holds the lock on the id.

    Each method may also raise the errors that ``spool.engine`` names for every verb.
    """

    def __init__(self, core: Core) -> None:
        self.id = os.urandom(_ID_BYTES)
        self._store = store = core.store
        self._byte = coordinator_byte(self.id)
        self._transaction = CoordinatedTransaction(core, timeout=None, counted=False)
        self._marks: CallMarks | None = None
        self._is_open = True
        with store.guard:
            if not store.shared.xids.try_lock(self._byte):
                raise ProtocolError(f"the coordinator {self.id.hex()} exists already")

    def close(self) -> None:
        """Release the held messages, without an attempt counted, and the lock on the coordinator's id.

        Afterwards, the next process that meets an undecided branch of the coordinator rolls the branch back. A second
        call does nothing.
        """
        if not self._is_open:
            return
        self._is_open = False
        with suppress(NotOpen), self._store.guard:  # (the end of a space has released all its locks)
            self._transaction.abandon()
            self._store.shared.xids.unlock(self._byte)

    def hold(
        self, queue: str, max_messages: int, *, timeout: float, passed: Set[tuple[int, int]] = frozenset(),
        in_order: bool = False,
    ) -> list[Stretch]:  # fmt: skip
        """Claim messages without taking them; returns their places in the queue's order, [] if none is free in time.

        Args:
            max_messages: the most messages to claim.
            timeout: seconds to wait for the first message.
            passed: the positions of messages that must not be claimed.
            in_order: whether the caller handles the messages one after the other. If so, several messages of one group
                may be claimed. Otherwise at most one message of each group is claimed.

        Raises:
            QueueNotFound: the queue does not exist.
        """
        return self._transaction.hold(queue, max_messages, timeout=timeout, passed=passed, in_order=in_order)

    def record_calls(self) -> CallMarks | None:
        """Write a journal of the held messages, with a mark for each message; ``RemoteBranch.begin_call`` sets a mark.

        If all processes die, the next process counts an attempt for each message whose mark is set. If the disk is
        full, returns None; then no attempt would be counted.
        """
        self._marks = self._transaction.begin_calls()
        return self._marks

    def clear_marks(self, first: int, count: int) -> None:
        """Unset the marks of ``count`` calls whose process has ended. ``first``: the place of the first mark."""
        self._transaction.end_calls(first, count)

    def count_calls(self, reason: str, seconds: float) -> None:
        """Count an attempt for each message whose mark is set. Errors are ignored.

        A program calls this before it ends. The count takes at most ``seconds``. No later process counts these attempts
        again.
        """
        store, marks = self._store, self._marks
        if marks is not None:
            with suppress(SpoolError, OSError), store.guard:
                begun = positions(read_journal(store.files.disk, marks.xid).begun)
                count_failures(store, begun, reason, store.deadline(seconds))
                self._transaction.end_call()

    def commit(self, xids: Sequence[Xid]) -> None:
        """Commit branches whose votes the caller got, in this order, in one commit.

        Claimed messages that no branch removes remain in their queues.

        Raises:
            UnknownBranch: one of the branches was rolled back; nothing was done.
            Full: the messages do not fit; nothing was done.
            CommitUnknown: the outcome is unknown.
        """
        if xids:
            self._transaction.commit(adopt=xids)


@contextmanager
def locked_coordinator(store: Store, gtrid: bytes) -> Iterator[tuple[int, int]]:
    """Lock a new coordinator's id, and take another lock on the open space; yields the descriptors of both locks.

    A process that inherits the descriptors holds the locks until it closes them or dies. While they are held, no other
    process rolls back a branch of the coordinator, and no process that opens the space is its first opener.

    Raises:
        ProtocolError: a coordinator with this id lives.
    """
    disk = store.files.disk
    with store.guard:
        locks = lock_coordinator(disk, gtrid)
        try:
            yield locks
        finally:
            for handle in locks:
                disk.close(handle)


def lock_coordinator(disk: Disk, gtrid: bytes) -> tuple[int, int]:
    """Lock a new coordinator's id, and take another lock on the open space; the caller closes both descriptors."""
    xids = LockFile(disk, layout.XIDS, make=False)
    if not xids.try_lock(coordinator_byte(gtrid)):
        raise ProtocolError(f"the coordinator {gtrid.hex()} exists already")
    open_lock = OpenLock(disk)
    open_lock.finish_opening()
    return xids.handle, open_lock.handle
