"""The worker that takes messages from a queue, and calls a function with each message, in threads.

The thread that runs the worker waits for the threads that call the function, and enforces the time limit. Python cannot
end a thread. So the worker gives up a call that takes too long. The attempt is withdrawn, and another thread replaces
the thread of the call. The transaction then refuses further calls of the function.
"""

import inspect
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from spool.admin.stats import QueueStats
from spool.errors import AccessDenied, InvalidArgument
from spool.model.checks import check, check_timeout, number
from spool.model.message import Message
from spool.model.settings import QueueConfig, check_queue_name
from spool.model.text import no_queue, shown
from spool.runtime.call_guard import deferred
from spool.runtime.pickling import refuse_pickling
from spool.workers.attempt import Attempt, HasAttempts, attempts_of
from spool.workers.handler import Handler
from spool.workers.next_step import DriverStep
from spool.workers.outcome import Outcome, took_too_long
from spool.workers.pauses import PAUSE_AFTER
from spool.workers.states import Event
from spool.workers.worker_run import ENDED, WorkerRun
from spool.workers.worker_run import WorkSummary as WorkSummary

_POLL_SECONDS = 0.2

AT_ONCE = number(1000, 1)
"""How many calls may run side by side: in threads, or tasks."""


class Looked(Protocol):
    """The part of a space by which the arguments of workers are checked."""

    def queues(self) -> dict[str, QueueConfig]: ...


class OpenSpace(Looked, HasAttempts, Protocol):
    """The part of a space that workers use."""

    def stats(self, queue: str) -> QueueStats: ...


@dataclass(eq=False)
class Call:
    """One call of the function, from before the claim of its message. ``until``: the end of the time limit, in seconds
    of the monotonic clock. The limit is infinite before the call begins."""

    attempt: Attempt
    thread: threading.Thread
    until: float = float("inf")


class Worker:
    """Calls a function with each message of a queue.

    The function's result or exception decides the effect on the message.

    Args:
        function: the function, or a ``Handler``, which is called for further events, too.
        threads: how many threads call the function side by side.
        once: whether the worker ends when each message that can be claimed has been claimed once. Otherwise the worker
            goes on until ``stop()`` is called or the event ``stop`` is set.
        timeout: the longest time of a call in seconds. None means no limit.
        pause_after: as for ``Space.work``.

    Raises:
        QueueNotFound, InvalidArgument: the arguments are wrong; no message was claimed.
    """

    __reduce_ex__ = refuse_pickling

    def __init__(
        self,
        space: OpenSpace,
        queue: str,
        function: Callable[[Message], Any] | Handler,
        *,
        threads: int = 1,
        once: bool = False,
        timeout: float | None = 30.0,
        stop: threading.Event | None = None,
        pause_after: int = PAUSE_AFTER,
    ) -> None:
        check_work(space, queue, timeout)
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"function {shown(function)} is a coroutine function: use spool.aio, or a plain one")
        check("threads", threads, AT_ONCE)
        self.queue = queue
        self._space = space
        self._attempts = attempts_of(space)
        self._threads = threads
        self._run = WorkerRun(self._attempts.store, queue, function, once=once, pause_after=pause_after, event=stop)
        self._clock = self._run.clock
        self.summary = self._run.summary
        self._timeout = timeout
        # Both guard the run and all attributes below. ``changed`` is notified when a call ends, and wakes threads that
        # wait for their turn; ``ended`` is notified when a thread ends, and wakes the caller's thread.
        self._changed, self._ended = threading.Condition(self._run.mutex), threading.Condition(self._run.mutex)
        self._serving: set[threading.Thread] = set()
        self._calls: set[Call] = set()
        self._busy = 0  # threads that try to claim a message, or have a message

    def run(self) -> WorkSummary:
        """Handle messages until the end.

        A first KeyboardInterrupt acts like ``stop``, and a second KeyboardInterrupt acts like ``end``. The
        KeyboardInterrupt is raised again when the run has ended.

        Raises:
            SystemFailure: too many calls that were given up have not ended.
            SpoolError: a thread failed, e.g. with DiskFailure.
        """
        with self._run.shown(self._threads):
            try:
                with deferred(), self._changed:
                    for _ in range(self._threads):
                        self._start()
                self._supervise()
            except BaseException:  # the run was interrupted, or no thread could be started
                self._finish()
                raise
            finally:
                self._attempts.close()
        self._run.raise_error()
        if self._run.breaker.once:
            self._run.count_left(self._space.stats(self.queue))
        return self.summary

    def stop(self) -> None:
        """Claim no more messages; ``run`` returns when the calls under way have ended.

        Signal handlers may call this method.
        """
        self._run.stop()

    def end(self) -> None:
        """Stop, and give up the calls under way. The messages of these calls return to the queue with one more
        attempt."""
        self.stop()
        with self._changed:
            calls = list(self._calls)
        for call in calls:
            with deferred():
                self._give_up(call, ENDED, Event.END)

    @property
    def is_stopping(self) -> bool:
        """Whether the worker claims no further message, because ``stop`` was called or the event ``stop`` is set."""
        return self._run.is_stopping()

    @property
    def is_paused(self) -> bool:
        """Return whether the worker claims no message now.

        The reason is that the service cannot be reached, or that a queue has no room.
        """
        return self._run.breaker.is_paused

    # -- the caller's thread ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stop within the time limit of each call. After a second KeyboardInterrupt, stop at once."""
        try:
            if self.is_stopping:
                self.end()
            self.stop()
            self._supervise()
        except KeyboardInterrupt:
            self.end()
            self._supervise()

    def _supervise(self) -> None:
        """Wait until all threads of the worker have ended. Meanwhile, give up calls that take too long."""
        while True:
            with self._changed:
                now = self._clock.monotonic()
                late = [call for call in self._calls if call.until <= now]
                if not late:
                    if not self._serving:
                        return
                    # The wait is short, because this thread runs the signal handlers. A signal that the kernel gave to
                    # another thread does not wake this thread.
                    self._ended.wait(min([_POLL_SECONDS, *(call.until - now for call in self._calls)]))
                    continue
            for call in late:
                with deferred():
                    self._give_up(call, took_too_long(self._timeout), Event.LATE)

    def _give_up(self, call: Call, reason: str, event: Event) -> None:
        with self._changed:
            if call not in self._calls:  # the call has just ended
                return
            self._calls.discard(call)
        try:
            conclusion = call.attempt.withdraw(reason, event)
        except Exception as error:
            with self._changed:
                self._serving.discard(call.thread)
                self._fail(error)
            return
        if conclusion is None:  # the call has ended in the meantime, and its thread goes on
            return
        assert call.attempt.message is not None
        with self._changed:
            self._serving.discard(call.thread)
            self._run.give_up(call.attempt.message, reason, call.thread)
            self._busy -= 1
            if not self.is_stopping:
                self._start()
            self._changed.notify_all()
            self._ended.notify_all()

    def _fail(self, error: BaseException) -> None:
        """End the run because of an error; ``run`` raises the first error."""
        with self._changed:
            self._run.fail(error)
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
        empty_at: int | None = None  # the number of ended attempts, before the last claim found no message
        try:
            while self._waits_for_turn(empty_at):
                empty_at = self._run.ended
                call = Call(self._attempts.new(self._run), threading.current_thread())
                if not self._take(call):
                    continue
                empty_at = None
                conclusion = call.attempt.conclude(self._call(call.attempt))
                if conclusion is None:  # the call was given up, and another thread has replaced this thread
                    call.attempt.finish_withdrawn()
                    return
                self._end_call(call)
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._serving.discard(threading.current_thread())
                self._ended.notify_all()

    def _waits_for_turn(self, empty_at: int | None) -> bool:
        """Wait until this thread may claim a message. Return False when the thread has nothing more to do."""
        run = self._run
        with self._changed:
            while True:
                step = run.next_step(empty_at, is_busy=self._busy > 0)
                if step is DriverStep.TAKE:
                    self._busy += 1
                if step in (DriverStep.TAKE, DriverStep.END):
                    return step is DriverStep.TAKE
                self._changed.wait(min(run.breaker.pause_left() or _POLL_SECONDS, _POLL_SECONDS))

    def _take(self, call: Call) -> bool:
        with self._changed:
            self._calls.add(call)
        is_begun = False
        try:
            is_begun = call.attempt.claim(self.queue, waits=True)
        finally:
            if not is_begun:
                self._end_call(call)
        if self._timeout is not None:
            call.until = self._clock.monotonic() + self._timeout
        return is_begun

    def _end_call(self, call: Call) -> None:
        with self._changed:
            self._calls.discard(call)
            self._busy -= 1
            self._changed.notify_all()

    def _call(self, attempt: Attempt) -> Outcome:
        assert attempt.message is not None
        try:
            with attempt.calling(self._space):
                return attempt.answer(self._run.handler.handle(attempt.message, attempt.unreadable))
        except BaseException as error:
            return attempt.failure(error)


def check_work(space: Looked, queue: str, timeout: float | None) -> None:
    """Raise QueueNotFound or InvalidArgument if a worker cannot work with these arguments."""
    check_timeout(timeout, "a number of seconds above 0 for a call, or None for any", least=math.ulp(0.0))
    check_queue_name(queue)
    with suppress(AccessDenied):  # (a server may not let its client look)
        if queue not in (queues := space.queues()):
            raise no_queue(queue, queues)
