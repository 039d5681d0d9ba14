"""The forwarder: rounds, one after the other on each route, side by side across routes, on one Spark session."""

import logging
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forwarder.round import RoundResult, Route, TaskDied, count_in_hand, run_round
from forwarder.services import MissingQueue, QueueService, ServiceError, parse
from forwarder.session import SparkUnavailable, start, stop, warm_up
from forwarder.summary import Summary, left_in
from forwarder.task import Block, Chunk, run
from spool.errors import SpoolError
from spool.model.message import Position
from spool.model.outcome import one_line
from spool.opening import open as open_space
from spool.space import Space

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("spool.forwarder")

_ROUND_SECONDS = 2.0
_FIRST_ROUND_MESSAGES, _MOST_ROUND_MESSAGES = 128, 8192
_LISTEN_SECONDS = 0.5
# Failed messages that a run with ``once`` remembers for each queue; with more of them it leaves the rest.
_MOST_TRIED = 1_000_000
# Where a lost task ran, and the class of what it died of.
_LOST_TASK = re.compile(r"^.*Lost task .*?\): (?:[\w$]+\.)*[\w$]+: ")
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


class _Stopped(BaseException):
    """Raised by the handler of a signal while Spark starts: there is nothing to finish."""


class Forwarder:
    """Takes messages from queues and calls a service for each: ``Forwarder(path, routes={"orders": "http://…"})``.

    ``routes``: queue → service URL (``python:module:function``, ``http(s)://…``, ``queue:name``). ``spark``: a session
    of your own; without it one is started on ``master``. ``on_failure``: what a final failure of a service means,
    "reject" (final) or "retry" (a try like others). ``timeout``: seconds that a call may take. ``progress``: called
    with (queue, RoundResult) after each round. ``say``: told in words what takes long. ServiceError if a route cannot
    work as it is.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str],
        spark: "SparkSession | None" = None,
        *,
        master: str = "local[*]",
        on_failure: str = "reject",
        timeout: float = 30.0,
        progress: Callable[[str, RoundResult], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if on_failure not in ("reject", "retry"):
            raise ServiceError(f"on_failure is reject or retry, not {on_failure!r}")
        if not routes:
            raise ServiceError("there is nothing to forward: give a route, QUEUE=SERVICE")
        self.path = path
        self.routes = [Route(queue, parse(url, timeout=timeout), on_failure) for queue, url in routes.items()]
        self.summary = Summary()
        self._spark = spark
        self._master = master
        self._progress = progress
        self._say = say or log.info
        self._stop = threading.Event()
        self._is_stopping = self._is_starting = False
        self._end: Callable[[], object] | None = None
        self._mutex = threading.Lock()
        self._under_way: dict[str, list[Chunk]] = {}
        self._tried: dict[str, set[Position]] = {route.queue: set() for route in self.routes}

    def run(self, once: bool = False) -> Summary:
        """Forward until ``stop`` is called; ``once``: until nothing is left that can be forwarded now and was not tried
        in this run.

        SparkUnavailable if there is no Spark; what ends a single route is in the summary, and ends all.
        """
        with open_space(self.path) as space:
            self._check(space)
            try:
                spark = self._spark or self._start()
            except _Stopped:
                return self.summary
            try:
                self._say("forwarding")
                self._run_routes(space, spark, once)
            finally:
                if self._spark is None:
                    stop(spark)
            if once:
                self._count_left(space)
        return self.summary

    def stop(self) -> None:
        """Let the calls that are under way finish, commit, then return from ``run``: within a round's seconds and one
        call's timeout. For signal handlers, which end the start of Spark by it, and other threads."""
        if not self._is_stopping:  # a second signal may come while the first one's handler holds the event's lock
            self._is_stopping = True
            self._stop.set()
            if self._is_starting and threading.current_thread() is threading.main_thread():
                raise _Stopped

    def abandon(self, end: Callable[[], object]) -> None:
        """Have ``run`` call ``end``, which ends the process, without waiting for the calls that are under way. They are
        tries of their messages; nothing else of their rounds happened. For signal handlers: without such calls, ``end``
        is called here."""
        if not self._under_way:
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
            spark = start(self._master, progress=self._say, java_is_up=java_is_up)
            try:
                warm_up(spark)
            except BaseException:
                stop(spark)
                raise
            return spark
        finally:
            self._is_starting = False

    def _check(self, space: Space) -> None:
        """Everything about the routes that can be known before a message is taken."""
        queues = space.queues()
        for route in self.routes:
            if route.queue not in queues:
                raise MissingQueue(f"there is no queue {route.queue!r} in {self.path}: create it, or correct the route")
            route.service.check()
            if isinstance(route.service, QueueService) and (target := route.service.queue) not in queues:
                raise MissingQueue(f"there is no queue {target!r} to forward {route.queue} to: create it")
        self._check_circles()

    def _check_circles(self) -> None:
        """Messages that go from queue to queue in a circle would go for ever."""
        moves = [(route.queue, route.service) for route in self.routes]
        passed_to = {queue: service.queue for queue, service in moves if isinstance(service, QueueService)}
        for first in passed_to:
            way = [first]
            while (queue := passed_to.get(way[-1])) is not None and queue not in way:
                way.append(queue)
            if queue == first:
                through = f" (by way of {', '.join(way[1:])})" if way[1:] else ""
                raise ServiceError(f"the queue {first!r} cannot be forwarded to itself{through}: name another")

    def _count_left(self, space: Space) -> None:
        with suppress(SpoolError, OSError):  # then it is among the errors already
            for queue, tried in self._tried.items():
                if left := left_in(space, queue, tried):
                    self.summary.left[queue] = left

    def _run_routes(self, space: Space, spark: "SparkSession", once: bool) -> None:
        threads = [
            threading.Thread(target=self._run_route, args=(space, spark.sparkContext, route, once), name=route.queue)
            for route in self.routes
        ]
        for thread in threads:
            thread.start()
        try:
            self._join(threads, space)
        except BaseException:  # Ctrl-C, where no handler calls ``stop``
            self.stop()
            self._join(threads, space)
            raise

    def _join(self, threads: list[threading.Thread], space: Space) -> None:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # short, so that a signal's handler runs in this, the main thread
                if self._end is not None:
                    for chunks in list(self._under_way.values()):
                        count_in_hand(space, chunks)
                    self._end()

    def _run_route(self, space: Space, context: "SparkContext", route: Route, once: bool) -> None:
        limit, pause = _FIRST_ROUND_MESSAGES, _FIRST_PAUSE_SECONDS
        try:
            while not self._stop.is_set():
                begun = space.engine.store.clock.monotonic()
                result = self._round(space, context, route, limit, 0.0 if once else _LISTEN_SECONDS)
                if result.full and result.messages > 1:
                    limit = result.messages // 2  # fewer answers may find room
                    continue
                if once:
                    self._tried[route.queue].update(result.tried)
                    if not result.messages or result.down or len(self._tried[route.queue]) > _MOST_TRIED:
                        return
                if result.down:
                    log.warning("%s: %s; next try in %g s", route.queue, result.down, pause)
                    self._stop.wait(max(pause, result.retry_after or 0.0))
                    pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                elif result.messages:
                    pause = _FIRST_PAUSE_SECONDS
                    seconds = space.engine.store.clock.monotonic() - begun
                    limit = next_limit(limit, result.messages, seconds, context.defaultParallelism)
        except (SpoolError, SparkUnavailable, OSError) as error:
            with self._mutex:
                self.summary.errors.append(f"{route.queue}: {error}")
            self._stop.set()
        except Exception as error:  # a defect of ours: the other routes must not run on without anybody noticing
            log.exception("the route of queue %s ended", route.queue)
            with self._mutex:
                self.summary.errors.append(f"{route.queue}: {type(error).__name__}: {error}")
            self._stop.set()

    def _round(self, space: Space, context: "SparkContext", route: Route, limit: int, listen: float) -> RoundResult:
        def job(chunks: list[Chunk]) -> list[Block]:
            if self._stop.is_set():  # also where a task died, and its messages would be given out again
                return []
            self._under_way[route.queue] = chunks
            try:
                return spark_job(context, chunks)
            finally:
                del self._under_way[route.queue]

        tasks = context.defaultParallelism
        result = run_round(space, route, job, limit=limit, tasks=tasks, timeout=listen, passed=self._tried[route.queue])
        with self._mutex:
            self.summary.add(route.queue, result)
            if self._progress is not None and result.messages:
                self._progress(route.queue, result)
        return result


def next_limit(limit: int, messages: int, seconds: float, tasks: int) -> int:
    """How many messages the next round takes: rounds last about two seconds, long enough to pay for themselves and
    short enough that a stop, or a kill, is not a long way from the last commit. However slow the service, all tasks
    have one."""
    if seconds > _ROUND_SECONDS * 2:
        return max(limit // 2, min(limit, tasks))
    return min(limit * 2, _MOST_ROUND_MESSAGES) if seconds < _ROUND_SECONDS / 2 and messages >= limit else limit


def spark_job(context: "SparkContext", chunks: list[Chunk]) -> list[Block]:
    """Each chunk in a task of one Spark job. TaskDied if one died with its worker, SparkUnavailable without Spark."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        return context.parallelize(chunks, len(chunks)).mapPartitions(run).collect()
    except Py4JJavaError as error:
        if context._jsc is None or context._jsc.sc().isStopped():
            raise SparkUnavailable("Spark was stopped: start the forwarder again") from None
        raise TaskDied(_cause(error)) from None
    except (Py4JError, OSError) as error:
        raise SparkUnavailable(f"Spark's Java has ended ({error}): start the forwarder again") from None


def _cause(error: Any) -> str:
    """What a Java stack trace says happened, in one line."""
    text = str(error.java_exception.getMessage() or "") if error.java_exception is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if "Lost task" in line), lines[0] if lines else "a Spark job failed")
    return one_line(_LOST_TASK.sub("", line).partition(" Consider setting")[0])
