"""A machine with a file system in memory, and processes on it that use it through ``spool.disk.Disk``'s methods.

Every file and every name has two states: what processes see now, and what a power cut is sure to leave. What it may
leave beyond that is ``tests.survivors``' business; this module only keeps the record that it needs: the log of
operations on names, what each file held since its last flush, and what was flushed.

Every call of a process is a step. ``crash_at`` ends the process that comes to that step, before the step is done; its
handles are closed and its locks dropped, as the kernel does for a killed process.
"""

import copy
import errno
import os
import random
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from spool.clock import Clock
from spool.disk import Disk, FileIdentity

ROOT = "/space"
CHANGES = frozenset(
    ("create", "write_at", "truncate", "rename", "rename_new", "link", "unlink", "make_directory", "remove_directory",
     "flush")
)  # fmt: skip


class PowerCut(BaseException):
    """The process ends here: no ``except Exception`` may see it."""


class SimulatedClock(Clock):
    """Time passes only where somebody sleeps."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """The same random ids in each run, so that a step's number means the same call."""
    numbers = random.Random(seed)
    with mock.patch("os.urandom", numbers.randbytes):
        yield


class Inode:
    """A file (``entries`` None) or a directory.

    ``flushed`` is what the disk surely holds of a file, ``pending`` everything that it held since, half-written
    states included. ``touched`` is how long the log of names was when the inode last changed: a journal that commits
    the inode commits everything up to there. ``names_flushed`` is the same for a directory's last own flush.
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
        self.version = 0
        self.locks: list[Lock] = []


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


class Operation(NamedTuple):
    """One call's changes of names. A rename has two: the new name first."""

    kind: str
    changes: tuple[Change, ...]


class Image(NamedTuple):
    """A whole disk, durable: (path, which inode, bytes or None for a directory), sorted by path. Equal means equal."""

    files: tuple[tuple[str, int, bytes | None], ...]


NO_FILES = Image(())


class Handle(NamedTuple):
    inode: Inode
    writable: bool
    process: "SimulatedDisk"


class Machine:
    """One life of a machine, from boot to power cut; starts with a disk on which everything is durable."""

    def __init__(self, image: Image = NO_FILES, *, boot: int = 1, ordered: bool = True) -> None:
        self.boot = boot
        self.ordered = ordered
        self.clock = SimulatedClock(1_700_000_000.0 + 1000 * boot)
        self.root = Inode(1, directory=True)
        self.log: list[Operation] = []
        self.journaled = 0  # how much of the log a journaling file system has committed
        self.handles: dict[int, Handle] = {}
        self.housekeepers: dict[str, SimulatedDisk] = {}
        self.trace: list[tuple[str, tuple[object, ...]]] = []
        self._cut: int | None = None
        self._inodes = 1
        self._next_handle = 3
        self._handle_was: dict[object, Inode] = {}
        self._load(image)

    def _load(self, image: Image) -> None:
        known: dict[int, Inode] = {}
        for path, number, data in image.files:
            inode = known.get(number) or self.new_inode(directory=data is None)
            known[number] = inode
            inode.data = inode.flushed = data or b""
            directory, name = self.parent(path)
            assert directory.entries is not None
            directory.entries[name] = inode
            inode.links += inode.entries is None
        self.base = {(d.number, n): i for d in self.directories() for n, i in (d.entries or {}).items()}

    def image(self) -> Image:
        """The disk after an orderly shutdown."""
        return image_of(self.root, {})

    def copy(self) -> "Machine":
        """The same moment once more, page cache included, with every process dead."""
        twin = copy.deepcopy(self, {id(self.handles): {}, id(self.housekeepers): {}, id(self.trace): []})
        for inode in twin.inodes():
            inode.locks.clear()
        twin._cut = None
        return twin

    # -- processes and steps ----------------------------------------------------------------------------------------

    def process(self, kind: "type[SimulatedDisk] | None" = None) -> "SimulatedDisk":
        """A new process on this machine."""
        return (kind or SimulatedDisk)(self)

    def crash_at(self, step: int | None) -> None:
        """The process that makes this call (counted from 1 since boot) ends instead."""
        self._cut = step

    def step(self, process: "SimulatedDisk", call: str, args: tuple[object, ...]) -> None:
        if process.dead:
            raise PowerCut("this process is dead")
        self.trace.append((call, args))
        if self._cut == len(self.trace):
            self.kill(process)
            raise PowerCut(self.last_call())

    def last_call(self) -> str:
        call, args = self.trace[-1]
        return f"step {len(self.trace)}, {call}{args}"

    def last_call_writes(self, directory: str) -> bool:
        """Whether the last call was about bytes of a file in that directory; asked while its handle is open or not."""
        call, args = self.trace[-1]
        inodes = (self.find(directory).entries or {}).values()
        return call in ("write_at", "truncate", "flush") and self._handle_was.get(args[0]) in inodes

    def kill(self, process: "SimulatedDisk") -> None:
        """Close its handles; the kernel drops its locks."""
        process.dead = True
        for number in [n for n, handle in self.handles.items() if handle.process is process]:
            self.close(number)
        for name in [n for n, holder in self.housekeepers.items() if holder is process]:
            del self.housekeepers[name]

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
        *above, name = path.split("/")
        return self.find("/".join(above), directory=True), name

    def find(self, path: str, *, directory: bool = False) -> Inode:
        inode = self.root
        for name in filter(None, path.split("/")):
            if inode.entries is None:
                raise _error(errno.ENOTDIR, path)
            if name not in inode.entries:
                raise _error(errno.ENOENT, path)
            inode = inode.entries[name]
        if directory and inode.entries is None:
            raise _error(errno.ENOTDIR, path)
        return inode

    def lookup(self, path: str) -> Inode | None:
        """What lies under the path whose directory must exist, or None."""
        directory, name = self.parent(path)
        assert directory.entries is not None
        return directory.entries.get(name)

    def record(self, kind: str, *changes: Change) -> None:
        """Do an operation on names, and log it for those who ask what may survive."""
        self.log.append(Operation(kind, changes))
        for directory, name, inode in changes:
            assert directory.entries is not None
            old = directory.entries.pop(name, None)
            for changed, count in ((old, -1), (inode, 1)):
                if changed is not None:
                    changed.links += count if changed.entries is None else 0
                    changed.touched = len(self.log)
            if inode is not None:
                directory.entries[name] = inode
            directory.touched = len(self.log)

    def directories(self) -> Iterator[Inode]:
        return (inode for inode in self.inodes() if inode.entries is not None)

    def inodes(self) -> Iterator[Inode]:
        """Every inode with a name; hard links repeat."""
        waiting = [self.root]
        while waiting:
            inode = waiting.pop()
            yield inode
            waiting += (inode.entries or {}).values()

    # -- bytes ------------------------------------------------------------------------------------------------------

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        for part in filter(None, (data[: len(data) // 2], data)):  # a power cut may find half of it
            start = inode.data[:offset].ljust(offset, b"\0")
            inode.data = start + part + inode.data[offset + len(part) :]
            inode.pending.append(inode.data)
        self._changed(inode)

    def truncate(self, inode: Inode, length: int) -> None:
        inode.data = inode.data[:length].ljust(length, b"\0")
        inode.pending.append(inode.data)
        self._changed(inode)

    def _changed(self, inode: Inode) -> None:
        inode.touched = len(self.log)
        inode.version += 1

    def flush(self, inode: Inode) -> None:
        """The inode's bytes or, of a directory, its names; and what a journal commits with it."""
        inode.flushed = inode.data
        inode.pending.clear()
        inode.names_flushed = len(self.log)
        self.journaled = max(self.journaled, inode.touched)


class SimulatedDisk(Disk):
    """One process's way to the machine's disk: the methods of ``Disk``, and its errors."""

    def __init__(self, machine: Machine) -> None:
        self.root = ROOT
        self.flushes = 0
        self.ordered = machine.ordered
        self.machine = machine
        self.dead = False

    def _step(self, call: str, *args: object) -> None:
        self.machine.step(self, call, args)

    def _handle(self, number: int, *, writing: bool = False) -> Inode:
        handle = self.machine.handles.get(number)
        if handle is None or handle.process is not self or (writing and not handle.writable):
            raise _error(errno.EBADF, str(number))
        return handle.inode

    # -- files by name ----------------------------------------------------------------------------------------------

    def create(self, name: str) -> int:
        self._step("create", name)
        if self.machine.lookup(name) is not None:
            raise _error(errno.EEXIST, name)
        inode = self.machine.new_inode()
        self.machine.record("create", Change(*self.machine.parent(name), inode))
        return self.machine.open(inode, True, self)

    def open(self, name: str, *, write: bool = False) -> int:
        self._step("open", name)
        inode = self.machine.find(name)
        if inode.entries is not None:
            raise _error(errno.EISDIR if write else errno.EINVAL, name)
        return self.machine.open(inode, write, self)

    def close(self, handle: int) -> None:
        self._step("close", handle)
        self._handle(handle)
        self.machine.close(handle)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source, target)
        self._rename(source, target)

    def rename_new(self, source: str, target: str) -> None:
        self._step("rename_new", source, target)
        self.machine.lookup(source)
        if self.machine.lookup(target) is not None and self.machine.lookup(source) is not None:
            raise _error(errno.EEXIST, target)
        self._rename(source, target)

    def _rename(self, source: str, target: str) -> None:
        machine = self.machine
        old, new = machine.parent(source), machine.parent(target)
        moved, there = machine.lookup(source), machine.lookup(target)
        if moved is None:
            raise _error(errno.ENOENT, source)
        if moved is there:
            return  # POSIX: two names of one file both stay
        if there is not None and there.entries is not None and moved.entries is None:
            raise _error(errno.EISDIR, target)
        if there is not None and there.entries is None and moved.entries is not None:
            raise _error(errno.ENOTDIR, target)
        if there is not None and there.entries:
            raise _error(errno.ENOTEMPTY, target)
        machine.record("rename", Change(*new, moved), Change(*old, None))

    def link(self, source: str, target: str) -> None:
        self._step("link", source, target)
        inode = self.machine.lookup(source)
        if inode is None:
            raise _error(errno.ENOENT, source)
        if self.machine.lookup(target) is not None:
            raise _error(errno.EEXIST, target)
        if inode.entries is not None:
            raise _error(errno.EPERM, source)
        self.machine.record("link", Change(*self.machine.parent(target), inode))

    def unlink(self, name: str) -> None:
        self._step("unlink", name)
        inode = self.machine.lookup(name)
        if inode is None:
            raise _error(errno.ENOENT, name)
        if inode.entries is not None:
            raise _error(errno.EISDIR, name)
        self.machine.record("unlink", Change(*self.machine.parent(name), None))

    def exists(self, name: str) -> bool:
        return self.identity(name) is not None

    def identity(self, name: str) -> FileIdentity | None:
        self._step("identity", name)
        try:
            return _identity(self.machine.find(name))
        except OSError:
            return None

    # -- directories ------------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        self._step("names", directory)
        return list(self.machine.find(directory, directory=True).entries or {})

    def make_directory(self, name: str) -> bool:
        self._step("make_directory", name)
        there = self.machine.lookup(name)
        if there is not None and there.entries is None:
            raise _error(errno.EEXIST, name)
        if there is not None:
            return False
        made = self.machine.new_inode(directory=True)
        self.machine.record("make_directory", Change(*self.machine.parent(name), made))
        return True

    def remove_directory(self, name: str) -> None:
        self._step("remove_directory", name)
        if self.machine.find(name, directory=True).entries:
            raise _error(errno.ENOTEMPTY, name)
        self.machine.record("remove_directory", Change(*self.machine.parent(name), None))

    # -- bytes by handle --------------------------------------------------------------------------------------------

    def read_at(self, handle: int, offset: int, length: int) -> bytes:
        self._step("read_at", handle, offset, length)
        return self._handle(handle).data[offset : offset + length]

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        self._step("write_at", handle, offset, len(data))
        self.machine.write(self._handle(handle, writing=True), offset, bytes(data))

    def truncate(self, handle: int, length: int) -> None:
        self._step("truncate", handle, length)
        if not self.machine.handles[handle].writable:
            raise _error(errno.EINVAL, str(handle))
        self.machine.truncate(self._handle(handle), length)

    def handle_identity(self, handle: int) -> FileIdentity:
        self._step("handle_identity", handle)
        return _identity(self._handle(handle))

    # -- durability -------------------------------------------------------------------------------------------------

    def flush(self, handle: int) -> None:
        self._step("flush", handle)
        self.flushes += 1
        self.machine.flush(self._handle(handle))

    def flush_directory(self, name: str) -> None:
        self._step("flush", name)
        self.flushes += 1
        self.machine.flush(self.machine.find(name, directory=True))

    # -- locks ------------------------------------------------------------------------------------------------------

    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        self._step("lock", handle, start, length)
        inode = self._handle(handle, writing=not shared)
        wanted = Lock(handle, start, start + length, shared)
        if any(not (shared and lock.shared) for lock in _others(inode, wanted)):
            return False
        _let_go(inode, wanted)
        inode.locks.append(wanted)
        return True

    def unlock(self, handle: int, start: int, length: int = 1) -> None:
        self._step("unlock", handle, start, length)
        _let_go(self._handle(handle), Lock(handle, start, start + length, False))

    def first_lock(self, handle: int, start: int, length: int) -> tuple[int, int] | None:
        self._step("first_lock", handle, start, length)
        inode = self._handle(handle)
        found = _others(inode, Lock(handle, start, start + length, False))
        if not found:
            return None
        first = min(found, key=lambda lock: lock.start)
        start, stop = first.start, first.stop
        neighbours = sorted(lock for lock in inode.locks if lock[::3] == first[::3])
        for lock in neighbours:  # the kernel joins what touches
            stop = max(stop, lock.stop) if lock.start <= stop and lock.stop > start else stop
        for lock in reversed(neighbours):
            start = min(start, lock.start) if lock.stop >= start and lock.start < stop else start
        return start, stop - start

    def lock_holders(self, handle: int, start: int) -> list[str]:
        found = _others(self._handle(handle), Lock(handle, start, start + 1, False))
        return [f"process {id(self.machine.handles[lock.handle].process):x} (simulated)" for lock in found]

    @contextmanager
    def exclusively(self, name: str) -> Iterator[bool]:
        if not self.exists(name):
            self.close(self.create(name))
        held = self.machine.housekeepers
        if name in held:
            yield False
            return
        held[name] = self
        try:
            yield True
        finally:
            if held.get(name) is self:
                del held[name]

    def has_writer(self, name: str) -> bool | None:
        self._step("has_writer", name)
        inode = self.machine.find(name)
        return any(handle.inode is inode and handle.writable for handle in self.machine.handles.values())

    # -- the machine ------------------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return f"boot-{self.machine.boot}"

    def network_file_system(self) -> str | None:
        return None


def image_of(root: Inode, contents: dict[int, bytes]) -> Image:
    """The tree as an image; ``contents``: bytes of inodes that are not as they are now."""
    files: list[tuple[str, int, bytes | None]] = []
    _collect(root, "", contents, files)
    files.sort()
    order: dict[int, int] = {}
    return Image(tuple((path, order.setdefault(number, len(order)), data) for path, number, data in files))


def _collect(directory: Inode, prefix: str, contents: dict[int, bytes], files: list) -> None:  # type: ignore[type-arg]
    for name, inode in (directory.entries or {}).items():
        if inode.entries is None:
            files.append((prefix + name, inode.number, contents.get(inode.number, inode.data)))
        else:
            files.append((prefix + name, inode.number, None))
            _collect(inode, f"{prefix}{name}/", contents, files)


def _others(inode: Inode, wanted: Lock) -> list[Lock]:
    """Locks of other handles that overlap."""
    return [
        lock
        for lock in inode.locks
        if lock.handle != wanted.handle and lock.start < wanted.stop and wanted.start < lock.stop
    ]


def _let_go(inode: Inode, range_: Lock) -> None:
    """Take a range out of what the handle holds."""
    kept = []
    for lock in inode.locks:
        if lock.handle != range_.handle:
            kept.append(lock)
            continue
        pieces = (
            lock._replace(stop=min(lock.stop, range_.start)),
            lock._replace(start=max(lock.start, range_.stop)),
        )
        kept += [piece for piece in pieces if piece.start < piece.stop]
    inode.locks = kept


def _identity(inode: Inode) -> FileIdentity:
    kind = stat.S_IFREG | 0o600 if inode.entries is None else stat.S_IFDIR | 0o700
    return FileIdentity(1, inode.number, inode.links, len(inode.data), inode.version, kind)


def _error(code: int, name: str) -> OSError:
    return OSError(code, os.strerror(code), name)
