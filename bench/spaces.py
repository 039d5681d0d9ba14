"""Spaces with a backlog.

Those of ``Spaces`` are built once a run, and without flushing: only what they hold matters, not how it came.
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
    """Writes, and lets the kernel flush when it likes; nothing is compacted meanwhile."""

    def run_beside(self, name: str, work: Callable[[], None]) -> bool:
        return False

    def flush(self, handle: int, *, data_only: bool = False) -> None:
        pass

    def flush_directory(self, name: str) -> None:
        pass

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        pass


@dataclass
class Built:
    """A space that is not open. ``ids``: of some messages in its middle, to be taken one by one."""

    path: str
    messages: int
    a_commit: int
    ids: list[str] = field(default_factory=list)


class Spaces:
    """Those of one run, by what they hold."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._built: dict[tuple[int, int], Built] = {}

    def get(self, messages: int, a_commit: int) -> Built:
        """Built now if it is not there."""
        key = messages, a_commit
        if key not in self._built:
            self._built[key] = build(f"{self._directory}/waiting-{messages}-{a_commit}", messages, a_commit)
        return self._built[key]


def build(path: str, messages: int, a_commit: int) -> Built:
    """A new space with so many messages in commits of one size."""
    built = Built(path, messages, a_commit)
    os.mkdir(path)
    middle = messages // 2
    with spool.create(path, disk=_Unflushed(path)) as space:
        space.create_queue(QUEUE)
        for done in range(0, messages, a_commit):
            ids = space.put_many(QUEUE, [BODY] * a_commit)
            if done + a_commit > middle and len(built.ids) < _KEPT_IDS:
                built.ids += ids[:_KEPT_IDS]
    os.sync()  # now, not while something is measured
    return built


def fill(path: str, messages: int, a_commit: int) -> None:
    """Make a new space with so many messages, put as a program puts them: flushed."""
    with spool.create(path) as space:
        space.create_queue(QUEUE)
        for begin in range(0, messages, a_commit):
            space.put_many(QUEUE, [BODY] * min(a_commit, messages - begin))


def files(path: str) -> int:
    """How many numbered files there are."""
    return sum(1 for _ in os.scandir(f"{path}/committed"))


def compact(built: Built) -> float | None:
    """Hold the space open until its many files have become few; the seconds that takes, None if they do not."""
    enough = max(64, built.messages // 1000)
    with spool.open(built.path):
        begun = time.monotonic()
        deadline = begun + _COMPACTION_SECONDS + built.messages / _COMPACTED_A_SECOND
        while files(built.path) > enough:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)  # to count a million names takes the interpreter from the thread that compacts
        return time.monotonic() - begun


def forget_checkpoint(path: str) -> None:
    """The next open has nothing but the files themselves."""
    for directory, _, names in os.walk(path):
        for name in names:
            if "checkpoint" in name:
                os.unlink(os.path.join(directory, name))


def cool(path: str) -> str:
    """Take the space's files out of the page cache; says how."""
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
