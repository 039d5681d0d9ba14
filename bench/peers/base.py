"""What every contender looks like: a peer that may be missing, and lines to its queues."""

import importlib.metadata
import importlib.util
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

BODY = os.urandom(1024)
_LOST_SECONDS = 60


class Missing(Exception):
    """A peer that is not on this machine, or cannot run here; the text says how to get it."""


class Line(ABC):
    """One caller's way to one queue, used by one thread at a time."""

    @abstractmethod
    def put(self, count: int) -> None:
        """Put messages of 1 KiB, in one commit."""

    @abstractmethod
    def get(self, count: int) -> int:
        """Take and acknowledge up to so many, in one commit; returns how many there were."""

    def put_each(self, count: int) -> None:
        """Put so many in one transaction, with a call for each; of peers with ``transactions``."""
        raise NotImplementedError

    def get_each(self, count: int) -> int:
        """Take so many in one transaction, with a call for each; of peers with ``transactions``."""
        raise NotImplementedError

    def move(self, work: Callable[[bytes], bytes]) -> None:
        """Take one, and put at the end of the queue what the work makes of it, in one transaction; of the same."""
        raise NotImplementedError

    def put_in_two_phases(self) -> None:
        """Put one in a transaction that a coordinator prepares, then commits; of peers with ``two_phase``."""
        raise NotImplementedError

    def get_waiting(self) -> None:
        """Take and acknowledge one, waiting for it: a look a millisecond, unless the peer knows better."""
        begun = time.monotonic()
        while not self.get(1):
            if time.monotonic() > begun + _LOST_SECONDS:
                raise RuntimeError(f"no message came for {_LOST_SECONDS} s: some were lost, or taken twice")
            time.sleep(0.001)

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class Peer(ABC):
    """Something that keeps queues on disk. Picklable once started: another process calls ``line`` on its copy."""

    name: ClassVar[str]
    durable: ClassVar[bool] = True
    # What makes it durable here, or why it is not.
    how: ClassVar[str]
    # Whether several messages can be one commit.
    batches: ClassVar[bool] = True
    # Whether a transaction may be several calls, for messages one by one.
    transactions: ClassVar[bool] = False
    # Whether it takes part in a two-phase commit.
    two_phase: ClassVar[bool] = False
    # Whether several threads and processes may use one queue at once.
    concurrent: ClassVar[bool] = True
    # Whether the threads of a process share one line, instead of each having its own.
    shared: ClassVar[bool] = False
    # What a get is here, where it is not the same as elsewhere.
    get_with: ClassVar[str] = ""

    # The Python package that it needs, and the module that shows whether it is installed.
    package: ClassVar[str] = ""
    module: ClassVar[str] = ""

    def start(self, directory: str) -> None:
        """Begin in an empty directory; Missing if it cannot."""
        if self.module:
            need(self.module, self.package)
        self.directory = directory

    @abstractmethod
    def line(self, queue: str) -> Line:
        """A line to a queue, which is made if need be."""

    def stop(self) -> None:  # noqa: B027 (only servers have something to stop)
        """End its processes; the code that made the directory removes it."""

    def version(self) -> str:
        """As a reader of the table would look for it."""
        return release(self.package)

    def servers(self) -> list[int]:
        """The processes that flush for it, where it is not the caller's own."""
        return []


def need(module: str, package: str) -> None:
    """The Python package is there, or Missing says how to get it."""
    if importlib.util.find_spec(module) is None:
        raise Missing(f"not here: pip install '.[bench]' (it needs {package})")


def release(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def descendants(pid: int) -> list[int]:
    """A process and all that came from it and still run."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return [pid, *(found for child in children for found in descendants(child))]
