"""The programs that run beside each other on one space, each of which is started again when it was killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forwarder.processes import kinds
from xaspool_scripts.common import FAILED

ROOT = Path(__file__).parents[3]
PATIENT_SECONDS = 900.0


class Program:
    """A program and the processes that it has started; what it prints goes to a file.

    It is ready once it has printed `ready`. `ends_with`: the processes whose death ends the program.
    """

    ends_with: tuple[str, ...] = ("driver",)

    def __init__(self, module: str, words: Sequence[str], output: Path, ready: str, **environment: str) -> None:
        self._command = [sys.executable, "-m", module, *words]
        self._output, self._ready = output, ready
        self._environment = {**os.environ, **environment}
        self.start()

    def start(self) -> None:
        """Start it, anew if it has ended."""
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def is_ready(self) -> bool:
        """Whether it has started. If it could not, because the machine is too slow for it, it is started again.

        Once it was ready, it must not end by itself.
        """
        if (code := self.process.poll()) is not None:
            assert (code, self._ready in self.said()) == (FAILED, False), self.said()
            self.start()
        return self._ready in self.said()

    def said(self) -> str:
        """What it has printed since it was started last."""
        return self._output.read_text()

    def processes(self) -> dict[str, list[int]]:
        """Its processes by kind."""
        return kinds(self.process.pid)

    def kill(self, pid: int, kind: str) -> None:
        """Kill one of its processes; start it again if that ends it."""
        os.kill(pid, signal.SIGKILL)
        if kind in self.ends_with:
            self.process.wait(PATIENT_SECONDS)
            self.start()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENT_SECONDS)


class RunningForwarder(Program):
    """``spool-forward`` from the queue *work*. Without its Java, it ends."""

    ends_with = ("driver", "java")

    def __init__(
        self, path: str, service: str, options: Sequence[str], output: Path, environment: Mapping[str, str]
    ) -> None:
        words = ["-s", path, "--route", f"work={service}", *options]
        super().__init__("xaspool_scripts.forward", words, output, "spool-forward: forwarding", **environment)


class Sweeper(Program):
    """What compacts and reclaims; one process, of a kind of its own."""

    ends_with = ("sweeper",)

    def __init__(self, path: str, directory: Path) -> None:
        self.log = directory / "sweeps"
        self.log.touch()
        super().__init__("tests.forwarder.kills.sweeping", [path, str(self.log)], directory / "sweeper", "sweeping")

    def processes(self) -> dict[str, list[int]]:
        return {"sweeper": [self.process.pid]}

    def counts(self) -> tuple[int, int]:
        """How many files it has written, and how many it has removed."""
        rounds = [line.split() for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return sum(int(written) for written, _ in rounds), sum(int(removed) for _, removed in rounds)


def victim(programs: Sequence[Program], left: Counter[str], chance: random.Random) -> tuple[str, Program, int]:
    """Choose a process of one of the kinds that are left, of a program that is ready; wait until there is one."""
    end = time.monotonic() + PATIENT_SECONDS
    while time.monotonic() < end:
        ready = [program for program in programs if program.is_ready()]
        found: dict[str, list[tuple[Program, int]]] = {}
        for program in ready:
            for kind, processes in program.processes().items():
                if left[kind] and processes:
                    found.setdefault(kind, []).extend((program, pid) for pid in processes)
        if found:
            [kind] = chance.choices(list(found), [left[kind] for kind in found])
            return kind, *chance.choice(found[kind])
        time.sleep(0.1)
    raise AssertionError(f"there is none to kill of {left}; {[program.said() for program in programs]}")
