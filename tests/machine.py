"""A machine with a file system in memory: the current state of its files, and the record that a power cut needs.

Every file and every name has two states: the state that processes see now, and the durable state, which every power cut
leaves. ``tests.survivors`` computes the other states that a power cut may leave. This module keeps the record for that:
the log of operations on names, the flushed contents of each file, and its later contents.
"""

import copy
import errno
import os
import re
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tests.clocks import SimulatedClock

if TYPE_CHECKING:
    from tests.simdisk import SimulatedDisk


PAGE = 4096
_TELLS_NUMBERS = re.compile(r"/checkpoint|/\.(spare|part)\.")
OF_ANOTHER = "of-another-user"  # how the names of such files begin


class PowerCut(BaseException):
    """The process ends here: no ``except Exception`` may see it."""


class Inode:
    """A file (``entries`` None) or a directory.

    ``flushed`` is the durable content of a file, ``pending`` the list of its later contents, half-written ones
    included. ``touched`` is the length of the log of names at the inode's last change. A journal that commits the inode
    commits the log up to this length. ``names_flushed`` is the same for a directory's last own flush, and ``flushes``
    for each flush of a file.

    After a failed flush, ``shadow`` is the content on the disk, which processes no longer see. The kernel has dropped
    the marks of the dirty pages, so a later flush writes only the pages that were written since. For a directory,
    ``dropped`` has the ranges (first, last + 1) of operations whose entries a failed flush lost in this way.
    """

    def __init__(self, number: int, *, directory: bool = False) -> None:
        self.number = number
        self.entries: dict[str, Inode] | None = {} if directory else None
        self.links = 2 if directory else 0
        self.data = b""
        self.flushed = b""
        self.pending: list[bytes] = []
        self.touched = 0
        self.names_flushed = 0
        self.flushes: list[int] = []
        self.version = 0
        self.changed = 1  # counts changes of bytes and of names; ``version`` is its value at the last change of bytes
        self.foreign = False  # another user's: the kernel does not report its writers, and the file gets no second name
        self.locks: list[Lock] = []
        self.shadow: bytes | None = None
        self.dropped: list[tuple[int, int]] = []
        self.flush_failed = False

    @property
    def coming(self) -> bytes:
        """The content of the disk after all dirty pages are written."""
        return self.data if self.shadow is None else self.shadow

    def copy(self, made: "dict[Inode, Inode]") -> "Inode":
        """Return a copy of the inode and of all inodes in it, without locks. ``made``: the copies so far."""
        if (found := made.get(self)) is not None:
            return found
        twin = made[self] = copy.copy(self)
        if self.entries is not None:
            twin.entries = {name: inode.copy(made) for name, inode in self.entries.items()}
        twin.pending, twin.flushes, twin.dropped = self.pending.copy(), self.flushes.copy(), self.dropped.copy()
        twin.locks = []
        return twin


class Lock(NamedTuple):
    """Bytes ``start`` to ``stop - 1``, held by an open handle."""

    handle: int
    start: int
    stop: int
    shared: bool


class Change(NamedTuple):
    """A name in a directory now means another inode, or none."""

    directory: Inode
    name: str
    inode: Inode | None

    def copy(self, made: dict[Inode, Inode]) -> "Change":
        return Change(self.directory.copy(made), self.name, None if self.inode is None else self.inode.copy(made))


class Operation(NamedTuple):
    """One call's changes of names. A rename has two: the new name first."""

    kind: str
    changes: tuple[Change, ...]


class Image(NamedTuple):
    """A whole disk, durable: (path, which inode, bytes or None for a directory), sorted by path. Equal means equal.

    ``beside``: the mirror's disk, if there is one.
    """

    files: tuple[tuple[str, int, bytes | None], ...]
    beside: "Image | None" = None


NO_FILES = Image(())


class Handle(NamedTuple):
    inode: Inode
    writable: bool
    process: "SimulatedDisk"


class Machine:
    """One life of a machine, from boot to power cut; starts with a disk on which everything is durable.

    A mirror's disk is a machine of its own, ``beside``, as far as files go; ``front`` is where its processes live,
    die and are counted.
    """

    def __init__(
        self,
        image: Image = NO_FILES,
        *,
        boot: int = 1,
        ordered: bool = True,
        carries: bool = False,
        follow: bool = False,
        front: "Machine | None" = None,
    ) -> None:
        self.boot = boot
        self.ordered = ordered
        self.flush_carries_name = ordered or carries
        self.names_follow = follow
        self.clock = SimulatedClock(1_700_000_000.0 + 1000 * boot)
        self.root = Inode(1, directory=True)
        self.log: list[Operation] = []
        self.journaled = 0  # how much of the log a journaling file system has committed
        self.handles: dict[int, Handle] = {}
        self.housekeepers: dict[str, SimulatedDisk] = {}
        self.trace: list[tuple[str, tuple[object, ...]]] = []
        self.flushed_again: list[Inode] = []
        self.front = front
        self.beside: Machine | None = None
        self._cut: int | None = None
        self._inodes = 1
        self._next_handle = 3
        self._handle_was: dict[object, Inode] = {}
        self._load(image)
        if image.beside is not None:
            self.add_disk(image.beside)

    def add_disk(self, image: Image = NO_FILES) -> "Machine":
        """The one of its mirror."""
        self.beside = Machine(
            image,
            boot=self.boot,
            ordered=self.ordered,
            carries=self.flush_carries_name,
            follow=self.names_follow,
            front=self,
        )
        return self.beside

    @property
    def disks(self) -> "list[Machine]":
        return [self] if self.beside is None else [self, self.beside]

    def _load(self, image: Image) -> None:
        known: dict[int, Inode] = {}
        for path, number, data in image.files:
            inode = known.get(number) or self.new_inode(directory=data is None)
            known[number] = inode
            inode.data = inode.flushed = data or b""
            inode.foreign |= data is not None and f"/{OF_ANOTHER}" in path and "/.spare" not in path
            directory, name = self.parent(path)
            directory.entries[name] = inode
            inode.links += inode.entries is None
        directories = [self.root, *(inode for _, inode in self.walk())]
        self.base = {(d.number, name): inode for d in directories for name, inode in (d.entries or {}).items()}

    def image(self) -> Image:
        """The disk after an orderly shutdown."""
        found = image_of((path, inode, inode.coming) for path, inode in self.walk())
        return found if self.beside is None else found._replace(beside=self.beside.image())

    def seen_by_processes(self) -> Hashable:
        """Return all facts that processes can see now. Machines with equal facts run the same programs in the same way.

        Inodes' numbers count only where a file tells them: a checkpoint, or the name of a copy."""
        inodes = sorted(self.walk(), key=lambda found: found[0])
        told = any(_TELLS_NUMBERS.search(path) for path, _ in inodes)
        states = tuple((inode.number if told else 0, inode.version, inode.changed) for _, inode in inodes)
        beside = None if self.beside is None else self.beside.seen_by_processes()
        return self.boot, self.clock.time, self.image(), states, beside

    def copy(self) -> "Machine":
        """Return a copy of the machine, including its page cache, with all processes dead."""
        return self._copy(None)

    def _copy(self, front: "Machine | None") -> "Machine":
        twin = copy.copy(self)
        inodes: dict[Inode, Inode] = {}
        twin.root = self.root.copy(inodes)
        twin.log = [Operation(kind, tuple(change.copy(inodes) for change in changes)) for kind, changes in self.log]
        twin.base = {key: inode.copy(inodes) for key, inode in self.base.items()}
        twin.flushed_again = [inode.copy(inodes) for inode in self.flushed_again]
        twin.clock = copy.copy(self.clock)
        twin.handles, twin.housekeepers, twin.trace, twin._handle_was = {}, {}, [], {}
        twin.front = front
        twin.beside = None if self.beside is None else self.beside._copy(twin)
        twin._cut = None
        return twin

    # -- processes and steps ----------------------------------------------------------------------------------------

    def crash_at(self, step: int | None) -> None:
        """The process that makes this call (counted from 1 since boot) ends instead."""
        self._cut = step

    def step(self, process: "SimulatedDisk", call: str, args: tuple[object, ...]) -> None:
        if process.dead:
            raise PowerCut("this process is dead")
        if self.front is not None:
            self.front.step(process, call, ("mirror", *args))
            return
        self.trace.append((call, args))
        if self._cut == len(self.trace):
            self.kill(process)
            raise PowerCut(self.last_call())

    def last_call(self) -> str:
        call, args = self.trace[-1]
        return f"step {len(self.trace)}, {call}{args}"

    def last_call_writes(self, directory: str) -> bool:
        """Return whether the last call was about the bytes of a file in that directory, even if its handle is closed
        already."""
        call, args = self.trace[-1]
        inodes = (self.find(directory).entries or {}).values()
        return call in ("write_at", "truncate", "flush") and self._handle_was.get(args[0]) in inodes

    def kill(self, process: "SimulatedDisk") -> None:
        """Close its handles, on every disk; the kernel drops its locks."""
        for disk in process.every_disk:
            disk.dead = True
            machine = disk.machine
            for number in [n for n, handle in machine.handles.items() if handle.process is disk]:
                machine.close(number)
            for name in [n for n, holder in machine.housekeepers.items() if holder is disk]:
                del machine.housekeepers[name]

    def open(self, inode: Inode, writable: bool, process: "SimulatedDisk") -> int:
        self._next_handle += 1
        self.handles[self._next_handle] = Handle(inode, writable, process)
        self._handle_was[self._next_handle] = inode
        return self._next_handle

    def close(self, number: int) -> None:
        inode = self.handles.pop(number).inode
        inode.locks = [lock for lock in inode.locks if lock.handle != number]

    # -- names ------------------------------------------------------------------------------------------------------

    def new_inode(self, *, directory: bool = False) -> Inode:
        self._inodes += 1
        return Inode(self._inodes, directory=directory)

    def parent(self, path: str) -> tuple[Inode, str]:
        """The directory in which the path's last part is a name."""
        above, _, name = path.rpartition("/")
        return self.find(above, directory=True), name

    def find(self, path: str, *, directory: bool = False) -> Inode:
        found: Inode | None
        inode = self.root
        for name in path.split("/"):
            if inode.entries is None:
                raise error_of(errno.ENOTDIR, path)
            if name:
                if (found := inode.entries.get(name)) is None:
                    raise error_of(errno.ENOENT, path)
                inode = found
        if directory and inode.entries is None:
            raise error_of(errno.ENOTDIR, path)
        return inode

    def lookup(self, path: str) -> Inode | None:
        """Return the inode at the path, or None. The path's directory must exist."""
        directory, name = self.parent(path)
        return directory.entries.get(name)

    def record(self, kind: str, *changes: Change) -> None:
        """Do an operation on names, and log it, so that ``tests.survivors`` can compute the states after a power
        cut."""
        self.log.append(Operation(kind, changes))
        now = len(self.log)
        for directory, name, inode in changes:
            old = directory.entries.pop(name, None)
            for changed, count in ((old, -1), (inode, 1)):
                if changed is not None:
                    changed.links += count if changed.entries is None else 0
                    changed.touched = now
            if inode is not None:
                directory.entries[name] = inode
            directory.touched = now

    def walk(self) -> Iterator[tuple[str, Inode]]:
        """(path, inode) of every name; hard links repeat."""
        waiting = [("", self.root)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, inode in (directory.entries or {}).items():
                yield prefix + name, inode
                waiting.append((f"{prefix}{name}/", inode))

    # -- bytes ------------------------------------------------------------------------------------------------------

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        for part in filter(None, (data[: len(data) // 2], data)):  # a power cut may find half of it
            start = inode.data[:offset].ljust(offset, b"\0")
            inode.data = start + part + inode.data[offset + len(part) :]
            inode.shadow = _with_pages(inode, offset, offset + len(part))
            inode.pending.append(inode.coming)
        self._changed(inode)

    def truncate(self, inode: Inode, length: int) -> None:
        inode.data = inode.data[:length].ljust(length, b"\0")
        if inode.shadow is not None:
            inode.shadow = inode.shadow[:length].ljust(length, b"\0")
        inode.pending.append(inode.coming)
        self._changed(inode)

    def _changed(self, inode: Inode) -> None:
        inode.touched = len(self.log)
        inode.changed += 1
        inode.version = inode.changed

    def flush(self, inode: Inode, *, names: bool = True) -> None:
        """Flush the bytes of a file or the names of a directory. Unless ``names`` is False, also flush all operations
        that a journal commits with the inode."""
        if inode.flush_failed:
            self.flushed_again.append(inode)
        inode.flushed = inode.coming
        inode.pending.clear()
        if not names:
            return
        inode.names_flushed = len(self.log)
        inode.flushes.append(len(self.log))
        self.journaled = max(self.journaled, inode.touched)

    def fail_flush(self, inode: Inode) -> None:
        """Drop the dirty bytes of a file, or the new entries of a directory, from the disk; processes go on seeing
        them.

        The caller raises an error. A later flush of the inode succeeds, and ``flushed_again`` records it.
        """
        inode.flush_failed = True
        inode.shadow = inode.flushed
        inode.dropped.append((inode.names_flushed, len(self.log)))
        if self.flush_carries_name and not self.ordered and inode.entries is None:  # it was about their names, too
            for directory in {change.directory for operation in self.log for change in operation.changes}:
                if inode in (directory.entries or {}).values():
                    directory.dropped.append((directory.names_flushed, len(self.log)))


def _with_pages(inode: Inode, start: int, stop: int) -> bytes | None:
    """The shadow, with the pages that a write from ``start`` to ``stop`` made dirty again."""
    if inode.shadow is None:
        return None
    first, last = start // PAGE * PAGE, -(-stop // PAGE) * PAGE
    return inode.shadow[:first].ljust(first, b"\0") + inode.data[first:last] + inode.shadow[last:]


def image_of(files: Iterable[tuple[str, Inode, bytes]]) -> Image:
    """An image of (path, inode, the bytes that it has in the image); a directory's are not asked for."""
    order: dict[int, int] = {}
    return Image(
        tuple(
            (path, order.setdefault(inode.number, len(order)), data if inode.entries is None else None)
            for path, inode, data in sorted(files, key=lambda file: file[0])
        )
    )


def error_of(code: int, name: str) -> OSError:
    return OSError(code, os.strerror(code), name)
