"""A program that writes with speculation on a cluster of two machines.

That is a master and two workers with addresses of their own, because Spark runs no second attempt on the machine of the
first. ``python -m tests.forwarder.dataframes.speculating DIRECTORY``; the space is ``DIRECTORY/space``. In
``DIRECTORY/attempts`` is a file for each attempt of a task that was begun: ``<partition>.<attempt>``.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark import TaskContext

import forwarder
from forwarder import session
from forwarder.java import find_java

PARTITIONS, ROWS = 4, 400
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def start_cluster(directory: Path, stack: ExitStack) -> str:
    """Start a master and two workers, which end with the stack; returns the master's URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, home = f"spark://127.0.0.1:{port}", os.path.dirname(pyspark.__file__)
    places = {"SPARK_WORKER_DIR": str(directory / "work"), "SPARK_LOCAL_DIRS": str(directory / "local")}
    found = {"JAVA_HOME": str(find_java().path), "SPARK_HOME": home, "PYTHONPATH": session.python_path()}
    environment = {**os.environ, **places, **found, "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
    log = stack.enter_context((directory / "cluster.log").open("wb"))

    def deploy(address: str, *arguments: str) -> None:
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{arguments[0]}", "--host", address]
        command += ["--webui-port", "0", *arguments[1:]]
        process = subprocess.Popen(command, env={**environment, "SPARK_LOCAL_IP": address}, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)

    deploy("127.0.0.1", "master.Master", "--port", str(port))
    for address in ("127.0.0.2", "127.0.0.3"):
        deploy(address, "worker.Worker", "--cores", "2", "--memory", "700m", url)
    return url


def slow_at_first(attempts: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: the first attempt of a task goes on only once there is a second one."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (attempts / f"{partition}.{attempt}").touch()
        yield from batches
        while partition == 1 and attempt == 0 and not (attempts / "1.1").exists():
            time.sleep(0.05)

    return pass_on


def main() -> None:
    directory = Path(sys.argv[1])
    attempts = directory / "attempts"
    attempts.mkdir()
    chosen = session.settings
    session.settings = lambda *arguments: {**chosen(*arguments), **SPECULATION}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with ExitStack() as stack:
        spark = session.start(start_cluster(directory, stack), "xaspool-tests")
        stack.callback(session.stop, spark)
        forwarder.register(spark)
        rows = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) as body")
        written = rows.mapInArrow(slow_at_first(attempts), "body string").write.format("spool")
        written.option("queue", "orders").mode("append").save(str(directory / "space"))


if __name__ == "__main__":
    main()
