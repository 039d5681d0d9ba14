"""A coordinator: it claims messages, has processes without an index write branches, and commits those branches.

A coordinator lives as long as a process holds the lock on its id (Rule 6). Once the lock is free, the next process that
meets an undecided branch of the coordinator rolls the branch back. The lock belongs to an open file description, which
other processes may inherit. So its holder need not be the process that began the coordinator.
"""

import os
from contextlib import suppress

from spool.coordination.locks import LockFile, OpenLock, coordinator_byte
from spool.disk.disk import Disk
from spool.errors import NotOpen, ProtocolError, SpoolError
from spool.model import layout
from spool.model.position import positions
from spool.policies.claim_journal import CallMarks, read_journal
from spool.policies.retries import count_failures
from spool.runtime.calls import public_call
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core

_ID_BYTES = 16


class Coordinator(CoordinatedTransaction):
    """A coordinator of this process: it holds messages and commits branches. Not thread-safe; the caller closes it.

    id: the gtrid of its branches. This process holds the lock on the id.

    Each method may also raise the errors that ``spool.engine`` names for every verb.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core, counted=False)
        self.id = os.urandom(_ID_BYTES)
        self._byte = coordinator_byte(self.id)
        self._marks: CallMarks | None = None
        self._is_open = True
        with self._store.guard:
            if not self._store.shared.xids.try_lock(self._byte):
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
            self.abandon()
            self._store.shared.xids.unlock(self._byte)

    @public_call("preparing to record calls")
    def record_calls(self) -> CallMarks | None:
        """Write a journal of the held messages, with a mark for each message; ``RemoteBranch.begin_call`` sets a mark.

        If all processes die, the next process counts an attempt for each message whose mark is set. If the disk is
        full, returns None; then no attempt would be counted.
        """
        with self._lock:
            first = self._branch.begin_marked_journal()
            self._marks = None if first is None else CallMarks(self.xid, first)
            return self._marks

    @public_call("recording that calls have ended")
    def clear_marks(self, first: int, count: int) -> None:
        """Unset the marks of ``count`` calls whose process has ended. ``first``: the place of the first mark."""
        with self._lock:
            if self._branch.journal is not None:
                self._branch.journal.clear_marks(first, count)

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
                self.end_call()


def lock_coordinator(disk: Disk, gtrid: bytes) -> tuple[int, int]:
    """Lock a new coordinator's id, and take another lock on the open space; the caller closes both descriptors."""
    xids = LockFile(disk, layout.XIDS, make=False)
    if not xids.try_lock(coordinator_byte(gtrid)):
        raise ProtocolError(f"the coordinator {gtrid.hex()} exists already")
    open_lock = OpenLock(disk)
    open_lock.finish_opening()
    return xids.handle, open_lock.handle
