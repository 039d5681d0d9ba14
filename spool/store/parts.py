"""The parts of an open space. A function takes the part that it needs, so its signature says what it can touch."""

import threading
from collections.abc import Iterator

from spool.coordination import locks
from spool.coordination.claims import Claims
from spool.coordination.counters import Counters
from spool.coordination.presence import Presence
from spool.coordination.wakeup import Bell
from spool.disk import Disk
from spool.disk.recycler import Pool
from spool.format.reader import FileContents
from spool.format.schema import ADDRESSING
from spool.index import Index
from spool.index.body_files import FileCache
from spool.index.commit import Commit
from spool.model import layout
from spool.model.message import Position
from spool.model.settings import SpaceConfig
from spool.model.xid import Xid
from spool.runtime.clock import Clock
from spool.store.mirror import Mirror


class Files:
    """The directory of the space: the disk, recycled files, open files of bodies, and the mirror, if it has one.

    ``open`` comes after the first look at the disk: a child that is forked meanwhile knows the disk already.
    """

    __slots__ = ("cache", "disk", "mirror", "recycler")

    recycler: Pool

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.mirror: Mirror | None = None
        self.cache = FileCache(disk)

    def open(self, config: SpaceConfig) -> None:
        """Open the mirror, and list the recycled files."""
        if config.mirror is not None:
            self.mirror = Mirror(self.disk, self.disk.sibling(config.mirror))
        self.recycler = Pool(self.disk)

    def close(self) -> None:
        """Close every descriptor of the space, and of its mirror."""
        self.disk.close_all()
        if self.mirror is not None:
            self.mirror.disk.close_all()


class Shared:
    """What the processes that have the space open share, in ``run/``. ``open`` comes after ``open_lock`` is held."""

    __slots__ = ("claims", "control", "counters", "notifier", "numbers", "open_lock", "xids")

    counters: Counters
    control: locks.LockFile
    numbers: locks.LockFile
    xids: locks.LockFile
    claims: Claims

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.open_lock = Presence(disk)  # opened first, so closed last: the next process then finds nothing of this one
        self.notifier = Bell(disk, clock)

    def open(self, disk: Disk, *, make: bool) -> None:
        """Open the files of ``run/``. A process that is alone makes those that are missing; else SpaceStopped."""
        if make:  # the directory may have been removed while no process was here
            disk.make_directory(layout.RUN)
            disk.close(locks.open_shared(disk, layout.RECLAIM_LOCK, make=True))
        self.counters = Counters(disk, make=make)
        self.control = locks.LockFile(disk, layout.CONTROL, make=make)
        self.numbers = locks.LockFile(disk, layout.NUMBERS, make=make)
        self.xids = locks.LockFile(disk, layout.XIDS, make=make)
        self.claims = Claims(disk, make=make)


class PreparedBranches:
    """The undecided prepared branches, as of ``version`` of their listing, and what their commands hold."""

    def __init__(self) -> None:
        self.version = -1
        self.images: dict[Xid, FileContents] = {}
        self.held: dict[Position, Xid] = {}

    def replace(self, version: int, images: dict[Xid, FileContents]) -> None:
        self.version = version
        self.images = images
        self.held = {position: xid for xid, image in images.items() for position in targets(image)}

    def decided(self, xid: Xid) -> None:
        """A commit adopted the branch: what it did is in the index now."""
        image = self.images.pop(xid, None)
        for position in targets(image) if image is not None else ():
            self.held.pop(position, None)


def targets(image: FileContents) -> Iterator[Position]:
    """The committed messages that a branch's commands address."""
    for table in image.tables:
        for command in table.commands:
            if command[0] in ADDRESSING:
                number, first, count = command[1:4]
                yield from (Position(number, ordinal) for ordinal in range(first, first + count))


class View:
    """What this process knows of the space: the commits that it has applied, and the branches that are undecided.

    ``mutex`` guards all of it; it is never held while something is waited for. ``own``: commits of this process that
    are not applied yet. ``follows``: whether a caller has looked at what there is since the housekeeper asked last.
    """

    __slots__ = ("follows", "index", "mutex", "own", "prepared")

    def __init__(self, index: Index) -> None:
        self.mutex = threading.RLock()
        self.index = index
        self.prepared = PreparedBranches()
        self.own: dict[int, Commit] = {}
        self.follows = False
