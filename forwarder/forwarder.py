"""Forward queues to services, in rounds: each route goes on by itself, all on one Spark session."""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os.path import samefile
from typing import TYPE_CHECKING, Any

from forwarder.events import Begun, Event, Paused, Stopping
from forwarder.round import RoundResult, Route, TaskDied, count_calls_in_progress
from forwarder.routes.loop import RouteLoop
from forwarder.routes.pace import IdleTime
from forwarder.routes.workers import check_workers
from forwarder.services import (
    MissingQueue,
    OtherSpaceService,
    QueueService,
    Service,
    ServiceError,
    check_sendable,
    parse,
)
from forwarder.session import SparkUnavailable, is_local, start, stop, warm_up, with_places
from forwarder.summary import Summary, left_in
from forwarder.task import Block, Chunk, run
from spool.errors import InvalidArgument, SpoolError
from spool.model.checks import ValueCheck, check, seconds
from spool.model.position import Position
from spool.opening import open as open_space
from spool.space import Space
from spool.workers.effects import OnFailure
from spool.workers.outcome import one_line
from spool.workers.worker import AT_ONCE

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("spool.forwarder")


def _above_zero(value: object) -> float:
    if found := seconds(value, 1e10):
        return found
    raise ValueError


_SECONDS = ValueCheck("a number of seconds above 0", _above_zero)
_ON_FAILURE = ValueCheck("reject, delete or retry", ("reject", "delete", "retry").index)
_STOPPED = "Spark was stopped: start the forwarder again"

# What Spark writes before the message of a lost task: where it ran, and the class of the exception.
_LOST_TASK = re.compile(r"^.*Lost task .*?\): (?:[\w$]+\.)*[\w$]+: ")


class _Stopped(BaseException):
    """Raised by a signal handler while Spark starts: no call is running that has to finish."""


class Forwarder:
    """Take messages from queues and call a service for each: ``Forwarder(path, routes={"orders": "http://…"})``.

    Args:
        path: the directory of the space.
        routes: the URL of a service (``python:module:function``, ``http(s)://…``, ``queue:name``), or a ``Service``,
            for each queue; or routes as they are made of them.
        spark: the session to use; without it, one is started on `master` and stopped at the end.
        conf: settings of Spark's for that session, by name: ``{"spark.cores.max": "8"}``.
        on_failure: what a final failure of a service means: "reject" (final), "delete" (the same, but the message is
            deleted if the failure queue has the service's reply) or "retry" (one of the message's tries).
        timeout: the seconds that a call may take, of services that are named by URLs.
        threads: how many calls each task has under way at a time, of those that allow several; None for as many as
            suit their kind.
        idle: the seconds after which `run` ends if there was no message to forward; None for never.
        on_event: called with what happens (``forwarder.Event``): rounds, pauses, the end. One call at a time, from any
            thread; it must not wait for the forwarder.
        say: called with a few words about what is being done; without it, they are logged.

    Raises:
        ServiceError: a route cannot work as it is written.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str | Service] | Sequence[Route],
        spark: "SparkSession | None" = None,
        *,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        on_failure: OnFailure = "reject",
        timeout: float = 30.0,
        threads: int | None = None,
        idle: float | None = None,
        on_event: Callable[[Event], object] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        check_idle(idle)
        self.path = path
        self.routes = as_routes(routes, on_failure=on_failure, timeout=timeout, threads=threads)
        self.summary = Summary()
        self._spark = spark
        self._master = master
        self._conf = dict(conf or {})
        self._on_event = on_event or (lambda event: None)
        self._say = say or log.info
        self._idle = idle
        self._idle_time = IdleTime(None, 0.0)
        self._stop = threading.Event()
        self._stopping: Stopping | None = None
        self._is_stopping = self._is_starting = False
        self._end: Callable[[], object] | None = None
        self._mutex, self._telling = threading.Lock(), threading.Lock()
        self._in_progress: dict[str, list[Chunk]] = {}
        self._loops: list[RouteLoop] = []
        self._tried: dict[str, set[Position]] = {route.queue: set() for route in self.routes}

    def run(self, once: bool = False) -> Summary:
        """Forward until `stop` is called, and return what was done.

        An error that ends one route is in the summary, and ends all routes.

        Args:
            once: end when every message that can be forwarded now was tried in this run.

        Raises:
            SparkUnavailable: Spark cannot be started.
        """
        with open_space(self.path) as space:
            check_routes(space, self.routes)
            try:
                spark = self._start()
            except _Stopped:
                return self.summary
            try:
                self._say("forwarding")
                self._tell(Begun([route.queue for route in self.routes]))
                self._idle_time = IdleTime(self._idle, space.engine.store.clock.monotonic())
                for routes in in_steps(self.routes, once):
                    if not self._stop.is_set():
                        self._run_routes(space, spark, routes, once)
            finally:
                if self._spark is None:
                    stop(spark)
            if once:
                self._count_left(space)
        return self.summary

    def stop(self) -> None:
        """Have `run` finish the calls in progress, commit them and return.

        It takes at most the seconds of a round and one call's timeout. May be called from another thread and from a
        signal handler; in a handler, it also ends the start of Spark.
        """
        if not self._is_stopping:  # a second signal may interrupt the first one's handler, which holds the event's lock
            self._is_stopping = True
            self._stop_because("it was asked to")
            if self._is_starting and threading.current_thread() is threading.main_thread():
                raise _Stopped

    def abandon(self, end: Callable[[], object]) -> None:
        """Have `run` call `end`, which ends the process, without waiting for the calls in progress.

        Each of these calls counts as a try of its message; nothing else of their rounds is committed. For signal
        handlers. If no call is in progress, `end` is called at once.
        """
        if not self._in_progress:
            end()
        self._end = end

    def _start(self) -> "SparkSession":
        def java_is_up() -> None:
            self._is_starting = True
            if self._is_stopping:
                raise _Stopped

        try:
            if self._is_stopping:
                raise _Stopped
            master = with_places(self._master, len(self.routes) - 1)
            spark = self._spark or start(master, progress=self._say, java_is_up=java_is_up, conf=self._conf)
            java_is_up()
            try:
                if not is_local(str(spark.sparkContext.master)):
                    check_workers(spark, self.path, [route.service for route in self.routes], self._say)
                elif self._spark is None:
                    warm_up(spark)
            except BaseException:
                if self._spark is None:
                    stop(spark)
                raise
            return spark
        finally:
            self._is_starting = False

    def _count_left(self, space: Space) -> None:
        with suppress(SpoolError, OSError):  # then the summary has that error already
            for queue, tried in self._tried.items():
                if left := left_in(space, queue, tried):
                    self.summary.left[queue] = left

    def _run_routes(self, space: Space, spark: "SparkSession", routes: list[Route], once: bool) -> None:
        self._loops = [self._loop(space, spark.sparkContext, route, once) for route in routes]
        threads = [
            threading.Thread(target=self._run_route, args=(loop, route.queue), name=route.queue)
            for loop, route in zip(self._loops, routes, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            self._join(threads, space)
        except BaseException:  # Ctrl-C in a program without a handler that calls ``stop``
            self.stop()
            self._join(threads, space)
            raise

    def _join(self, threads: list[threading.Thread], space: Space) -> None:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # short: between two joins, signal handlers run in this, the main thread
                self._tell_of_the_end()
                if self._end is not None:
                    for chunks in list(self._in_progress.values()):
                        count_calls_in_progress(space, chunks)
                    self._end()

    def _tell_of_the_end(self) -> None:
        """Tell once, and not in a signal handler, that the forwarder is stopping."""
        stopping, self._stopping = self._stopping, None
        if stopping is not None:
            self._tell(stopping)

    def _loop(self, space: Space, context: "SparkContext", route: Route, once: bool) -> RouteLoop:
        def tasks() -> int:  # (workers of a cluster come and go; each other route finds one place free at any time)
            with _asking_java(context):
                return max(1, context.defaultParallelism - (len(self.routes) - 1))

        clock = space.engine.store.clock

        def job(chunks: list[Chunk]) -> list[Block]:
            if self._stop.is_set():  # also after a task died: its messages are not given to a task again
                return []
            self._in_progress[route.queue] = chunks
            try:
                return spark_job(context, chunks, tasks())
            finally:
                del self._in_progress[route.queue]

        def count(queue: str, result: RoundResult) -> None:
            with self._mutex:
                self.summary.add(queue, result)
                is_busy = any(loop.is_busy for loop in self._loops)
                if self._idle_time.is_over(clock.monotonic(), result.messages, is_busy) and not self._stop.is_set():
                    reason = f"no message for {self._idle_time.limit:g} s"
                    self._say(reason)
                    self._stop_because(reason)

        return RouteLoop(
            space, route, job, tasks=tasks, once=once, stop=self._stop, tried=self._tried[route.queue], count=count,
            tell=self._tell,
        )  # fmt: skip

    def _run_route(self, loop: RouteLoop, queue: str) -> None:
        try:
            loop.run()
        except (SpoolError, SparkUnavailable, OSError) as error:
            self._fail(f"{queue}: {error}")
        except Exception as error:  # a defect of the forwarder: the other routes end too, so that it is noticed
            log.exception("the route of queue %s ended", queue)
            self._fail(f"{queue}: {type(error).__name__}: {error}")

    def _fail(self, error: str) -> None:
        with self._mutex:
            self.summary.errors.append(error)
        self._stop_because(error)

    def _stop_because(self, reason: str) -> None:
        if not self._stop.is_set():
            self._stopping = Stopping(reason)
            self._stop.set()

    def _tell(self, event: Event) -> None:
        if isinstance(event, Paused):
            log.warning("%s: %s; next try in %g s", event.queue, event.reason, event.seconds)
        with self._telling:
            self._on_event(event)


def as_routes(
    given: Mapping[str, str | Service] | Sequence[Route],
    *,
    on_failure: OnFailure = "reject",
    timeout: float = 30.0,
    threads: int | None = None,
) -> list[Route]:
    """Return routes that are given as ``Forwarder`` takes them. Arguments and errors as there."""
    _check("on_failure", on_failure, _ON_FAILURE)
    _check("timeout", timeout, _SECONDS)
    if threads is not None:
        _check("threads", threads, AT_ONCE)
    if isinstance(given, Mapping):
        services = {
            queue: parse(service, timeout=timeout, threads=threads) if isinstance(service, str) else service
            for queue, service in given.items()
        }
        given = [Route(queue, service, on_failure) for queue, service in services.items()]
    if not given:
        raise ServiceError("there is nothing to forward: give a route, QUEUE=SERVICE")
    queues = [route.queue for route in given]
    for queue in queues:
        if queues.count(queue) > 1:
            raise ServiceError(f"the queue {queue} has two routes: give it one")
    return list(given)


def check_idle(idle: float | None) -> None:
    """Raise ServiceError unless a forwarder may end after so many seconds without a message; None: it does not end."""
    if idle is not None:
        _check("idle", idle, _SECONDS)


def _check(name: str, value: object, of: ValueCheck) -> None:
    try:
        check(name, value, of)
    except InvalidArgument as error:
        raise ServiceError(str(error)) from None


def check_routes(space: Space, routes: Sequence[Route], *, sent: bool = True) -> None:
    """Refuse routes that cannot work, before a message is taken. ``sent``: services are sent to other processes.

    Raises:
        MissingQueue: a queue that a route names is not there.
        ServiceError: a service cannot be used, or messages would go round.
    """
    queues = space.queues()
    for route in routes:
        if route.queue not in queues:
            raise MissingQueue(f"there is no queue {route.queue!r} in {space.path}: create it, or correct the route")
        if sent:
            check_sendable(route.service)
        route.service.check()
        if isinstance(route.service, OtherSpaceService) and samefile(route.service.path, space.path):
            queue = route.service.queue
            raise ServiceError(f"{route.service.path} is the forwarder's own space: write queue:{queue}")
        into = [route.service.queue] if isinstance(route.service, QueueService) else route.into
        for target in into:
            if target not in queues:
                raise MissingQueue(f"there is no queue {target!r} to forward {route.queue} to: create it")
    _check_cycles(routes)


def _check_cycles(routes: Sequence[Route]) -> None:
    """Refuse routes that pass messages from queue to queue in a cycle: they would never end."""
    moves = [(route.queue, route.service) for route in routes]
    passed_to = {queue: service.queue for queue, service in moves if isinstance(service, QueueService)}
    for first in passed_to:
        path = [first]
        while (queue := passed_to.get(path[-1])) is not None and queue not in path:
            path.append(queue)
        if queue == first:
            through = f" (by way of {', '.join(path[1:])})" if path[1:] else ""
            raise ServiceError(f"the queue {first!r} cannot be forwarded to itself{through}: name another")


def in_steps(routes: Sequence[Route], once: bool) -> list[list[Route]]:
    """Return the routes that run side by side: all; with ``once``, those of one step, then those of the next."""
    if not once:
        return [list(routes)]
    steps = sorted({route.step for route in routes})
    return [[route for route in routes if route.step == step] for step in steps]


def spark_job(context: "SparkContext", chunks: list[Chunk], tasks: int) -> list[Block]:
    """Run chunks in one Spark job, of so many tasks at most.

    Raises:
        TaskDied: a task died with its worker.
        SparkUnavailable: Spark or its Java has ended.
    """
    with _asking_java(context):
        partitions = [chunks[place::tasks] for place in range(min(tasks, len(chunks)))]
        return context.parallelize(partitions, len(partitions)).mapPartitions(run).collect()


@contextmanager
def _asking_java(context: "SparkContext") -> Iterator[None]:
    """Raise what goes wrong between Python and Java in the block as ``spark_job`` does."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        if context._jsc is None or context._jsc.sc().isStopped():
            raise SparkUnavailable(_STOPPED) from None
        raise TaskDied(_cause(error)) from None
    except (Py4JError, OSError) as error:
        raise SparkUnavailable(f"Spark's Java has ended ({error}): start the forwarder again") from None
    except AttributeError:  # of the context, which another thread of this program has stopped
        if context._jsc is not None:
            raise
        raise SparkUnavailable(_STOPPED) from None


def _cause(error: Any) -> str:
    """Return what a Java exception says of a lost task, in one line."""
    text = str(error.java_exception.getMessage() or "") if error.java_exception is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if "Lost task" in line), lines[0] if lines else "a Spark job failed")
    return one_line(_LOST_TASK.sub("", line).partition(" Consider setting")[0])
