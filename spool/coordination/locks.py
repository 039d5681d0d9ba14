"""Locks between the processes with a space open. Unlike a process id, a held lock proves that its holder lives.

The kernel releases the locks of a dead process. Three mechanisms serve three kinds of locks:

* A byte, in ``LockFile``, ``OpenLock`` and ``ClaimLocks``: an open-file-description lock (F_OFD_SETLK). The byte stands
  for a number, an xid, a claim, an owner, or an open space. Many byte locks exist, and a commit takes several, so many
  byte locks share one file.
* The space's directory, in ``OpenLock``: ``flock``, which a process holds while it opens the space. This lock needs no
  separate file, which could be deleted.
* Maintenance, in ``Disk.exclusively``: the package filelock locks ``run/reclaim.lock``. One process at a time holds
  this lock while it removes, compacts, exports or repairs files. A process that does not get this lock leaves the work
  to the lock's holder.

Byte locks exclude other processes (more exactly: other open descriptions), but not other threads of the process. So a
thread first takes the byte in a table of its process, under a mutex. A lock excludes other processes only if the name
means the same file for all processes. Only the first opener creates these files (see ``OpenLock``), and no process
creates such a file again while another process has the space open. So a process that finds such a file missing or
replaced knows that ``run/`` was deleted, and stops.
"""

import hashlib
import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from spool.disk.content import closed_at_end
from spool.disk.disk import Disk
from spool.disk.memory import CLEAR, FUTEX_BYTES, WORD_BYTES
from spool.disk.quarantine import FileCause, FileReason, quarantine
from spool.errors import NO_ROOM, SpaceStopped
from spool.model import layout
from spool.model.layout import CLAIM_FILES, MAX_ORDINAL, ORDINAL_BITS
from spool.model.position import Position, PositionRanges, positions
from spool.model.xid import Xid
from spool.runtime.clock import Deadline, WaitExpired

log = logging.getLogger("spool")

# Bytes of run/control.
NUMBER, PREPARED_LIST, CONFIG, FOLLOWING, HOUSEKEEPING, PUBLISHING = range(6)
METERS = 8  # the first of METERS_FILES bytes: the owner of a file of meters holds one
_ALIVE = 0  # a byte of the space's directory
_SILENT_SECONDS = 1.0  # an opener waits this long before it logs the wait
_SLEEP_SECONDS = 0.02  # the longest sleep of a thread that waits for a byte, because a dying holder wakes no thread
_LOOK_SECONDS = 0.05  # the longest sleep of a process that waits to open the space
_SEVERAL = "several processes, one after another"

GroupName = tuple[str, str]  # queue, group


def _hidden() -> str:
    """Describe a holder that is not visible. Root sees the processes of all users, but not those outside its container
    (pid_namespaces(7))."""
    return f"a process that /proc does not show {'to this user' if os.geteuid() else 'in this container'}"


class LockFile:
    """The byte locks of one file in ``run/``. ``make``: see ``open_shared``."""

    def __init__(self, disk: Disk, name: str, *, make: bool) -> None:
        self.disk = disk
        self.name = name
        self.handle = open_shared(disk, name, make=make)
        self.identity = disk.handle_identity(self.handle)
        self._held: dict[int, object] = {}

    def try_lock(self, byte: int, *, shared: bool = False) -> bool:
        """Take the byte; return False if another thread or process has it.

        ``shared``: whether other processes may share the lock.
        """
        mine = object()
        if self._held.setdefault(byte, mine) is not mine:  # (one step, which no other thread interrupts)
            return False
        try:
            if not self.disk.lock(self.handle, byte, shared=shared):
                del self._held[byte]
                return False
            if self.disk.same_file(self.name, self.identity):
                return True
            raise misplaced_error(self.disk, self.name)
        except BaseException:
            self.unlock(byte)  # the caller gets an error, so the caller must not keep the byte
            raise

    def lock(self, byte: int, deadline: Deadline, what: str, *, shared: bool = False) -> None:
        """Wait until this thread has the byte. At the deadline, raise WaitExpired; the error text names the holder."""
        pauses = None
        while not self.try_lock(byte, shared=shared):
            if pauses is None:
                pauses = self.pauses(byte, deadline)
            elif not next(pauses, False):
                raise self.expired(byte, deadline, what)

    @contextmanager
    def holding(self, byte: int, deadline: Deadline, what: str, *, shared: bool = False) -> Iterator[None]:
        """Hold the byte while the body runs. Raises the errors of ``lock``."""
        self.lock(byte, deadline, what, shared=shared)
        try:
            yield
        finally:
            self.unlock(byte)

    @contextmanager
    def trying(self, byte: int) -> Iterator[bool]:
        """Hold the byte while the body runs, unless another thread or process has it.

        Yields True if this thread holds the byte.
        """
        ours = self.try_lock(byte)
        try:
            yield ours
        finally:
            if ours:
                self.unlock(byte)

    def unlock(self, byte: int) -> None:
        """Release a byte that this process holds."""
        try:
            self.disk.unlock(self.handle, byte)
        finally:
            del self._held[byte]  # only now, so that no other thread locks the byte before this one unlocks it
        if (futexes := self.disk.futexes) is not None:
            at = futexes.first + byte % futexes.count * FUTEX_BYTES  # (no system call: most often no thread waits)
            try:
                if futexes.memory[at : at + WORD_BYTES] != CLEAR:
                    futexes.wake(byte)
            except ValueError:
                pass  # the files were closed; a waiting thread wakes by itself after a short sleep

    def pauses(self, byte: int, deadline: Deadline) -> Iterator[bool]:
        """Return the pauses of a thread that waits for the byte. The caller tries again before the first pause.

        Each pause ends when the holder releases the byte, and at the latest after ``_SLEEP_SECONDS``, because a dying
        holder wakes no thread. See ``Deadline.pauses``.
        """
        if (futexes := self.disk.futexes) is None:
            return deadline.pauses()
        wait, clock = futexes.expect(byte), deadline.clock
        return deadline.pauses(pause_for=lambda _: clock.wait(wait, min(_SLEEP_SECONDS, deadline.remaining())))

    def is_held_here(self, byte: int) -> bool:
        """Return whether a thread of this process holds the byte."""
        return byte in self._held

    def is_held_elsewhere(self, byte: int) -> bool:
        """Return whether another open description holds the byte. Threads of this process do not count."""
        return self.disk.some_lock(self.handle, byte, 1) is not None

    def is_free(self, byte: int) -> bool:
        """Return whether no process, not even this process, holds the byte."""
        return not self.is_held_here(byte) and not self.is_held_elsewhere(byte)

    def expired(self, byte: int, deadline: Deadline, what: str) -> WaitExpired:
        """Return the error for a wait that has expired; the text names the holder of the byte."""
        holder = "another thread of this process" if self.is_held_here(byte) else ""
        holder = holder or " and ".join(self.disk.lock_holders(self.handle, byte))
        holder = holder or (_hidden() if self.is_held_elsewhere(byte) else _SEVERAL)
        return WaitExpired(f"{what} is held by {holder}, which did not release it within {deadline.seconds:g} s")

    def verify(self) -> None:
        """Raise SpaceStopped if the file was deleted or replaced."""
        if not self.disk.same_file(self.name, self.identity):
            raise misplaced_error(self.disk, self.name)


def open_shared(disk: Disk, name: str, *, make: bool) -> int:
    """Open a file of ``run/``.

    Args:
        make: whether to create a missing file. Only the first opener may create the file (see ``OpenLock``). For any
            other process, a missing file was deleted, and other processes may hold locks in the deleted file.

    Raises:
        SpaceStopped: the file is missing, or is not a plain file.
    """
    found = disk.identity(name)
    if found is not None and found.is_plain:
        try:
            return disk.open(name, write=True)
        except FileNotFoundError:
            raise misplaced_error(disk, name) from None
    if not make and found is None:
        raise misplaced_error(disk, name)
    if not make:
        raise SpaceStopped(
            f"{name} was replaced by something that is not a plain file: close the space in every process, then open "
            "it again, which moves it to quarantine"
        )
    if found is not None:
        text = "it is not a plain file with one name, so no process has a lock on it"
        quarantine(disk, name, FileReason(text, FileCause.FOREIGN))
    return disk.create(name)


def write_whole(disk: Disk, handle: int, data: bytes) -> None:
    """Write the whole content of a file of ``run/`` that processes map into memory. Only the first opener may write it.

    The write allocates each block of the file on the disk. In a copy of a space, the files may have holes, or share
    their blocks with the original. If the disk is full, the kernel kills a process that stores into such a block of a
    mapped file.

    If the disk has no room for this write, the file is empty, and no process maps the file.
    """
    try:
        if disk.handle_identity(handle).size != len(data):
            disk.truncate(handle, 0)
        disk.write_at(handle, 0, data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        disk.truncate(handle, 0)


def misplaced_error(disk: Disk, name: str) -> SpaceStopped:
    """Return the error for a file of ``run/`` that is not in its place. The text says whether the whole space was moved
    away."""
    directory = disk.identity("")
    if directory is not None and not disk.same_file("", directory):
        return SpaceStopped(
            f"{disk.root} was moved, replaced or removed while the space is in use: close the space in every process, "
            "then open it again; the acknowledged messages are in the directory that was moved"
        )
    return SpaceStopped(
        f"{name} was deleted while the space is in use, so locks no longer keep processes apart: "
        "close the space in every process, then open it again; nothing that was committed is lost"
    )


def xid_byte(xid: Xid) -> int:
    """Return the byte of run/xids for a branch. The byte is a 62-bit hash of the xid, so a branch needs no lock
    file."""
    return _byte(str(xid).encode("ascii"))


def coordinator_byte(gtrid: bytes) -> int:
    """Return the byte of run/xids that an internal coordinator holds while it lives."""
    return _byte(b"coordinator:" + gtrid)


def capture_byte(directory: str) -> int:
    """Return the byte of run/xids that an intake holds while it owns a capture directory."""
    return _byte(b"taken:" + directory.encode("utf-8", "surrogateescape"))


def drop_folder_byte(queue: str) -> int:
    """Return the byte of run/xids that an intake holds while files of this queue's folder have two names."""
    return _byte(b"dropping:" + queue.encode("utf-8", "surrogateescape"))


def deduplication_byte(queue: str, key: str) -> int:
    """Return the byte of run/xids that a transaction holds while it puts a message with this key."""
    return _byte(b"deduplication:" + queue.encode("ascii") + b"/" + key.encode("utf-8", "surrogatepass"))


def replacement_byte(queue: str, correlation_id: str) -> int:
    """Return the byte of run/xids that a transaction holds while it replaces the messages with this correlation id."""
    return _byte(b"replacement:" + queue.encode("ascii") + b"/" + correlation_id.encode("utf-8", "surrogatepass"))


def group_byte(queue: str, group: str) -> int:
    """Return the byte of run/xids that a transaction holds while it has messages of this group."""
    return _byte(b"group:" + queue.encode("ascii") + b"/" + group.encode("utf-8", "surrogatepass"))


def request_slot_byte(slot: int) -> int:
    """Return the byte of run/xids that a slot's owner holds. The slot is in run/requests (see ``request_slots``).

    A process locks the bytes of its keys, groups and slots by one descriptor, so the kernel releases all these locks at
    once.
    """
    return _byte(b"requests:%d" % slot)


def _byte(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 2


class ClaimLocks:
    """The claims of this process: messages that its active transactions hold. A claim never waits: it succeeds or fails
    at once.

    The byte of message (number, ordinal) is ``number << 24 | ordinal`` in one of 64 files. The kernel keeps the locks
    of a file in a list. So 20,000 scattered locks would take forty times longer in one file than in 64 files. No
    message has the number 0; the bytes of number 0 stand for owners (see ``attempt_journal``). In each claim file, a
    process locks its owner's byte and its claims by the same descriptor, so the kernel releases both at once. Therefore
    a process that gets a claim of a dead owner finds the owner's byte free.

    held: by commit number, the ordinals of the messages that this process has claimed.
    releases: the number of released claims whose messages may be free now. A thread that reads the same number before
        and after has missed no such release.
    """

    def __init__(self, disk: Disk, *, make: bool) -> None:
        self.disk = disk
        if make:  # all files are created now, so a file that is missing later was deleted
            for name in map(layout.claim_file, range(CLAIM_FILES)):
                found = disk.identity(name)
                if found is None or not found.is_plain:
                    disk.close(open_shared(disk, name, make=True))
        self.owner = 0
        self._files: dict[int, LockFile] = {}
        self.held: dict[int, set[int]] = {}
        self.releases = 0
        self._mutex = threading.Lock()

    def claim(self, number: int, first: int, count: int) -> list[tuple[int, int]]:
        """Claim the free messages of a range.

        Returns:
            (first, count) of each claimed range. Messages with an earlier claim are left out.

        Raises:
            SpaceStopped: the claim file was deleted or replaced.
        """
        got: list[tuple[int, int]] = []
        index = number % CLAIM_FILES
        with self._mutex:
            file = self._files[index] if index in self._files else self._file(index)
            handle = file.handle
            held = self.held.setdefault(number, set())
            start, end = first, first + count
            while start < end:
                stop = start
                while stop < end and stop not in held:
                    stop += 1
                if stop > start:
                    if self.disk.lock(handle, (number << ORDINAL_BITS) + start, stop - start):
                        got += ((start, stop - start),)
                    elif stop - start > 1:
                        got += self._lock_range(handle, number, start, stop)
                start = stop + 1
            for start, length in got:
                held.update(range(start, start + length))
            if not held:
                del self.held[number]
        if got:
            try:
                if not self.disk.same_file(file.name, file.identity):
                    raise misplaced_error(self.disk, file.name)
            except BaseException:
                for start, length in got:
                    self.release(number, start, length)
                raise
        return got

    def _lock_range(self, handle: int, number: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Lock the free ordinals between ``start`` and ``stop``; return the locked ranges, as (first, count)."""
        base = number << ORDINAL_BITS
        while start < stop:
            if self.disk.lock(handle, base + start, stop - start):
                return [(start, stop - start)]
            conflict = self.disk.some_lock(handle, base + start, stop - start)
            if conflict is not None:  # (None: the other process has just released the bytes, so try again)
                theirs, end = max(start, conflict[0] - base), min(stop, conflict[0] + conflict[1] - base)
                left = self._lock_range(handle, number, start, theirs)
                return left + self._lock_range(handle, number, end, stop)
        return []

    def release(self, number: int, first: int, count: int, *, removed: bool = False) -> None:
        """Release a range, exactly as ``claim`` returned it. ``removed``: whether a commit has removed its messages."""
        with self._mutex:
            self.disk.unlock(self._files[number % CLAIM_FILES].handle, (number << ORDINAL_BITS) + first, count)
            held = self.held[number]
            held.difference_update(range(first, first + count))
            if not held:
                del self.held[number]
            self.releases += not removed  # (last: see the class)

    def release_all(self, ranges: PositionRanges) -> None:
        """Release exactly these ranges: (number, first, count). Claims that lie between them remain."""
        for number, first, count in ranges:
            self.release(number, first, count)

    def become_owner(self, owner: int) -> None:
        """Take the owner's byte in every claim file: the held bytes show that the owner of the claim journals lives."""
        with self._mutex:
            for index in range(CLAIM_FILES):
                if not self.disk.lock(self._file(index).handle, owner):
                    raise SpaceStopped(
                        f"the owner number {owner} is in use: close the space in every process and open it again"
                    )
            self.owner = owner

    def is_owner_dead(self, owner: int, number: int) -> bool:
        """Return whether the owner has died or closed the space.

        The owner is dead if the owner's byte in the claim file of ``number`` is free.
        """
        return owner != self.owner and self.disk.some_lock(self._file(number).handle, owner, 1) is None

    def is_claimed(self, number: int, ordinal: int) -> bool:
        """Return whether this process or any other has claimed the message."""
        with self._mutex:
            if ordinal in self.held.get(number, ()):
                return True
            handle = self._file(number).handle
        return self.disk.some_lock(handle, number << ORDINAL_BITS | ordinal, 1) is not None

    def processes(self, claimed: Iterable[Position]) -> dict[Position, tuple[int, str]]:
        """Return the id and the program of the processes that have claimed messages. A process that this user cannot
        see is left out. The kernel is asked once, which takes some 10 ms or more."""
        by_file: dict[int, list[Position]] = {}
        for position in sorted(claimed):
            by_file.setdefault(self._file(position.number).handle, []).append(position)
        found: dict[Position, tuple[int, str]] = {}
        for lock in self.disk.process_locks(by_file) if by_file else ():
            positions = by_file[lock.descriptor]
            ends = (Position(byte >> ORDINAL_BITS, byte & MAX_ORDINAL) for byte in (lock.first, lock.last + 1))
            start, end = (bisect_left(positions, position) for position in ends)
            found.update(dict.fromkeys(positions[start:end], (lock.pid, lock.program)))
        return found

    def claims_elsewhere(self) -> PositionRanges:
        """Return every claim of other processes."""
        found: PositionRanges = []
        for index in range(CLAIM_FILES):
            handle, unseen = self._file(index).handle, [(1 << ORDINAL_BITS, 2**63 - 1)]
            while unseen:
                start, end = unseen.pop()
                lock = self.disk.some_lock(handle, start, end - start) if start < end else None
                if lock is not None:
                    first, count = max(start, lock[0]), lock[1]
                    found.append((first >> ORDINAL_BITS, first & MAX_ORDINAL, count))
                    unseen += [(start, first), (first + count, end)]
        return found

    def numbers(self) -> set[int]:
        """Return the numbers of all commits with messages that any process has claimed."""
        return {number for number, _ in self._held_here()} | {number for number, _, _ in self.claims_elsewhere()}

    def positions(self) -> set[Position]:
        """Return the messages that this process or any other has claimed."""
        return {*self._held_here(), *positions(self.claims_elsewhere())}

    def _held_here(self) -> list[Position]:
        with self._mutex:
            return [Position(number, ordinal) for number, held in self.held.items() for ordinal in held]

    def _file(self, number: int) -> LockFile:
        index = number % CLAIM_FILES
        if index not in self._files:
            self._files[index] = LockFile(self.disk, layout.claim_file(index), make=False)
        return self._files[index]


class OpenLock:
    """The locks that processes with the space open hold on the space's directory.

    These locks survive a deletion of ``run/``.

    A process locks the directory while it opens the space. Before the process unlocks the directory, it takes a shared
    lock on the *alive* byte. A process that finds the *alive* byte free is the first opener. Only the first opener
    recovers the space and creates files in ``run/``. So a name in ``run/`` always means the same file while any process
    has the space open.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.handle = disk.open_directory("")

    def enter(self, deadline: Deadline) -> bool:
        """Begin to open the space, one process at a time.

        Returns:
            True if this process is the first opener: no other process has the space open, and none can open the space
            before ``finish_opening``.

        Raises:
            WaitExpired: one process was opening the space during the whole wait; the error names that process.
        """
        clock, opener = deadline.clock, ""
        tell_at: float | None = clock.monotonic() + _SILENT_SECONDS
        while True:
            for _ in deadline.polls(slowest_seconds=_LOOK_SECONDS):
                if self.disk.flock(self.handle):
                    return self.disk.some_lock(self.handle, _ALIVE, 1) is None
                if tell_at is not None and clock.monotonic() >= tell_at:
                    tell_at, opener = None, self._opener()
                    log.warning("waiting for %s, which is opening the space %s", opener, self.disk.root)
            before, opener = opener, self._opener()
            if deadline.seconds is None or opener in (before, _hidden()):
                raise WaitExpired(
                    f"the space is being opened by {opener}, which is not done within {deadline.seconds:g} s"
                )
            deadline = deadline._replace(at=clock.monotonic() + deadline.seconds)  # processes open it, one by one

    def _opener(self) -> str:
        return self.disk.flock_holder(self.handle) or _hidden()

    def finish_opening(self) -> None:
        """Finish opening. Now other processes may open the space, and can see that this process has it open."""
        self.disk.lock(self.handle, _ALIVE, shared=True)
        self.disk.funlock(self.handle)

    def has_others(self) -> bool:
        """Return whether another process has the space open."""
        return self.disk.some_lock(self.handle, _ALIVE, 1) is not None

    def is_alone(self) -> bool:
        """Return whether no process has the space open or is opening it. The caller must not have the space open."""
        with closed_at_end(self.disk, self.disk.open_directory("")) as handle:
            return self.disk.some_lock(handle, _ALIVE, 1) is None and self.disk.flock(handle)

    def holders(self) -> list[str]:
        """Return the processes that have the space open, e.g. ``["process 4711 (python3)"]``.

        Processes that this user may not see are left out.
        """
        return self.disk.lock_holders(self.handle, _ALIVE)

    def others(self) -> list[str]:
        """Return the other processes that have the space open. Processes that this user may not see are left out."""
        return self.disk.lock_holders(self.handle, _ALIVE, others=True)

    def close(self) -> None:
        self.disk.close(self.handle)
