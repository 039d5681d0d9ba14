"""The common part of forwarding with and without Spark: the threads of the routes, the end of the run, the summary."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from forwarder.events import Begun, Down, Event, Paused, Stopping, Up
from forwarder.result import RoundResult, Summary
from forwarder.round import Route, queues_into
from forwarder.routes.arguments import as_routes, check_option
from forwarder.services import Service, ServiceError
from forwarder.session import SparkUnavailable
from spool import Space
from spool.errors import SpoolError
from spool.model.checks import TIME_LIMIT
from spool.model.paths import local_path
from spool.model.position import Position
from spool.workers.effects import Effect, OnFailure
from spool.workers.outcome import describe

log = logging.getLogger("spool.forwarder")

_LOG_SECONDS = 30.0  # between two summaries of failures in the log

_CALL_RESULTS: dict[str, str] = {
    Effect.DELIVERED: "succeeded", Effect.RETRIED: "failed", Effect.REJECTED: "failed", Effect.DEAD_LETTERED: "failed",
    Effect.DROPPED: "failed", Effect.KEPT: "unreached",
}  # fmt: skip
"""The result of a call in the space's meters, by its effect on the message."""


@dataclass(kw_only=True, eq=False)
class Loop(ABC):
    """Forwards the messages of a route. Other threads and signal handlers read the properties of the loop.

    once: whether the loop ends after an attempt for every message.
    stopped: an event; after it is set, the loop claims no further message.
    attempted: with `once`, the messages that failed in this run and are still in a queue. The loop adds to this set.
    count: called with each committed result.
    tell: called with each event.
    """

    space: Space
    route: Route
    once: bool
    stopped: threading.Event
    attempted: set[Position]
    count: Callable[[str, RoundResult], object]
    tell: Callable[[Event], object]
    _down_since: float | None = field(default=None, init=False)
    _is_shown_down: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.engine = self.space.engine

    @abstractmethod
    def run(self) -> None:
        """Forward messages until the end. Each claimed message is committed or released, even if an exception ends it.

        With `once`, a loop may run again if it ended because a queue was full.
        """

    @property
    @abstractmethod
    def is_working(self) -> bool:
        """Return whether the loop has claimed messages, or commits their outcomes."""

    @abstractmethod
    def count_calls(self) -> None:
        """Count an attempt for each call in progress, because the process ends. Another thread calls this method."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether the loop has claimed messages, or pauses."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the route in the space's meters during the block."""
        meters, route = self.engine.meters, self.route
        keys = [("route", route.queue, route.service_name)]
        keys += [("destination", route.queue, target) for target in dict.fromkeys(queues_into(route))]
        for key in keys:
            meters.change(*key, by=1)
        meters.consumers.serve([route.queue], 1)
        try:
            yield
        finally:
            for key in keys:
                meters.change(*key, by=-1)
            meters.consumers.serve([route.queue], -1)
            self._show_down(False)

    def _show_down(self, is_down: bool) -> None:
        if is_down != self._is_shown_down:
            self._is_shown_down = is_down
            key = "route_down", self.route.queue, self.route.service_name
            self.engine.meters.change(*key, by=1 if is_down else -1)

    def _add(self, result: RoundResult) -> None:
        queue, service, effects = self.route.queue, self.route.service_name, result.effects
        counts = [
            (("service_calls", queue, service, _CALL_RESULTS[effect]), number)
            for effect, number in effects.items()
            if effect != Effect.QUARANTINED and (effect != Effect.KEPT or result.is_unreached)
        ]
        if counts:
            self.engine.meters.record(counts)
        if self.once:
            self.attempted.update(result.attempted, result.waiting)
        self.count(self.route.queue, result)

    def paused(self, queue: str, reason: str, seconds: float) -> None:
        """Tell that the route is down. ``seconds``: the pause; 0 if the run ends instead, because of ``once``."""
        self._note_down(reason)
        if seconds and not self.stopped.is_set():
            self.tell(Paused(queue, reason, seconds))

    def _note_down(self, reason: str) -> None:
        if self._down_since is None:
            self._down_since = self.engine.clock.monotonic()
            self.tell(Down(self.route.queue, reason))
            self._show_down(True)

    def _note_up(self) -> None:
        if self._down_since is not None:
            seconds = self.engine.clock.monotonic() - self._down_since
            log.warning("%s: up again after %d s", self.route.queue, round(seconds))
            self.tell(Up(self.route.queue, seconds))
            self._down_since = None
            self._show_down(False)


class BaseForwarder:
    """Runs the loop of each route in a thread, until a signal, an idle time or an error ends all loops.

    ``Forwarder`` describes the arguments. summary: the effects on the messages so far.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str | Service] | Sequence[Route],
        *,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
        threads: int | None = None,
        pause_after: int | None = None,
        idle: float | None = None,
        on_event: Callable[[Event], object] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if idle is not None:
            check_option("idle", idle, TIME_LIMIT)
        self.path = local_path(path)
        self.routes = as_routes(
            routes, on_failure=on_failure, timeout=timeout, threads=threads, pause_after=pause_after
        )
        self.summary = Summary()
        self._say = say or log.info
        self._on_event = on_event or (lambda event: None)
        self._idle = idle
        self._now: Callable[[], float]
        self._logged_at: float  # the time of the last summary of failures
        self._active_at: float  # the last time at which a route had a message or was busy
        self._stop = threading.Event()
        self._stopping: Stopping | None = None
        self._is_stopping = False
        self._end: Callable[[], object] | None = None
        self._mutex, self._telling = threading.Lock(), threading.Lock()
        self._loops: list[Loop] = []
        self._attempted: dict[str, set[Position]] = {route.queue: set() for route in self.routes}

    def stop(self) -> None:
        """Let `run` finish and commit the calls in progress, and return. Signal handlers may call this method."""
        self._stop_because("it was asked to")

    def abandon(self, end: Callable[[], object]) -> None:
        """Let `run` call `end` without waiting for the calls in progress. `end` ends the process.

        Signal handlers call this method. Each call in progress counts as an attempt for the call's message. Nothing
        else is committed. If no route has a claimed message, this method calls `end` at once.
        """
        self._stop_because("it was asked to")
        if not any(loop.is_working for loop in self._loops):
            end()
        self._end = end

    def _forward(self, space: Space, once: bool, made: Callable[..., Loop]) -> None:
        """Run a loop for each route until all loops have ended. ``made`` creates a loop."""
        self._say("forwarding")
        self._tell(Begun([route.queue for route in self.routes]))
        self._now = space.engine.clock.monotonic
        self._active_at = self._logged_at = self._now()
        loops = {
            route.queue: made(
                space=space, route=route, once=once, stopped=self._stop, attempted=self._attempted[route.queue],
                count=self._count, tell=self._tell,
            )
            for route in self.routes
        }  # fmt: skip
        for routes in in_steps(self.routes, once, self.summary):
            if not self._is_stopping:
                self._loops = [loops[route.queue] for route in routes]
                self._run_loops(routes)
        self._loops = []
        self._log_failures(0)
        self._tell_of_the_end()
        if once:
            self._count_left(space)

    def _run_loops(self, routes: list[Route]) -> None:
        threads = [
            threading.Thread(target=self._run_loop, args=(loop, route.queue), name=route.queue)
            for loop, route in zip(self._loops, routes, strict=True)
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
                thread.join(0.2)  # a short wait, because signal handlers run only between two joins
                self._end_if_idle(0)
                self._tell_of_the_end()
                self._log_failures(_LOG_SECONDS)
                if self._end is not None:
                    for loop in self._loops:
                        loop.count_calls()
                    self._end()

    def _run_loop(self, loop: Loop, queue: str) -> None:
        try:
            with loop.shown():
                loop.run()
        except (SpoolError, ServiceError, SparkUnavailable, OSError) as error:
            self._fail(f"{queue}: {error}")
        except Exception as error:  # a bug in the forwarder: all routes end, so that users notice
            log.exception("the route of queue %s ended", queue)
            self._fail(f"{queue}: {describe(error)}")

    def _count(self, queue: str, result: RoundResult) -> None:
        with self._mutex:
            self.summary.add(queue, result)
        self._end_if_idle(result.messages)

    def _log_failures(self, after: float) -> None:
        """Log the failures since the last summary, if it is ``after`` seconds old."""
        with self._mutex:
            if self._now() - self._logged_at >= after:
                self._logged_at = self._now()
                self.summary.log_further({route.queue: route.service_name for route in self.routes})

    def _count_left(self, space: Space) -> None:
        with suppress(SpoolError, OSError):  # the summary already has the error
            for queue, attempted in self._attempted.items():
                stats = space.stats(queue)
                left = stats.ready + stats.claimed + stats.in_doubt + space.engine.waiting(queue, attempted)
                if left:
                    self.summary.left[queue] = left

    def _end_if_idle(self, messages: int) -> None:
        """Stop at the end of the idle time. ``messages``: the number of messages that a loop has just handled."""
        with self._mutex:
            now = self._now()
            if messages or any(loop.is_busy for loop in self._loops):
                self._active_at = now
            is_over = self._idle is not None and now - self._active_at >= self._idle
        if is_over and not self._is_stopping:
            self._say(reason := f"no message for {self._idle:g} s")
            self._stop_because(reason)

    def _fail(self, error: str) -> None:
        with self._mutex:
            self.summary.errors.append(error)
        self._stop_because(error)

    def _stop_because(self, reason: str) -> None:
        if not self._is_stopping:  # a signal handler may interrupt `set`, which holds the event's lock
            self._is_stopping = True
            self._stopping = Stopping(reason)
            self._stop.set()

    def _tell_of_the_end(self) -> None:
        """Send the event ``Stopping`` once. Signal handlers must not call this method, because it waits for a lock."""
        stopping, self._stopping = self._stopping, None
        if stopping is not None:
            self._tell(stopping)

    def _tell(self, event: Event) -> None:
        if isinstance(event, Paused):
            log.warning("%s: %s; next attempt in %g s", event.queue, event.reason, event.seconds)
        with self._telling:
            self._on_event(event)


def in_steps(routes: Sequence[Route], once: bool, summary: Summary) -> Iterator[list[Route]]:
    """Yield lists of routes that run at the same time. Without ``once``, one list has all routes. With ``once``, each
    list has the routes of one step.

    If a route stopped at a full queue and other routes have moved messages since then, the queue may have room now. The
    steps are then repeated, without the routes whose services were not reached.
    """
    if not once:
        yield list(routes)
        return
    while True:
        before = summary.moved
        for step in sorted({route.step for route in routes}):
            yield [
                route
                for route in routes
                if route.step == step and (route.queue not in summary.down or route.queue in summary.full)
            ]
        others = [queue for queue in summary.moved if queue not in summary.full]
        if not (summary.full and any(summary.moved[queue] > before.get(queue, 0) for queue in others)):
            return
