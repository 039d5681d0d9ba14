"""Spaces with a backlog.

The spaces of ``Spaces`` are built once per run, without flushes, because only their contents matter.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import spool
from bench.peers.base import BODY
from spool.disk import Disk

QUEUE = "queue"
_KEPT_IDS = 64
_COMPACTION_SECONDS, _COMPACTED_A_SECOND, _LOOK_SECONDS = 120.0, 500, 5.0
_DROP_CACHES = "/proc/sys/vm/drop_caches"


class _Unflushed(Disk):
    """A disk without flushes: the kernel decides when to flush. Nothing is compacted meanwhile."""

    def run_beside(self, name: str, work: Callable[[], None]) -> bool:
        return False

    def flush(self, handle: int, *, data_only: bool = False, everything: bool = False) -> None:
        pass

    def flush_directory(self, name: str) -> None:
        pass

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        pass


@dataclass
class Built:
    """A space that is not open. ``ids``: the ids of some messages in the middle of the queue, for gets."""

    path: str
    messages: int
    a_commit: int
    ids: list[str] = field(default_factory=list)


class Spaces:
    """The spaces of one run, by the number of messages and the messages per commit."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._built: dict[tuple[int, int], Built] = {}

    def get(self, messages: int, a_commit: int) -> Built:
        """Return a space. Build the space if it does not exist."""
        key = messages, a_commit
        if key not in self._built:
            self._built[key] = build(f"{self._directory}/waiting-{messages}-{a_commit}", messages, a_commit)
        return self._built[key]


def build(path: str, messages: int, a_commit: int) -> Built:
    """Create a space with this number of messages in commits of one size."""
    built = Built(path, messages, a_commit)
    os.mkdir(path)
    middle = messages // 2
    with spool.create(_Unflushed(path)) as space:
        space.create_queue(QUEUE)
        for done in range(0, messages, a_commit):
            ids = space.put_many(QUEUE, [BODY] * a_commit)
            if done + a_commit > middle and len(built.ids) < _KEPT_IDS:
                built.ids += ids[:_KEPT_IDS]
    os.sync()  # flush now, and not during a measurement
    return built


def fill(path: str, messages: int, a_commit: int) -> None:
    """Create a space with this number of messages, put by usual, flushed commits."""
    with spool.create(path) as space:
        space.create_queue(QUEUE)
        for begin in range(0, messages, a_commit):
            space.put_many(QUEUE, [BODY] * min(a_commit, messages - begin))


def files(path: str) -> int:
    """Return the number of files with commits."""
    return sum(1 for _ in os.scandir(f"{path}/committed"))


def compact(built: Built) -> float | None:
    """Keep the space open until its files are compacted. Return the seconds, or None if the time is over."""
    enough = max(64, built.messages // 1000)
    with spool.open(built.path):
        begun = time.monotonic()
        deadline = begun + _COMPACTION_SECONDS + built.messages / _COMPACTED_A_SECOND
        while files(built.path) > enough:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)  # counting a million names slows down the thread that compacts
        return time.monotonic() - begun


def forget_checkpoint(path: str) -> None:
    """Remove the checkpoint, so that the next open has to read the files."""
    for directory, _, names in os.walk(path):
        for name in names:
            if "checkpoint" in name:
                os.unlink(os.path.join(directory, name))


def cool(path: str) -> str:
    """Remove the space's files from the page cache; return a description of the way."""
    os.sync()
    try:
        with open(_DROP_CACHES, "w", encoding="ascii") as file:
            file.write("3\n")
    except OSError:
        for entry in os.scandir(f"{path}/committed"):
            handle = os.open(entry.path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
        return "files dropped from the page cache, names not"
    return "all caches dropped"
