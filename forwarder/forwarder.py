"""Forward queues to services in rounds. All routes use one Spark session, but run independently."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import spool
from forwarder.events import Event
from forwarder.result import Summary
from forwarder.round import Route, TaskDied
from forwarder.routes.arguments import check_routes
from forwarder.routes.base import BaseForwarder
from forwarder.routes.loop import RouteLoop
from forwarder.routes.workers import check_workers
from forwarder.services import Service
from forwarder.session import SparkUnavailable, is_local, start, stop, warm_up, with_places
from forwarder.task import Chunk, TaskResult, run
from forwarder.web.endpoint import Endpoint
from spool import open as open_space
from spool.model.text import one_line
from spool.workers.effects import OnFailure

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from forwarder.web.offers import OfferServer

_STOPPED = "Spark was stopped: start the forwarder again"

# The prefix that Spark adds to the error of a lost task: the place of the task, and the class of the exception.
_LOST_TASK = re.compile(r"^.*Lost task .*?\): (?:[\w$]+\.)*[\w$]+: ")


class _StoppedEarly(BaseException):
    """Raised if the forwarder is stopped while Spark starts. No call is in progress, so the run ends at once."""


class Forwarder(BaseForwarder):
    """Take messages from queues and call a service for each message.

    Example: ``Forwarder(path, routes={"orders": "http://…"})``.

    Args:
        path: the directory of the space.
        routes: for each queue, a ``Service`` or the URL of a service (``python:module:function``, ``http(s)://…``,
            ``queue:name``); or a sequence of ``Route`` objects. A ``Route`` has its own options, so `on_failure`,
            `timeout`, `threads` and `pause_after` are refused together with ``Route`` objects.
        spark: the session to use; without one, `run` starts a session on `master` and stops it at the end.
        endpoint: the address at which workers of a cluster get their messages if they do not see the space. Without an
            endpoint, each worker has to run on the space's machine.
        conf: Spark's settings for the session that `run` starts, by name: ``{"spark.cores.max": "8"}``.
        on_failure: the effect of a final failure of a service. "reject", the default: the message has failed for good.
            "delete": the message has also failed for good, but it is deleted if the failure queue gets the service's
            reply. "retry": the failure counts as one of the message's attempts.
        timeout: the longest time of a call in seconds, for services that are given as URLs. The default is 30.
        threads: the largest number of concurrent calls in each task. The option applies to services that are given as
            URLs and allow concurrent calls. The default depends on the kind of service.
        pause_after: how many messages fail one after another, with the same kind of failure, before a route pauses, as
            for ``Space.work``; 0: any number. The default is 10.
        idle: the longest time in seconds that `run` waits for a message to forward. `run` then ends. None means no
            limit.
        on_event: called with each event (``forwarder.Event``), e.g. a round, a pause, the end. Any thread may call the
            function, but only one thread at a time. The function must not wait for the forwarder.
        say: called with a few words about each step; without this function, the words are logged.

    is_held: whether a worker, e.g. after a network failure, still had a call to the endpoint ten seconds after the run.
        In this case, the interpreter does not end by itself: end the process with ``os._exit``.

    Raises:
        ServiceError: a route is wrong, so it cannot work.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str | Service] | Sequence[Route],
        spark: "SparkSession | None" = None,
        *,
        master: str = "local[*]",
        endpoint: Endpoint | None = None,
        conf: Mapping[str, str] | None = None,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
        threads: int | None = None,
        pause_after: int | None = None,
        idle: float | None = None,
        on_event: Callable[[Event], object] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(
            path,
            routes,
            on_failure=on_failure,
            timeout=timeout,
            threads=threads,
            pause_after=pause_after,
            idle=idle,
            on_event=on_event,
            say=say,
        )
        self._spark = spark
        self._master = master
        self._endpoint = endpoint
        self.is_held = False
        self._conf = dict(conf or {})
        self._is_starting = False

    def run(self, once: bool = False) -> Summary:
        """Forward messages until `stop` is called; return a summary.

        An error that ends one route ends all routes. The summary contains the error.

        Args:
            once: end when this run has made an attempt for every message that can be forwarded now.

        Raises:
            SparkUnavailable: Spark cannot be started.
            InvalidArgument: the certificate of the endpoint, or its key, cannot be read.
            OSError: the endpoint cannot listen.
        """
        with open_space(self.path) as space, self._listening() as server:
            check_routes(space, self.routes)
            try:
                spark = self._start(server)
            except _StoppedEarly:
                return self.summary
            try:
                self._forward(space, once, partial(self._loop, spark.sparkContext, server))
            finally:
                if self._spark is None:
                    stop(spark)
        return self.summary

    @contextmanager
    def _listening(self) -> "Iterator[OfferServer | None]":
        """Listen at the endpoint during the block."""
        if self._endpoint is None:
            yield None
            return
        try:
            from forwarder.web.offers import OfferServer
        except ImportError as error:
            raise SparkUnavailable(
                f"an endpoint needs more packages ({error}): pip install './xaspool[spark]'"
            ) from None
        server = OfferServer(self._endpoint)
        try:
            yield server
        finally:
            self.is_held = not server.close()

    def stop(self) -> None:
        """Let `run` finish the calls in progress, commit their outcomes and return.

        `run` returns no later than the duration of a round plus the timeout of one call. Other threads and signal
        handlers may call this method. A signal handler's call also ends the start of Spark.
        """
        if not self._is_stopping:
            super().stop()
            if self._is_starting and threading.current_thread() is threading.main_thread():
                raise _StoppedEarly

    def _start(self, server: "OfferServer | None") -> "SparkSession":
        def java_is_up() -> None:
            self._is_starting = True
            if self._is_stopping:
                raise _StoppedEarly

        try:
            if self._is_stopping:
                raise _StoppedEarly
            master = with_places(self._master, len(self.routes) - 1)
            spark = self._spark or start(master, progress=self._say, java_is_up=java_is_up, conf=self._conf)
            java_is_up()
            try:
                if not is_local(str(spark.sparkContext.master)):
                    connection = None if server is None else server.connection
                    check_workers(spark, self.path, [route.service for route in self.routes], self._say, connection)
                elif self._spark is None:
                    warm_up(spark)
            except BaseException:
                if self._spark is None:
                    stop(spark)
                raise
            return spark
        finally:
            self._is_starting = False

    def _loop(self, context: "SparkContext", server: "OfferServer | None", **options: Any) -> RouteLoop:
        def tasks() -> int:  # (not cached: workers of a cluster change; each other route gets one task)
            with _asking_java(context):
                return max(1, context.defaultParallelism - (len(self.routes) - 1))

        def job(chunks: list[Chunk]) -> list[TaskResult]:
            if server is None:
                return spark_job(context, chunks, tasks())
            with server.offering(chunks) as offered:
                return spark_job(context, offered, tasks())

        return RouteLoop(job=job, tasks=tasks, **options)


def spark_job(context: "SparkContext", chunks: list[Chunk], tasks: int) -> list[TaskResult]:
    """Run the chunks in one Spark job with at most `tasks` tasks.

    Raises:
        TaskDied: a task died with its worker.
        SparkUnavailable: Spark or its Java has ended.
    """
    with _asking_java(context):
        partitions = [chunks[place::tasks] for place in range(min(tasks, len(chunks)))]
        work = context.parallelize(partitions, len(partitions))
        return work.mapPartitions(partial(run, spool.__version__)).collect()


@contextmanager
def _asking_java(context: "SparkContext") -> Iterator[None]:
    """During the block, convert errors of Java and of the connection to Java into the errors of ``spark_job``."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        if context._jsc is None or context._jsc.sc().isStopped():
            raise SparkUnavailable(_STOPPED) from None
        raise TaskDied(_cause(error)) from None
    except (Py4JError, OSError) as error:
        raise SparkUnavailable(f"Spark's Java has ended ({error}): start the forwarder again") from None
    except AttributeError:  # another thread of this program has stopped the context
        if context._jsc is not None:
            raise
        raise SparkUnavailable(_STOPPED) from None


def _cause(error: Any) -> str:
    """Return the text of a Java exception that reports a lost task, as one line."""
    text = str(error.java_exception.getMessage() or "") if error.java_exception is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if "Lost task" in line), lines[0] if lines else "a Spark job failed")
    return one_line(_LOST_TASK.sub("", line).partition(" Consider setting")[0])
