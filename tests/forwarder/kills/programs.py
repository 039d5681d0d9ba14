"""The programs that run beside each other on one space, each of which is started again when it was killed."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.forwarder.processes import PATIENT_SECONDS, Program


class Sweeper(Program):
    """The program that compacts and reclaims the space: one process, of a separate kind."""

    ends_with = ("sweeper",)

    def __init__(self, path: str, directory: Path) -> None:
        self.log = directory / "sweeps"
        self.log.touch()
        super().__init__("tests.forwarder.kills.sweeping", [path, str(self.log)], directory / "sweeper", "sweeping")

    def processes(self) -> dict[str, list[int]]:
        return {"sweeper": [self.process.pid]}

    def counts(self) -> tuple[int, int]:
        """Return the numbers of files that the program has written and removed."""
        rounds = [line.split() for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return sum(int(written) for written, _ in rounds), sum(int(removed) for _, removed in rounds)


def victim(
    programs: Sequence[Program], left: Counter[str], chance: random.Random, feed: Callable[[], None]
) -> tuple[str, Program, int]:
    """Choose a process of one of the kinds that are left, of a program that is ready; wait until there is one.

    ``feed`` puts messages, because Spark starts a worker only for a task.
    """
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
        feed()
    raise AssertionError(f"there is none to kill of {left}; {[program.said() for program in programs]}")
