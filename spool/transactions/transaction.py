"""A transaction: puts and gets that happen together or not at all; one branch, in X/Open's terms.

It lives in one process until it is prepared. Its claims are locks of this process, its messages lie in memory (or, when
many, in a file in ``active/``); nothing of it was promised to anybody before ``commit`` or ``prepare`` returns.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, Unpack

from spool.coordination.counters import Page
from spool.errors import (
    Empty,
    TransactionTimeout,
)  # fmt: skip
from spool.log import quota
from spool.log.visibility import catch_up, list_prepared
from spool.model.message import Message
from spool.model.options import PutOptions
from spool.model.ranges import Ranges, subtract
from spool.policies.deduplication import check_single
from spool.runtime import interrupts
from spool.runtime.clock import WaitExpired
from spool.runtime.context import associate, dissociate
from spool.runtime.gate import step
from spool.store.store import speaking
from spool.transactions import claiming, delivery
from spool.transactions.ending import Ending, State
from spool.transactions.selection import Wanted
from spool.transactions.validation import check_queue, check_wanted, described, encoded, listed

log = logging.getLogger("spool")


class Transaction(Ending):
    """Puts and gets that are committed together. Calls from several threads are serialised.

    ``timeout``: seconds from its begin after which it is rolled back and its next call says so; None: never.
    ``noted``: whether claims are noted, so that this process's death counts as a try of the messages it holds, as a
    rollback does. ``guarded``: if it is dropped before it has ended, it is rolled back, with a ResourceWarning (what
    the engine begins for itself it ends).
    """

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, queue: str, body: Any, **options: Unpack[PutOptions]) -> str:
        """Add a message; returns its id. Options and errors as of ``Space.put``."""
        return self.put_many(queue, (body,), **options)[0]

    @step
    def put_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[PutOptions]) -> list[str]:
        """Add messages with the same options; returns their ids."""
        content_type = options.pop("content_type", None)
        store = self._store
        bodies = listed(bodies)  # a generator may take its time
        with self._lock:
            self._check_queue(queue)
            attributes = described(store, queue, options)
            key = options.get("deduplication_key")
            if key is not None:
                check_single(len(bodies))
                with store.disk_errors("looking for its deduplication key"):
                    known = self._branch.keys.seen(queue, key)
                if known is not None:
                    return [known]
            raws_of = encoded(bodies, content_type, attributes, store.config.max_body_bytes)
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
        more = {queue: quota.Usage(len(raws), sum(map(len, raws)))}
        file = self._branch.file
        tables = [*(file.tables if file is not None else ()), *self._branch.draft.tables]
        quota.check_room(self._store, quota.combined(quota.change_by(self._store, tables), more))

    @step
    def submit(self, queue: str, body: Any, **options: Unpack[PutOptions]) -> "Future[str]":
        """Add a message; a future of its id, done when the transaction has committed.

        It fails with TransactionRolledBack if that is rolled back, and with ProtocolError if it is prepared: its
        outcome is the coordinator's to know then.
        """
        future = Future[str]()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._promises.add(future, self.put(queue, body, **options))
        return future

    @step
    def _take_dropped(self, directory: str, name: bytes) -> None:
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
                got = claiming.wait_for(
                    self._store, wanted, lambda: self._claim(wanted), deadline, self._branch.groups, self._check_active
                )
                if not got:
                    raise Empty(f"queue {queue} has no message that can be taken now")
                try:
                    with self._store.disk_errors(f"reading messages of queue {queue}"):
                        found, bad = delivery.messages(self._store, got, self._store.deadline())
                except BaseException:
                    claiming.release(self._store, got)
                    raise
                good = subtract(got, bad)
                claiming.release(self._store, bad)
                self._branch.take(good)
                if found:
                    return found

    def _claim(self, wanted: Wanted) -> Ranges:
        page = self._check_queue(wanted.queue)
        with self._store.disk_errors(f"taking from queue {wanted.queue}"):
            try:
                got = claiming.claim(
                    self._store, self._engine.orphan_reaper, wanted, page, self._store.deadline(),
                    self._branch.write_note, self._branch.groups,
                )  # fmt: skip
            except WaitExpired as error:
                self._undo(str(error))
                raise TransactionTimeout(f"{error}; the transaction was rolled back") from None
            if not got:
                self._store.shared.control.verify()  # or who waits where run/ was deleted would do so for ever
            return got

    @speaking("reading the settings")
    def _check_queue(self, queue: str) -> Page:
        page = self._check_active()
        check_queue(self._store, queue, page)
        return page

    # -- with ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with interrupts.deferred(self._leave):
            self._enter()
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with interrupts.deferred():  # (no step: who leaves a closed space leaves its transaction, too)
            try:
                self._finish(kind, error)
            finally:
                self._leave()

    def _enter(self) -> None:
        """The caller's puts and gets join it."""
        self._associations.append(associate(self._store, self))

    def _finish(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Unless it has ended: commit it, or roll it back if something was raised or it is rollback-only."""
        if self.state is State.ACTIVE:
            if kind is None and not self.rollback_only:
                self.commit()
            elif not self._store.closed:
                self.rollback(_reason(kind, error) if kind is not None else str(self._rollback_only))

    def _leave(self) -> None:
        """The caller is in whatever he was in before."""
        self._left = len(self._associations) == 1
        dissociate(self._associations.pop())


def _reason(kind: type[BaseException], error: BaseException | None) -> str:
    """Why a ``with`` was left. A generator that is closed, as ``consume`` is, is not told why."""
    if kind is GeneratorExit:
        return "the loop was left before its body ended (break, return or an exception)"
    return f"{kind.__name__}: {error}"
