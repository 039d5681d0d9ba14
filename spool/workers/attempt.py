"""One attempt for a message in this process: its transaction, from the claim to the commit of the outcome.

``spool.workers.states`` decides, and this module claims, commits and releases. During the attempt, the message is
claimed and remains in its queue. At the end, one commit carries out all effects of the outcome. After a success, these
effects are the puts of the function, the reply and the removal of the message. After a failure, the effect is a retry,
a move to the error queue or a drop, without the puts of the function. The claim is held until the commit has ended.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Protocol

from spool.errors import (
    CorruptedFile,
    Full,
    NotOpen,
    ProtocolError,
    QueueNotFound,
    TransactionRolledBack,
    TransactionTimeout,
    UnknownCodec,
)
from spool.index.stored_run import StoredRun
from spool.model.message import Message
from spool.model.text import one_line
from spool.policies.retries import queue_config
from spool.runtime.call_guard import step
from spool.store.store import Store
from spool.transactions import delivery
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core
from spool.transactions.transaction import TransactionState, enter, leave
from spool.workers.answer_room import room_for_answers
from spool.workers.conclusion import Conclusion, kept, without_room
from spool.workers.effects import Effect, OutcomePolicy, effect_of_failure, effective_outcome, record
from spool.workers.outcome import Outcome, Passed, Reject, Rejected, Retried, Retry, describe, of_error, of_value
from spool.workers.states import ENDS, Event, State, end_of_call, next_state
from spool.workers.worker_run import WorkerRun

log = logging.getLogger("spool")

_current: "ContextVar[object]" = ContextVar("spool.workers.attempt.current")  # the space of the worker

_WAIT_FOR_CALL_SECONDS = 0.2  # the wait for the function's put or get, before the transaction refuses calls
_WAIT_FOR_END_SECONDS = 2.0  # the further wait for the same put or get, after the transaction refuses calls


class _Stopped(Exception):
    """The worker stops, and claims no more messages."""


class Attempt:
    """One attempt for a message.

    Args:
        run: the run of the worker. If the attempt is abandoned, the run pauses before the message is released, i.e.
            before another thread can claim the message.
        stopping: whether the worker stops. The wait for a message, or for a lock of the space in a commit, then ends.

    transaction: the transaction that holds the message. Puts and gets of the function join this transaction.
    message: the claimed message; None before the claim.
    claimed_at: the time of the claim, in seconds of the monotonic clock.
    unreadable: why the body could not be decoded; "" if the body was decoded.
    state: the state of the attempt.
    abandoned: the conclusion, if the attempt was abandoned because a queue had no room, the service was not reached, or
        the body was damaged.
    """

    def __init__(self, core: Core, run: WorkerRun) -> None:
        self._begin(run)
        self.transaction = CoordinatedTransaction(core, journaled=False)
        self.transaction.on_full = lambda full: self._hold_back(self._without_room(full))
        self.transaction.on_lock_timeout = self._waits_on
        self._store = core.store

    def _begin(self, run: WorkerRun) -> None:
        self.message: Message | None = None
        self.unreadable = ""
        self.state = State.CLAIMED
        self.abandoned: Conclusion | None = None
        self._run, self._handler, self._stopping = run, run.handler, run.is_stopping
        self._mutex = threading.Lock()  # guards the state: one thread ends the call, another enforces its time limit
        self.claimed_at: float
        self._held: StoredRun | Message
        self._rolled_back = Effect.RETRIED

    def claim(self, queue: str, *, waits: bool) -> bool:
        """Claim the next message of the queue, and begin its call. ``waits``: whether to wait for a message.

        Returns:
            False if no call may be made. The message was released then, if one was claimed.
        """
        is_begun = False
        try:
            seconds, passed = self._run.wanted()
            self.take(queue, seconds if waits else 0.0, passed)
            if self.message is not None and not self._stopping():
                is_begun = self._run.begin(self._held.position) and self.begin()
        except TransactionTimeout as error:  # another process holds a lock for a very long time: claim again
            log.warning("taking from queue %s: %s", queue, error)
        finally:
            if not is_begun:
                self.release()
        if self.abandoned is not None:
            self._end(self.abandoned)
        return is_begun

    @step("reading a message of queue {queue}")
    def take(self, queue: str, seconds: float | None, passed: frozenset[tuple[int, int]] = frozenset()) -> None:
        """Claim the next message of the queue, and read it. The wait ends once the worker stops.

        If no message was claimed, ``message`` is None. If the body is damaged, ``message`` is also None, and the
        message is in quarantine.

        Args:
            seconds: the longest wait for a message. None means no limit.
            passed: the positions of the messages to pass over.
        """

        def check() -> None:
            if self._stopping():
                raise _Stopped

        found: list[StoredRun] = []
        with suppress(_Stopped):
            found = self.transaction.hold(queue, 1, timeout=seconds, passed=passed, check=check)
        if not found:
            return
        [self._held] = found
        self.claimed_at = self._store.clock.monotonic()
        try:
            self.message = self._read()
            self.transaction.on_rollback = self._note_rollback
        except CorruptedFile as error:
            delivery.set_aside(self._store, self._held.position, str(error), self._store.deadline())
            self._move(Event.DAMAGED)
            self.abandoned = Conclusion(Effect.QUARANTINED, "its body was damaged: it is in quarantine")

    def _read(self) -> Message:
        number, ordinal = self._held.position
        try:
            return delivery.read_messages(self._store, number, ordinal, 1)[0]
        except UnknownCodec as error:
            self.unreadable = one_line(error.__context__ or error)  # without the id of the message
            return delivery.read_messages(self._store, number, ordinal, 1, only_shown=True)[0]

    def _move(self, event: Event) -> bool:
        """Apply an event; return False if the attempt has ended already."""
        with self._mutex:
            before, self.state = self.state, next_state(self.state, event)
            return before not in ENDS

    @step("beginning a call")
    def begin(self) -> bool:
        """Record that the call begins. If this process dies between now and ``conclude``, an attempt is counted.

        Returns:
            False if no call may be made. Either a queue has no room for the answer (then ``abandoned`` is the
            conclusion), or the worker has ended. The message is released in both cases.
        """
        assert self.message is not None
        reply = [self.message.reply_queue] if self._handler.replies and self.message.reply_queue is not None else []
        _, full = room_for_answers(self._store, [*self._handler.into, *reply])
        if full and self._hold_back(self._without_room(Full(f"queue {full} is full", full))):
            self.transaction.abandon()
            return False
        if not self._move(Event.BEGIN):
            return False
        self.transaction.begin_call()
        return True

    @contextmanager
    def calling(self, space: object) -> Iterator[None]:
        """Run the block, which calls the function, in the message's transaction; ``space`` is the worker's space."""
        with working_in(space):
            enter(self.transaction)
            try:
                yield
            finally:
                leave(self.transaction)

    @property
    def most_bytes(self) -> int:
        """The largest size of a reply."""
        return self._store.settings.known.config.max_body_bytes

    def answer(self, value: object) -> Outcome:
        """Return the outcome of a call that has returned."""
        return of_value(value, self.most_bytes)

    def failure(self, error: BaseException) -> Outcome:
        """Log the exception of a call, also SystemExit, which ends no worker. Return the outcome of the call.

        The log has the traceback, too, unless the exception is a Retry or Reject.
        """
        message = self.message
        assert message is not None
        if isinstance(error, Retry | Reject):
            log.info("message %s of queue %s: %s", message.id, message.queue, describe(error))
        else:
            log.warning(
                "message %s of queue %s: the function failed, attempt %s: %s",
                message.id, message.queue, message.attempts + 1, describe(error),
                exc_info=(type(error), error, error.__traceback__),
            )  # fmt: skip
        return of_error(error, self.most_bytes)

    def release(self) -> None:
        """Release a message for which no function was called, unless the attempt has ended. No attempt is counted."""
        self._move(Event.STOP)
        self.transaction.abandon()

    def conclude(self, outcome: Outcome) -> Conclusion | None:
        """End the attempt with the outcome of the call. Raises the same errors as ``commit``.

        Returns:
            The conclusion; or None if the attempt was withdrawn in the meantime, so that the outcome does not count.
        """
        event = end_of_call(outcome)
        if isinstance(outcome, Retried) and event is Event.UNREACHED:
            conclusion = kept(event, outcome.reason, outcome.delay)
            if not self._hold_back(conclusion):
                return None
            self.transaction.abandon()
            return self._end(conclusion)
        return self._end(self._commit(outcome)) if self._move(event) else None

    def _end(self, conclusion: Conclusion) -> Conclusion:
        self._run.end(self._held.position, conclusion, self.claimed_at)
        return conclusion

    def withdraw(self, reason: str, event: Event = Event.LATE) -> Conclusion | None:
        """End the attempt as failed. A thread other than the thread of the function calls this method.

        From now on, every call that the function makes in its transaction raises ProtocolError. If the function is
        inside such a call, and the call does not end, the function's thread has to call ``finish_withdrawn``.

        Returns:
            The conclusion; or None if the call had already ended.
        """
        if not self._move(event) or self.state is not State.WITHDRAWN:
            return None
        mutex = self.transaction.mutex
        if not mutex.acquire(timeout=_WAIT_FOR_CALL_SECONDS):  # the function is inside a call
            self.transaction.refuse(reason)
            if not mutex.acquire(timeout=_WAIT_FOR_END_SECONDS):  # e.g. the disk does not answer
                return self._end(Conclusion(Effect.RETRIED, reason, failed=True))
        try:
            conclusion = self._commit(Retried(reason))
        finally:
            mutex.release()
        return self._end(conclusion)

    def finish_withdrawn(self) -> None:
        """Do the rest of ``withdraw``. The function's thread calls this method once the function has returned."""
        with suppress(NotOpen), self.transaction.mutex:
            if self.transaction.is_active and self.transaction.lost is not None:
                self._commit(Retried(self.transaction.lost))

    @step("committing")
    def _commit(self, outcome: Outcome) -> Conclusion:
        """Commit the effects of the outcome.

        If a queue has no room for the effects, abandon the attempt, unless the attempt is withdrawn.
        """
        assert self.message is not None
        with self.transaction.mutex:
            if self.transaction.state is TransactionState.ROLLED_BACK:
                self._move(Event.ROLLED_BACK)
                return Conclusion(self._rolled_back, self.transaction.lost or "its transaction was rolled back")
            failed = isinstance(outcome, Retried | Rejected)
            if not isinstance(outcome, Retried):
                self.transaction.end_call()
            try:
                record_ = partial(self._record, self.message, outcome)
                effect, reason = self.transaction.conclude(record_, failed=failed)
            except (Full, QueueNotFound, TransactionRolledBack) as error:
                if self.abandoned is not None:
                    return self.abandoned
                self._move(Event.ROLLED_BACK)
                return Conclusion(self._rolled_back, one_line(error))
            self._move(Event.COMMITTED)
            return Conclusion(effect, reason, failed=isinstance(outcome, Retried))

    def _record(self, message: Message, outcome: Outcome) -> tuple[Effect, str]:
        """Add the effects of the outcome to the transaction. The current settings decide the effects."""
        settings = self._store.settings.current()
        policy = OutcomePolicy.of(settings.config, message.queue, self._handler.on_failure)
        raw = delivery.stored_body(self._store.files, self._store.view, message) if isinstance(outcome, Passed) else b""
        outcome = effective_outcome(policy, message, raw, outcome)
        if isinstance(outcome, Retried | Rejected):
            self.transaction.begin_anew(settings, self._held.position, outcome.reason)
        return record(self.transaction.writes, policy, message, raw, outcome, self._store.clock.now())

    def _note_rollback(self) -> None:
        """Record the effect of the rollback. If no attempt is left, the rollback has moved or dropped the message."""
        with self._store.view.mutex:
            run = self._store.view.index.messages.find(self._held.position)
        self._rolled_back = effect_of_failure(self._held.queue, None if run is None else run.queue.name)

    # -- without an attempt ----------------------------------------------------------------------------------------

    def _hold_back(self, conclusion: Conclusion) -> bool:
        """Abandon the attempt. The run pauses, or passes over the message, before the message is released.

        Return False if the attempt has ended already.
        """
        if not self._move(conclusion.event):
            return False
        self.abandoned = conclusion
        self._run.hold_back(self._held.position, conclusion)
        return True

    def _waits_on(self, error: Exception) -> bool:
        """Return whether to attempt the commit again, because a lock of the space did not become free in time.

        If the worker stops, the attempt is abandoned instead. The function has done its work, so the worker prefers to
        wait: a released message would be handled again.
        """
        if self._stopping():
            if self._move(Event.NO_LOCK):
                self.abandoned = kept(Event.NO_LOCK, one_line(error))
            return False
        if self._move(Event.LOCKED):
            log.warning("a message of queue %s was handled, and its commit waits: %s", self._held.queue, error)
            return True
        return False

    def _without_room(self, full: Full) -> Conclusion:
        assert self.message is not None
        config = queue_config(self._store.settings.known.config, self._held.queue)
        named = {self.message.reply_queue, self.message.failure_queue}
        return without_room(full, config, named, self._handler.into, replies=self._handler.replies)


class Attempts:
    """Makes the attempts of a worker. ``store``: the files of the space; None for a space by HTTP."""

    store: Store | None

    def __init__(self, core: Core) -> None:
        self.store, self._core = core.store, core

    def new(self, run: WorkerRun) -> Attempt:
        return Attempt(self._core, run)

    def close(self) -> None:
        """End the attempts of a run, whose calls have all ended."""


class HasAttempts(Protocol):
    """The part of a space that makes the attempts of its workers."""

    def _attempts(self) -> Attempts: ...


def attempts_of(opened: HasAttempts) -> Attempts:
    """Return the maker of the attempts of one run."""
    return opened._attempts()


@contextmanager
def working_in(space: object) -> Iterator[None]:
    """Run the block, which calls the function of a worker, with this ``working_space``."""
    token = _current.set(space)
    try:
        yield
    finally:
        _current.reset(token)


def works_in(space: object) -> bool:
    """Return whether a worker of this space calls this function."""
    return _current.get(None) is space


def working_space() -> object:
    """Return the space of the worker that calls this function.

    Puts and gets in this space join the message's transaction.

    Raises:
        ProtocolError: no worker calls this function.
    """
    try:
        return _current.get()
    except LookupError:
        raise ProtocolError("no worker calls this function: open a space, and use that") from None
