"""One attempt at a message: its transaction, from the claim to the commit of the function's outcome.

The message is claimed and stays in its queue until the outcome is known. Then one commit has all that it causes: what
the function put, the reply and the removal; or, if the function failed, nothing of what it put, and the retry, the move
to the error queue or the drop. The claim is held from the beginning to the end of that commit.

If the process dies while the function works on the message, that counts as an attempt; before the call and after it, it
does not.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from spool.errors import CorruptedFile, Full, NotOpen, QueueNotFound, TransactionRolledBack, UnknownCodec
from spool.index.stretch import Stretch
from spool.model.message import Message
from spool.model.position import Position
from spool.policies.retries import with_error_queue
from spool.runtime.calls import public_call
from spool.transactions import delivery
from spool.transactions.branch import Branch
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core
from spool.transactions.transaction import TransactionState
from spool.workers.effects import Effect, OnFailure, OutcomePolicy, effective_outcome, record
from spool.workers.outcome import Outcome, Passed, Rejected, Retried, one_line

_WAIT_FOR_CALL_SECONDS = 0.2  # until a call that the function makes in the transaction ends by itself
_WAIT_FOR_END_SECONDS = 2.0  # until it ends after it was told to


class _Stopped(Exception):
    """The worker stops: no message is wanted any more."""


class Attempt:
    """One attempt of a message.

    transaction: holds the message; what the function puts and takes joins it.
    message: None until one was claimed.
    unreadable: why its body could not be decoded; "" if it could.
    on_failure: what a refusal means, as of an ``OutcomePolicy``.
    on_full: asked when there is no room for what its outcome puts: True if that is no attempt; without it, it is one.
    """

    def __init__(
        self,
        core: Core,
        on_failure: OnFailure = "reject",
        on_full: Callable[[Message, Full], bool] | None = None,
    ) -> None:
        self.transaction = CoordinatedTransaction(core, journaled=False)
        self.transaction.on_full = self._is_no_try
        self.message: Message | None = None
        self.unreadable = ""
        self._store = core.store
        self._on_failure = on_failure
        self._on_full = on_full
        self._held: Stretch
        self._rolled_back = Effect.RETRIED
        self._result: tuple[Effect, str] | None = None

    @property
    def position(self) -> Position:
        """The position of the message that was claimed, also of one whose body was damaged."""
        return self._held.position

    @public_call("reading a message of queue {queue}")
    def take(
        self,
        queue: str,
        seconds: float | None,
        passed: frozenset[tuple[int, int]] = frozenset(),
        stopping: Callable[[], bool] = lambda: False,
    ) -> Effect | None:
        """Claim the queue's next message, and read it.

        Args:
            seconds: how long to wait for one; None for no limit.
            passed: positions of messages that are not wanted.
            stopping: called ten times a second; the wait ends once it returns True.

        Returns:
            SET_ASIDE if the body was damaged: the message is in quarantine, and this attempt is over. Otherwise None;
            ``message`` is None if there was none.
        """

        def check() -> None:
            if stopping():
                raise _Stopped

        found: list[Stretch] = []
        with suppress(_Stopped):
            found = self.transaction.hold(queue, 1, timeout=seconds, passed=passed, check=check)
        if not found:
            return None
        [self._held] = found
        try:
            self.message = self._read()
        except CorruptedFile as error:
            delivery.set_aside(self._store, self._held.position, str(error), self._store.deadline())
            return Effect.SET_ASIDE
        self.transaction.on_rollback = self._note_rollback
        return None

    def _read(self) -> Message:
        number, ordinal = self._held.position
        try:
            return delivery.read_messages(self._store, number, ordinal, 1)[0]
        except UnknownCodec as error:
            self.unreadable = one_line(error.__context__ or error)  # without the message's id: all are of one kind
            return delivery.read_messages(self._store, number, ordinal, 1, only_shown=True)[0]

    def begin_call(self) -> None:
        """Note that the function is called now, until ``conclude``."""
        self.transaction.begin_call()

    def abandon(self) -> None:
        """Give the message back, unless the attempt has ended. It does not count."""
        self.transaction.abandon()

    @public_call("committing")
    def conclude(self, outcome: Outcome) -> tuple[Effect, str]:
        """Commit what this outcome does; return what became of the message, and why if it failed.

        If there is no room for that, the message goes back to its queue, with one more attempt unless ``on_full`` says
        that it was none. Raises like ``commit``. A second call returns the same and does nothing.
        """
        with self.transaction.mutex:
            if self._result is None:
                self._result = self._conclude(outcome)
            return self._result

    def _conclude(self, outcome: Outcome) -> tuple[Effect, str]:
        assert self.message is not None
        if self.transaction.state is TransactionState.ROLLED_BACK:
            return self._rolled_back, self.transaction.lost or "its transaction was rolled back"
        failed = isinstance(outcome, Retried | Rejected)
        if not (isinstance(outcome, Retried) and outcome.counted):
            self.transaction.end_call()
        try:
            return self.transaction.conclude(partial(self._record, self.message, outcome), failed=failed)
        except (Full, QueueNotFound, TransactionRolledBack) as error:
            return self._rolled_back, one_line(error)

    def _is_no_try(self, full: Full) -> bool:
        if self.message is None or self._on_full is None or not self._on_full(self.message, full):
            return False
        self._rolled_back = Effect.KEPT
        return True

    def _note_rollback(self) -> None:
        """Note what the rollback did to the message: the last attempt moves or drops it. Nothing else has moved it,
        since the claim is held."""
        with self._store.view.mutex:
            run = self._store.view.index.messages.find(self._held.position)
        if run is None:
            self._rolled_back = Effect.DROPPED
        elif run.queue.name != self._held.queue:
            self._rolled_back = Effect.DEAD_LETTERED

    def _record(self, message: Message, outcome: Outcome, branch: Branch) -> tuple[Effect, str]:
        """Add what the outcome does to the branch, by the settings as they are now."""
        settings = self._store.settings.current()
        policy = OutcomePolicy(with_error_queue(settings.config, message.queue), settings.config, self._on_failure)
        raw = delivery.stored_body(self._store, message) if isinstance(outcome, Passed) else b""
        outcome = effective_outcome(policy, message, raw, outcome)
        if isinstance(outcome, Retried | Rejected):
            self.transaction.begin_anew(settings, self._held.position, outcome.reason)
        return record(branch.batch, policy, message, raw, outcome, self._store.clock.now())

    def withdraw(self, reason: str) -> tuple[Effect, str]:
        """End it as failed, from another thread than the function's.

        From now on, what the function asks of its transaction raises ProtocolError. If the function is inside a call
        that does not end, the function's thread has to call ``finish_withdrawn``.
        """
        mutex = self.transaction.mutex
        if not mutex.acquire(timeout=_WAIT_FOR_CALL_SECONDS):  # the function is inside a call
            self.transaction.refuse(reason)
            if not mutex.acquire(timeout=_WAIT_FOR_END_SECONDS):  # the disk does not answer, for example
                return Effect.RETRIED, reason
        try:
            return self.conclude(Retried(reason))
        finally:
            mutex.release()

    def finish_withdrawn(self) -> None:
        """Do what ``withdraw`` could not. The function's thread calls it, when the function has returned at last."""
        with suppress(NotOpen), self.transaction.mutex:
            if self.transaction.is_active and self.transaction.lost is not None:
                self.conclude(Retried(self.transaction.lost))
