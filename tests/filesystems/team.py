"""The torture's eight processes, which work on a space until a test cuts the power."""

from pathlib import Path
from typing import Self

import spool
from spool.disk.durability import Ordered
from tests import door
from tests.at_once import AT_ONCE
from tests.torture import worker
from tests.torture.arena import TEAM
from tests.torture.nursery import Child, Nursery


class Team:
    """The processes, and the logs of the promises that they got. The logs lie outside the file system that loses
    power."""

    def __init__(self, space: Path, logs: Path, seed: int) -> None:
        self.space = space
        self.logs = logs
        self.logs.mkdir(parents=True, exist_ok=True)
        self._seed = seed
        self._incarnation = 0
        self._nursery = Nursery()
        self._children: dict[str, Child] = {}

    def make_space(self) -> bool:
        """Create a space with the sync method ``auto``, and return whether it takes renames for ordered."""
        with spool.create(self.space, defaults=AT_ONCE) as space:
            worker.make_queues(space)
            return isinstance(door.disk(space).durability, Ordered)

    def start(self) -> None:
        for kind in TEAM:
            log = str(self.logs / f"{kind}.log")
            arguments = [str(self.space), log, kind, kind, str(self._incarnation), str(self._seed), "{}"]
            self._children[kind] = self._nursery.bear(arguments, str(self.logs / f"{kind}.stderr"))
        self._incarnation += 1

    def stop(self) -> None:
        """Stop all processes, and return when none of them is in a system call any more."""
        for child in self._children.values():
            child.stop()
        for child in self._children.values():
            child.await_stop()

    def go_on(self) -> None:
        for child in self._children.values():
            child.go_on()

    def kill(self) -> None:
        """Kill all processes, and return when none of them has a file open."""
        for child in self._children.values():
            child.kill()
            child.close()
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._nursery.close()
