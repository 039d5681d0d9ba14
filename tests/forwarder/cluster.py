"""A standalone cluster of Spark on this machine: a master and workers, each a process with an address of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyspark

from forwarder.java import find_java
from tests.ports import free_port


class Cluster:
    """A master and its workers, which end with the stack. ``url``: of the master; ``workers``: of their processes."""

    def __init__(self, directory: Path, stack: ExitStack, *, cores: int = 2, wrapped: Sequence[str] = ()) -> None:
        """``wrapped``: words that the second worker's command stands behind."""
        port = free_port()
        self.url, self._home = f"spark://127.0.0.1:{port}", os.path.dirname(pyspark.__file__)
        places = {"SPARK_WORKER_DIR": str(directory / "work"), "SPARK_LOCAL_DIRS": str(directory / "local")}
        found = {"JAVA_HOME": str(find_java()), "SPARK_HOME": self._home, "PYSPARK_PYTHON": sys.executable}
        self._environment = {**os.environ, **places, **found, "SPARK_DAEMON_MEMORY": "256m"}
        self._log = stack.enter_context((directory / "cluster.log").open("wb"))
        self._stack = stack
        self._deploy("127.0.0.1", [], "master.Master", "--port", str(port))
        worker = ["worker.Worker", "--cores", str(cores), "--memory", "700m", self.url]
        self.workers = [self._deploy("127.0.0.2", [], *worker), self._deploy("127.0.0.3", wrapped, *worker)]

    def _deploy(self, address: str, before: Sequence[str], kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*before, f"{self._home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", "--host", address]
        command += ["--webui-port", "0", *arguments]
        environment = {**self._environment, "SPARK_LOCAL_IP": address}
        process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}
"""Settings with which Spark runs a second attempt of a task that takes longer than others."""

HERE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings with which the driver has this machine's address."""
