"""The parts of an open space. A function takes only the parts that it uses, as its signature shows."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from spool.coordination import locks
from spool.coordination.counters import Counters
from spool.coordination.locks import ClaimLocks, OpenLock
from spool.coordination.request_slots import RequestSlots
from spool.coordination.wakeup import CommitNotifier
from spool.disk import Disk
from spool.disk.durability import SingleCopy
from spool.disk.recycler import Recycler
from spool.format.commands import REPLACED, addressing
from spool.format.header import Adoption
from spool.format.reader import FileContents
from spool.index import Index
from spool.index.body_files import FileCache
from spool.index.commit import Commit
from spool.model import layout
from spool.model.position import Position, PositionRanges, positions
from spool.model.xid import Xid
from spool.store.awaited import AwaitedMessages
from spool.store.feed import Feed
from spool.store.mirror import Mirror
from spool.store.settings_reader import Settings


class Files:
    """The directory of the space: the disk, recycled files, open files of bodies, and the mirror, if any.

    copies: the kind of durability; the mirror, if the space has one.
    id: the id of the space; "" if the space was opened only for one branch or for inspection.
    original: the identity of the file ``space.id``, which differs in a copy of the space; "" in the same cases as
    ``id``.
    """

    __slots__ = ("cache", "copies", "disk", "id", "mirror", "original", "recycler")

    def __init__(self, disk: Disk, beside: Disk | None) -> None:
        """``beside``: the mirror's disk."""
        self.disk = disk
        self.id = self.original = ""
        self.mirror = None if beside is None else Mirror(disk, beside)
        self.copies = self.mirror or SingleCopy(disk)
        self.recycler = Recycler(disk)
        self.cache = FileCache(disk)


class Shared:
    """The state that all processes with the space open share: locks on its directory, and the files of ``run/``."""

    __slots__ = ("claims", "control", "counters", "feed", "notifier", "numbers", "open_lock", "requests", "xids")

    def __init__(self, disk: Disk, open_lock: OpenLock, *, make: bool) -> None:
        """Open the files of ``run/``.

        Args:
            open_lock: the open lock. The open lock is opened first and closed last, so that the next opener finds no
                locks of this process.
            make: whether to create missing files; only the first opener may create these files.

        Raises:
            SpaceStopped: a file is missing.
        """
        self.open_lock = open_lock
        self.notifier = CommitNotifier(disk)
        if make:  # the directory may have been removed while no process had the space open
            disk.make_directory(layout.RUN)
            disk.close(locks.open_shared(disk, layout.RECLAIM_LOCK, make=True))
        self.counters = Counters(disk, make=make)
        self.feed = Feed(disk, make=make)
        self.control = locks.LockFile(disk, layout.CONTROL, make=make)
        self.numbers = locks.LockFile(disk, layout.NUMBERS, make=make)
        self.xids = locks.LockFile(disk, layout.XIDS, make=make)
        self.requests = RequestSlots(disk, self.xids, make=make)
        self.claims = ClaimLocks(disk, make=make)


class PreparedBranches:
    """The prepared branches without an outcome.

    version: the version of the last listing; see ``CounterPage.prepared``.
    branches: the branches, by xid.
    usages: the usage of queues that branches would add, each usage with the contents from which it was computed.
    """

    def __init__(self) -> None:
        self.version = -1
        self.branches: dict[Xid, FileContents] = {}
        self.usages: dict[Xid, tuple[FileContents, Mapping[str, Any]]] = {}

    def replace(self, version: int, branches: dict[Xid, FileContents]) -> None:
        self.version = version
        self.branches = branches
        self.usages = {xid: usage for xid, usage in self.usages.items() if xid in branches}
        self.__dict__.pop("held", None)

    @cached_property
    def held(self) -> dict[Position, Xid]:
        """For each message's position, the branch whose commands address the message. The caller holds the mutex.

        It is computed when a caller asks for it, because it grows with the messages of the branches: a forwarder lists
        and commits branches of many thousand messages, most of which no caller looks up in between.
        """
        return {position: xid for xid, contents in self.branches.items() for position in addressed_positions(contents)}

    def add(self, version: int, xid: Xid, contents: FileContents) -> None:
        """Add a branch, which raised the version of the shared list to ``version``.

        If this process missed an earlier version, the version here remains unchanged, so that the list is read again.
        """
        if version == self.version + 1:
            self.version = version
        self.branches[xid] = contents
        self.__dict__.pop("held", None)

    def forget(self, adoption: Adoption) -> None:
        """Forget a branch that a commit adopted: the index has the effects of the branch now. A coordinator may have
        used the xid for another branch since."""
        found = self.branches.get(adoption.xid)
        if found is not None and found.header.checksum == adoption.checksum:
            del self.branches[adoption.xid]
            self.usages.pop(adoption.xid, None)
            self.__dict__.pop("held", None)


def addressed_positions(contents: FileContents) -> Iterator[Position]:
    """Yield the committed messages that a branch's commands address."""
    for table in contents.tables:
        for command in table.commands:
            if command.name == "remove" or command.name == "update":
                ordinals = range(command.first, command.first + command.length)
                yield from (Position(command.number, ordinal) for ordinal in ordinals)


def attempted_positions(contents: FileContents) -> list[Position]:
    """Return the messages for which the rollback of a branch counts an attempt: all that it addresses, except the
    messages that it has replaced."""
    replaced = [
        command
        for table in contents.tables
        for command in addressing(table.commands)
        if command.name == "remove" and command.why == REPLACED
    ]
    ranges: PositionRanges = [(command.number, command.first, command.length) for command in replaced]
    return sorted({*addressed_positions(contents)} - {*positions(ranges)})


class View:
    """The view of this process: the commits that it has applied, and the prepared branches.

    mutex: guards the whole view; never held during a wait.
    index: the queues after the applied commits; ``rebuild`` replaces the object.
    settings: the settings by which the index sorts the messages of each queue.
    own_commits: the commits of this process that are not applied yet. Each key is a number of a commit, and its value a
        function that returns the commit.
    was_searched: whether a caller searched for messages since the housekeeper last asked.
    decodes_bodies: whether bodies are delivered as they were put. If False, the stored bytes are delivered.
    poll_locks: for each queue, the lock of the thread that polls on behalf of all threads that wait for the queue's
        next message.
    awaited: the messages for which calls wait, except those that sleep on shared memory.
    """

    __slots__ = (
        "awaited", "decodes_bodies", "index", "mutex", "own_commits", "poll_locks", "prepared", "settings",
        "was_searched",
    )  # fmt: skip

    def __init__(self, index: Index, settings: Settings) -> None:
        self.mutex = threading.RLock()
        self.index = index
        self.settings = settings
        self.prepared = PreparedBranches()
        self.own_commits: dict[int, Callable[[], Commit]] = {}
        self.was_searched = False
        self.decodes_bodies = True
        self.poll_locks: dict[str, threading.RLock] = {}
        self.awaited = AwaitedMessages(self.mutex)
