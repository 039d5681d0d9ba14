"""The loop that takes messages from a queue and calls a function for each, in threads.

The caller's thread supervises: it waits for the threads that call the function, and enforces the time limit. Python
cannot end a thread. So a call that takes too long is given up: its message goes back, another thread replaces its
thread, and what the function still asks of its transaction is refused.
"""

import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from spool.admin.stats import QueueStats
from spool.errors import Full, InvalidArgument, ProtocolError, SystemFailure, TransactionTimeout
from spool.model.checks import ValueCheck, check, whole
from spool.model.message import Message
from spool.model.position import Position
from spool.model.settings import QueueConfig, check_queue_name
from spool.model.text import no_queue, shown
from spool.runtime.calls import deferred
from spool.transactions.core import Core, core_of
from spool.transactions.transaction import enter, leave
from spool.transactions.validation import check_timeout
from spool.workers.attempt import Attempt
from spool.workers.effects import Effect, OnFailure
from spool.workers.functions import takes_a_message
from spool.workers.outcome import Outcome, Reject, Retried, Retry, describe, of_error, of_value
from spool.workers.single_pass import SinglePass

log = logging.getLogger("spool")

_current: "ContextVar[OpenSpace]" = ContextVar("spool.workers.worker.current")

_LOOK_SECONDS = 0.2

MOST_ABANDONED = 8
"""Threads whose calls were given up and have not ended. With one more, the worker ends."""

_MOST_AT_ONCE = 1000
AT_ONCE = ValueCheck(f"a whole number from 1 to {_MOST_AT_ONCE}", lambda value: whole(value, _MOST_AT_ONCE, 1))
"""How many calls may run side by side: in threads, or tasks."""

ENDED = "the worker was ended while its function was called"


class OpenSpace(Protocol):
    """A ``spool.Space``, as far as its workers use it."""

    _core: Core

    def queues(self) -> dict[str, QueueConfig]: ...
    def stats(self, queue: str) -> QueueStats: ...


@dataclass
class WorkSummary:
    """What became of how many messages: a count for each ``Effect``.

    left: after a run with ``once``, messages that it leaves in the queue: they failed, other transactions hold them,
        too many had failed before, or the run was stopped before its end.
    abandoned: calls in threads that took too long and were given up.
    reasons: by the name of a count, the latest reason for it.
    """

    delivered: int = 0
    retried: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    set_aside: int = 0
    left: int = 0
    abandoned: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def handled(self) -> int:
        """Messages that were taken; a message counts each time."""
        return sum(getattr(self, effect.value, 0) for effect in Effect)

    def add(self, effect: Effect, reason: str) -> None:
        if effect is Effect.KEPT:
            return  # it was no attempt
        setattr(self, effect.value, getattr(self, effect.value) + 1)
        if reason:
            self.reasons[effect.value] = reason


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of a message.

    reason: why it failed, or what else is to be told; often "".
    seconds: since it was claimed; 0 for one whose body was damaged, with which nothing was called.
    """

    position: Position
    effect: Effect
    reason: str
    seconds: float


@dataclass(eq=False)
class Call:
    """One call of the function. ``begun``, ``until``: when the message was claimed, and when the call has taken too
    long, in seconds of the monotonic clock."""

    attempt: Attempt
    message: Message
    begun: float
    until: float
    thread: threading.Thread


class Worker:
    """Calls a function with each message of a queue; what it returns or raises decides what becomes of the message.

    Args:
        threads: how many threads call the function side by side.
        once: end when each message that can be taken was taken once; otherwise, go on until ``stop()`` is called or the
            event ``stop`` is set.
        passed: with ``once``, positions of messages that are not taken, because they were before.
        timeout: seconds for a call; None for no limit.
        on_handled: called with what became of each message, in a thread of the worker.
        on_unreadable: called instead of the function with a message whose body no codec here can decode (it has the
            bytes as stored) and the reason; without it, that is an attempt that failed.
        on_failure: a refusal ends the message at once ("reject"), deletes it if the failure queue has the reply of the
            refusal ("delete"), or is one of its attempts ("retry").
        on_full: asked, in a thread of the worker, when there is no room for what a message causes: True if that is no
            try of the message. Without it, it is one.

    Raises:
        QueueNotFound, InvalidArgument: before any message is taken.
    """

    def __init__(
        self,
        space: OpenSpace,
        queue: str,
        function: Callable[[Message], Any],
        *,
        threads: int = 1,
        once: bool = False,
        passed: Iterable[tuple[int, int]] = (),
        timeout: float | None = 30.0,
        stop: threading.Event | None = None,
        on_handled: Callable[[Handled], object] | None = None,
        on_unreadable: Callable[[Message, str], Any] | None = None,
        on_failure: OnFailure = "reject",
        on_full: Callable[[Message, Full], bool] | None = None,
    ) -> None:
        check_work(space, queue, function, timeout)
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"function {shown(function)} is a coroutine function: use spool.aio, or a plain one")
        check_at_once("threads", threads)
        self.queue = queue
        self.summary = WorkSummary()
        self._space = space
        self._core = core_of(space)
        self._function = function
        self._threads = threads
        self._once = SinglePass(passed) if once else None
        self._timeout = timeout
        self._event = stop
        self._on_handled = on_handled
        self._on_unreadable = on_unreadable
        self._on_failure = on_failure
        self._on_full = on_full
        self._is_stopping = False
        self._error: BaseException | None = None
        # Guards the summary and all that follows; notified when a thread or a call ends.
        self._changed = threading.Condition()
        self._serving: set[threading.Thread] = set()
        self._abandoned: list[threading.Thread] = []
        self._calls: set[Call] = set()
        self._busy = 0  # threads that look for a message, or have one
        self._ended = 0  # calls so far

    def run(self) -> WorkSummary:
        """Handle messages until the end.

        A KeyboardInterrupt ends it as ``stop`` does, a second one as ``end``; it is raised after that.

        Raises:
            SystemFailure: too many calls that were given up have not ended.
            SpoolError: a thread failed, e.g. with DiskFailure.
        """
        try:
            with deferred(), self._changed:
                for _ in range(self._threads):
                    self._start()
            self._supervise()
        except BaseException:  # an interrupt, or no thread could be started
            self._finish()
            raise
        self._raise_error()
        if self._once is not None:
            self.summary.left = self._once.count_left(self._space.stats(self.queue), was_stopped=self.is_stopping)
        return self.summary

    def _raise_error(self) -> None:
        """Raise what ended the run, if that was a failure."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame

    def stop(self) -> None:
        """Take no more messages; ``run`` returns when the calls under way have ended. A signal handler may call it."""
        self._is_stopping = True

    def end(self) -> None:
        """Stop, and give up the calls under way: their messages go back, with one more attempt."""
        self.stop()
        with self._changed:
            calls = list(self._calls)
        for call in calls:
            with deferred():
                self._give_up(call, ENDED)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping or (self._event is not None and self._event.is_set())

    # -- the caller's thread ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stop after a KeyboardInterrupt, within the time limit of each call; at once if there is a second one."""
        try:
            if self.is_stopping:
                self.end()
            self.stop()
            self._supervise()
        except KeyboardInterrupt:
            self.end()
            self._supervise()

    def _supervise(self) -> None:
        """Give up calls that take too long, until no thread serves any more."""
        while True:
            with self._changed:
                now = self._core.store.clock.monotonic()
                late = [call for call in self._calls if call.until <= now]
                if not late:
                    if not self._serving:
                        return
                    self._changed.wait(self._pause(now))
                    continue
            for call in late:
                with deferred():
                    self._give_up(call, f"took longer than {self._timeout:g} s")

    def _pause(self, now: float) -> float:
        """Return the seconds until a call may have taken too long, or less: a signal that the kernel gave to another
        thread does not wake this one, in which its handler runs."""
        return min([_LOOK_SECONDS, *(call.until - now for call in self._calls)])

    def _give_up(self, call: Call, reason: str) -> None:
        with self._changed:
            if call not in self._calls:  # it has just ended
                return
            self._calls.discard(call)
            self._serving.discard(call.thread)
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()] + [call.thread]
            hanging = len(self._abandoned)
        try:
            effect, why = call.attempt.withdraw(reason)
        except Exception as error:
            self._fail(error)
            return
        log_abandoned(call.message, reason, hanging)
        with self._changed:
            self.summary.abandoned += 1
            self._count(call, effect, why)
            if hanging > MOST_ABANDONED:
                self._fail(too_many_hang(hanging, self.queue))
            if not self.is_stopping:
                self._start()
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """End the run; ``run`` raises the first error."""
        with self._changed:
            self._error = self._error or error
            self.stop()
            self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"spool-work-{self.queue}", daemon=True)
        self._serving.add(thread)
        try:
            thread.start()
        except BaseException:
            self._serving.discard(thread)
            raise

    # -- the threads that call the function -------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (call := self._next()) is not None:
                if not self._handle(call):
                    return  # given up: another thread has replaced this one
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._serving.discard(threading.current_thread())
                self._changed.notify_all()

    def _next(self) -> Call | None:
        """Claim a message for a call; None when there is nothing more to do."""
        while not self.is_stopping:
            with self._changed:
                if self._once is not None and self._once.is_enough():
                    return None
                self._busy += 1
                seen, passed = self._ended, frozenset(self._once.passed if self._once is not None else ())
            call = None
            try:
                call = self._take(passed)
            finally:
                if call is None:
                    with self._changed:
                        self._busy -= 1
                        self._changed.notify_all()
            if call is not None:
                return call
            if self._once is not None and not self._is_worth_a_look(seen):
                return None
        return None

    def _take(self, passed: frozenset[tuple[int, int]]) -> Call | None:
        attempt = Attempt(self._core, self._on_failure, self._on_full)
        call = None
        try:
            found = attempt.take(self.queue, None if self._once is None else 0.0, passed, lambda: self.is_stopping)
            if found is not None:
                with self._changed:
                    self._report(Handled(attempt.position, found, "its body was damaged: it is in quarantine", 0.0))
                    self._ended += 1
            if attempt.message is None or self.is_stopping:  # e.g. what another call has just given back
                return None
            limit = float("inf") if self._timeout is None else self._timeout
            now = self._core.store.clock.monotonic()
            attempt.begin_call()
            with self._changed:
                if self.is_stopping:
                    return None  # perhaps the call that stopped it has just given this message back
                if self._once is not None and not self._once.begin(attempt.message.position):
                    return None  # it was handled, and came back, since this thread began to look
                call = Call(attempt, attempt.message, now, now + limit, threading.current_thread())
                self._calls.add(call)
            return call
        except TransactionTimeout as error:  # another process holds a lock for very long: look again
            log.warning("taking from queue %s: %s", self.queue, error)
            return None
        finally:
            if call is None:
                attempt.abandon()

    def _is_worth_a_look(self, seen: int) -> bool:
        """Return whether another look of a run with ``once`` may find something: another thread has ended a call."""
        with self._changed:
            while self._busy and self._ended == seen and not self.is_stopping:
                self._changed.wait(_LOOK_SECONDS)  # (``stop`` wakes nothing)
            return self._ended != seen

    def _handle(self, call: Call) -> bool:
        """Call the function and commit its outcome. False if the call was given up meanwhile."""
        outcome = self._call(call.attempt)
        with self._changed:
            is_given_up = call not in self._calls
            self._calls.discard(call)
        if is_given_up:
            call.attempt.finish_withdrawn()
            return False
        effect, reason = call.attempt.conclude(outcome)
        with self._changed:
            self._count(call, effect, reason)
            self._changed.notify_all()
        return True

    def _count(self, call: Call, effect: Effect, reason: str) -> None:
        seconds = self._core.store.clock.monotonic() - call.begun
        self._report(Handled(call.message.position, effect, reason, seconds))
        if self._once is not None:
            self._once.end(call.message.position, effect)
        self._busy -= 1
        self._ended += 1

    def _call(self, attempt: Attempt) -> Outcome:
        message = attempt.message
        assert message is not None
        call = partial(self._function, message)
        if attempt.unreadable:
            if self._on_unreadable is None:
                return Retried(attempt.unreadable)
            call = partial(self._on_unreadable, message, attempt.unreadable)
        most = self._core.store.settings.known.config.max_body_bytes
        try:
            with calling(attempt, self._space):
                return of_value(call(), most)
        except BaseException as error:  # SystemExit, too: a function that gives up does not end the worker
            log_failure(message, error)
            return of_error(error, most)

    def _report(self, handled: Handled) -> None:
        self.summary.add(handled.effect, handled.reason)
        if self._on_handled is not None:
            self._on_handled(handled)


@contextmanager
def calling(attempt: Attempt, space: OpenSpace) -> Iterator[None]:
    """Run the block in the message's transaction, in this thread or task."""
    token = _current.set(space)
    enter(attempt.transaction)
    try:
        yield
    finally:
        leave(attempt.transaction)
        _current.reset(token)


def working_space() -> OpenSpace:
    """Return the space of the worker that calls this function. Puts and gets with it join the message's transaction.

    Raises:
        ProtocolError: no worker calls this function.
    """
    try:
        return _current.get()
    except LookupError:
        raise ProtocolError("no worker calls this function: open a space, and use that") from None


def check_work(space: OpenSpace, queue: str, function: object, timeout: float | None) -> None:
    """Raise QueueNotFound or InvalidArgument if no message can be handled with these arguments."""
    check_timeout(timeout, "a number of seconds for a call, or None for any")
    if timeout is not None and timeout <= 0:
        raise InvalidArgument(f"timeout is a number of seconds for a call, more than 0, not {shown(timeout)}")
    if not callable(function):
        raise InvalidArgument(f"function is a callable that takes a message, not {shown(function)}")
    if not takes_a_message(function):
        raise InvalidArgument(
            f"function {shown(function)} cannot be called with a message alone: give it one parameter"
        )
    check_queue_name(queue)
    queues = space.queues()
    if queue not in queues:
        raise no_queue(queue, queues)


def check_at_once(name: str, count: object) -> None:
    """Raise InvalidArgument unless ``count`` calls may run side by side. ``name``: of the argument."""
    check(name, count, AT_ONCE)


def too_many_hang(count: int, queue: str) -> SystemFailure:
    """Return the error that ends a worker with more than ``MOST_ABANDONED`` calls that have not ended."""
    return SystemFailure(
        f"{count} calls for messages of queue {queue} took too long and have not ended; Python can end no thread: end "
        "this process, and mend the function or give it more time"
    )


def log_abandoned(message: Message, reason: str, hanging: int) -> None:
    """Log that a call was given up. ``hanging``: how many such calls have not ended."""
    log.error(
        "message %s of queue %s: %s; its thread cannot be ended, and is left to itself (%s of at most %s)",
        message.id, message.queue, reason, hanging, MOST_ABANDONED,
    )  # fmt: skip


def log_failure(message: Message, error: BaseException) -> None:
    """Log what a function raised: with its traceback, unless it is a Retry or Reject."""
    if isinstance(error, Retry | Reject):
        log.info("message %s of queue %s: %s", message.id, message.queue, describe(error))
    else:
        log.warning(
            "message %s of queue %s: the function failed, attempt %s: %s",
            message.id, message.queue, message.attempts + 1, describe(error),
            exc_info=(type(error), error, error.__traceback__),
        )  # fmt: skip
