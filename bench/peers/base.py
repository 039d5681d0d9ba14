"""The interface of a contender: a peer, which may be missing, and the lines to the peer's queues."""

import base64
import importlib.metadata
import importlib.util
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

BODY = os.urandom(1024)
MIXED = [os.urandom(200 + 700 * place % 2_801) for place in range(97)]  # bodies of 200 to 3,000 bytes
_LOST_SECONDS = 60


class Missing(Exception):
    """A peer is not on this machine, or cannot run here. The text explains the installation."""


class Line(ABC):
    """A connection of one caller to one queue. Only one thread at a time may use the line.

    body: the body of each message that the next call puts.
    """

    body: bytes = BODY

    @abstractmethod
    def put(self, count: int) -> None:
        """Put ``count`` messages in one commit."""

    @abstractmethod
    def get(self, count: int) -> int:
        """Take and acknowledge at most ``count`` messages in one commit; return the number of taken messages."""

    def put_each(self, count: int) -> None:
        """Put ``count`` messages in one transaction, with a call for each. Only for peers with ``transactions``."""
        raise NotImplementedError

    def get_each(self, count: int) -> int:
        """Take ``count`` messages in one transaction, with a call for each. Only for peers with ``transactions``."""
        raise NotImplementedError

    def move(self, work: Callable[[bytes], bytes]) -> None:
        """Take a message and put the result of ``work``, in one transaction. Only for peers with ``transactions``."""
        raise NotImplementedError

    def put_in_two_phases(self) -> None:
        """Put a message in a transaction that is prepared and then committed. Only for peers with ``two_phase``."""
        raise NotImplementedError

    def get_waiting(self) -> None:
        """Wait for a message, take and acknowledge it. Check every millisecond, unless the peer has a better way."""
        begun = time.monotonic()
        while not self.get(1):
            if time.monotonic() > begun + _LOST_SECONDS:
                raise RuntimeError(f"no message came for {_LOST_SECONDS} s: some were lost, or taken twice")
            time.sleep(0.001)

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class Peer(ABC):
    """A system that keeps queues on disk. A started peer is picklable, so other processes can call ``line``."""

    name: ClassVar[str]
    durable: ClassVar[bool] = True
    # The setting that makes the peer durable here, or the reason why the peer is not durable.
    how: ClassVar[str]
    # Whether one commit can have several messages.
    batches: ClassVar[bool] = True
    # Whether a transaction may have several calls with one message each.
    transactions: ClassVar[bool] = False
    # Whether the peer supports two-phase commit.
    two_phase: ClassVar[bool] = False
    # Whether several threads and processes may use one queue concurrently.
    concurrent: ClassVar[bool] = True
    # Whether the threads of a process share one line. Otherwise each thread has a separate line.
    shared: ClassVar[bool] = False
    # The meaning of a get, if it is not the usual one.
    get_with: ClassVar[str] = ""

    # The Python package that the peer needs, and a module of this package, to check whether it is installed.
    package: ClassVar[str] = ""
    module: ClassVar[str] = ""

    def start(self, directory: str) -> None:
        """Start in an empty directory; Missing if the peer cannot start."""
        if self.module:
            need(self.module, self.package)
        self.directory = directory

    @abstractmethod
    def line(self, queue: str) -> Line:
        """Return a line to a queue. The queue is created if it does not exist."""

    def stop(self) -> None:  # noqa: B027 (only servers have to be stopped)
        """End the peer's processes. The caller removes the directory."""

    def version(self) -> str:
        """Return the name and the version for the readers of the table."""
        return release(self.package)

    def servers(self) -> list[int]:
        """Return the ids of the processes that flush for the peer, besides the caller's process."""
        return []


def need(module: str, package: str) -> None:
    """Raise Missing, with the way to install the package, if the Python package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise Missing(f"not here: pip install '.[bench]' (it needs {package})")


def text_of(body: bytes) -> str:
    """Return a text of as many bytes, for peers that accept only text."""
    return base64.b64encode(body[: 3 * len(body) // 4]).decode()


def release(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and of all its running descendants."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return [pid, *(found for child in children for found in descendants(child))]
