"""A transaction: puts and gets that happen together or not at all; one branch, in X/Open's terms.

It lives in one process until it is prepared. Its claims are locks of this process, its messages lie in memory (or, when
many, in a file in ``active/``); nothing of it was promised to anybody before ``commit`` or ``prepare`` returns.
"""

import enum
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from spool import consume, decide, interrupts, limits, publication
from spool.arguments import check_queue, check_wanted, described, encoded
from spool.association import Association, associate, dissociate
from spool.branch import Branch
from spool.choosing import Wanted
from spool.clock import WaitExpired
from spool.commits import Commit, Part
from spool.consume import HeldMessage
from spool.counters import Page
from spool.deduplication import check_single
from spool.errors import (
    CommitUnknown,
    Empty,
    NotOpen,
    ProtocolError,
    SpoolError,
    TransactionRolledBack,
    TransactionTimeout,
)  # fmt: skip
from spool.gate import step
from spool.gathering import BranchWork, Work
from spool.limits import room_for
from spool.message import Message
from spool.notes import Undertaker
from spool.ranges import Ranges, subtract
from spool.reader import FileImage
from spool.store import Store, speaking
from spool.visibility import apply_up_to, catch_up, list_prepared, see_own
from spool.xid import Xid

log = logging.getLogger("spool")


class State(enum.Enum):
    """Where a transaction stands. UNKNOWN: its commit may or may not be there."""

    ACTIVE = "active"
    COMMITTING = "being committed"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "in an unknown state"


class Transaction:
    """Puts and gets that are committed together. Calls from several threads are serialised.

    ``timeout``: seconds from its begin after which it is rolled back and its next call says so; None: never.
    ``noted``: whether claims are noted, so that this process's death counts as a try of the messages it holds.
    """

    def __init__(
        self,
        store: Store,
        undertaker: Undertaker,
        *,
        timeout: float | None = None,
        xid: Xid | None = None,
        noted: bool = True,
    ) -> None:
        self.state = State.ACTIVE
        self.number: int | None = None
        self._store = store
        self._undertaker = undertaker
        self._branch = Branch(store, xid, noted=noted)
        self._deadline = store.deadline(timeout)
        self._lock = threading.RLock()
        self._rollback_only: str | None = None
        self._doomed: str | None = None
        self._associations: list[Association] = []
        self._left = False
        self._promised: list[tuple[Future[str], str]] = []

    @property
    def store(self) -> Store:
        """Of its space."""
        return self._store

    @property
    def xid(self) -> Xid:
        return self._branch.xid

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, queue: str, body: Any, *, content_type: str | None = None, **options: Any) -> str:
        """Add a message; returns its id. Options as in ``Space.put``."""
        return self.put_many(queue, (body,), content_type=content_type, **options)[0]

    @step
    def put_many(
        self, queue: str, bodies: Iterable[Any], *, content_type: str | None = None, **options: Any
    ) -> list[str]:
        """Add messages with the same options; returns their ids."""
        store = self._store
        with self._lock:
            self._check_queue(queue)
            attributes = described(store, queue, options)
            key = options.get("deduplication_key")
            if key is not None:
                bodies = list(bodies)
                check_single(len(bodies))
                with store.disk_errors("looking for its deduplication key"):
                    known = self._branch.keys.seen(queue, key)
                if known is not None:
                    return [known]
            raws_of = encoded(list(bodies), content_type, attributes, store.config.max_body_bytes)
            if store.config.limited:
                self._check_room(queue, raws_of)
            ids: list[str] = []
            for raws, fields in raws_of:
                ids += self._branch.put(queue, raws, fields)
                if self._branch.draft.sections:
                    with self._undo_on_failure("writing the transaction's messages"):
                        self._branch.stream()
            if key is not None:
                self._branch.keys.remember(self._branch.draft, store.config.queues[queue], key, ids[0])
            return ids

    @speaking("counting what is in the queue")
    def _check_room(self, queue: str, groups: Sequence[tuple[Sequence[bytes], object]]) -> None:
        """Full if these can never fit as things stand: whether they do is known when the transaction ends."""
        catch_up(self._store, list_prepared(self._store))
        raws = [raw for some, _ in groups for raw in some]
        more = {queue: limits.Load(len(raws), sum(map(len, raws)))}
        file = self._branch.file
        tables = [*(file.tables if file is not None else ()), *self._branch.draft.tables]
        limits.check_room(self._store, limits.joined(limits.change_by(self._store, tables), more))

    @step
    def submit(self, queue: str, body: Any, *, content_type: str | None = None, **options: Any) -> "Future[str]":
        """Add a message; a future of its id, done when the transaction has committed.

        It fails with TransactionRolledBack if that is rolled back, and with ProtocolError if it is prepared: its
        outcome is the coordinator's to know then.
        """
        future = Future[str]()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._promised.append((future, self.put(queue, body, content_type=content_type, **options)))
            self._store.at_end[self._break_promises] = None
        return future

    @step
    def take_dropped(self, directory: str, name: bytes) -> None:
        """The messages come from this dropped file, in a directory of ``active/``; the commit says so."""
        with self._lock:
            self._check_active()
            self._branch.draft.take(directory, name)

    # -- getting ------------------------------------------------------------------------------------------------------

    def get(
        self,
        queue: str,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Take the next message, or the one with that id or correlation id. ``timeout``: seconds to wait for one,
        0 not at all, None for ever. Empty if there is none."""
        return self.get_many(queue, 1, timeout=timeout, message_id=message_id, correlation_id=correlation_id)[0]

    @step
    def get_many(
        self,
        queue: str,
        max_messages: int,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
    ) -> list[Message]:
        """Take up to ``max_messages``, at least one; Empty if there is none within ``timeout`` seconds."""
        wanted = check_wanted(queue, max_messages, timeout, message_id, correlation_id)
        deadline = self._store.deadline(timeout)
        with self._lock:
            while True:
                got = consume.wait_for(
                    self._store, wanted, lambda: self._claim(wanted), deadline, self._branch.groups, self._check_active
                )
                if not got:
                    raise Empty(f"queue {queue} has no message that can be taken now")
                try:
                    with self._store.disk_errors(f"reading messages of queue {queue}"):
                        found, bad = consume.messages(self._store, got, self._store.deadline())
                except BaseException:
                    consume.release(self._store, got)
                    raise
                good = subtract(got, bad)
                consume.release(self._store, bad)
                self._branch.take(good)
                if found:
                    return found

    @step
    def hold(self, queue: str, max_messages: int, *, timeout: float | None = 0) -> list[HeldMessage]:
        """Claim messages without taking them: branches that this transaction will adopt say what becomes of each.

        Returns where their bodies lie, in the queue's order; [] if there is none within ``timeout`` seconds. What no
        adopted branch mentions is free again when the transaction ends.
        """
        wanted = replace(check_wanted(queue, max_messages, timeout, None, None), spread=True)
        with self._lock:
            deadline = self._store.deadline(timeout)
            got = consume.wait_for(
                self._store, wanted, lambda: self._claim(wanted), deadline, self._branch.groups, self._check_active
            )
            self._branch.claims += got
            return consume.held_messages(self._store, got)

    def _claim(self, wanted: Wanted) -> Ranges:
        page = self._check_queue(wanted.queue)
        with self._store.disk_errors(f"taking from queue {wanted.queue}"):
            try:
                got = consume.claim(
                    self._store, self._undertaker, wanted, page, self._store.deadline(), self._branch.write_note,
                    self._branch.groups,
                )  # fmt: skip
            except WaitExpired as error:
                self._undo(str(error))
                raise TransactionTimeout(f"{error}; the transaction was rolled back") from None
            if not got:
                self._store.control.verify()  # or who waits where run/ was deleted would do so for ever
            return got

    # -- ending -------------------------------------------------------------------------------------------------------

    def set_rollback_only(self, reason: str = "the transaction was marked rollback-only") -> None:
        """Whatever comes, this transaction will be rolled back."""
        self._rollback_only = reason

    def doom(self, reason: str) -> None:
        """Something in it was lost: the next call says so, whichever it is."""
        self._doomed = reason

    @property
    def rollback_only(self) -> bool:
        return self._rollback_only is not None

    @step
    def commit(self, adopt: Sequence[Xid] = ()) -> None:
        """Make it all happen: durable, then visible, then this returns. An empty transaction costs no flush.

        ``adopt``: prepared branches, whose votes the caller was told, that commit together with this one.
        """
        with self._lock, self._undo_on_failure("committing"):
            page = self._check_ending()
            if adopt or self._branch.file is not None:
                self._branch.lock_xid()
                if adopt:
                    self._commit_with(adopt)
                else:
                    self._commit_alone(page)
            elif not self._branch.empty:
                self._commit_in_line(page)
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
            work = self._work(page)
            work.future, work.told = future, self._hear
            self.state = State.COMMITTING
            with self._undo_on_failure("committing"):
                self._store.group.submit(work)
        return future

    def _hear(self, works: Sequence[Work]) -> None:
        """From who has committed it, in his thread, or failed to."""
        [work] = works
        self.number = work.number
        failed: BaseException | None = None
        with self._lock:
            try:
                with self._undo_on_failure("committing"):
                    if work.error is not None:
                        raise work.error
                    self._end(State.COMMITTED)
            except Exception as error:
                failed = error
            self._break_promises()  # (if the failure was that the space is closed)
        if failed is None:
            work.future.set_result(None)
        else:
            work.future.set_exception(failed)

    def _work(self, page: Page) -> BranchWork:
        return BranchWork(page, self.xid, self._branch.id, self._branch.draft)

    def _commit_in_line(self, page: Page) -> None:
        """Together with what others commit now."""
        work = self._work(page)
        try:
            self._store.group.commit(work)
        finally:
            self.number = work.number

    def _commit_alone(self, page: Page) -> None:
        store = self._store
        file, header = self._branch.complete_file(page, store.pool)
        room = room_for(store, lambda: file.tables, store.deadline())
        number = self.number = publication.commit(store, file, store.deadline(), check=room)
        image = FileImage(header._replace(number=number), tuple(file.tables))
        see_own(store, Commit(number, [Part(0, None, 0, image)]))

    def _commit_with(self, adopt: Sequence[Xid]) -> None:
        store = self._store
        branch = self._branch
        self.number = decide.adopt(store, branch.new_file(), branch.draft, branch.entry(), adopt, store.deadline())
        self._refresh()
        decide.move_adopted(store, self.number, enumerate(adopt, 1))

    def _refresh(self) -> None:
        """See our own commit. It is done, whatever happens to this look."""
        assert self.number is not None
        try:
            apply_up_to(self._store, self.number)
        except (OSError, SpoolError) as error:
            log.warning("commit %s is done, but this process cannot see it yet: %s", self.number, error)

    @step
    def prepare(self) -> bool:
        """Vote: True, yes, durably; False: there was nothing to do, and the transaction has ended (XA_RDONLY).

        Raises like ``commit``; the transaction is then rolled back.
        """
        with self._lock, self._undo_on_failure("preparing"):
            page = self._check_ending()
            if self._branch.empty:
                self._end(State.COMMITTED)
                return False
            self._branch.lock_xid()
            file = self._branch.complete_file(page)[0]
            room = room_for(self._store, lambda: file.tables, self._store.deadline())
            decide.publish_prepared(self._store, file, self.xid, check=room)
            self._end(State.PREPARED)
            return True

    @step
    def rollback(self, reason: str = "its transaction was rolled back") -> None:
        """Undo it all. What it held is available again after the queue's retry delay, with one try more counted."""
        with self._lock:
            if self.state is not State.ACTIVE:
                raise ProtocolError(f"the transaction is {self.state.value}: it cannot be rolled back any more")
            self._undo(reason)

    def abandon(self) -> None:
        """Roll back unless it has ended; for the engine's own transactions, whose failed gets count no try.

        What a closed space left is rolled back by the next who looks.
        """
        if self.state is State.ACTIVE:
            with suppress(NotOpen), self._store.gate, self._lock:
                self._branch.abandon_file()
                self._end(State.ROLLED_BACK)

    def _undo(self, reason: str) -> None:
        try:
            self._branch.abandon_file()
            self._branch.count_tries(reason)
        except (OSError, SpoolError) as error:
            log.warning("a rollback could not be recorded (%s): its messages come back without a try counted", error)
        finally:
            self._end(State.ROLLED_BACK, reason)

    def _keep_promises(self, why: str) -> None:
        """Of what was submitted in this transaction, which has ended."""
        promised, self._promised = self._promised, []
        self._store.at_end.pop(self._break_promises, None)
        for future, id in promised:
            if self.state is State.COMMITTED:
                future.set_result(id)
            elif self.state is State.ROLLED_BACK:
                future.set_exception(TransactionRolledBack(f"its transaction was rolled back: {why}"))
            elif self.state is State.UNKNOWN:
                future.set_exception(CommitUnknown(f"its transaction may or may not have been committed: {why}", (id,)))
            else:
                future.set_exception(ProtocolError("its branch was prepared: the coordinator knows its outcome"))

    def _break_promises(self) -> None:
        """The space was closed before the transaction ended: the next who looks rolls it back."""
        if self.state in (State.ACTIVE, State.COMMITTING):
            self.state = State.ROLLED_BACK
            self._keep_promises("the space was closed")

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
        self._keep_promises(why)
        self._branch.let_go()

    @step
    def lock_xid_now(self) -> bool:
        """For a branch of a coordinator: False if somebody else has this xid."""
        return self._branch.lock_xid_now()

    @speaking("reading the settings")
    def _check_queue(self, queue: str) -> Page:
        page = self._check_active()
        check_queue(self._store, queue, page)
        return page

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

    # -- with ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with interrupts.deferred(self.leave):
            self.enter()
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with interrupts.deferred():  # (no step: who leaves a closed space leaves its transaction, too)
            try:
                self.finish(kind, error)
            finally:
                self.leave()

    def enter(self) -> None:
        """The caller's puts and gets join it."""
        self._associations.append(associate(self._store, self))

    def finish(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Unless it has ended: commit it, or roll it back if something was raised or it is rollback-only."""
        if self.state is State.ACTIVE:
            if kind is None and not self.rollback_only:
                self.commit()
            elif not self._store.closed:
                self.rollback(f"{kind.__name__}: {error}" if kind is not None else str(self._rollback_only))

    def leave(self) -> None:
        """The caller is in whatever he was in before."""
        self._left = len(self._associations) == 1
        dissociate(self._associations.pop())
