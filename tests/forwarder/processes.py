"""Programs that use Spark, the processes that they have started by it, and those that have a space open."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.clocks import until
from xaspool_scripts.terminal.exit_codes import FAILED

ROOT = Path(__file__).parents[2]
PATIENT_SECONDS = 900.0


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the program's name of each process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                name, rest = (entry / "stat").read_text().partition("(")[2].rsplit(")", 1)
                state, parent = rest.split()[:2]
                if state != "Z":
                    found[int(entry.name)] = int(parent), name
    return found


def processes_of(program: int, space: Path) -> list[int]:
    """Return the processes of a program: itself, its descendants, and the lock holders of the space, which are no
    children of it."""
    tree = processes()
    found = [program]
    for process in found:
        found += [child for child, (parent, _) in tree.items() if parent == process]
    return found + [process for process in tree if process not in found and has_open(process, space)]


def kinds(driver: int) -> dict[str, list[int]]:
    """The processes of a driver by kind: itself, its Java, that of its executors, the Python daemons, their workers.

    With a ``local`` master no executors exist: the driver's Java runs the tasks, and starts the daemon.
    """
    tree = processes()

    def children(parents: list[int], *, of_java: bool) -> list[int]:
        return [child for child, (parent, name) in tree.items() if parent in parents and (name == "java") == of_java]

    java = children([driver], of_java=True)
    executors = children(java, of_java=True)
    daemons = children([*java, *executors], of_java=False)
    workers = children(daemons, of_java=False)
    alive = [driver] if driver in tree else []
    return {"driver": alive, "java": java, "executor": executors, "daemon": daemons, "worker": workers}


def has_open(process: int, space: Path) -> bool:
    with suppress(OSError):
        return (
            any(os.readlink(entry).startswith(str(space)) for entry in Path(f"/proc/{process}/fd").iterdir())
            and process != os.getpid()
        )
    return False


def ends(pid: int, timeout: float) -> bool:
    """Wait for the end of a process that need not be a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def wait_until_left(space: Path) -> None:
    """Wait until no other process has the space open: those of a killed driver end by themselves."""
    until(lambda: not any(has_open(process, space) for process in processes()))


class Program:
    """A program and its processes, which end with the context. The program's output goes to a file.

    The program is ready once it has printed `ready`. `ends_with`: the processes whose death ends the program.
    """

    ends_with: tuple[str, ...] = ("driver",)

    def __init__(
        self, module: str, words: Sequence[str], output: Path, ready: str, directory: Path = ROOT, **environment: str
    ) -> None:
        self._command = [sys.executable, "-m", module, *words]
        self._output, self._ready, self._directory = output, ready, directory
        self._environment = {**os.environ, **environment}
        self.start()

    def start(self) -> None:
        """Start the program, or start it again if it has ended."""
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                self._command, cwd=self._directory, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def is_ready(self) -> bool:
        """Return whether the program has started. If it could not start because the machine is too slow, start it
        again.

        A program that was ready must not end by itself.
        """
        if (code := self.process.poll()) is not None:
            assert (code, self._ready in self.said()) == (FAILED, False), self.said()
            self.start()
        return self._ready in self.said()

    def said(self) -> str:
        """Return the output of the program since its last start."""
        return self._output.read_text()

    def processes(self) -> dict[str, list[int]]:
        """Return the program's processes by kind."""
        return kinds(self.process.pid)

    def kill(self, pid: int, kind: str) -> None:
        """Kill a process of the program; start the program again if the kill ends it."""
        os.kill(pid, signal.SIGKILL)
        if kind in self.ends_with:
            self.ended()
            self.start()

    def stop(self) -> int:
        """Ask the program to end, and return its exit code."""
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        return self.process.wait(PATIENT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the program; the processes that it started through Spark then end by themselves."""
        self.process.kill()
        self.process.wait()


class RunningForwarder(Program):
    """``spool-forward`` from the queue *work*. Without its Java, it ends."""

    ends_with = ("driver", "java")

    def __init__(
        self, path: str, service: str, options: Sequence[str], output: Path, environment: Mapping[str, str],
        directory: Path = ROOT,
    ) -> None:  # fmt: skip
        words = ["-s", path, "--route", f"work={service}", *options]
        program, begun = "xaspool_scripts.forward", "spool-forward: forwarding"
        super().__init__(program, words, output, begun, directory, **environment)
