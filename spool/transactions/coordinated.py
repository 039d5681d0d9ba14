"""A transaction in a two-phase commit: a branch of a coordinator, or the transaction in which a coordinator decides.

Each branch of the XA resource manager, each round of the forwarder, and each attempt of a worker is such a transaction.
Applications use ``Transaction``.

A coordinator of ours lives as long as a process holds the lock on its id (Rule 6). Once the lock is free, the next
process that meets an undecided branch of the coordinator rolls the branch back. The lock belongs to an open file
description, which other processes may inherit. So a process can hold the lock of a coordinator that another process
began. The coordinator needs no log, because its decision is a commit of the space.
"""

import os
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, TypeVar

from spool.coordination.locks import LockFile, OpenLock, coordinator_byte, xid_byte
from spool.disk.disk import Disk
from spool.errors import Full, NotOpen, ProtocolError, SpoolError
from spool.index.stored_run import StoredRun
from spool.model import layout
from spool.model.position import Position, positions
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies.attempt_journal import CallMarks, Journal, read_journal
from spool.policies.retries import add_failure_outcome, count_failures
from spool.runtime.call_guard import public_call, step, within
from spool.runtime.clock import LockTimeout, WaitExpired
from spool.store.settings_reader import Settings
from spool.transactions import delivery, two_phase
from spool.transactions.claiming import check_wanted
from spool.transactions.core import Core
from spool.transactions.transaction import Transaction, TransactionState

T = TypeVar("T")


class CoordinatedTransaction(Transaction):
    """A branch of a coordinator, or a coordinator's own transaction.

    on_rollback: called once when the transaction is rolled back, before the messages are released.
    on_full: called when a queue has no room for the messages; returns True to roll back without counting an attempt.
    on_lock_timeout: called when a lock of the space did not become free in time for the commit; returns True to attempt
        the commit again. False rolls back; no attempt is counted then.
    """

    _removes_all = False  # messages that are only held return
    on_rollback: Callable[[], object] | None = None
    on_full: Callable[[Full], bool] | None = None
    on_lock_timeout: Callable[[Exception], bool] | None = None

    @property
    def is_prepared(self) -> bool:
        """Whether the branch is prepared, and this process has neither committed the branch nor rolled it back."""
        return self.state is TransactionState.PREPARED

    def stream(self) -> None:
        """Write the complete sections of ``writes`` to a file in ``active/``."""
        self._hold.open_file(self._xid).stream(self.writes)

    def lock_xid_now(self) -> bool:
        """Lock the xid of a new branch; returns False if another process holds the xid.

        The caller is inside a public call.
        """
        byte = xid_byte(self._xid)
        if self._store.shared.xids.try_lock(byte):
            self._hold.byte = byte
        return self._hold.byte is not None

    @public_call("taking from queue {queue}")
    def hold(
        self,
        queue: str,
        max_messages: int,
        *,
        timeout: float | None = 0,
        passed: Set[tuple[int, int]] = frozenset(),
        in_order: bool = False,
        check: Callable[[], object] = lambda: None,
    ) -> list[StoredRun]:
        """Claim messages without taking them.

        The effect on each message is recorded later, by ``conclude`` or by a branch that this transaction adopts. The
        end of the transaction releases each claimed message that no command addresses.

        Args:
            max_messages: the largest number of messages to claim.
            timeout: the seconds to wait for the first message.
            passed: the positions of messages that must not be claimed.
            in_order: whether the caller handles the messages one after the other. If so, several messages of one group
                may be claimed. Otherwise at most one message of each group is claimed.
            check: called several times a second during the wait; an exception from ``check`` ends the wait.

        Returns:
            The places of the messages' bodies, in the queue's order; [] if no message is free in time.

        Raises:
            QueueNotFound: the queue does not exist.
        """
        wanted = replace(check_wanted(queue, max_messages, timeout=timeout), spread=not in_order, passed=passed)

        def check_both() -> None:
            self._check_active()
            check()

        with self.mutex:
            try:
                got = self._hold.wait_for(wanted, self._store.clock.monotonic(), check_both)
            except (LockTimeout, WaitExpired) as error:
                raise self._give_up(error) from None
            return delivery.held_runs(self._store, got)

    @public_call("recording that a call begins")
    def begin_call(self) -> None:
        """Record that a call with the held messages begins. If this process dies in the call, an attempt is counted."""
        with self.mutex:
            self._hold.journal = self._core.journal
            self._hold.begin_attempts(self._hold.claims)

    @public_call("recording that a call has ended")
    def end_call(self) -> None:
        """Record that the call has ended. If this process dies afterwards, no attempt is counted."""
        with self.mutex:
            self._hold.end_attempts()

    @step("committing")
    def conclude(self, record: Callable[[], T], *, failed: bool) -> T:
        """Commit the commands that ``record`` adds to ``writes``; returns the result of ``record``.

        Raises like ``commit``.

        ``failed``: whether the call failed. After a failure only the commands of ``record`` are committed, so even a
        transaction that was marked lost may commit these commands.
        """
        with self.mutex:
            if failed:
                self.lost = None
            self._check_active(ending=True)
            try:
                result = record()
                if self.writes.sections:
                    self.stream()
            except BaseException as error:
                self._fail("recording the outcome of a call", error)
            self.commit()
            return result

    def begin_anew(self, settings: Settings, own: Position, reason: str) -> None:
        """Undo all gets and puts, and count an attempt for each claimed message except ``own``.

        Only the function ``record`` of ``conclude`` may call this method. The caller has got the ids of the forgotten
        messages, so messages that are put afterwards get other ids.
        """
        store, hold = self._store, self._hold
        hold.abandon_file()
        hold.file = self._keys = self._replacements = None
        self._begin_branch(self._xid)
        hold.unlock_keys()
        hold.give_back(list(hold.replaced))
        hold.replaced = ()
        if self._promises is not None:
            self._promises.roll_back(reason)
        with store.view.mutex:
            for position in positions(hold.claims):
                if position != own:
                    add_failure_outcome(self.writes, store, settings, position, reason)

    def work(self) -> tuple[int, int]:
        """Return how many messages the transaction has put and taken."""
        return self.writes.messages, sum(count for _, _, count in self._hold.claims)

    def delays_others(self) -> bool:
        """Return whether other callers can do more after the commit than before: get the messages that the transaction
        put, get messages of its groups, or put messages into a queue that was full. Called before the vote."""
        return bool(self.writes.messages or self._hold.groups or self._store.settings.known.config.has_limits)

    def refuse(self, reason: str) -> None:
        """Make later calls raise ProtocolError. A call in progress ends as soon as it checks the transaction."""
        self._left = True
        self.lost = reason

    def _waits_on(self, error: Exception) -> bool:
        return self.on_lock_timeout is not None and self.on_lock_timeout(error)

    def _fail(self, doing: str, error: BaseException) -> NoReturn:
        if isinstance(error, Full) and self.on_full is not None and self.on_full(error):
            self.abandon()
        super()._fail(doing, error)

    def _end(self, state: TransactionState, why: str = "") -> None:
        on_rollback, self.on_rollback, self.on_full, self.on_lock_timeout = self.on_rollback, None, None, None
        if state is TransactionState.ROLLED_BACK and on_rollback is not None:
            on_rollback()
        super()._end(state, why)

    @public_call("preparing")
    def prepare(self) -> bool:
        """Vote yes; returns True once the vote is durable.

        Returns False if the transaction was empty and has ended (XA_RDONLY).

        Raises like ``commit``; the transaction is then rolled back.
        """
        with self.mutex:
            try:
                request = self.writes
                request.page, request.is_vote = self._check_active(ending=True), True
                if request.is_empty and self._hold.file is None:
                    self._end(TransactionState.COMMITTED)
                    return False
                request.file = self._hold.open_file(self._xid)
                if self._xid.format_id in FORMATS_BOUND_TO_A_LIFE:  # the death of the coordinator counts no attempt
                    self._hold.end_attempts()
                self._core.leader.commit(request)
                self._end(TransactionState.PREPARED)
                return True
            except BaseException as error:
                self._fail("preparing", error)

    @public_call("committing")
    def commit(
        self,
        adopt: Sequence[Xid] = (),
        record: Callable[[], object] | None = None,
        check: Callable[[Settings], object] | None = None,
        copied: Sequence[Xid] = (),
    ) -> None:
        """Commit this transaction and the prepared branches ``adopt`` together. Raises like ``Transaction.commit``.

        The caller got the votes of these branches.

        Args:
            adopt: the xids of the prepared branches.
            record: a function that adds to ``writes`` before the commit.
            check: a function that raises if the commit must not happen. ``check`` is called under the number lock, once
                every issued number is settled.
            copied: the xids of the prepared branches whose contents ``record`` copies into this branch.
        """
        if not adopt and record is None and check is None:
            within(Transaction.commit)(self)
            return
        store = self._store
        with self.mutex:
            try:
                self._check_active(ending=True)
                file = self._hold.open_file(self._xid)
                if record is not None:
                    record()
                self.number = two_phase.adopt(store, file, self.writes, adopt, store.deadline(), check, copied)
                self._end(TransactionState.COMMITTED)
            except BaseException as error:
                self._fail("committing", error)


class Coordinator(CoordinatedTransaction):
    """A coordinator of this process: it holds messages and commits branches. Not thread-safe; the caller closes it.

    id: the gtrid of its branches. This process holds the lock on the id.

    Each method may also raise the errors that ``spool.engine`` names for every verb.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core, counted=False)
        self.id = os.urandom(16)
        self._byte = coordinator_byte(self.id)
        self._is_open = True
        with self._store.guard.step:
            if not self._store.shared.xids.try_lock(self._byte):
                raise ProtocolError(f"the coordinator {self.id.hex()} exists already")

    def close(self) -> None:
        """Release the held messages, and the lock on the coordinator's id. No attempt is counted.

        Afterwards, the next process that meets an undecided branch of the coordinator rolls the branch back. A second
        call does nothing.
        """
        if not self._is_open:
            return
        self._is_open = False
        with suppress(NotOpen), self._store.guard.step:  # (a closed space has released all its locks)
            self.abandon()
            self._store.shared.xids.unlock(self._byte)

    @public_call("preparing to record calls")
    def record_calls(self) -> CallMarks | None:
        """Write a journal with a mark for each held message; ``RemoteBranch.begin_call`` sets a mark.

        If all processes die, the next process counts an attempt for each message whose mark is set. If the disk is
        full, this returns None, and no attempt is counted later.
        """
        with self.mutex:
            self._hold.marks = Journal(self._store)
            return self._hold.marks.reserve(self._hold.claims)

    @public_call("recording that calls have ended")
    def clear_marks(self, marks: CallMarks, count: int) -> None:
        """Unset the marks of ``count`` calls whose process has ended."""
        with self.mutex:
            if self._hold.marks is not None:
                self._hold.marks.clear_marks(marks, count)

    def count_calls(self, reason: str, seconds: float) -> None:
        """Count an attempt for each message whose mark is set. Errors are ignored.

        A program calls this before it ends. The count takes at most ``seconds``. No later process counts these attempts
        again.
        """
        with suppress(SpoolError, OSError), self._store.guard.step:
            if (marks := self._hold.marks) is not None:
                begun = read_journal(self._store.files.disk, marks.xid).ranges
                count_failures(self._store, positions(begun), reason, self._store.deadline(seconds))
                marks.remove()


def lock_coordinator(disk: Disk, gtrid: bytes) -> tuple[int, int]:
    """Lock a new coordinator's id, and take another lock on the open space; the caller closes both descriptors."""
    xids = LockFile(disk, layout.XIDS, make=False)
    if not xids.try_lock(coordinator_byte(gtrid)):
        raise ProtocolError(f"the coordinator {gtrid.hex()} exists already")
    open_lock = OpenLock(disk)
    open_lock.finish_opening()
    return xids.handle, open_lock.handle
