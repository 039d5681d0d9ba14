"""One attempt for a message in this process: its transaction, from the claim to the commit of the outcome.

``spool.workers.states`` decides, and this module claims, commits and releases. During the attempt, the message is
claimed and remains in its queue. At the end, one commit carries out all effects of the outcome. After a success, these
effects are the puts of the function, the reply and the removal of the message. After a failure, the effect is a retry,
a move to the error queue or a drop, without the puts of the function. The claim is held until the commit has ended.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial

from spool.errors import CorruptedFile, Full, NotOpen, ProtocolError, QueueNotFound, TransactionRolledBack, UnknownCodec
from spool.index.stretch import Stretch
from spool.log.quota import room_in
from spool.log.visibility import catch_up, list_prepared
from spool.model.message import Message
from spool.model.position import Position
from spool.model.text import one_line
from spool.policies.retries import queue_config
from spool.runtime.calls import step
from spool.store.store import Store
from spool.transactions import delivery
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core
from spool.transactions.transaction import TransactionState, enter, leave
from spool.transactions.two_phase import resolve_orphans
from spool.workers.effects import Effect, OutcomePolicy, effective_outcome, record
from spool.workers.handler import Conclusion
from spool.workers.outcome import Outcome, Passed, Rejected, Retried
from spool.workers.pauses import no_room, not_reached
from spool.workers.run import Run
from spool.workers.states import Event, State, end_of_call, holds_up_its_message_alone, next_state

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

    def __init__(self, core: Core, run: Run, stopping: Callable[[], bool] = lambda: False) -> None:
        self.transaction = CoordinatedTransaction(core, journaled=False)
        self.transaction.on_full = self._find_no_room
        self.transaction.on_lock_timeout = self._waits_on
        self.message: Message | None = None
        self.unreadable = ""
        self.state = State.CLAIMED
        self.abandoned: Conclusion | None = None
        self._store = core.store
        self._run, self._handler, self._stopping = run, run.handler, stopping
        self._mutex = threading.Lock()  # guards the state: one thread ends the call, another enforces its time limit
        self.claimed_at: float
        self._held: Stretch
        self._rolled_back = Effect.RETRIED

    @property
    def position(self) -> Position:
        """Return the position of the claimed message, even if its body is damaged."""
        return self._held.position

    @step("reading a message of queue {queue}")
    def take(
        self,
        queue: str,
        seconds: float | None,
        passed: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
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

        found: list[Stretch] = []
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
            if self.state.is_end:
                return False
            self.state = next_state(self.state, event)
            return True

    @step("beginning a call")
    def begin(self) -> bool:
        """Record that the call begins. If this process dies between now and ``conclude``, an attempt is counted.

        Returns:
            False if no call may be made. Either a queue has no room for the answer (then ``abandoned`` is the
            conclusion), or the worker has ended. The message is released in both cases.
        """
        assert self.message is not None
        reply = [self.message.reply_queue] if self._handler.replies and self.message.reply_queue is not None else []
        queue = _full_queue(self._store, [*self._handler.into, *reply])
        if queue is not None and self._move(Event.NO_ROOM):
            self._abandon(self._without_room(Full(f"queue {queue} is full", queue)))
            return False
        if not self._move(Event.BEGIN):
            return False
        self.transaction.begin_call()
        return True

    @contextmanager
    def calling(self, space: object) -> Iterator[None]:
        """Run the block, which calls the function, in the message's transaction; ``space`` is the worker's space."""
        token = _current.set(space)
        enter(self.transaction)
        try:
            yield
        finally:
            leave(self.transaction)
            _current.reset(token)

    def release(self) -> None:
        """Release a message for which no function was called, unless the attempt has ended. No attempt is counted."""
        self._move(Event.STOP)
        self.transaction.abandon()

    def conclude(self, outcome: Outcome) -> Conclusion | None:
        """End the attempt with the outcome of the call. Raises the same errors as ``commit``.

        Returns:
            The conclusion; or None if the attempt was withdrawn in the meantime, so that the outcome does not count.
        """
        if not self._move(end_of_call(outcome)):
            return None
        if isinstance(outcome, Retried) and self.state is State.ABANDONED:
            pause = not_reached(outcome.reason)
            return self._abandon(Conclusion(Effect.KEPT, outcome.reason, pause, delay=outcome.delay))
        return self._commit(outcome)

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
                return Conclusion(Effect.RETRIED, reason, failed=True)
        try:
            return self._commit(Retried(reason))
        finally:
            mutex.release()

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
        if run is None:
            self._rolled_back = Effect.DROPPED
        elif run.queue.name != self._held.queue:
            self._rolled_back = Effect.DEAD_LETTERED

    # -- without an attempt ----------------------------------------------------------------------------------------

    def _abandon(self, conclusion: Conclusion) -> Conclusion:
        self.abandoned = conclusion
        self._run.hold_back(self.position, conclusion)
        self.transaction.abandon()
        return conclusion

    def _find_no_room(self, full: Full) -> bool:
        """Abandon the attempt because its commit found no room. Return False if the attempt was withdrawn."""
        if not self._move(Event.NO_ROOM):
            return False
        self.abandoned = self._without_room(full)
        self._run.hold_back(self.position, self.abandoned)
        return True

    def _waits_on(self, error: Exception) -> bool:
        """Return whether to attempt the commit again, because a lock of the space did not become free in time.

        If the worker stops, the attempt is abandoned instead. The function has done its work, so the worker prefers to
        wait: a released message would be handled again.
        """
        if self._stopping():
            if self._move(Event.NO_LOCK):
                self.abandoned = Conclusion(Effect.KEPT, one_line(error))
            return False
        if self._move(Event.LOCKED):
            log.warning("a message of queue %s was handled, and its commit waits: %s", self._held.queue, error)
            return True
        return False

    def _without_room(self, full: Full) -> Conclusion:
        assert self.message is not None
        config = queue_config(self._store.settings.known.config, self._held.queue)
        handler = self._handler
        shared = {config.failure_queue, *handler.into, *([config.reply_queue] if handler.replies else [])}
        waits = holds_up_its_message_alone(
            full.queue, {self.message.reply_queue, self.message.failure_queue}, shared - {None}
        )
        text = one_line(full)
        return Conclusion(Effect.KEPT, no_room(text), "" if waits else no_room(text), text)


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


def _full_queue(store: Store, queues: Sequence[str]) -> str | None:
    """Return the first of these queues that is full, or None if each queue has room for a message.

    The caller is inside a public call.
    """
    settings = store.settings.current()
    configs = [settings.config.queues[queue] for queue in queues if queue in settings.config.queues]
    limits = {config.name: {config.max_messages, config.max_bytes} - {None} for config in configs}
    limited = [name for name, set_ in limits.items() if set_ and 0 not in set_]  # no message fits under a limit of 0
    if limited:
        catch_up(store, list_prepared(store))
    for queue in limited:
        if room_in(store.view, settings, queue) == 0 and not (
            resolve_orphans(store, store.deadline()) and room_in(store.view, settings, queue) != 0
        ):
            return queue
    return None
