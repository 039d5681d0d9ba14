"""How a transaction ends: committed, alone or with others; voted for; rolled back; or in a state that nobody knows.

Whatever fails on the way, its claims, its file and its xid are let go of once, and whoever was promised an outcome
hears it.
"""

import enum
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

from spool.coordination.counters import Page
from spool.engine import Engine
from spool.errors import (
    CommitUnknown,
    NotOpen,
    ProtocolError,
    TransactionRolledBack,
    TransactionTimeout,
)  # fmt: skip
from spool.format.writer import CommitFileWriter
from spool.log.commit import commit
from spool.log.commit_queue import BranchRequest, CommitRequest
from spool.log.futures import Promises
from spool.log.quota import room_for
from spool.model.xid import Xid
from spool.runtime.clock import WaitExpired
from spool.runtime.context import Association
from spool.runtime.gate import step
from spool.store.store import Store
from spool.transactions.branch import Branch

log = logging.getLogger("spool")


class State(enum.Enum):
    """Where a transaction stands. UNKNOWN: its commit may or may not be there."""

    ACTIVE = "active"
    COMMITTING = "being committed"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "in an unknown state"


_DROPPED = "its transaction was dropped without a commit or a rollback"

_warn = warnings.warn  # (while the interpreter ends, a module may be gone before what it is used for)


class Guard:
    """Goes with a transaction: if that is dropped before it has ended, the housekeeper undoes it.

    Python drops objects between any two instructions of any thread, so what happens at once takes no lock and touches
    no file. ``undo``: has no reference to the transaction.
    """

    __slots__ = ("_store", "_undo")

    def __init__(self, store: Store, undo: Callable[[], None]) -> None:
        self._store = store
        self._undo: Callable[[], None] | None = undo

    def dismiss(self) -> None:
        """The transaction has ended."""
        self._undo = None

    def __del__(self) -> None:
        undo = self._undo
        if undo is None or self._store.closed:
            return
        self._store.dropped.append(undo)
        _warn(
            f"a transaction of {self._store.files.disk.root} was dropped without a commit or a rollback, and is rolled "
            "back within seconds: use it in a with statement",
            ResourceWarning,
            2,
        )


def _undo_dropped(branch: Branch, promises: Promises) -> None:
    """What a dropped transaction held is free again, with one try more counted, and the futures of what was submitted
    in it fail."""
    try:
        branch.undo(_DROPPED)
    finally:
        promises.roll_back(_DROPPED)
        branch.let_go()


class Ending:
    """The part of a ``Transaction`` that ends it."""

    def __init__(
        self,
        engine: Engine,
        *,
        timeout: float | None = None,
        xid: Xid | None = None,
        noted: bool = True,
        guarded: bool = False,
    ) -> None:
        self.state = State.ACTIVE
        self.number: int | None = None
        self._engine = engine
        self._store = store = engine.store
        self._branch = Branch(store, xid, noted=noted)
        self._deadline = store.deadline(timeout)
        self._lock = threading.RLock()
        self._rollback_only: str | None = None
        self._doomed: str | None = None
        self._associations: list[Association] = []
        self._left = False
        self._promises = Promises(store.at_end)
        self._guard = Guard(store, partial(_undo_dropped, self._branch, self._promises)) if guarded else None

    @property
    def xid(self) -> Xid:
        """Its id, by which ``spool-admin transaction`` names it once it is prepared."""
        return self._branch.xid

    @property
    def is_active(self) -> bool:
        """Whether it can still be committed or rolled back."""
        return self.state is State.ACTIVE

    def set_rollback_only(self, reason: str = "the transaction was marked rollback-only") -> None:
        """Whatever comes, this transaction will be rolled back."""
        self._rollback_only = reason

    def _doom(self, reason: str) -> None:
        """Something in it was lost: the next call says so, whichever it is."""
        self._doomed = reason

    @property
    def rollback_only(self) -> bool:
        """Whether it was marked so that it will be rolled back."""
        return self._rollback_only is not None

    def __repr__(self) -> str:
        return f"<transaction {self.xid} of {self._store.files.disk.root}: {self.state.value}>"

    @step
    def commit(self) -> None:
        """Make it all happen: durable, then visible, then this returns. An empty transaction costs no flush."""
        with self._lock, self._undo_on_failure("committing"):
            page = self._check_ending()
            if self._branch.file is not None:
                self._commit_alone(page, self._branch.file)
            elif not self._branch.empty:
                self._commit_in_group(page)
            self._end(State.COMMITTED)

    @step
    def commit_async(self) -> "Future[None]":
        """``commit`` without waiting for it: the future is done when all gets and puts are durable and visible.

        The transaction takes no calls any more. Raises like ``commit`` what is known at once; a transaction that was
        written to the disk already, because it is large, is committed before this returns.
        """
        future = Future[None]()
        future.set_running_or_notify_cancel()
        with self._lock:
            page = self._check_ending()
            if self._branch.file is not None or self._branch.empty:
                self.commit()
                future.set_result(None)
                return future
            request = self._request(page)
            request.future, request.on_done = future, self._on_committed
            self.state = State.COMMITTING
            with self._undo_on_failure("committing"):
                self._engine.group_commit.submit(request)
        return future

    def _on_committed(self, requests: Sequence[CommitRequest]) -> None:
        """End the transaction as its commit has ended: called by the leader thread."""
        [request] = requests
        self.number = request.number
        failed: BaseException | None = None
        with self._lock:
            try:
                with self._undo_on_failure("committing"):
                    if request.error is not None:
                        raise request.error
                    self._end(State.COMMITTED)
            except Exception as error:
                failed = error
            if self.state is State.COMMITTING:  # the failure was that the space is closed
                self.state = State.ROLLED_BACK
                self._keep_promises("the space was closed")
        if failed is None:
            request.future.set_result(None)
        else:
            self._engine.group_commit.failed += request.messages
            request.future.set_exception(failed)

    def _request(self, page: Page) -> BranchRequest:
        return BranchRequest(page, self._branch.id.hex(), self._branch.draft)

    def _commit_in_group(self, page: Page) -> None:
        """Together with what others commit now."""
        request = self._request(page)
        try:
            self._engine.group_commit.commit(request)
        finally:
            self.number = request.number

    def _commit_alone(self, page: Page, file: CommitFileWriter) -> None:
        """In the file to which it was written already, because it is large."""
        store, deadline = self._store, self._store.deadline()
        room = room_for(store, lambda: file.tables, deadline)
        self.number = commit(store, file, self._branch.draft, deadline, check=room, page=page)

    @step
    def rollback(self, reason: str = "its transaction was rolled back") -> None:
        """Undo it all. What it held is available again after the queue's retry delay, with one try more counted."""
        with self._lock:
            if self.state is not State.ACTIVE:
                raise ProtocolError(f"the transaction is {self.state.value}: it cannot be rolled back any more")
            self._undo(reason)

    def abandon(self) -> None:
        """Undo it all unless it has ended, without counting a try of the messages that it took: for a program that has
        not begun to handle them. (What a closed space left is rolled back by the next process that looks.)"""
        if self.state is State.ACTIVE:
            with suppress(NotOpen), self._store.gate, self._lock:
                self._branch.abandon_file()
                self._end(State.ROLLED_BACK)

    def _undo(self, reason: str) -> None:
        try:
            self._branch.undo(reason)
        finally:
            self._end(State.ROLLED_BACK, reason)

    def _keep_promises(self, why: str) -> None:
        """Of what was submitted in this transaction, which has ended."""
        if self.state is State.COMMITTED:
            self._promises.keep()
        elif self.state is State.ROLLED_BACK:
            self._promises.roll_back(why)
        elif self.state is State.UNKNOWN:
            text = f"its transaction may or may not have been committed: {why}"
            self._promises.fail(lambda id: CommitUnknown(text, (id,)))
        else:
            self._promises.fail(lambda id: ProtocolError("its branch was prepared: the coordinator knows its outcome"))

    @contextmanager
    def _undo_on_failure(self, doing: str) -> Iterator[None]:
        """Around an ending: a failure means rolled back, or, once the file has its number (or a vote that could not
        be made durable cannot be withdrawn), unknown."""
        try:
            with self._store.disk_errors(doing):
                yield
        except BaseException as error:
            if self.state in (State.ACTIVE, State.COMMITTING) and not self._store.closed:
                file = self._branch.file
                numbered = self.number is not None or (file is not None and file.number is not None)
                if numbered or isinstance(error, CommitUnknown):
                    self._end(State.UNKNOWN, str(error))
                else:
                    self._undo(f"{doing} failed: {error}")
            if isinstance(error, CommitUnknown):
                error.ids = self._branch.ids
            if isinstance(error, WaitExpired):
                raise TransactionTimeout(f"{error}; the transaction was rolled back") from None
            raise

    def _end(self, state: State, why: str = "") -> None:
        """Let go of everything."""
        self.state = state
        if self._guard is not None:
            self._guard.dismiss()
        self._keep_promises(why)
        self._branch.let_go()

    def _check_ending(self) -> Page:
        """As ``_check_active``, for an ending that is not a rollback."""
        page = self._check_active()
        if self._rollback_only is not None:
            reason = self._rollback_only
            self.rollback()
            raise TransactionRolledBack(f"the transaction was rolled back: {reason}")
        return page

    def _check_active(self) -> Page:
        """The counters as they are now, if calls are welcome."""
        page = self._store.check_usable()
        if self.state is State.ACTIVE and self._deadline.passed():
            self._undo("its transaction took too long")
            raise TransactionTimeout(
                f"the transaction took longer than {self._deadline.seconds:g} s and was rolled back: begin a new one"
            )
        if self.state is State.ACTIVE and self._doomed is not None:
            self._undo(self._doomed)
            raise TransactionRolledBack(f"the transaction was rolled back: {self._doomed}; begin a new one")
        if self.state is State.ROLLED_BACK and not self._left:
            raise TransactionRolledBack("the transaction was rolled back: begin a new one")
        if self.state is not State.ACTIVE:
            raise ProtocolError(f"the transaction is {self.state.value}: begin a new one")
        return page
