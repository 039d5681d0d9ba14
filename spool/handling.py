"""The transaction of one message that a worker's function handles.

The message is claimed and stays in its queue until the outcome is known. Then one commit has all that it causes: what
the function put, the reply and the removal; or, if the function failed, nothing of what it put, and the retry, the move
to the error queue or the drop. The claim is held from the beginning to the end of that commit.
"""

from collections.abc import Callable
from contextlib import suppress

from spool import consume
from spool.choosing import Wanted
from spool.consume import HeldMessage
from spool.effects import Effect, Rules, record, settled
from spool.ending import State
from spool.errors import CorruptedFile, Full, QueueNotFound, TransactionRolledBack, UnknownCodec
from spool.gate import step
from spool.message import Message, Position
from spool.outcome import Outcome, Rejected, Retried, one_line
from spool.ranges import Ranges, positions
from spool.retries import add_fate, with_error_queue
from spool.transaction import Transaction

_PATIENCE_SECONDS = 0.2
_ENDING_SECONDS = 2.0

Places = frozenset[tuple[int, int]]


class _Stopped(Exception):
    """There is no point in waiting for a message any more."""


class Handling(Transaction):
    """``message`` is None until one was taken. ``unreadable``: why its body could not be decoded, "" if it could."""

    message: Message | None = None
    unreadable = ""
    _held: HeldMessage

    @step
    def take(
        self,
        queue: str,
        seconds: float | None,
        passed: Places = frozenset(),
        stopping: Callable[[], bool] = lambda: False,
    ) -> Effect | None:
        """Claim the queue's next message that is not one of ``passed``, waiting at most so many seconds for one (None:
        for ever), or until ``stopping``, which is asked ten times a second.

        Returns SET_ASIDE if its body was damaged: it went to quarantine, and this transaction is of no more use.
        """
        wanted = Wanted(queue, passed=passed)

        def check() -> None:
            self._check_active()
            if stopping():
                raise _Stopped

        def attempt() -> Ranges:
            if stopping():
                raise _Stopped
            return self._claim(wanted)

        with self._lock:
            deadline = self._store.deadline(seconds)
            got: Ranges = []
            with suppress(_Stopped):
                got = consume.wait_for(self._store, wanted, attempt, deadline, self._branch.groups, check)
            if not got:
                return None
            self._branch.claims += got
            with self._store.disk_errors(f"reading a message of queue {queue}"):
                [self._held] = consume.held_messages(self._store, got)
                try:
                    self.message = self._read(got)
                except CorruptedFile as error:
                    consume.set_aside(self._store, self._held.position, str(error), self._store.deadline())
                    return Effect.SET_ASIDE
            return None

    def _read(self, got: Ranges) -> Message:
        [(number, first, _)] = got
        try:
            return consume.read_messages(self._store, number, first, 1)[0]
        except UnknownCodec as error:
            self.unreadable = one_line(error)
            return consume.read_messages(self._store, number, first, 1, only_looked_at=True)[0]

    @step
    def conclude(self, outcome: Outcome) -> tuple[Effect, str]:
        """Commit what the message comes to by this outcome; returns what became of it, and why if it failed.

        If there is no room for that, the message goes back, with one try more. Raises like ``commit``.
        """
        assert self.message is not None
        with self._lock:
            if self.state is State.ROLLED_BACK:
                return Effect.RETRIED, self._doomed or "its transaction was rolled back"
            if isinstance(outcome, Retried | Rejected):
                self._doomed = None  # what was lost in it is not committed
            try:
                self._check_ending()
                with self._undo_on_failure("recording what became of a message"):
                    told = self._record(self.message, outcome)
                self.commit()
                return told
            except (Full, QueueNotFound, TransactionRolledBack) as error:
                return Effect.RETRIED, one_line(error)

    def _record(self, message: Message, outcome: Outcome) -> tuple[Effect, str]:
        store, branch = self._store, self._branch
        store.refresh_settings()
        rules = Rules(with_error_queue(store.config, message.queue), store.config.queues)
        outcome = settled(rules, message, outcome)
        if isinstance(outcome, Retried | Rejected):
            self._forget(self._held.position, outcome.reason)
        told = record(branch.draft, rules, self._held, message, b"", outcome, store.clock.now())
        if branch.draft.sections:
            branch.stream()
        return told

    def _forget(self, own: Position, reason: str) -> None:
        """What the function did. Other messages that it took go back, with one try more."""
        store, branch = self._store, self._branch
        branch.begin_anew()
        self._settle_promises(State.ROLLED_BACK, reason)
        with store.mutex:
            for position in positions(branch.claims):
                if position != own:
                    add_fate(branch.draft, store, position, reason)

    def expel(self, reason: str) -> tuple[Effect, str]:
        """End it from another thread than the function's, as a try that failed. What the function asks of it from now
        on is refused by ProtocolError."""
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):  # the function waits for something in it
            self._left = True
            self._doom(reason)
            if not self._lock.acquire(timeout=_ENDING_SECONDS):  # the disk does not answer
                return Effect.RETRIED, reason
        try:
            return self.conclude(Retried(reason))
        finally:
            self._lock.release()
