"""A worker's run, without its threads or tasks. A run decides which messages may be claimed now, and has the summary.

Workers with threads and workers with asyncio tasks share this code. Any thread may call any method.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from spool.admin.stats import QueueStats
from spool.coordination.resumptions import Resumptions
from spool.errors import SystemFailure
from spool.model.checks import check
from spool.model.message import Message
from spool.model.position import Position
from spool.model.text import plural
from spool.runtime.clock import Clock
from spool.store.store import Store
from spool.tracing import instrument
from spool.workers.conclusion import Conclusion
from spool.workers.effects import Effect
from spool.workers.handler import WORKER, Handler
from spool.workers.next_step import DriverStep, next_step
from spool.workers.pauses import PAUSE_AFTER, PAUSES_AFTER, Breaker

log = logging.getLogger("spool")

MOST_FAILED = 10_000
"""The most messages that may fail in a run with ``once``. Each claim has to pass over all failed messages. If this many
messages fail, the cause is not in the messages."""

MOST_ABANDONED = 8
"""The most calls that may go on although their attempts were withdrawn. One more such call ends the worker."""


class StopEvent(Protocol):
    """The part of an event, of threads or of asyncio, that a run needs."""

    def is_set(self) -> bool: ...


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
        name = str(effect)  # (``value`` is a Python function)
        setattr(self, name, getattr(self, name) + 1)
        if reason:
            self.reasons[name] = reason


class WorkerRun:
    """One run of a worker over a queue.

    Args:
        store: the files of the space; None for a space by HTTP, whose worker is not shown to those who watch it.
        function: the handler of the messages, or a function that the handler calls.
        once, pause_after: as for ``Breaker``.
        event: the run stops when this event of threads or of asyncio is set.

    handler: the handler of the messages.
    breaker: decides whether messages may be claimed now. The mutex guards the breaker, too.
    summary: the counts so far.
    ended: the number of attempts that have ended.
    clock: the clock of the space.
    mutex: guards the run. While a thread holds the mutex, no other thread changes the run.
    """

    def __init__(
        self,
        store: Store | None,
        queue: str,
        function: Callable[[Message], Any] | Handler,
        *,
        once: bool,
        pause_after: int = PAUSE_AFTER,
        event: StopEvent | None = None,
    ) -> None:
        instrument()  # (the module of the function may have imported OpenTelemetry)
        check("pause_after", pause_after, PAUSES_AFTER)
        self.handler = function if isinstance(function, Handler) else Handler(function)
        self.summary = WorkSummary()
        self.mutex = threading.RLock()
        is_resumed = (lambda: False) if store is None else Resumptions(store.files.disk, queue).is_requested
        self._queue, self._meters = queue, None if store is None else store.meters
        self.clock = Clock() if store is None else store.clock
        self.breaker = Breaker(f"queue {queue}", self.clock.monotonic, is_resumed, once=once, pause_after=pause_after)
        self._event, self._is_stopping, self._is_shown_paused = event, False, False
        self._error: BaseException | None = None
        self._passed = set(self.handler.passed) if once else set[tuple[int, int]]()
        self._hanging: list[threading.Thread] = []
        self._left = self.ended = 0  # (left: messages that failed or were kept)

    # -- the steps and the stop -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim no more messages. Signal handlers may call this method."""
        self._is_stopping = True

    def is_stopping(self) -> bool:
        """Return whether the run claims no further message."""
        return self._is_stopping or (self._event is not None and self._event.is_set())

    def fail(self, error: BaseException) -> None:
        """Stop because of an error; ``raise_error`` raises the first error."""
        self._error = self._error or error
        self.stop()

    def raise_error(self) -> None:
        """Raise the error that ended the run, if any."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # the traceback of the error refers to this frame

    def next_step(self, empty_at: int | None, *, is_full: bool = False, is_busy: bool) -> DriverStep:
        """Return the next step of the driver: see ``spool.workers.next_step``.

        Args:
            empty_at: if the last claim found no message, the value of ``ended`` before this claim; otherwise None.
        """
        is_empty = empty_at == self.ended
        return next_step(
            self.breaker, is_stopping=self.is_stopping(), is_full=is_full, is_empty=is_empty, is_busy=is_busy
        )

    @contextmanager
    def shown(self, threads: int) -> Iterator[None]:
        """Report the worker's threads, and whether the worker is paused, to people who watch the space."""
        self._show(threads)
        try:
            yield
        finally:
            self._show(-threads)
            self._show_paused(False)

    def _show(self, threads: int) -> None:
        if self._meters is not None and self.handler.program == WORKER:  # (a forwarder shows its routes itself)
            self._meters.change("workers", self._queue, by=threads)
            self._meters.consumers.serve([self._queue], threads)

    def _show_paused(self, is_paused: bool) -> None:
        if is_paused != self._is_shown_paused and self.handler.program == WORKER:
            self._is_shown_paused = is_paused
            if self._meters is not None:
                self._meters.change("workers_paused", self._queue, by=1 if is_paused else -1)

    # -- an attempt -------------------------------------------------------------------------------------------------

    def wanted(self) -> tuple[float | None, frozenset[tuple[int, int]]]:
        """Return the longest time in seconds to wait for a message, None for any, and the messages to pass over."""
        with self.mutex:
            return self.breaker.seconds(), frozenset(self._passed.union(self.breaker.passed()))

    def begin(self, position: Position) -> bool:
        """Record that a message is claimed. Return False if the message has to be released.

        The message is released if the run has attempted the message, or has begun a pause, since the claim began.
        """
        with self.mutex:
            if position in self._passed or not self.breaker.begin(position):
                return False
            if self.breaker.once:
                self._passed.add(position)
            return True

    def hold_back(self, position: Position, conclusion: Conclusion) -> None:
        """Pause, or pass over the message, because its attempt is abandoned.

        The message is released only afterwards.
        """
        with self.mutex:
            if conclusion.waits and self.breaker.wait(position):
                log.warning("a message of queue %s waits: %s", self._queue, conclusion.reason)
            else:
                self.breaker.hold_back(conclusion.pause or conclusion.reason, conclusion.delay, position)
                self._show_paused(bool(self.breaker.down))

    def pause(self, reason: str) -> None:
        """Pause, because no message can be claimed now: the server of the space cannot be reached."""
        with self.mutex:
            self.breaker.hold_back(reason)
            if (pause := self.breaker.take_untold()) is not None:
                self.handler.paused(self._queue, *pause)

    def end(self, position: Position, conclusion: Conclusion, claimed_at: float) -> None:
        """Record the end of an attempt, and call the hooks of the handler."""
        effect, breaker = conclusion.effect, self.breaker
        with self.mutex:
            self.ended += 1
            self.summary.add(effect, conclusion.reason)
            if self._meters is not None:
                self._meters.add("outcomes", self.handler.program, self._queue, str(effect))
            if effect in (Effect.RETRIED, Effect.KEPT):
                self._left += 1
            else:
                self._passed.discard(position)
            if effect not in (Effect.KEPT, Effect.QUARANTINED):  # (a damaged message tells nothing about the service)
                was_down = breaker.down
                breaker.note(conclusion.reason if conclusion.failed else "", position)
                conclusion = conclusion._replace(pause=breaker.down) if breaker.down else conclusion
                if breaker.down != was_down:
                    self._show_paused(bool(breaker.down))
                    if not breaker.down and self.handler.program == WORKER:
                        log.warning("queue %s: messages are handled again", self._queue)
            if breaker.once and self._left >= MOST_FAILED:
                breaker.is_over = True
            self.handler.ended(self._queue, position, conclusion, self.clock.monotonic() - claimed_at)
            if (effect is Effect.KEPT or conclusion.failed) and (pause := breaker.take_untold()) is not None:
                self.handler.paused(self._queue, *pause)

    def give_up(self, message: Message, reason: str, thread: threading.Thread) -> None:
        """Count a call that the worker gives up. The attempt was withdrawn, but the thread of the call goes on.

        The run fails if too many of these threads have not ended.
        """
        with self.mutex:
            self._hanging = [one for one in self._hanging if one.is_alive()] + [thread]
            hanging = len(self._hanging)
            self.summary.abandoned += 1
        log.error(
            "message %s of queue %s: %s; Python cannot end the thread of the call (%s of at most %s)",
            message.id, message.queue, reason, hanging, MOST_ABANDONED,
        )  # fmt: skip
        if hanging > MOST_ABANDONED:
            error = f"{hanging} calls for messages of queue {self._queue} took too long and have not ended"
            advice = "Python can end no thread: end this process, and fix the function or give it more time"
            self.fail(SystemFailure(f"{error}; {advice}"))

    # -- the end ----------------------------------------------------------------------------------------------------

    def count_left(self, stats: QueueStats) -> None:
        """Record in the summary how many messages the run leaves in its queue. ``stats``: the figures of the queue."""
        if not (self.breaker.is_over or self.is_stopping()):
            self.summary.left = self._left + stats.claimed + stats.in_doubt
            return
        if self._left >= MOST_FAILED:
            left = plural(self._left, "message")
            log.warning("%s failed: the run ends, and leaves the rest of the queue as it is", left)
        self.summary.left = stats.ready + stats.delayed + stats.claimed + stats.in_doubt
