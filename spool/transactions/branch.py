"""A branch: the messages, claims, attempts, file and locks that a transaction holds until it ends.

A branch does not know the state of its transaction; the module ``transaction`` keeps the state and calls the branch.
"""

import logging
import os
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from spool.coordination.locks import GroupLocks, xid_byte
from spool.errors import NotOpen, SpoolError
from spool.format.table import Table
from spool.log import quota
from spool.log.commit_file import CommitFileWriter
from spool.log.futures import Promises
from spool.log.visibility import catch_up, list_prepared
from spool.log.write_set import WriteSet
from spool.model.position import PositionRanges, positions, subtract_ranges
from spool.model.xid import BRANCH_ID_BYTES, FORMAT_LOCAL, Xid
from spool.policies import retries
from spool.policies.claim_journal import Journal
from spool.policies.deduplication import DeduplicationKeys
from spool.runtime.clock import LockTimeout, WaitExpired
from spool.runtime.tearing import raise_if_torn
from spool.store.settings import Settings
from spool.store.store import Store
from spool.transactions import claiming
from spool.transactions.replacing import Replacements

log = logging.getLogger("spool")


class Branch:
    """One branch, in X/Open's terms. A branch is not thread-safe; its transaction serialises the calls."""

    def __init__(self, store: Store, xid: Xid | None, *, counted: bool, journal: Journal | None) -> None:
        """``counted``: see ``Transaction``. ``journal``: records the attempts at claimed messages; None: no record."""
        self.id = os.urandom(BRANCH_ID_BYTES)
        self.prefix = self.id.hex()  # the first part of the ids of the branch's messages
        self.xid = xid or Xid(FORMAT_LOCAL, self.id, b"")
        self.batch = WriteSet()
        self.batch.begin_branch(self.xid, self.id)
        self.file: CommitFileWriter | None = None
        self.claims: PositionRanges = []
        self.groups = GroupLocks(store.shared.xids, self.claims)
        self._keys: DeduplicationKeys | None = None
        self._replacements: Replacements | None = None
        self._store = store
        self.counted = counted
        self.journal = journal
        self.slots: list[int] = []  # the slots of the journal that have messages of this branch
        self.byte: int | None = None  # the xid's byte in run/xids, while this branch has it locked
        self._left = False  # whether the rollback is left to the next process that opens the space

    @property
    def keys(self) -> DeduplicationKeys:
        """The deduplication keys of the branch's messages."""
        self._keys = self._keys or DeduplicationKeys(self._store)
        return self._keys

    @property
    def replacements(self) -> Replacements:
        """The messages that the branch replaces."""
        self._replacements = self._replacements or Replacements(self._store)
        return self._replacements

    @property
    def attempted(self) -> PositionRanges:
        """The claimed messages for which a rollback counts an attempt: all but the replaced messages."""
        return self.claims if self._replacements is None else subtract_ranges(self.claims, self._replacements.taken)

    def lock_xid(self) -> None:
        """Lock the xid's byte. The caller does this before it creates the first file of the branch (rule 6).

        Raises:
            LockTimeout: another process did not release the byte in time.
        """
        if self.byte is None:
            byte = xid_byte(self.xid)
            try:
                self._store.shared.xids.lock(byte, self._store.deadline(), f"the branch {self.xid}")
            except WaitExpired as error:
                raise LockTimeout(str(error)) from None
            self.byte = byte

    def lock_xid_now(self) -> bool:
        """Lock the xid's byte without waiting; returns False if another process holds the byte. Not called twice."""
        byte = xid_byte(self.xid)
        if self._store.shared.xids.try_lock(byte):
            self.byte = byte
        return self.byte is not None

    @property
    def is_empty(self) -> bool:
        return self.batch.is_empty and self.file is None

    @property
    def tables(self) -> list[Table]:
        """All tables of contents of the branch."""
        return [*(self.file.tables if self.file is not None else ()), *self.batch.tables]

    def check_room(self, settings: Settings, queue: str, groups: Sequence[tuple[Sequence[bytes], object]]) -> None:
        """Raise Full if these bodies do not fit now. The exact check follows at the commit or vote."""
        catch_up(self._store, list_prepared(self._store))
        raws = [raw for some, _ in groups for raw in some]
        more = {queue: quota.Usage(len(raws), sum(map(len, raws)))}
        change = quota.change_by(self._store.view, self.tables)
        quota.check_room(self._store.view, settings, quota.combined(change, more))

    def put(self, queue: str, raws: Sequence[bytes], attributes: dict[str, Any]) -> list[str]:
        """Add messages; returns their ids. The caller then calls ``stream`` if ``batch.sections`` is not empty."""
        first = self.batch.put(queue, raws, attributes)
        return list(map(f"{self.prefix}%08x".__mod__, range(first, first + len(raws))))

    def stream(self) -> None:
        """Write complete sections to the branch's file in ``active/``, because the branch has become large."""
        self.lock_xid()
        self.new_file().stream(self.batch)

    def new_file(self) -> CommitFileWriter:
        """Return the branch's file; create the file if the branch has none."""
        self.file = self.file or CommitFileWriter(self._store.files.disk, self.xid)
        return self.file

    def abandon_file(self) -> None:
        """Delete the branch's file if it exists and was not committed."""
        if self.file is not None:
            self.file.abandon()

    def begin_anew(self) -> None:
        """Forget messages and commands; keep the claims and their attempts.

        The caller has got the ids of the forgotten messages, so messages that are put afterwards get other ids.
        """
        self.abandon_file()
        self.file, self.id = None, os.urandom(BRANCH_ID_BYTES)
        self.prefix = self.id.hex()
        self.batch = WriteSet()
        self.batch.begin_branch(self.xid, self.id)
        if self._keys is not None:
            self._keys.release()
            self._keys = None
        if self._replacements is not None:
            self.claims[:] = self.attempted
            claiming.give_back(self._store, self._replacements.taken)
            self._replacements.release()
            self._replacements = None

    def end_attempts(self, *, removed: bool = False) -> None:
        """Record that the attempts have ended. If this process dies afterwards, no attempt is counted.

        ``removed``: whether a commit has removed the messages.
        """
        if self.journal is not None and self.slots:
            slots, self.slots = self.slots, []
            self.journal.end(slots, removed=removed)

    def undo(self, reason: str) -> None:
        """Delete the branch's file, and count an attempt for each claimed message; the caller then calls ``release``.

        The attempts are counted before the claims are released, because the next consumer must see the counts.
        While the space is being closed, no attempt can be counted. The next process that opens the space then reads the
        journal and finishes the rollback. Until the files are closed, the claims remain locked.
        """
        try:
            self.abandon_file()
            if self.claims and self.counted:
                retries.count_failures(self._store, positions(self.attempted), reason, self._store.deadline())
        except NotOpen:
            self._left = True
        except (OSError, SpoolError) as error:
            raise_if_torn(error)
            log.warning("a rollback could not be recorded (%s): its messages return, and no attempt is counted", error)

    def release(self, *, taken: bool, removed: bool = False) -> None:
        """End the attempts; release claims, group locks, keys and xid.

        After a vote the claims are not needed, because the prepared file holds the messages.

        Args:
            taken: whether a commit or a prepared file has taken the claimed messages.
            removed: whether a commit has removed all of them.
        """
        if self._left:
            return
        self.end_attempts(removed=removed)
        if self.claims:
            claims = self.claims[:]
            self.claims.clear()
            if taken:
                claiming.release(self._store.shared.claims, claims)
            else:
                claiming.give_back(self._store, claims)
        if self.groups.names:
            claiming.release_groups(self._store, self.groups)
        if self._keys is not None:
            self._keys.release()
        if self._replacements is not None:
            self._replacements.release()
        if self.byte is not None:
            byte, self.byte = self.byte, None
            self._store.shared.xids.unlock(byte)


_DROPPED = "its transaction was dropped without a commit or a rollback"

_warn = warnings.warn  # (at its end, the interpreter may remove the module ``warnings`` before the last transaction)


class DropGuard:
    """A transaction's guard. If the program drops a transaction that has not ended, the housekeeper rolls it back.

    Python can delete an object between any two instructions of any thread, so ``__del__`` takes no lock and touches no
    file.
    """

    __slots__ = ("_branch", "_promises", "_store")

    def __init__(self, store: Store, branch: Branch, promises: Promises) -> None:
        self._store = store
        self._branch: Branch | None = branch
        self._promises = promises

    def dismiss(self) -> None:
        """Disarm the guard, because the transaction has ended."""
        self._branch = None

    def __del__(self) -> None:
        branch = getattr(self, "_branch", None)  # (it is missing after an exception inside ``__init__``)
        if branch is None or self._store.closed:
            return
        self._store.dropped.append(partial(_undo, branch, self._promises))
        _warn(
            f"a transaction of {self._store.files.disk.root} was dropped without a commit or a rollback, and is rolled "
            "back within seconds: use it in a with statement",
            ResourceWarning,
            2,
        )


def _undo(branch: Branch, promises: Promises) -> None:
    """Undo a dropped transaction: count an attempt for each message that it took, and fail its futures."""
    try:
        branch.undo(_DROPPED)
    finally:
        promises.roll_back(_DROPPED)
        branch.release(taken=False)
