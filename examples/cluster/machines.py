"""Simulate several machines on this machine, and run a standalone Spark cluster on them.

A simulated machine has an address on a private bridge, and a separate network and file system view, by Linux
namespaces. It sees the files of this machine, but each hidden directory is empty. Only root can make simulated
machines.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from forwarder.java import find_java

# In a machine's mount namespace, an empty file system is mounted over the hidden directory ($0). $1 is its name.
_BEGIN = 'mount -t tmpfs tmpfs "$0" && hostname "$1" && shift && exec "$@"'


class Machines:
    """Simulated machines, connected with this machine by a bridge. ``address``: this machine's address on the bridge.

    Args:
        hidden: the directory whose content the machines do not see.
        names: the names of the machines.
    """

    def __init__(self, hidden: Path, names: Sequence[str] = ("worker-1", "worker-2")) -> None:
        self.hidden = hidden
        self.names = names
        number = os.getpid() % 250 + 1
        self._tag = f"xs{os.getpid()}"
        self._network = f"10.213.{number}"
        self.address = f"{self._network}.1"

    def address_of(self, name: str) -> str:
        return f"{self._network}.{self.names.index(name) + 2}"

    def __enter__(self) -> Self:
        try:
            bridge = self._tag
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for name in self.names:
                space, cable = self._namespace(name), self._cable(name)
                _ip("netns", "add", space)
                _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
                _ip("link", "set", cable, "master", bridge, "up")
                _ip("-n", space, "addr", "add", f"{self.address_of(name)}/24", "dev", "eth0")
                for link in ("eth0", "lo"):
                    _ip("-n", space, "link", "set", link, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        """Start a program on a machine. The program's output goes to the end of a file."""
        before = ["ip", "netns", "exec", self._namespace(name), "unshare", "--mount", "--uts"]
        begin = ["sh", "-c", _BEGIN, str(self.hidden), name]
        with log.open("ab") as output:
            return subprocess.Popen([*before, *begin, *command], env=environment, stdout=output, stderr=output)

    def connect(self, name: str, connected: bool = True) -> None:
        """Connect a machine with the bridge, or disconnect it."""
        _ip("link", "set", self._cable(name), "up" if connected else "down")

    def processes(self, name: str) -> list[int]:
        """Return the ids of all processes on a machine."""
        return [int(line) for line in _ip("netns", "pids", self._namespace(name)).split()]

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _cable(self, name: str) -> str:
        return f"{self._tag}-{self.names.index(name)}"

    def _remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self._namespace(name)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", self._tag], stderr=subprocess.DEVNULL, check=False)


def _ip(*words: str) -> str:
    """Run ``ip`` and return the output. If ``ip`` fails, raise OSError with the reason."""
    try:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"ip {' '.join(words)}: {error.stderr.strip()}") from None


class SparkCluster:
    """A Spark master on this machine, and a worker on each simulated machine. ``url``: the master's URL.

    Args:
        directory: the directory for Spark's logs and files.
        cores: the number of concurrent tasks of a machine.
    """

    def __init__(self, machines: Machines, directory: Path, cores: int = 2) -> None:
        self.machines = machines
        self.url = f"spark://{machines.address}:7077"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._directory, self._cores, self._home = directory, cores, os.path.dirname(pyspark.__file__)

    def __enter__(self) -> Self:
        command = self._command("master.Master", self.machines.address, "--port", "7077")
        with (self._directory / "master.log").open("ab") as log:
            environment = self._environment(self.machines.address)
            self._master = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        for name in self.machines.names:
            self.start_worker(name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in (*self.workers.values(), self._master):
            end(process)

    def start_worker(self, name: str) -> None:
        """Start the worker of a machine, e.g. after its death."""
        address, place = self.machines.address_of(name), str(self._directory / name)
        command = self._command("worker.Worker", address, "--cores", str(self._cores), "--memory", "1200m")
        command += ["--work-dir", place, self.url]
        log = self._directory / f"{name}.log"
        self.workers[name] = self.machines.start(name, command, self._environment(address), log)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a driver on this machine. The driver waits for all workers."""
        return {
            "spark.driver.host": self.machines.address,
            "spark.driver.bindAddress": self.machines.address,
            "spark.executor.memory": "512m",
            "spark.cores.max": str(len(self.machines.names) * self._cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }

    def _command(self, kind: str, address: str, *arguments: str) -> list[str]:
        command = [f"{self._home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", "--host", address]
        return [*command, "--webui-port", "0", *arguments]

    def _environment(self, address: str) -> dict[str, str]:
        found = {"JAVA_HOME": str(find_java()), "SPARK_HOME": self._home, "PYSPARK_PYTHON": sys.executable}
        places = {"SPARK_LOCAL_DIRS": str(self._directory / "local"), "SPARK_LOCAL_IP": address}
        return {**os.environ, **found, **places, "SPARK_DAEMON_MEMORY": "256m"}


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process; kill it if it does not end within 20 seconds."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
