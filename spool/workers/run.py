"""A worker's run, without its threads or tasks. A run decides which messages may be claimed now, and has the summary.

Workers with threads and workers with asyncio tasks share this code. Any thread may call any method.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spool.admin.stats import QueueStats
from spool.coordination.resumptions import Resumptions
from spool.errors import SystemFailure
from spool.model.message import Message
from spool.model.position import Position
from spool.model.text import plural
from spool.store.store import Store
from spool.workers.effects import Effect
from spool.workers.handler import WORKER, Conclusion, Handler
from spool.workers.pauses import PAUSE_AFTER, Pauses, Streak, WaitingMessages

log = logging.getLogger("spool")

MOST_FAILED = 10_000
"""The most messages that may fail in a run with ``once``. Each claim has to pass over all failed messages. If this many
messages fail, the cause is not in the messages."""

MOST_ABANDONED = 8
"""The most calls that may go on although their attempts were withdrawn. One more such call ends the worker."""

ENDED = "the worker was ended while its function was called"


@dataclass
class WorkSummary:
    """The number of messages for each ``Effect``.

    kept: claims that ended without an attempt, because the service was not reached or a queue had no room.
    left: after a run with ``once``, the messages that remain in the queue. They failed or were kept, other transactions
        hold them, or the run ended early.
    abandoned: calls that the worker gave up because they took too long in their threads.
    reasons: the latest reason for each count, by the name of the count.
    """

    delivered: int = 0
    retried: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    quarantined: int = 0
    kept: int = 0
    left: int = 0
    abandoned: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def handled(self) -> int:
        """Return the number of attempts; a message counts once for each attempt."""
        return sum(getattr(self, effect.value) for effect in Effect if effect is not Effect.KEPT)

    def add(self, effect: Effect, reason: str) -> None:
        """Count an effect. A reason other than "" becomes the latest reason for this count."""
        setattr(self, effect.value, getattr(self, effect.value) + 1)
        if reason:
            self.reasons[effect.value] = reason


class Run:
    """One run of a worker over a queue.

    Args:
        function: the handler of the messages, or a function that the handler calls.
        once: whether the run claims each message only once.
        pause_after: how many messages fail one after another before the run pauses; 0: any number. After the pause, one
            message shows whether the service works again. A run with ``once`` does not pause, because no message fails
            twice in it.

    handler: the handler of the messages.
    is_over: whether a run with ``once`` ends early. The run ends early if too many messages failed, or when a run
        without ``once`` would pause.
    summary: the counts so far.
    ended: the number of attempts that have ended.
    mutex: guards the run. While a thread holds the mutex, no other thread changes the run.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        function: Callable[[Message], Any] | Handler,
        *,
        once: bool,
        pause_after: int = PAUSE_AFTER,
    ) -> None:
        self.handler = function if isinstance(function, Handler) else Handler(function)
        self.summary = WorkSummary()
        self.mutex = threading.RLock()
        self.once = once
        self._queue, self._clock, self._meters = queue, store.clock, store.meters
        self._resumptions = Resumptions(store.files.disk, queue)
        self._is_shown_paused = False
        self._passed = set(self.handler.passed) if once else set()
        self._pauses, self._waiting = Pauses(), WaitingMessages()
        self._streak = Streak(0 if once else pause_after)
        self._probe: tuple[int, int] | None = None  # the message that shows whether a storm of failures is over
        self._paused_until = 0.0
        self._untold: tuple[str, float] | None = None  # a pause that ``handler.paused`` has yet to get
        self._left = self.ended = 0  # (left: messages that failed or were kept)
        self.is_over = False

    @contextmanager
    def shown(self, threads: int) -> Iterator[None]:
        """Report the worker's threads, and whether the worker is paused, to people who watch the space."""
        self._change("workers", by=threads)
        self._serve(threads)
        try:
            yield
        finally:
            self._change("workers", by=-threads)
            self._serve(-threads)
            self._show_paused(False)

    def _show_paused(self, is_paused: bool) -> None:
        if is_paused != self._is_shown_paused:
            self._is_shown_paused = is_paused
            self._change("workers_paused", by=1 if is_paused else -1)

    def _change(self, state: str, *, by: int) -> None:
        if self.handler.program == WORKER:
            self._meters.change(state, self._queue, by=by)

    def _serve(self, threads: int) -> None:
        if self.handler.program == WORKER:  # (a forwarder shows its routes itself)
            self._meters.consumers.serve([self._queue], threads)

    # -- before a claim ---------------------------------------------------------------------------------------------

    def pause_left(self) -> float:
        """Return the seconds of the pause that are left; 0 or less if messages may be claimed.

        The pause ends early if an administrator asks for an attempt now. The next pause is then short again.
        """
        with self.mutex:
            left = self._paused_until - self._clock.monotonic()
            if left <= 0 or not self._resumptions.is_requested():
                return left
            log.warning("queue %s: an administrator ended the pause; next attempt now", self._queue)
            self._pauses.find_up()
            self._paused_until = self._clock.monotonic()
            return 0.0

    def passed(self) -> frozenset[tuple[int, int]]:
        with self.mutex:
            return frozenset(self._passed.union(self._waiting.positions(self._clock.monotonic())))

    def wait_seconds(self) -> float | None:
        """Return the longest time in seconds to wait for a message. None means no limit."""
        with self.mutex:
            return 0.0 if self.once else self._waiting.seconds(self._clock.monotonic())

    # -- an attempt -------------------------------------------------------------------------------------------------

    def begin(self, position: tuple[int, int]) -> bool:
        """Record that a message is claimed. Return False if the message has to be released.

        The message is released if the run has attempted the message, or has begun a pause, since the claim began.
        """
        with self.mutex:
            if self.is_over or self.pause_left() > 0 or position in self._passed:
                return False
            if self.once:
                self._passed.add(position)
            if self._streak.is_storm:  # the others wait for this message, or for the time of a pause
                self._probe, self._paused_until = position, self._clock.monotonic() + self._pauses.last
            return True

    def hold_back(self, position: Position, conclusion: Conclusion) -> None:
        """Pause, or pass over the message, because its attempt is abandoned.

        The message is released only afterwards.
        """
        with self.mutex:
            if conclusion.waits and not self._waiting.is_full:
                self._waiting.add(position, self._clock.monotonic())
                log.warning("a message of queue %s waits: %s", self._queue, conclusion.reason)
            elif self.once:
                self.is_over = True
                self._untold = conclusion.pause or conclusion.reason, 0.0
            elif self._ends_probe(position) or self.pause_left() <= 0:  # otherwise another call has begun it
                self._pause(conclusion.pause or conclusion.reason, conclusion.delay)

    def _pause(self, reason: str, delay: float | None = None) -> None:
        seconds = self._pauses.find_down(reason, delay)
        self._paused_until = self._clock.monotonic() + seconds
        self._untold = self._pauses.down, seconds
        self._show_paused(True)

    def _ends_probe(self, position: Position) -> bool:
        """Return whether the message is the probe of a storm, which has ended now."""
        probed = position == self._probe
        if probed:
            self._probe = None
        return probed

    def _note_failure(self, position: Position, conclusion: Conclusion) -> bool:
        """Record whether an attempt has failed. Return whether a storm of failures goes on."""
        was_storm, probed = self._streak.is_storm, self._ends_probe(position)
        if not conclusion.failed:
            self._streak.end()
            if was_storm:
                self._paused_until = self._clock.monotonic()
            return False
        self._streak.fail(conclusion.reason, position)
        if self._streak.is_storm and (probed or self.pause_left() <= 0):
            self._pause(self._streak.text)
        return self._streak.is_storm

    def end(self, position: Position, conclusion: Conclusion, claimed_at: float) -> None:
        """Record the end of an attempt, and call the hooks of the handler."""
        effect = conclusion.effect
        with self.mutex:
            self.ended += 1
            self.summary.add(effect, conclusion.reason)
            self._meters.add("outcomes", self.handler.program, self._queue, str(effect))
            if effect in (Effect.RETRIED, Effect.KEPT):
                self._left += 1
            else:
                self._passed.discard(position)
            if effect is not Effect.KEPT:
                self._waiting.remove(position)
                is_storm = effect is not Effect.QUARANTINED and self._note_failure(position, conclusion)
                if self._is_shown_paused and not is_storm and self.pause_left() <= 0:
                    self._pauses.find_up()
                    self._show_paused(False)
                    if self.handler.program == WORKER:
                        log.warning("queue %s: messages are handled again", self._queue)
            if self.once and self._left >= MOST_FAILED:
                self.is_over = True
            self.handler.ended(self._queue, position, conclusion, self._clock.monotonic() - claimed_at)
            if self._untold is not None and (effect is Effect.KEPT or conclusion.failed):
                (reason, pause), self._untold = self._untold, None
                self.handler.paused(self._queue, reason, pause)

    def give_up(self, message: Message, reason: str, hanging: int) -> SystemFailure | None:
        """Count a call that the worker gives up. The attempt was withdrawn, but the thread of the call goes on.

        Args:
            hanging: how many of these calls have not ended.

        Returns:
            The error that ends the worker if too many of these calls have not ended; otherwise None.
        """
        log.error(
            "message %s of queue %s: %s; Python cannot end the thread of the call (%s of at most %s)",
            message.id, message.queue, reason, hanging, MOST_ABANDONED,
        )  # fmt: skip
        with self.mutex:
            self.summary.abandoned += 1
        if hanging <= MOST_ABANDONED:
            return None
        return SystemFailure(
            f"{hanging} calls for messages of queue {self._queue} took too long and have not ended; Python can end no "
            "thread: end this process, and fix the function or give it more time"
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    def count_left(self, stats: QueueStats, *, was_stopped: bool) -> None:
        """Record in the summary how many messages the run leaves in its queue.

        Args:
            stats: the current figures of the queue.
            was_stopped: whether a caller stopped the run before its end.
        """
        if not (self.is_over or was_stopped):
            self.summary.left = self._left + stats.claimed + stats.in_doubt
            return
        if self._left >= MOST_FAILED:
            log.warning(
                "%s failed: the run ends, and leaves the rest of the queue as it is", plural(self._left, "message")
            )
        self.summary.left = stats.ready + stats.delayed + stats.claimed + stats.in_doubt
