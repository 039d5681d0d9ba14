"""The transaction of one message that a worker's function handles.

The message is claimed and stays in its queue until the outcome is known. Then one commit has all that it causes: what
the function put, the reply and the removal; or, if the function failed, nothing of what it put, and the retry, the move
to the error queue or the drop. The claim is held from the beginning to the end of that commit.
"""

from collections.abc import Callable
from contextlib import suppress

from spool.errors import CorruptedFile, Full, NotOpen, QueueNotFound, TransactionRolledBack, UnknownCodec
from spool.model.message import Message
from spool.model.position import Position, PositionRanges, positions
from spool.policies.retries import add_failure_outcome, with_error_queue
from spool.runtime.calls import public_call
from spool.store.settings import Settings
from spool.transactions import claiming, delivery
from spool.transactions.delivery import HeldMessage
from spool.transactions.selection import Wanted
from spool.transactions.transaction import Transaction, TransactionState, mark_lost
from spool.workers.effects import Effect, Rules, record, settled
from spool.workers.outcome import Outcome, Rejected, Retried, one_line

_WAIT_FOR_CALL_SECONDS = 0.2  # until a call that the function makes in the transaction ends by itself
_WAIT_FOR_END_SECONDS = 2.0  # until it ends after it was told to

Passed = frozenset[tuple[int, int]]


class _Stopped(Exception):
    """The worker stops: no message is wanted any more."""


class MessageTransaction(Transaction):
    """A transaction that holds one message for its function.

    message: None until one was claimed.
    unreadable: why its body could not be decoded; "" if it could.
    """

    message: Message | None = None
    unreadable = ""
    _held: HeldMessage
    _rolled_back = Effect.RETRIED
    _result: tuple[Effect, str] | None = None

    @public_call("taking from queue {queue}")
    def take(
        self,
        queue: str,
        seconds: float | None,
        passed: Passed = frozenset(),
        stopping: Callable[[], bool] = lambda: False,
    ) -> Effect | None:
        """Claim the queue's next message, and read it.

        Args:
            seconds: how long to wait for one; None for no limit.
            passed: positions of messages that are not wanted.
            stopping: called ten times a second; the wait ends once it returns True.

        Returns:
            SET_ASIDE if the body was damaged: the message is in quarantine, and this transaction cannot be used any
            more. Otherwise None; ``message`` is None if there was none.
        """
        wanted = Wanted(queue, passed=passed)

        def check() -> None:
            self._check_active()
            if stopping():
                raise _Stopped

        def attempt() -> PositionRanges:
            if stopping():
                raise _Stopped
            return self._claim(wanted)

        with self._lock:
            deadline = self._store.deadline(seconds)
            got: PositionRanges = []
            with suppress(_Stopped):
                got = claiming.wait_for(self._store, wanted, attempt, deadline, self._branch.groups, check)
            if not got:
                return None
            self._branch.claims += got
            try:
                return self._hold(got)
            except OSError as error:
                self._store.fail(f"reading a message of queue {queue}", error)

    def _hold(self, got: PositionRanges) -> Effect | None:
        """Read the message that was claimed; SET_ASIDE if its body was damaged."""
        [self._held] = delivery.held_messages(self._store, got)
        try:
            self.message = self._read(got)
        except CorruptedFile as error:
            delivery.set_aside(self._store, self._held.position, str(error), self._store.deadline())
            return Effect.SET_ASIDE
        return None

    def _read(self, got: PositionRanges) -> Message:
        [(number, first, _)] = got
        try:
            return delivery.read_messages(self._store, number, first, 1)[0]
        except UnknownCodec as error:
            self.unreadable = one_line(error)
            return delivery.read_messages(self._store, number, first, 1, only_shown=True)[0]

    @public_call("committing")
    def conclude(self, outcome: Outcome) -> tuple[Effect, str]:
        """Commit what this outcome does; return what became of the message, and why if it failed.

        If there is no room for that, the message goes back to its queue, with one try more. Raises like ``commit``. A
        second call returns the same and does nothing.
        """
        with self._lock:
            if self._result is None:
                self._result = self._conclude(outcome)
            return self._result

    def _conclude(self, outcome: Outcome) -> tuple[Effect, str]:
        assert self.message is not None
        if self.state is TransactionState.ROLLED_BACK:
            return self._rolled_back, self._lost or "its transaction was rolled back"
        if isinstance(outcome, Retried | Rejected):
            self._lost = None  # what the function lost in it is not committed anyway
        try:
            self._check_ending()
            try:
                result = self._record(self.message, outcome)
            except BaseException as error:
                self._fail("recording what became of a message", error)
            self.commit()
            return result
        except (Full, QueueNotFound, TransactionRolledBack) as error:
            return self._rolled_back, one_line(error)

    def _end(self, state: TransactionState, why: str = "") -> None:
        if state is TransactionState.ROLLED_BACK and self.message is not None:
            # The claim is held: nothing else has moved the message.
            self._rolled_back = self._effect_of_rollback()
        super()._end(state, why)

    def _effect_of_rollback(self) -> Effect:
        """Return what the rollback did to the message: the last try moves or drops it."""
        with self._store.view.mutex:
            run = self._store.view.index.messages.find(self._held.position)
        if run is None:
            return Effect.DROPPED
        return Effect.RETRIED if run.queue.name == self._held.queue else Effect.DEAD_LETTERED

    def _record(self, message: Message, outcome: Outcome) -> tuple[Effect, str]:
        """Add what the outcome does to the branch, by the settings as they are now."""
        store, branch = self._store, self._branch
        settings = store.settings.current()
        rules = Rules(with_error_queue(settings.config, message.queue), settings.config.queues)
        outcome = settled(rules, message, outcome)
        if isinstance(outcome, Retried | Rejected):
            self._undo_function(settings, self._held.position, outcome.reason)
        result = record(branch.draft, rules, self._held, message, b"", outcome, store.clock.now())
        if branch.draft.sections:
            branch.stream()
        return result

    def _undo_function(self, settings: Settings, own: Position, reason: str) -> None:
        """Drop what the function did. Other messages that it took go back, with one try more; ``own`` is handled by the
        caller."""
        store, branch = self._store, self._branch
        branch.begin_anew()
        if self._promises is not None:
            self._promises.roll_back(reason)
        with store.view.mutex:
            for position in positions(branch.claims):
                if position != own:
                    add_failure_outcome(branch.draft, store, settings, position, reason)

    def withdraw(self, reason: str) -> tuple[Effect, str]:
        """End it as a failed try, from another thread than the function's.

        From now on, what the function asks of it raises ProtocolError. If the function is inside a call that does not
        end, the function's thread has to call ``finish_withdrawn``.
        """
        if not self._lock.acquire(timeout=_WAIT_FOR_CALL_SECONDS):  # the function is inside a call
            self._left = True
            mark_lost(self, reason)
            if not self._lock.acquire(timeout=_WAIT_FOR_END_SECONDS):  # the disk does not answer, for example
                return Effect.RETRIED, reason
        try:
            return self.conclude(Retried(reason))
        finally:
            self._lock.release()

    def finish_withdrawn(self) -> None:
        """Do what ``withdraw`` could not. The function's thread calls it, when the function has returned at last."""
        with suppress(NotOpen), self._lock:
            if self.state is TransactionState.ACTIVE and self._lost is not None:
                self.conclude(Retried(self._lost))
