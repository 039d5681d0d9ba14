"""Forward queues to services in threads of this process: the same routes as a ``Forwarder``, without Spark and Java.

Each message has a transaction of its own, so that a call that hangs can be given up alone, and a call that ends the
process counts as a try of its own message alone. A round could tell neither in one process.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from forwarder.calls import threads_of
from forwarder.events import Begun, Done, Down, Event, Paused, Stopping, Up
from forwarder.failures import Failures
from forwarder.forwarder import as_routes, check_routes, in_steps
from forwarder.pipelines.draft import Draft
from forwarder.round import RoundResult, Route, is_named_by_it_alone, room_of
from forwarder.routes.pace import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from forwarder.services import Caller, QueueService, Request, Service, ServiceError
from forwarder.summary import Summary, left_in
from spool.errors import Full, SpoolError
from spool.model.message import Message
from spool.opening import open as open_space
from spool.space import Space
from spool.transactions.delivery import stored_body
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Retried, Translated
from spool.workers.worker import Worker, WorkSummary

log = logging.getLogger("spool.forwarder")


class ThreadForwarder:
    """Take messages from queues and call a service for each, in threads. Arguments as of ``Forwarder``.

    A queue has as many threads as its service allows calls at a time; services that are watched have one.

    Raises:
        ServiceError: a route cannot work.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str | Service] | Sequence[Route],
        *,
        idle: float | None = None,
        on_event: Callable[[Event], object] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.routes = as_routes(routes)
        self.summary = Summary()
        if idle is not None and not idle > 0:
            raise ServiceError(f"idle is a number of seconds above 0, not {idle!r}")
        self._idle = idle
        self._active_at = 0.0  # when a message was handled last, in seconds of the monotonic clock
        self._calling = 0
        self._on_event = on_event or (lambda event: None)
        self._say = say or log.info
        self._stop = threading.Event()
        self._is_stopping = False
        self._end: Callable[[], object] | None = None
        self._workers: dict[str, Worker] = {}
        self._down_since: dict[str, float] = {}  # by queue, in seconds of the monotonic clock
        self._mutex, self._telling = threading.Lock(), threading.Lock()

    def run(self, once: bool = False) -> Summary:
        """Forward until ``stop`` is called, and return what was done. An error that ends one route ends all.

        Args:
            once: end when each message that can be forwarded now was tried in this run.
        """
        with open_space(self.path) as space:
            check_routes(space, self.routes, sent=False)
            self._say("forwarding")
            self._tell(Begun([route.queue for route in self.routes]))
            self._active_at = time.monotonic()
            for routes in in_steps(self.routes, once):
                if not self._is_stopping:
                    self._run_routes(space, routes, once)
        return self.summary

    def stop(self) -> None:
        """Have ``run`` finish the calls in progress, commit them and return. For other threads and signal handlers."""
        self._is_stopping = True  # (the event's lock may be held by what a signal handler interrupts)

    def abandon(self, end: Callable[[], object]) -> None:
        """Have ``run`` give up the calls in progress, which counts as a try, and call ``end``. For signal handlers."""
        self._end = end
        self.stop()

    def _run_routes(self, space: Space, routes: list[Route], once: bool) -> None:
        threads = [
            threading.Thread(target=self._run_route, args=(space, route, once), name=route.queue) for route in routes
        ]
        for thread in threads:
            thread.start()
        try:
            self._join(threads)
        except BaseException:  # Ctrl-C in a program without a handler that calls ``stop``
            self.stop()
            self._join(threads)
            raise

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # short: between two joins, signal handlers run in this, the main thread
                if self._idle is not None and not self._calling and time.monotonic() > self._active_at + self._idle:
                    self._say(reason := f"no message for {self._idle:g} s")
                    self._stop_because(reason)
                if self._is_stopping:
                    self._stop_because("it was asked to")
                if self._end is not None:
                    for worker in list(self._workers.values()):
                        worker.end()
                    self._end()

    def _run_route(self, space: Space, route: Route, once: bool) -> None:
        try:
            with closing(route.service.open()) as caller:
                self._call_until_stopped(space, route, caller, once)
        except (SpoolError, OSError) as error:
            self._fail(f"{route.queue}: {error}")
        except Exception as error:  # a defect: the other routes end too, so that it is noticed
            log.exception("the route of queue %s ended", route.queue)
            self._fail(f"{route.queue}: {type(error).__name__}: {error}")

    def _call_until_stopped(self, space: Space, route: Route, caller: Caller, once: bool) -> None:
        queue, pause = route.queue, FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            calls = _Calls(space, route, caller)
            worker = Worker(
                space, queue, partial(self._call, calls), threads=threads_of(route.service), once=once,
                timeout=route.service.watched, stop=self._stop, on_handled=partial(self._report, calls),
                on_failure=route.on_failure, on_full=calls.found_full,
            )  # fmt: skip
            calls.worker = self._workers[queue] = worker
            try:
                done = worker.run()
            finally:
                self._add(queue, worker.summary, calls, once)
            if calls.down and queue not in self._down_since:
                self._down_since[queue] = time.monotonic()
                self._tell(Down(queue, calls.down))
            if once or not calls.down:
                return
            pause = FIRST_PAUSE_SECONDS if done.handled else pause
            seconds = max(pause, calls.retry_after)
            log.warning("%s: %s; next try in %g s", queue, calls.down, seconds)
            self._tell(Paused(queue, calls.down, seconds))
            self._stop.wait(seconds)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _call(self, calls: "_Calls", message: Message) -> Outcome:
        with self._mutex:
            self._calling += 1
        try:
            return calls.call(message)
        finally:
            with self._mutex:
                self._calling -= 1
                if not calls.down:
                    self._active_at = time.monotonic()

    def _report(self, calls: "_Calls") -> None:
        effects = calls.handled_since()
        self._tell(Done(calls.queue, "", effects or {str(Effect.KEPT): 1}, calls.seconds))
        if effects and calls.queue in self._down_since:
            self._tell(Up(calls.queue, time.monotonic() - self._down_since.pop(calls.queue)))

    def _tell(self, event: Event) -> None:
        with self._telling:
            self._on_event(event)

    def _stop_because(self, reason: str) -> None:
        if not self._stop.is_set():
            self._is_stopping = True
            self._stop.set()
            self._tell(Stopping(reason))

    def _add(self, queue: str, done: WorkSummary, calls: "_Calls", once: bool) -> None:
        """Add what a worker did to the summary."""
        with self._mutex:
            counts = _counts(done)
            for effect, reason in done.reasons.items():
                if effect != Effect.DELIVERED:
                    calls.failures.add(effect, reason, counts[effect])
            self.summary.count(queue, counts, calls.failures)
            left = left_in(calls.space, queue, ()) if calls.down else done.left
            if once and left:
                self.summary.left[queue] = left
            if calls.down:
                self.summary.down[queue] = calls.down
            elif done.handled:
                self.summary.down.pop(queue, None)

    def _fail(self, error: str) -> None:
        with self._mutex:
            self.summary.errors.append(error)
        self._stop_because(error)


def _counts(done: WorkSummary) -> dict[str, int]:
    return {str(effect): count for effect in Effect if (count := getattr(done, effect.value, 0))}


class _Calls:
    """The calls of one route's service, in one thread or several, until it cannot be reached.

    down: why it cannot; "" if it can. failures: what its translations noted.
    """

    worker: Worker

    def __init__(self, space: Space, route: Route, caller: Caller) -> None:
        self.space = space
        self.queue = route.queue
        self.down = ""
        self.retry_after = 0.0
        self.failures = Failures()
        self._seen: dict[str, int] = {}
        self._route, self._caller = route, caller
        self._mutex, self._of_thread = threading.Lock(), threading.local()

    @property
    def seconds(self) -> float:
        """How long the last call in this thread took."""
        return getattr(self._of_thread, "seconds", 0.0)

    def call(self, message: Message) -> Outcome:
        """Return what a call with this message comes to."""
        store = self.space.engine.store
        with store.guard:
            _, full = room_of(store, self._route)
            raw = stored_body(store, message)
        if full:
            return self._pause(Retried(full, counted=False), RoundResult(full=full).down)
        if isinstance(self._route.service, QueueService):
            outcome: Outcome = Translated([Draft.of(message, raw).put_into(self._route.service.queue)])
        else:
            begun = time.monotonic()
            outcome = self._caller(Request(message, raw))
            self._of_thread.seconds = time.monotonic() - begun
        if isinstance(outcome, Translated) and outcome.note:
            with self._mutex:
                self.failures.add(Effect.DELIVERED, outcome.note)
        if isinstance(outcome, Retried) and not outcome.counted:
            return self._pause(outcome, f"the service was not reached ({outcome.reason})")
        return outcome

    def found_full(self, message: Message, full: Full) -> bool:
        """Pause, because there is no room for what a message causes; False if that is the matter of this message."""
        config = self.space.queues().get(self.queue)
        if is_named_by_it_alone(full.queue, {message.reply_queue, message.failure_queue}, self._route, config):
            return False
        self._pause(Retried(str(full), counted=False), RoundResult(full=str(full)).down)
        return True

    def handled_since(self) -> dict[str, int]:
        """Return the number of messages for each effect since the last call."""
        before, self._seen = self._seen, _counts(self.worker.summary)
        return {effect: more for effect, count in self._seen.items() if (more := count - before.get(effect, 0))}

    def _pause(self, outcome: Retried, why: str) -> Retried:
        self.down, self.retry_after = why, outcome.delay or 0.0
        self.worker.stop()
        return outcome
