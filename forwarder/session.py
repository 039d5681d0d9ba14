"""The Spark session of a forwarder, on this machine or on a cluster.

Starting the session prints nothing. Ending the session also ends Java.

The driver starts Java with a pipe to Java's standard input. Java starts one Python daemon with a pipe of the same kind,
and the daemon forks the workers. Each process ends when its pipe is closed, so no process remains after the driver was
killed. Java runs in a separate session (by setsid). So a signal to the driver's process group, such as Ctrl-C, reaches
neither Java nor the workers, and the calls in progress can be finished.
"""

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forwarder.cores import cores
from forwarder.java import JavaNotFound, find_java
from spool.engine import deferred
from spool.model.text import one_line
from spool.workers.outcome import describe

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

END_SECONDS = 10.0
"""The seconds in which Java may end by itself before it is killed."""

# The path of a socket has at most 107 bytes. Spark's sockets in this directory have names of 42 bytes.
_LONGEST_SOCKET_DIRECTORY = 107 - 1 - 42

# Lines that Java and Spark always print.
_CHATTER = re.compile(r"WARNING:|Picked up |Using Spark|Setting |To adjust |\S+ \S+ WARN ")
# Lines before and between the tracebacks of workers whose job has ended.
_BETWEEN_TRACEBACKS = re.compile(r"PySpark daemon failed to flush|During handling of the above exc|The above exc")
# The prefix of a log line's or an exception's text.
_PROVENANCE = re.compile(r'^(\S+ \S+ ERROR \w+: )?(Exception in thread "[^"]*" )?(([\w$]+\.)+[\w$]+: )?')


class SparkUnavailable(RuntimeError):
    """Spark cannot be used; the message is one line, with the reason and advice."""


def start(
    master: str = "local[*]",
    progress: Callable[[str], None] | None = None,
    java_is_up: Callable[[], None] = lambda: None,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> "SparkSession":
    """Start Java and a Spark session, in 4 to 11 seconds. `stop` ends the session.

    The output of the workers goes to `sys.stderr`. The handler of SIGINT is not changed. One process can have only
    one Spark session at a time.

    Args:
        progress: called with a few words about each step that takes long.
        java_is_up: called when Java runs, after a second or two. From then on, an exception of this function
            or of a signal handler ends the start, and no process remains.
        conf: settings of Spark that replace the defaults of this module.

    Raises:
        SparkUnavailable: Spark cannot be started, or this process has already started Spark.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        java = find_java()
    except ImportError:
        raise SparkUnavailable(
            "Spark is not installed: install xaspool with the extra [spark] (spool-admin docs install), or forward "
            "without Spark (spool-forward --no-spark)"
        ) from None
    except JavaNotFound as error:
        raise SparkUnavailable(str(error)) from None
    if SparkContext._gateway is not None:
        raise SparkUnavailable("this process has started Spark already: pass on its session instead of starting one")
    if progress:
        progress(f"starting Spark on {master}")
    with _environment(environment(master, str(java), os.environ)), _same_interrupt_handler():
        bridge = _Bridge(tempfile.mkdtemp(prefix="spool-spark-"))
        try:
            spark = SparkSession(bridge.connect({**settings(master, bridge.directory), **conf}, java_is_up))
        except BaseException as error:
            message = _java_message(error)  # read before the bridge is closed and Java ends
            bridge.close()
            if not isinstance(error, Exception):
                raise
            reason = message or bridge.complaint() or describe(error)
            raise SparkUnavailable(f"Spark did not start on {master}: {reason}") from None
    bridge.passing_on = True
    return spark


def warm_up(spark: "SparkSession") -> None:
    """Start the Python workers in a second or two, so that the first round need not wait for them.

    Raises `SparkUnavailable` if the workers cannot be started.
    """
    bridge = _Bridge.current
    assert bridge is not None
    bridge.passing_on = False  # if a worker fails, the exception has the reason in one line
    try:
        count = spark.sparkContext.defaultParallelism
        spark.sparkContext.parallelize(range(count), count).foreach(_nothing)
    except Exception as error:
        raise SparkUnavailable(f"Spark's Python workers do not start: {reason_of(error)}") from None
    finally:
        bridge.passing_on = True


def stop(spark: "SparkSession") -> None:
    """Stop the session, and also Java if `start` started the session. A stopped or crashed session is not touched."""
    with suppress(Exception):  # Java may not answer, because it has already ended
        spark.stop()
    if _Bridge.current is not None:
        _Bridge.current.close()


def is_local(master: str) -> bool:
    """Return whether Spark runs its tasks from the driver's own Java, e.g. with the master local or local[4]."""
    return re.match(r"local(\[|$)", master) is not None


def with_places(master: str, more: int) -> str:
    """Return a local master with room for `more` further tasks. Return the master of a cluster unchanged."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)((?:,[^]]*)?)\])?", master)
    if found is None or not more:
        return master
    count, failures = found[1] or "1", found[2] or ""
    return f"local[{(cores() if count == '*' else int(count)) + more}{failures}]"


def settings(master: str, directory: str) -> dict[str, str]:
    """Return Spark's settings. ``directory``: an existing private directory for Spark's files."""
    chosen = {
        "spark.master": master,
        "spark.app.name": "spool-forward",
        # Spark need not log why a task or a job ended, because the failed messages have the reason, without a Java
        # traceback.
        "spark.log.level": "ERROR" if os.environ.get("SPOOL_DEBUG") else "FATAL",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": directory,
        "spark.sql.warehouse.dir": os.path.join(directory, "warehouse"),
        "spark.python.worker.reuse": "true",
        "spark.executorEnv.PYTHONPATH": python_path(),
        "spark.executor.memory": "512m",  # (little memory is enough, because Java handles no bodies)
    }
    if is_local(master):
        temporary = f'"-Djava.io.tmpdir={directory}"'
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            # A job of few messages takes three times as long with TCP as with Unix sockets. The sockets ask for no
            # password, so they have to be in a private directory. A cluster has no such shared directory.
            "spark.python.unix.domain.socket.enabled": str(len(directory) <= _LONGEST_SOCKET_DIRECTORY).lower(),
            "spark.python.unix.domain.socket.dir": directory,
            # Java starts a second sooner without its second compiler. The first compiler is enough, because Java
            # handles no bodies.
            "spark.driver.defaultJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {temporary}",
        }
    return chosen


def environment(master: str, java_home: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables to add to `environ` for the start of Java."""
    # On the machines of a cluster, Python may have another path. The user sets PYSPARK_PYTHON, as for any Spark
    # program.
    python = sys.executable if is_local(master) else environ.get("PYSPARK_PYTHON", sys.executable)
    chosen = {
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path(),
    }
    # Without this variable, Java asks the name service for this machine's address, and fails without an answer.
    return chosen | ({"SPARK_LOCAL_IP": "127.0.0.1"} if is_local(master) else {})


def python_path() -> str:
    """Return the workers' search path for modules: the current directory, then the search path of this process."""
    places = [os.getcwd(), *(os.path.abspath(place) for place in sys.path)]
    return os.pathsep.join(dict.fromkeys(place for place in places if os.pathsep not in place))


def complaint(lines: Iterable[str]) -> str:
    """Return the most informative line that Java printed before its end; "" if Java printed no line."""
    lines = [line.strip() for line in lines if line.strip() and not _CHATTER.match(line)]
    telling = [line for line in lines if re.search(r"exception|error|cannot|not found", line, re.IGNORECASE)]
    return one_line(_PROVENANCE.sub("", next(iter(telling or lines[-1:]), "")))


def without_broken_pipes(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, without tracebacks of broken pipes in Spark's own code.

    A worker prints such a traceback when Spark has ended the other workers of the job.
    """
    block: list[str] = []
    depth = 0  # the number of unfinished tracebacks; several workers may print at once
    left_out = False
    for line in lines:
        if line.startswith("Traceback ("):
            depth += 1
        elif not depth:
            left_out = (left_out and not line.strip()) or bool(_BETWEEN_TRACEBACKS.match(line))
            if not left_out:
                yield line
            continue
        elif not line[0].isspace():
            depth -= 1
        block.append(line)
        if not depth:
            left_out = _is_broken_pipe(block)
            yield from [] if left_out else block
            block = []
    # Spark kills its workers at the end, perhaps in the middle of a traceback. Omit an incomplete traceback of Spark's
    # own code.
    if not _is_of_spark(block):
        yield from block


def _is_broken_pipe(block: list[str]) -> bool:
    return _is_of_spark(block) and any(line.startswith(("BrokenPipeError", "ConnectionResetError")) for line in block)


def _is_of_spark(block: list[str]) -> bool:
    places = [line for line in block if line.lstrip().startswith('File "')]
    return all("/pyspark/" in place or "/socket.py" in place for place in places)


class _Bridge:
    """The Java process that this process has started, with the output and the directory of Java."""

    current: "_Bridge | None" = None

    def __init__(self, directory: str) -> None:
        self.passing_on = False
        self.directory = directory
        self._owner = os.getpid()
        self._gateway: Any = None
        self._printed: deque[str] = deque(maxlen=1000)
        self._reader: threading.Thread | None = None
        _Bridge.current = self
        atexit.register(self.close)

    def connect(self, conf: Mapping[str, str], java_is_up: Callable[[], None]) -> "SparkContext":
        """Start Java, and Spark in Java.

        The output is kept until `passing_on` is set, because it may contain the reason for a failed start.
        """
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        readable, writable = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(readable,), daemon=True)
        self._reader.start()
        try:
            launch: Any = launch_gateway  # (pyspark has no types for this function)
            with deferred():  # otherwise a signal could end the start before the process is stored
                self._gateway = launch(spark_conf, {"stdout": writable, "stderr": writable, "start_new_session": True})
        finally:
            os.close(writable)
        java_is_up()
        context = SparkContext(conf=spark_conf, gateway=self._gateway)
        # If the driver is killed, Java lives half a second longer. In this time, Java can remove the directory.
        jvm = self._gateway.jvm
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(self.directory))
        return context

    def complaint(self) -> str:
        """Return the most informative line of Java's output, after Java has ended."""
        if self._reader is not None:
            self._reader.join(END_SECONDS)
        return complaint(self._printed)

    def close(self) -> None:
        """End Java and remove its directory; a second call does nothing."""
        if os.getpid() != self._owner or _Bridge.current is not self:
            return  # a forked child must not end Java; a second call does nothing
        _Bridge.current = None
        atexit.unregister(self.close)
        if self._gateway is not None:
            self._end_java()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_java(self) -> None:
        from pyspark import SparkContext

        # PySpark keeps a reference to its Java process, and would use the dead process for the next context.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        process: subprocess.Popen[bytes] = self._gateway.proc
        self._gateway.shutdown()
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _read(self, pipe: int) -> None:
        with open(pipe, "rb") as stream:
            for text in without_broken_pipes(line.decode(errors="replace") for line in stream):
                if not self.passing_on:
                    self._printed.append(text)
                    continue
                # (standard error may be closed; the loop goes on, because a full pipe would block the workers)
                with suppress(OSError, ValueError, AttributeError):
                    sys.stderr.write(text)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the block, because PySpark reads these settings only from the environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _same_interrupt_handler() -> Iterator[None]:
    """After the block, restore the handler of SIGINT, because PySpark's handler cancels all jobs and thus the round."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def reason_of(error: BaseException) -> str:
    """Return why a job failed, in one line."""
    return _java_message(error) or describe(error)


def _java_message(error: BaseException) -> str:
    """Return the first line of a Java exception's text, or "" if the line is not useful.

    If the text has a worker's traceback, return the last line of the traceback instead.
    """
    exception = getattr(error, "java_exception", None)
    text = (exception and (exception.getMessage() or exception.toString())) or ""
    if "Traceback (most recent call last):" in text:
        return one_line(text.partition("\n\tat ")[0].strip().splitlines()[-1])
    # Spark stops the context if the cluster does not answer; only the log has the reason.
    return one_line(text.splitlines()[0]) if text and "stopped SparkContext" not in text else ""


def _nothing(_: int) -> None:
    """Make a worker import the package."""
