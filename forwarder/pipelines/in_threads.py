"""Forward queues to services in threads of this process: the same routes as a ``Forwarder``, without Spark and Java.

Each message has a transaction of its own, so that a call that hangs can be given up alone, and a call that ends the
process counts as a try of its own message alone. A round could tell neither in one process.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial

from forwarder.calls import threads_of
from forwarder.events import Begun, Done, Down, Event, Paused, Stopping, Up
from forwarder.forwarder import as_routes, check_idle, check_routes, in_steps
from forwarder.round import RoundResult, Route, is_named_by_it_alone, room_of
from forwarder.routes.pace import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, IdleTime
from forwarder.services import Caller, Request, Service
from forwarder.summary import Summary, left_in
from forwarder.task import IN_A_QUEUE, Block
from spool.errors import Full, SpoolError
from spool.model.message import Message
from spool.model.position import Position
from spool.opening import open as open_space
from spool.space import Space
from spool.transactions.delivery import stored_body
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Retried
from spool.workers.worker import Handled, Worker

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
        check_idle(idle)
        self.path = path
        self.routes = as_routes(routes)
        self.summary = Summary()
        self._idle = idle
        self._idle_time = IdleTime(None, 0.0)
        self._on_event = on_event or (lambda event: None)
        self._say = say or log.info
        self._stop = threading.Event()
        self._is_stopping = False
        self._end: Callable[[], object] | None = None
        self._loops: list[ThreadLoop] = []
        self._tried: dict[str, set[Position]] = {route.queue: set() for route in self.routes}
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
            self._idle_time = IdleTime(self._idle, time.monotonic())
            for routes in in_steps(self.routes, once):
                if not self._is_stopping:
                    self._run_routes(space, routes, once)
            if once:
                self._count_left(space)
        return self.summary

    def stop(self) -> None:
        """Have ``run`` finish the calls in progress, commit them and return. For other threads and signal handlers."""
        self._is_stopping = True  # (the event's lock may be held by what a signal handler interrupts)

    def abandon(self, end: Callable[[], object]) -> None:
        """Have ``run`` give up the calls in progress, which counts as a try, and call ``end``. For signal handlers.

        If no call is in progress, ``end`` is called at once.
        """
        self.stop()
        if not any(loop.is_calling for loop in self._loops):
            end()
        self._end = end

    def _count_left(self, space: Space) -> None:
        with suppress(SpoolError, OSError):  # then the summary has that error already
            for queue, tried in self._tried.items():
                if left := left_in(space, queue, tried):
                    self.summary.left[queue] = left

    def _run_routes(self, space: Space, routes: list[Route], once: bool) -> None:
        self._loops = [
            ThreadLoop(space, route, once=once, stop=self._stop, count=self._count, tell=self._tell) for route in routes
        ]
        threads = [
            threading.Thread(target=self._run_route, args=(loop, route.queue), name=route.queue)
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
                thread.join(0.2)  # short: between two joins, signal handlers run in this, the main thread
                with self._mutex:
                    self._end_if_idle(0)
                if self._is_stopping:
                    self._stop_because("it was asked to")
                if self._end is not None:
                    for loop in self._loops:
                        loop.give_up()
                    self._end()

    def _run_route(self, loop: "ThreadLoop", queue: str) -> None:
        try:
            loop.run()
        except (SpoolError, OSError) as error:
            self._fail(f"{queue}: {error}")
        except Exception as error:  # a defect: the other routes end too, so that it is noticed
            log.exception("the route of queue %s ended", queue)
            self._fail(f"{queue}: {type(error).__name__}: {error}")

    def _count(self, queue: str, result: RoundResult) -> None:
        with self._mutex:
            self.summary.add(queue, result)
            self._tried[queue].update(result.tried)
            self._end_if_idle(result.messages)

    def _end_if_idle(self, messages: int) -> None:
        is_busy = any(loop.is_busy for loop in self._loops)
        if self._idle_time.is_over(time.monotonic(), messages, is_busy) and not self._stop.is_set():
            self._say(reason := f"no message for {self._idle_time.limit:g} s")
            self._stop_because(reason)

    def _tell(self, event: Event) -> None:
        with self._telling:
            self._on_event(event)

    def _stop_because(self, reason: str) -> None:
        if not self._stop.is_set():
            self._is_stopping = True
            self._stop.set()
            self._tell(Stopping(reason))

    def _fail(self, error: str) -> None:
        with self._mutex:
            self.summary.errors.append(error)
        self._stop_because(error)


class ThreadLoop:
    """Calls the service of one route in threads until it is stopped or, with `once`, each message was tried.

    Args:
        stop: no call begins when it is set.
        count: called with what each message came to, when it is committed; and, when the calls have ended because the
            service was not reached, with the messages that were kept for that.
        tell: called with what happens.
    """

    def __init__(
        self,
        space: Space,
        route: Route,
        *,
        once: bool,
        stop: threading.Event,
        count: Callable[[str, RoundResult], object],
        tell: Callable[[Event], object],
    ) -> None:
        self._space, self._route = space, route
        self._once, self._stop = once, stop
        self._count, self._tell = count, tell
        self._worker: Worker
        self._under_way: set[Position] = set()
        self._kept = RoundResult()  # the messages for which the service was not reached, since the last pause
        self._next_pause = FIRST_PAUSE_SECONDS
        self._down_since: float | None = None
        self._is_paused = False

    @property
    def is_calling(self) -> bool:
        """Whether a call, or the commit behind one, is in progress."""
        return bool(self._under_way)

    @property
    def is_busy(self) -> bool:
        """Whether it is calling, or pauses because it is down."""
        return self.is_calling or self._is_paused

    def run(self) -> None:
        """Call the service, and pause when it is not reached."""
        with closing(self._route.service.open()) as caller:
            while not self._stop.is_set():
                self._work(caller)
                if self._once:
                    return
                self._pause()

    def give_up(self) -> None:
        """Give up the calls in progress: each counts as a try of its message."""
        if self.is_calling:
            self._worker.end()

    def _work(self, caller: Caller) -> None:
        """Call the service with one message after the other until it is not reached."""
        self._kept, self._under_way = RoundResult(), set()
        call, service = partial(self._call, caller), self._route.service
        self._worker = Worker(
            self._space, self._route.queue, call, threads=threads_of(service), once=self._once,
            timeout=service.watched, stop=self._stop, on_handled=self._note, on_unreadable=call,
            on_failure=self._route.on_failure, on_full=self._is_no_try,
        )  # fmt: skip
        try:
            self._worker.run()
        finally:
            if self._kept.messages:
                self._count(self._route.queue, self._kept)
        if self._kept.down and self._down_since is None:
            self._down_since = time.monotonic()
            self._tell(Down(self._route.queue, self._kept.down))

    def _call(self, caller: Caller, message: Message, unreadable: str = "") -> Outcome:
        self._under_way.add(message.position)
        store = self._space.engine.store
        with store.guard:
            _, full = room_of(store, self._route)
            raw = stored_body(store, message)
        outcome = Retried("", counted=False) if full else caller(Request(message, raw, unreadable))
        if isinstance(outcome, Retried) and not outcome.counted and message.position in self._under_way:
            self._kept.full, self._kept.retry_after = full or self._kept.full, outcome.delay
            self._worker.stop()  # before the message is free again, or another thread would call with it
        return outcome

    def _is_no_try(self, message: Message, full: Full) -> bool:
        """End the calls, because there is no room for what a message causes; unless that is a matter of it alone."""
        config = self._space.queues().get(self._route.queue)
        if is_named_by_it_alone(full.queue, {message.reply_queue, message.failure_queue}, self._route, config):
            return False
        self._kept.full = str(full)
        self._worker.stop()
        return True

    def _note(self, handled: Handled) -> None:
        """Note what became of a message. The worker calls it in one thread at a time."""
        effect, queue = handled.effect, self._route.queue
        block = Block(tried=[handled.position] if effect in IN_A_QUEUE else [])
        block.count(effect, "" if effect is Effect.KEPT and self._kept.full else handled.reason)
        self._tell(Done(queue, "", block.effects, handled.seconds))
        if effect is Effect.KEPT:
            self._kept.add(block)
        else:
            result = RoundResult()
            result.add(block)
            self._count(queue, result)
            self._next_pause = FIRST_PAUSE_SECONDS
            if self._down_since is not None:
                self._tell(Up(queue, time.monotonic() - self._down_since))
                self._down_since = None
        self._under_way.discard(handled.position)

    def _pause(self) -> None:
        if not self._kept.down or self._stop.is_set():
            return
        queue, down = self._route.queue, self._kept.down
        seconds = max(self._next_pause, self._kept.retry_after or 0.0)
        self._next_pause = min(self._next_pause * 2, LONGEST_PAUSE_SECONDS)
        self._is_paused = True
        log.warning("%s: %s; next try in %g s", queue, down, seconds)
        self._tell(Paused(queue, down, seconds))
        self._stop.wait(seconds)
        self._is_paused = False
