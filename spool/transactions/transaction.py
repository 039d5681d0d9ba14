"""A transaction: puts and gets that are committed together or not at all. In X/Open's terms, it is one branch.

A transaction lives in one process until it is prepared. Its claims are locks of this process. Its messages lie in
memory. If the messages are many, they lie in a file in ``active/``. Nothing is promised before ``commit`` or
``prepare`` returns.

A failure ends the transaction. The transaction then releases its claims, its file and its xid, and sets the
outcome in every future of a submitted message. If its file has a number already, the outcome is unknown.
"""

import enum
import os
from _thread import RLock
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, ClassVar, NoReturn, Self, TypeVar, Unpack
from weakref import ref

from spool.coordination.counters import CounterPage
from spool.errors import CommitUnknown, NotOpen, ProtocolError, TransactionRolledBack, TransactionTimeout
from spool.format.commands import REPLACED
from spool.format.table import Table
from spool.log import quota
from spool.log.engine_commit import commit
from spool.log.futures import Promises
from spool.log.visibility import catch_up, list_prepared
from spool.log.write_set import WriteSet
from spool.model.checks import body_list
from spool.model.message import Message, MessageId
from spool.model.options import GetOptions, PutOptions
from spool.model.text import LONGEST_REASON, class_name, storable
from spool.model.xid import BRANCH_ID_BYTES, Xid
from spool.policies.deduplication import DeduplicationKeys, check_single
from spool.runtime import call_guard
from spool.runtime.async_exceptions import is_torn_by, raise_if_torn
from spool.runtime.call_guard import public_call, within
from spool.runtime.clock import Deadline, LockTimeout, WaitExpired
from spool.runtime.context import Block, associate, dissociate, joined_by_caller
from spool.runtime.pickling import refuse_pickling
from spool.store.settings_reader import Settings
from spool.transactions.claiming import Wanted, check_wanted, next_of
from spool.transactions.core import Core
from spool.transactions.hold import Hold
from spool.transactions.replacing import Replacements, check_replace
from spool.transactions.validation import check_queue, check_size, encode_bodies

T = TypeVar("T")
_deferred = call_guard.deferred()


class TransactionState(enum.Enum):
    """The state of a transaction. UNKNOWN: the transaction may or may not have been committed."""

    ACTIVE = "active"
    COMMITTING = "being committed"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "in an unknown state"


class Transaction:
    """Puts and gets that are committed together. Calls from several threads are serialised.

    Args:
        timeout: the seconds after which the transaction is rolled back, so that its next call raises; None: never.
        xid: the id of the transaction; a new id if left out.
        counted: whether a rollback counts an attempt for each message that the transaction holds.
        journaled: whether the death of this process also counts an attempt. The journal then records the claims.
        guarded: whether the housekeeper rolls the transaction back, with a ResourceWarning, if the program drops it
            before its end. (Transactions of the engine itself need no guard, because the engine always ends them.)
    """

    __reduce_ex__ = refuse_pickling
    _removes_all: ClassVar[bool] = True  # whether a commit removes each message that the transaction holds
    _ended_by: tuple[type[TransactionRolledBack], str] | None = None  # the error of the call that ended it early

    def __init__(
        self,
        core: Core,
        *,
        timeout: float | None = None,
        xid: Xid | None = None,
        counted: bool = True,
        journaled: bool = True,
        guarded: bool = False,
    ) -> None:
        self.state = TransactionState.ACTIVE
        self.number: int | None = None
        self._core = core
        self._store = store = core.store
        self._hold = hold = Hold(core, core.journal if counted and journaled else None)
        hold.counted = counted
        self._xid = self._begin_branch(xid)
        self._timeout = timeout
        self.until = inf if timeout is None else store.clock.monotonic() + timeout
        self.mutex = RLock()
        self._rollback_only: str | None = None
        self.lost: str | None = None  # why the next call rolls the transaction back, or an earlier call did
        self.barred: str | None = None  # why puts and gets are refused; the messages remain held
        self._keys: DeduplicationKeys | None = None
        self._replacements: Replacements | None = None
        self.ended_elsewhere: Block | None = None
        self._blocks: list[Block] = []
        self._left = False
        self._promises: Promises | None = None  # created by the first ``submit``
        self._guard = DropGuard(hold) if guarded else None
        if timeout is not None:
            store.limited += (ref(self),)

    def _begin_branch(self, xid: Xid | None) -> Xid:
        """Begin an empty branch with a new id of its messages; return its xid, a new one if left out."""
        self.writes = WriteSet()
        self.writes.begin_branch(xid, os.urandom(BRANCH_ID_BYTES))
        return self.writes.branches[0].xid

    @property
    def xid(self) -> Xid:
        """The id of the transaction. ``spool-admin transaction`` shows this id once the transaction is prepared."""
        return self._xid

    @property
    def is_active(self) -> bool:
        """Whether the transaction can still be committed or rolled back."""
        return self.state is TransactionState.ACTIVE

    def set_rollback_only(self, reason: str = "the transaction was marked rollback-only") -> None:
        """Mark the transaction, so that ``commit``, or the end of its ``with`` block, rolls it back."""
        self._rollback_only = reason

    @property
    def rollback_only(self) -> bool:
        """Whether the transaction was marked to be rolled back."""
        return self._rollback_only is not None

    def __repr__(self) -> str:
        return f"<transaction {self.xid} of {self._store.files.disk.root}: {self.state.value}>"

    # -- putting ------------------------------------------------------------------------------------------------------

    @public_call("putting into queue {queue}")
    def put(self, queue: str, body: Any, **options: Unpack[PutOptions]) -> str:
        """Add a message; returns its id. Options and errors: see ``Space.put``."""
        with self.mutex:
            self._check_queue(queue)
            settings, writes = self._store.settings.known, self.writes
            config = settings.config
            of_queue = config.queues[queue]
            if options or config.has_limits or type(body) is not bytes or of_queue.first_delay or of_queue.time_to_live:
                return self._put(settings, queue, [body], **options)[0]
            if len(body) > config.max_body_bytes:
                check_size(len(body), config.max_body_bytes)
            ordinal = writes.put(queue, (body,), {})
            if writes.sections:
                self._stream()
            return f"{writes.branch}{ordinal:08x}"

    def put_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[PutOptions]) -> list[str]:
        """Add messages with the same options; returns their ids. Options and errors: see ``Space.put``."""
        # The caller supplies the iterable. It may be slow, and its errors are no failures of the space's disk.
        return self._put_list(queue, body_list(bodies), **options)

    @public_call("putting into queue {queue}")
    def _put_list(self, queue: str, bodies: list[Any], **options: Unpack[PutOptions]) -> list[str]:
        with self.mutex:
            self._check_queue(queue)
            return self._put(self._store.settings.known, queue, bodies, **options)

    def _put(self, settings: Settings, queue: str, bodies: list[Any], **options: Unpack[PutOptions]) -> list[str]:
        """Add messages to an existing queue, according to these settings. The caller holds the lock."""
        store, writes = self._store, self.writes
        groups = encode_bodies(store, settings, queue, bodies, options)
        if (key := options.get("deduplication_key")) is not None:
            check_single(len(bodies))
            self._keys = self._keys or DeduplicationKeys(store, self._hold.locks)
            if (known := self._keys.seen(queue, key, self.until - store.clock.monotonic())) is not None:
                return [MessageId(known, duplicate=True)]
        if settings.config.has_limits:
            self._check_room(settings, queue, [raw for raws, _ in groups for raw in raws])
        ids: list[str] = []
        for raws, fields in groups:
            first = writes.put(queue, raws, fields)
            ids += map(f"{writes.branch}%08x".__mod__, range(first, first + len(raws)))
            if writes.sections:
                self._stream()
        if self._keys is not None and key is not None:
            self._keys.remember(writes, settings.config.queues[queue], key, ids[0])
            return [MessageId(ids[0])]
        return ids

    def _check_room(self, settings: Settings, queue: str, raws: Sequence[bytes]) -> None:
        """Raise Full if these bodies do not fit now. The exact check follows at the commit or vote."""
        catch_up(self._store, list_prepared(self._store))
        more = {queue: quota.Usage(len(raws), sum(map(len, raws)))}
        change = quota.change_by(self._store.view, self._tables)
        quota.check_room(self._store.view, settings, quota.combined(change, more))

    @property
    def _tables(self) -> list[Table]:
        """All tables of contents of the transaction."""
        file = self._hold.file
        return [*(file.tables if file is not None else ()), *self.writes.tables]

    def _stream(self) -> None:
        """Write the complete sections to a file in ``active/``, because the transaction has become large."""
        try:
            self._hold.open_file(self._xid).stream(self.writes)
        except BaseException as error:
            self._fail("writing the transaction's messages", error)

    @public_call("putting into queue {queue}")
    def submit(self, queue: str, body: Any, **options: Unpack[PutOptions]) -> "Future[str]":
        """Add a message; returns a future of its id, which is done when the transaction has committed.

        The future fails with TransactionRolledBack if the transaction is rolled back. If the transaction is prepared,
        the future fails with ProtocolError, because only the coordinator knows the outcome. Options and errors: see
        ``Space.put``.
        """
        future = Future[str]()
        future.set_running_or_notify_cancel()
        with self.mutex:
            self._promises = self._promises or Promises(self._store.at_end)
            if self._guard is not None:
                self._guard.promises = self._promises
            self._promises.add(future, within(Transaction.put)(self, queue, body, **options))
        return future

    @public_call("replacing a message of queue {queue}")
    def replace(self, queue: str, body: Any, *, timeout: float | None = 30.0, **options: Unpack[PutOptions]) -> str:
        """Put a message in place of all messages with its correlation id; returns its id. See ``Space.replace``."""
        begun, wanted = self._store.clock.monotonic(), check_replace(queue, timeout, options)
        at = None if wanted.timeout is None else begun + wanted.timeout
        deadline = Deadline(self._store.clock, wanted.timeout, at, self._check_active)
        with self.mutex:
            self._check_queue(wanted.queue)
            settings, writes = self._store.settings.known, self.writes
            [(raws, fields)] = encode_bodies(self._store, settings, wanted.queue, [body], options)
            self._replacements = replacements = self._replacements or Replacements(self._hold)
            own = replacements.own(wanted, writes)
            try:
                replacements.lock(wanted, deadline)
                got = replacements.take(wanted, deadline)
            except (LockTimeout, WaitExpired) as error:
                raise self._give_up(error) from None
            for number, first, count in got:
                writes.remove(number, first, count, REPLACED)
            if own is None:
                own = writes.put(wanted.queue, raws, fields)
                replacements.remember(wanted, own)
            else:
                writes.replace(own, raws[0], fields)
            if writes.sections:
                self._stream()
            return f"{writes.branch}{own:08x}"

    # -- getting ------------------------------------------------------------------------------------------------------

    @public_call("taking from queue {queue}")
    def get(self, queue: str, **options: Unpack[GetOptions]) -> Message:
        """Take a message. Options and errors: see ``Space.get``."""
        return self._get(check_wanted(queue, 1, **options) if options else next_of(queue))[0]

    @public_call("taking from queue {queue}")
    def get_many(self, queue: str, max_messages: int, **options: Unpack[GetOptions]) -> list[Message]:
        """Take up to ``max_messages`` messages, at least one. Options and errors: see ``Space.get``."""
        return self._get(check_wanted(queue, max_messages, **options))

    def _get(self, wanted: Wanted) -> list[Message]:
        # (the timeout includes the wait for another thread's call in this transaction)
        begun = self._store.clock.monotonic() if wanted.timeout else 0.0
        with self.mutex:
            page = self._check_queue(wanted.queue)
            try:
                found, got = self._hold.take(wanted, begun, self._check_active, page)
            except (LockTimeout, WaitExpired) as error:
                raise self._give_up(error) from None
            for number, first, count in got:
                self.writes.remove(number, first, count, "dequeued")
            return found

    def _give_up(self, error: LockTimeout | WaitExpired) -> LockTimeout:
        """Undo the transaction, because a lock of the space did not become free in time for a claim; return the error
        for the caller."""
        self._drop(str(error))
        return error if isinstance(error, LockTimeout) else LockTimeout(f"{error}; the transaction was rolled back")

    def _check_queue(self, queue: str) -> CounterPage:
        """Return the current counters; raises unless the transaction is active and the queue exists. Afterwards the
        known settings are the current ones."""
        store = self._store
        page, settings = store.shared.counters.read(), store.settings.known
        if (
            self.state is not TransactionState.ACTIVE
            or store.clock.monotonic() >= self.until
            or self.lost is not None
            or self.barred is not None
            or page.is_stopped
            or store.guard.closed
            or store.misplaced
        ):
            page = self._check_active()
        if queue not in settings.config.queues or page.settings != settings.version:
            check_queue(store.settings, queue, page)
        return page

    # -- ending --------------------------------------------------------------------------------------------------------

    @public_call("committing")
    def commit(self) -> None:
        """Commit all gets and puts. They are durable and visible when this returns. An empty commit needs no flush.

        Raises:
            Full, QueueNotFound, TransactionTimeout, DiskFailure: the transaction was rolled back. If another process
                held a lock of the space for too long, no attempt is counted for the messages of the transaction.
            CommitUnknown: the transaction may or may not have been committed.
        """
        with self.mutex:
            store, request = self._store, self.writes
            try:
                request.page = self._check_active(ending=True)
                if (file := self._hold.file) is not None:  # a part of the messages is written
                    self.number = commit(store, file, request, limited=True)
                while file is None and (request.messages or request.commands or not request.is_empty):
                    try:
                        self._core.leader.commit(request)
                        break
                    except (LockTimeout, WaitExpired) as error:
                        if request.number is not None or not self._waits_on(error):
                            raise
                        request.renew()
                    finally:
                        self.number = request.number
                self._end(TransactionState.COMMITTED)
            except BaseException as error:
                self._fail("committing", error)

    @public_call("committing")
    def commit_async(self) -> "Future[None]":
        """Begin the commit; returns a future that is done when all gets and puts are durable and visible.

        The transaction takes no more calls. An error before the commit begins is raised here, as ``commit`` raises it.
        A large transaction, which is partly on the disk already, is committed before this call returns.
        """
        return self._commit_async(None)

    def _commit_async(self, result: T) -> "Future[T]":
        future = Future[T]()
        future.set_running_or_notify_cancel()
        with self.mutex:
            page = self._check_active(ending=True)
            if self._hold.file is not None or self.writes.is_empty:
                within(Transaction.commit)(self)
                future.set_result(result)
                return future
            request = self.writes
            request.page, request.future, request.on_done = page, future, partial(self._on_committed, result)
            self.state = TransactionState.COMMITTING
            try:
                self._core.leader.submit(request)
            except BaseException as error:
                self._fail("committing", error)
        return future

    def _on_committed(self, result: object, requests: Sequence[WriteSet]) -> None:
        """End the transaction with the outcome of its commit. The leader thread calls this method."""
        [request] = requests
        self.number = request.number
        failed: BaseException | None = None
        with self.mutex:
            try:
                if request.error is not None:
                    self._fail("committing", request.error)
                self._end(TransactionState.COMMITTED)
            except Exception as error:
                failed = error
            if self.state is TransactionState.COMMITTING:  # the commit failed because the space was closed
                self.state = TransactionState.ROLLED_BACK
                if self._promises is not None:
                    self._promises.roll_back("the space was closed")
        if failed is None:
            call_guard.call_later(partial(request.future.set_result, result))
            return
        self._core.leader.failed += request.messages
        call_guard.call_later(partial(request.future.set_exception, failed))
        raise_if_torn(failed)

    @public_call("rolling back")
    def rollback(self, reason: str = "its transaction was rolled back") -> None:
        """Undo all gets and puts. The messages that the transaction held are available again after the retry delay of
        their queue, with one more attempt counted."""
        with self.mutex:
            if self.state is TransactionState.ACTIVE:
                self._undo(reason)
            elif self._ended_by is None:
                raise ProtocolError(f"the transaction is {self.state.value}: it cannot be rolled back any more")
            self._ended_by = None

    def abandon(self) -> None:
        """Undo all gets and puts, and count no attempt. A transaction that has ended is not touched.

        A program calls this if it has not begun to handle the messages. (If the space is closed, the next process that
        opens the space rolls the transaction back.)
        """
        if self.state is TransactionState.ACTIVE:
            with suppress(NotOpen), self._store.guard.step, self.mutex:
                self._drop("")

    def _drop(self, reason: str) -> None:
        """Undo all gets and puts, and count no attempt."""
        self._hold.abandon_file()
        self._end(TransactionState.ROLLED_BACK, reason)

    def _waits_on(self, _error: Exception) -> bool:
        """Return whether to attempt the commit again after a lock of the space did not become free in time."""
        return False

    def _undo(self, reason: str) -> None:
        try:
            self._hold.undo(reason)
        finally:
            self._end(TransactionState.ROLLED_BACK, reason)

    def _end_promises(self, promises: Promises, why: str) -> None:
        """Set the outcome of this ended transaction in the futures of its submitted messages."""
        if self.state is TransactionState.COMMITTED:
            promises.fulfil()
        elif self.state is TransactionState.ROLLED_BACK:
            promises.roll_back(why)
        elif self.state is TransactionState.UNKNOWN:
            text = f"its transaction may or may not have been committed: {why}"
            promises.fail(lambda id: CommitUnknown(text, (id,)))
        else:
            promises.fail(lambda id: ProtocolError("its branch was prepared: the coordinator knows its outcome"))

    def _fail(self, doing: str, error: BaseException) -> NoReturn:
        """End the transaction after its commit or vote failed, and raise the error in the form for the caller.

        The transaction is rolled back if possible. No attempt is counted if the transaction only waited for a lock of
        the space. The outcome is unknown if the transaction's file has a number, or if a vote could be neither made
        durable nor withdrawn. If the error tears the call, the space closes, which leads to the rollback. This thread
        does not roll back itself, because it may still hold a lock for which the rollback would wait.
        """
        if is_torn_by(error):
            self._store.guard.tear(error)
        seen = self._store.translate_error(doing, error) if isinstance(error, OSError) else error
        if self.state in (TransactionState.ACTIVE, TransactionState.COMMITTING) and not self._store.closed:
            file = self._hold.file
            numbered = self.number is not None or (file is not None and file.number is not None)
            if numbered or isinstance(seen, CommitUnknown):
                self._end(TransactionState.UNKNOWN, storable(seen, LONGEST_REASON))
            elif isinstance(seen, LockTimeout | WaitExpired):
                self._drop(storable(seen, LONGEST_REASON))
            else:
                self._undo(f"{doing} failed: {storable(seen, LONGEST_REASON)}")
        if isinstance(seen, CommitUnknown):
            seen.ids = tuple(f"{self.writes.branch}{place:08x}" for place in range(self.writes.messages))
        if isinstance(seen, WaitExpired):
            raise LockTimeout(f"{seen}; the transaction was rolled back") from None
        if seen is error:
            raise error
        raise seen from error

    def _end(self, state: TransactionState, why: str = "") -> None:
        """Set the final state, and release everything that the transaction holds."""
        self.state = state
        if self._guard is not None:
            self._guard.hold = None
            self._guard = None  # freed in this call: Python ignores a signal handler's exception in ``__del__``
        if self._promises is not None:
            self._end_promises(self._promises, why)
        is_committed = state is TransactionState.COMMITTED
        self._hold.end(taken=state is not TransactionState.ROLLED_BACK, removed=is_committed and self._removes_all)

    def _check_active(self, *, ending: bool = False) -> CounterPage:
        """Return the current counters; raises unless the transaction is active.

        ``ending``: whether a commit or vote follows; then a transaction that is rollback-only is rolled back.
        """
        store = self._store
        page = store.shared.counters.read()
        if page.is_stopped or store.guard.closed or store.misplaced:
            page = store.check_usable()
        if self.state is TransactionState.ACTIVE:
            if store.clock.monotonic() >= self.until:
                text = f"the transaction took longer than {self._timeout:g} s and was rolled back: begin a new one"
                self._ended_by = TransactionTimeout, text  # (first: the end of the block reads it without the mutex)
                self._undo("its transaction took too long")
            elif self.lost is not None:
                self._ended_by = TransactionRolledBack, f"the transaction was rolled back: {self.lost}; begin a new one"
                self._undo(self.lost)
            elif self.barred is not None:
                raise ProtocolError(self.barred)
            elif ending and (reason := self._rollback_only) is not None:
                self._undo(reason)
                raise TransactionRolledBack(f"the transaction was rolled back: {reason}")
            else:
                return page
        if (early := self._ended_by) is not None:  # (the program may ignore the error of a put or get)
            self._ended_by = None if ending else early
            raise early[0](early[1])
        if self.state is TransactionState.ROLLED_BACK and not self._left:
            raise TransactionRolledBack("the transaction was rolled back: begin a new one")
        raise ProtocolError(f"the transaction is {self.state.value}: begin a new one")

    def __enter__(self) -> Self:
        blocks, joined = len(self._blocks), joined_by_caller.get()
        try:  # (signals need no deferral, because nothing here waits, and each interruption is undone)
            self._blocks.append(associate(self._store, self))
            return self
        except BaseException:
            joined_by_caller.set(joined)  # first: a second interruption can come after this call only
            del self._blocks[blocks:]
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with _deferred:  # (not a call of the space, because the space may be closed before the block ends)
            try:
                end_block(self, kind, error)
            except BaseException as raised:
                if self.is_active and is_torn_by(raised):  # the error came before the transaction could end
                    end_block(self, type(raised), raised)
                raise
            finally:
                leave(self)


# -- dropped transactions --------------------------------------------------------------------------------------------

_DROPPED = "its transaction was dropped without a commit or a rollback"


class DropGuard:
    """A transaction's guard. If the program drops a transaction that has not ended, the housekeeper rolls it back.

    Python can delete an object between any two instructions of any thread, so ``__del__`` takes no lock and touches no
    file.
    """

    __slots__ = ("hold", "promises")

    def __init__(self, hold: Hold) -> None:
        """``hold``: None disarms the guard, because the transaction has ended."""
        self.promises: Promises | None = None
        self.hold: Hold | None = hold  # the last assignment: ``__del__`` may come after an exception inside this method

    def __del__(self) -> None:
        if (hold := getattr(self, "hold", None)) is not None:
            hold.store.drop(
                partial(_undo, hold, self.promises),
                f"a transaction of {hold.store.files.disk.root} was dropped without a commit or a rollback, and is "
                "rolled back within seconds: use it in a with statement",
            )


def _undo(hold: Hold, promises: Promises | None) -> None:
    """Undo a dropped transaction: count an attempt for each message that it took, and fail its futures."""
    try:
        hold.undo(_DROPPED)
    finally:
        if promises is not None:
            promises.roll_back(_DROPPED)
        hold.end(taken=False)


# -- for workers, tasks and the intake ------------------------------------------------------------------------------


def enter(transaction: Transaction) -> None:
    """Make the caller's puts and gets join the transaction."""
    transaction._blocks.append(associate(transaction._store, transaction))


def leave(transaction: Transaction) -> None:
    """Return the caller to the transaction that it had joined before, if any."""
    transaction._left = len(transaction._blocks) == 1
    block = transaction._blocks.pop()
    if not dissociate(transaction._store, transaction, block):
        transaction.ended_elsewhere = block


def holds_groups(transaction: Transaction) -> bool:
    """Return whether only this transaction can take the next messages of some groups."""
    return bool(transaction._hold.groups)


def end_block(transaction: Transaction, kind: type[BaseException] | None, error: BaseException | None) -> None:
    """End the transaction as ``with`` does: commit, or roll back after an error or a rollback-only mark.

    A transaction that has ended is not touched. If a put or get noticed the end of its time, the error is raised again.
    """
    if transaction.state is TransactionState.ACTIVE or (kind is None and transaction._ended_by is not None):
        if kind is None and transaction._rollback_only is None:
            transaction.commit()
        elif not transaction._store.closed:
            transaction.rollback(_reason(kind, error) if kind is not None else str(transaction._rollback_only))


check_active = Transaction._check_active


@public_call("taking dropped files")
def record_captured_file(transaction: Transaction, directory: str, name: bytes) -> None:
    """Record in the commit the dropped file from which the messages come.

    The file now lies in ``directory``, which is below ``active/``.
    """
    with transaction.mutex:
        transaction._check_active()
        transaction.writes.record_captured_file(directory, name)


def _reason(kind: type[BaseException], error: BaseException | None) -> str:
    """Return why a ``with`` block was left. A generator, e.g. ``consume``, does not learn why it is closed."""
    if kind is GeneratorExit:
        return "the loop was left before its body ended (break, return or an exception)"
    said, name = storable(error, LONGEST_REASON), class_name(error)
    return f"{name}: {said}" if said else name


def submit_alone(core: Core, queue: str, body: Any, **options: Unpack[PutOptions]) -> "Future[str]":
    """Submit a message in a separate transaction; return a future of the message's id."""
    transaction = Transaction(core)
    try:
        return transaction._commit_async(within(Transaction.put)(transaction, queue, body, **options))
    except BaseException:
        transaction.abandon()
        raise
