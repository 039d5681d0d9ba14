"""The disk of a simulated machine: ``spool.disk.disk.Disk``'s methods and errors, for several processes, all in memory.

Every call of a process is a step. ``Machine.crash_at`` ends the process that comes to that step, before the step is
done; its handles are closed and its locks dropped, as the kernel does for a killed process.
"""

import errno
import os
import random
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest import mock

from spool.coordination import locks, request_slots
from spool.disk import Disk
from spool.disk.durability import durability_of
from spool.disk.kernel import ProcessLock, Unsupported
from spool.disk.memory import ALL_THREADS, WORD_BYTES, SharedBytes
from spool.disk.stat import FileIdentity, FileSystem, Guarantees
from spool.store import feed
from tests.machine import Change, Inode, Lock, Machine, error_of

ROOT = "/space"
CHANGES = frozenset(
    ("create", "write_at", "truncate", "rename", "rename_new", "link", "unlink", "make_directory", "remove_directory",
     "flush")
)  # fmt: skip

_WHOLE = (-2, -1)  # where no byte is that could be locked on its own


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Use the same random ids in each run, so that a step's number means the same call, and few claim files."""
    numbers = random.Random(seed)
    with mock.patch("os.urandom", numbers.randbytes), few_claim_files():
        yield


@contextmanager
def few_claim_files() -> Iterator[None]:
    """Use few claim files in spaces that only this process opens, or most steps of an opening would concern claim
    files."""
    with mock.patch.object(locks, "CLAIM_FILES", 4):
        yield


@contextmanager
def few_slots() -> Iterator[None]:
    """The feed and the requests have few slots: a simulated disk copies a file at each write. A ring that is small is
    overrun."""
    with mock.patch.object(feed, "SLOTS", 6), mock.patch.object(request_slots, "SLOTS", 6):
        yield


class SimulatedDisk(Disk):
    """One process's way to the machine's disk: the methods of ``Disk``, and its errors."""

    def __init__(self, machine: Machine) -> None:
        self.root = ROOT
        self.flushes = 0
        self._guarantees = Guarantees(
            orders_renames=machine.ordered,
            names_follow=machine.names_follow,
            carries_new_names=machine.flush_carries_name,
            flushes_all=machine.ordered or not machine.flush_carries_name,
        )
        self.durability = durability_of(self._guarantees)
        self.machine = machine
        self.clock = machine.clock
        self.dead = False
        self.every_disk = [self]  # of this process: its own and the mirror's
        self._directories_opened: dict[int, str] = {}  # by handle, for the trace
        self._seen: dict[int, int] = {}  # of each watched file, the version that was there at the last look

    def sibling(self, root: str) -> "SimulatedDisk":
        """Return another disk of the same process. Both disks die with the process, but a power cut affects each
        separately."""
        side = self._on(self.machine.beside or self.machine.add_disk())
        self.every_disk.append(side)
        side.every_disk = self.every_disk
        return side

    def _on(self, machine: Machine) -> "SimulatedDisk":
        return type(self)(machine)

    def _step(self, call: str, *args: object) -> None:
        self.machine.step(self, call, args)

    def _handle(self, number: int, *, writing: bool = False) -> Inode:
        handle = self.machine.handles.get(number)
        if handle is None or handle.process is not self or (writing and not handle.writable):
            raise error_of(errno.EBADF, str(number))
        return handle.inode

    # -- files by name ----------------------------------------------------------------------------------------------

    def create(self, name: str) -> int:
        self._step("create", name)
        if self.machine.lookup(name) is not None:
            raise error_of(errno.EEXIST, name)
        inode = self.machine.new_inode()
        self.machine.record("create", Change(*self.machine.parent(name), inode))
        return self.machine.open(inode, True, self)

    def open(self, name: str, *, write: bool = False) -> int:
        self._step("open", name)
        inode = self.machine.find(name)
        if inode.entries is not None:
            raise error_of(errno.EISDIR if write else errno.EINVAL, name)
        return self.machine.open(inode, write, self)

    def open_to_overwrite(self, name: str) -> tuple[int, int, bool]:
        handle = self.open(name, write=True)
        identity = self.handle_identity(handle)
        return handle, identity.size, identity.links == 1

    def close(self, handle: int) -> None:
        self._step("close", handle)
        self._handle(handle)
        self.machine.close(handle)

    def check_stages_in_place(self) -> None:
        """Do nothing: no test moves a directory of a simulated machine."""

    def disown(self) -> None:
        """A forked child has nothing to close: the handles are the machine's."""

    def close_all(self) -> None:
        for number in [number for number, handle in self.machine.handles.items() if handle.process is self][::-1]:
            self.close(number)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source, target)
        self._rename(source, target)

    def rename_new(self, source: str, target: str) -> None:
        self._step("rename_new", source, target)
        self.machine.lookup(source)
        if self.machine.lookup(target) is not None and self.machine.lookup(source) is not None:
            raise error_of(errno.EEXIST, target)
        self._rename(source, target)

    def _rename(self, source: str, target: str) -> None:
        machine = self.machine
        old, new = machine.parent(source), machine.parent(target)
        moved, there = machine.lookup(source), machine.lookup(target)
        if moved is None:
            raise error_of(errno.ENOENT, source)
        if moved is there:
            return  # POSIX: two names of one file both stay
        if there is not None and there.entries is not None and moved.entries is None:
            raise error_of(errno.EISDIR, target)
        if there is not None and there.entries is None and moved.entries is not None:
            raise error_of(errno.ENOTDIR, target)
        if there is not None and there.entries:
            raise error_of(errno.ENOTEMPTY, target)
        machine.record("rename", Change(*new, moved), Change(*old, None))
        moved.changed += 1

    def will_read(self, handle: int, length: int) -> None:
        self._handle(handle)

    def run_beside(self, name: str, run: Callable[[], None]) -> bool:
        return False  # a simulated process has one thread, whose calls are its steps

    def link(self, source: str, target: str) -> None:
        self._step("link", source, target)
        inode = self.machine.lookup(source)
        place = self.machine.parent(target)
        if inode is None:
            raise error_of(errno.ENOENT, source)
        if self.machine.lookup(target) is not None:
            raise error_of(errno.EEXIST, target)
        if inode.entries is not None or inode.foreign:
            raise Unsupported(errno.EPERM, os.strerror(errno.EPERM), source)
        self.machine.record("link", Change(*place, inode))

    def unlink(self, name: str) -> None:
        self._step("unlink", name)
        if (inode := self.machine.lookup(name)) is None:
            raise error_of(errno.ENOENT, name)
        if inode.entries is not None:
            raise error_of(errno.EISDIR, name)
        self.machine.record("unlink", Change(*self.machine.parent(name), None))

    def exists(self, name: str) -> bool:
        return self.identity(name) is not None

    def identity(self, name: str) -> FileIdentity | None:
        self._step("identity", name)
        try:
            return _identity(self.machine.find(name))
        except OSError:
            return None

    def lasting_identity(self, name: str) -> str:
        return f"{zlib.crc32(self.machine.find(name).data)}-"  # (the numbers of inodes change in a power cut)

    def same_file(self, name: str, identity: FileIdentity) -> bool:
        return identity.same_file(self.identity(name))

    def set_mode(self, name: str, mode: int, group: int | None = None) -> None:
        self._step("set_mode", name)
        if _identity(self.machine.find(name)).permissions != mode:
            raise NotImplementedError("simulated files have one mode for good")

    # -- directories ------------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        self._step("names", directory)
        return list(self.machine.find(directory, directory=True).entries or {})

    def make_directory(self, name: str) -> bool:
        self._step("make_directory", name)
        if not name:
            return False
        there = self.machine.lookup(name)
        if there is not None and there.entries is None:
            raise error_of(errno.EEXIST, name)
        if there is not None:
            return False
        made = self.machine.new_inode(directory=True)
        self.machine.record("make_directory", Change(*self.machine.parent(name), made))
        return True

    def remove_directory(self, name: str) -> None:
        self._step("remove_directory", name)
        if self.machine.find(name, directory=True).entries:
            raise error_of(errno.ENOTEMPTY, name)
        self.machine.record("remove_directory", Change(*self.machine.parent(name), None))

    def open_directory(self, name: str) -> int:
        self._step("open_directory", name)
        handle = self.machine.open(self.machine.find(name, directory=True), False, self)
        self._directories_opened[handle] = name
        return handle

    def keeping(self, *directories: str) -> AbstractContextManager[None]:
        return nullcontext()  # a call by name is one step in any case

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
            raise error_of(errno.EINVAL, str(handle))
        self.machine.truncate(self._handle(handle), length)

    def set_modified(self, handle: int, modified_ns: int) -> None:
        self._step("set_modified", handle)
        self._handle(handle).version = modified_ns

    def map(self, handle: int, length: int) -> SharedBytes:
        self._step("map", handle, length)
        return SimulatedMemory(self, handle)

    def look(self, handle: int, place: slice) -> bytes:
        """Read the shared memory."""
        self._step("look", handle, place.start, place.stop - place.start)
        return self._handle(handle).data[place]

    def store(self, handle: int, at: int, data: bytes) -> None:
        """Write into the shared memory in one step."""
        self._step("store", handle, at, len(data))
        self.machine.write(self._handle(handle, writing=True), at, data)

    def handle_identity(self, handle: int) -> FileIdentity:
        self._step("handle_identity", handle)
        return _identity(self._handle(handle))

    # -- durability -------------------------------------------------------------------------------------------------

    def flush(self, handle: int, *, data_only: bool = False) -> None:
        self._step("flush", self._directories_opened.get(handle, handle))
        self.flushes += 1
        # Without a journal that orders renames, a file's flush of either kind is about its names, too.
        self.machine.flush(self._handle(handle), names=not (data_only and self.machine.ordered))

    def begin_flush(self, handle: int) -> None:
        self._handle(handle)  # (a power cut leaves any of the unflushed contents anyway)

    def flush_everything(self, handle: int) -> None:
        self._handle(handle)
        self._step("flush", "everything")
        self.flushes += 1
        for inode in {id(inode): inode for inode in (self.machine.root, *(i for _, i in self.machine.walk()))}.values():
            self.machine.flush(inode)

    # -- changes ----------------------------------------------------------------------------------------------------

    def watch(self, name: str) -> int:
        self._step("watch", name)
        inode = self.machine.find(name)
        handle = self.machine.open(inode, False, self)
        self._seen[handle] = inode.version
        return handle

    def watch_with(self, notifier: int, name: str) -> int:
        """Refuse: the kernel cannot watch a simulated file."""
        self._step("watch_with", name)
        raise OSError(errno.ENOSPC, "no watches of simulated files", name)

    def wait_for_change(self, handle: int, seconds: float) -> bool:
        """Return at once whether the file has changed; only the simulated clock lets time pass."""
        self._step("wait_for_change", handle, seconds)
        version = self._handle(handle).version
        seen, self._seen[handle] = self._seen[handle], version
        return version != seen

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

    def some_lock(self, handle: int, start: int, length: int) -> tuple[int, int] | None:
        self._step("some_lock", handle, start, length)
        inode = self._handle(handle)
        if not (found := _others(inode, Lock(handle, start, start + length, False))):
            return None
        first = min(found, key=lambda lock: lock.start)
        start, stop = first.start, first.stop
        neighbours = sorted(lock for lock in inode.locks if lock[::3] == first[::3])
        for lock in neighbours:  # the kernel joins adjacent locks
            stop = max(stop, lock.stop) if lock.start <= stop and lock.stop > start else stop
        for lock in reversed(neighbours):
            start = min(start, lock.start) if lock.stop >= start and lock.start < stop else start
        return start, stop - start

    def flock(self, handle: int) -> bool:
        self._step("flock", handle)
        inode = self._handle(handle)
        wanted = Lock(handle, *_WHOLE, False)
        if _others(inode, wanted):
            return False
        inode.locks.append(wanted)
        return True

    def funlock(self, handle: int) -> None:
        self._step("funlock", handle)
        _let_go(self._handle(handle), Lock(handle, *_WHOLE, False))

    def flock_holder(self, handle: int) -> str:
        holders = self.lock_holders(handle, _WHOLE[0])
        return holders[0] if holders else ""

    def lock_holders(self, handle: int, start: int, *, others: bool = False) -> list[str]:
        found = _others(self._handle(handle), Lock(handle, start, start + 1, False))
        return [f"process {id(self.machine.handles[lock.handle].process):x} (simulated)" for lock in found]

    def process_locks(self, handles: Iterable[int]) -> list[ProcessLock]:
        return [
            ProcessLock(handle, lock.start, lock.stop - 1, id(self.machine.handles[lock.handle].process), "simulated")
            for handle in handles
            for lock in self._handle(handle).locks
        ]

    @contextmanager
    def exclusively(self, name: str) -> Iterator[bool]:
        if self.identity(name) is None:
            raise error_of(errno.ENOENT, name)
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

    def has_writer(self, handle: int) -> bool | None:
        self._step("has_writer", handle)
        inode, handles = self._handle(handle), self.machine.handles.values()
        return None if inode.foreign else any(each.inode is inode and each.writable for each in handles)

    # -- the machine ------------------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return f"boot-{self.machine.boot}"

    def machine_id(self) -> str:
        return "-"

    def file_system(self) -> FileSystem:
        return FileSystem("simulated", False, 1 << 40, None)

    def network_file_system(self) -> str | None:
        return None


class SimulatedMemory:
    """Bytes that processes share: looked at in one step, and written in two, as the C library copies bytes.

    So others may see either half, and a word is written twice. Only ``store`` writes a word in one step.
    """

    wakes = True

    def __init__(self, disk: SimulatedDisk, handle: int) -> None:
        self._disk = disk
        self._handle = handle

    def wait(self, at: int, value: bytes, seconds: float) -> bool:
        """Return at once whether the value has changed; only the simulated clock lets time pass."""
        return self[at : at + WORD_BYTES] != value

    sleep = wait

    def change(self, at: int, value: bytes, threads: int = ALL_THREADS) -> int:
        self.store(at, value)
        return 0

    def store(self, at: int, word: bytes) -> None:
        self._disk.store(self._handle, at, word)

    def wake(self, at: int) -> None:
        """Do nothing: no simulated thread sleeps."""

    def __getitem__(self, place: slice) -> bytes:
        return self._disk.look(self._handle, place)

    def __setitem__(self, place: slice, data: bytes) -> None:
        half = 0 if len(data) == WORD_BYTES else len(data) // 2
        parts = [(place.start, data[:half] or data), (place.start + half, data[half:])]
        for at, part in parts if len(data) % 2 else reversed(parts):
            self.store(at, part)

    def close(self) -> None:
        pass


def _others(inode: Inode, wanted: Lock) -> list[Lock]:
    """Return the overlapping locks of other handles."""
    return [
        lock
        for lock in inode.locks
        if lock.handle != wanted.handle and lock.start < wanted.stop and wanted.start < lock.stop
    ]


def _let_go(inode: Inode, range_: Lock) -> None:
    """Remove a range from the handle's locks."""
    kept = []
    for lock in inode.locks:
        if lock.handle != range_.handle:
            kept.append(lock)
            continue
        pieces = (lock._replace(stop=min(lock.stop, range_.start)), lock._replace(start=max(lock.start, range_.stop)))
        kept += [piece for piece in pieces if piece.start < piece.stop]
    inode.locks = kept


def _identity(inode: Inode) -> FileIdentity:
    kind = _FILE if inode.entries is None else _DIRECTORY
    return FileIdentity(1, inode.number, inode.links, len(inode.data), inode.version, kind, _OWNER, inode.changed)


_FILE, _DIRECTORY = stat.S_IFREG | 0o600, stat.S_IFDIR | 0o700
_OWNER = os.geteuid()
