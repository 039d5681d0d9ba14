"""A standalone cluster of Spark whose workers run on machines that do not see the space: see examples/cluster."""

import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest

from forwarder.java import find_java
from tests.forwarder.processes import ROOT


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cluster_machines", ROOT / "examples/cluster/machines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MachinesCluster:
    """A master on this machine and a worker on each of two machines. ``url``: of the master.

    Args:
        directory: for logs and Spark's files. The machines see an empty ``directory/hidden``.
    """

    def __init__(self, directory: Path, stack: ExitStack, *, cores: int = 2) -> None:
        (directory / "hidden").mkdir(exist_ok=True)
        try:
            self.machines: Any = stack.enter_context(_example().Machines(directory / "hidden"))
        except OSError as error:
            pytest.skip(f"this takes namespaces: {error}")
        self._directory, self._home, self._cores = directory, os.path.dirname(pyspark.__file__), cores
        self._stack = stack
        self.url = f"spark://{self.machines.address}:7077"
        self.address = str(self.machines.address)
        command = self._command("master.Master", self.address, "--port", "7077")
        with (directory / "master.log").open("ab") as log:
            self.master = subprocess.Popen(command, env=self._environment(self.address), stdout=log, stderr=log)
        stack.callback(end, self.master)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        for name in self.machines.names:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start the worker of a machine, e.g. after all processes of the machine were killed."""
        address = self.machines.address_of(name)
        command = self._command(
            "worker.Worker", address, "--cores", str(self._cores), "--memory", "1200m", "--work-dir",
            str(self._directory / name), self.url,
        )  # fmt: skip
        log = self._directory / f"{name}.log"
        self.workers[name] = self.machines.start(name, command, self._environment(address), log)
        self._stack.callback(end, self.workers[name])

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which a driver on this machine is reached by the workers, and waits for all of them."""
        return {
            "spark.driver.host": self.address,
            "spark.driver.bindAddress": self.address,
            "spark.executor.memory": "512m",
            "spark.cores.max": str(2 * self._cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }

    def _command(self, kind: str, address: str, *arguments: str) -> list[str]:
        command = [f"{self._home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", "--host", address]
        return [*command, "--webui-port", "0", *arguments]

    def _environment(self, address: str) -> dict[str, str]:
        found = {"JAVA_HOME": str(find_java().path), "SPARK_HOME": self._home, "PYSPARK_PYTHON": sys.executable}
        places = {"SPARK_LOCAL_DIRS": str(self._directory / "local"), "SPARK_LOCAL_IP": address}
        return {**os.environ, **found, **places, "SPARK_DAEMON_MEMORY": "256m"}


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
