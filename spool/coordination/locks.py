"""Locks on single bytes: held, never guessed. The kernel drops them when their process dies, however it dies.

Open-file-description locks tell processes (more exactly: open descriptions) apart, but not the threads of one process,
so a table under a mutex comes first. A lock is only good while its file is the one that others find by name. Who is
alone makes these files (see ``OpenLock``), and nobody makes one anew while anybody lives; so who misses one, or finds
another under its name after a lock, knows that somebody deleted ``run/``, and stops.
"""

import hashlib
import logging
import threading

from spool.disk.disk import Disk
from spool.disk.quarantine import quarantine
from spool.errors import SpaceStopped
from spool.model.xid import Xid
from spool.runtime.clock import Deadline, WaitExpired

log = logging.getLogger("spool")

# Bytes of run/control.
NUMBER, PREPARED_LIST, CONFIG, FOLLOWING, HOUSEKEEPING = range(5)
_ALIVE = 0  # of the space's own directory
_SILENT_SECONDS = 1.0  # an opener waits that long before it says what it waits for


class LockFile:
    """The byte locks of one file in ``run/``; ``make``: see ``open_shared``."""

    def __init__(self, disk: Disk, name: str, *, make: bool) -> None:
        self.disk = disk
        self.name = name
        self.handle = open_shared(disk, name, make=make)
        self._identity = disk.handle_identity(self.handle)
        self._held: set[int] = set()
        self._mutex = threading.Lock()

    def try_lock(self, byte: int, *, shared: bool = False) -> bool:
        """Take the byte if no thread and no process has it. ``shared`` lets other processes share it."""
        with self._mutex:
            if byte in self._held or not self.disk.lock(self.handle, byte, shared=shared):
                return False
            self._held.add(byte)
        try:
            self.verify()
        except BaseException:
            self.unlock(byte)  # the caller is told that it has not got it
            raise
        return True

    def lock(self, byte: int, deadline: Deadline, what: str, *, shared: bool = False) -> None:
        """Poll until the byte is ours; WaitExpired, naming the holder, when the deadline passes."""
        for _ in deadline.polls():
            if self.try_lock(byte, shared=shared):
                return
        raise self.expired(byte, deadline, what)

    def unlock(self, byte: int) -> None:
        with self._mutex:
            self._held.remove(byte)
            self.disk.unlock(self.handle, byte)

    def held_here(self, byte: int) -> bool:
        return byte in self._held

    def held_elsewhere(self, byte: int) -> bool:
        """Whether another open description holds the byte (not whether a thread of this one does)."""
        return self.disk.some_lock(self.handle, byte, 1) is not None

    def is_free(self, byte: int) -> bool:
        return not self.held_here(byte) and not self.held_elsewhere(byte)

    def expired(self, byte: int, deadline: Deadline, what: str) -> WaitExpired:
        who = "another thread of this process" if self.held_here(byte) else ""
        who = who or " and ".join(self.disk.lock_holders(self.handle, byte)) or "a process that this user may not see"
        return WaitExpired(f"{what} is held by {who}, which did not let go of it within {deadline.seconds:g} s")

    def verify(self) -> None:
        """The file must still be the one under its name."""
        if not self._identity.same_file(self.disk.identity(self.name)):
            raise deleted(self.name)


def open_shared(disk: Disk, name: str, *, make: bool) -> int:
    """A file of ``run/``. Only who is alone may ``make`` it (see ``OpenLock``): for anybody else, a file that is
    missing was deleted, and others may hold locks in the one that had its name."""
    found = disk.identity(name)
    if found is not None and found.is_plain:
        try:
            return disk.open(name, write=True)
        except FileNotFoundError:
            raise deleted(name) from None
    if not make:
        raise deleted(name) if found is None else _planted(name)
    if found is not None:
        quarantine(disk, name, "it is no plain file with one name, so nobody has a lock on it")
    return disk.create(name)


def _planted(name: str) -> SpaceStopped:
    return SpaceStopped(
        f"{name} is no plain file with one name, so somebody put it there: close the space in every process, then open "
        "it again, which moves it to quarantine"
    )


def deleted(name: str) -> SpaceStopped:
    """The error of who misses a file of ``run/``."""
    return SpaceStopped(
        f"{name} was deleted while the space is in use, so locks no longer keep processes apart: "
        "close the space in every process, then open it again; nothing that was committed is lost"
    )


def xid_byte(xid: Xid) -> int:
    """The byte of run/xids that stands for a branch: a 62-bit hash, so no file is made per branch."""
    return _byte(str(xid).encode("ascii"))


def coordinator_byte(gtrid: bytes) -> int:
    """The byte of run/xids that a coordinator of ours holds while it lives."""
    return _byte(b"coordinator:" + gtrid)


def in_hand_byte(gtrid: bytes, number: int, ordinal: int) -> int:
    """The byte of run/xids that a task of a coordinator's holds while a service works on this message, the first that
    the task was given; for the second one it holds the next byte, and so on."""
    return _byte(b"in hand:%s:%d.%d" % (gtrid, number, ordinal))


def capture_byte(directory: str) -> int:
    """The byte of run/xids that an intake holds while the files that it took into this directory are its own."""
    return _byte(b"taken:" + directory.encode("utf-8", "surrogateescape"))


def drop_folder_byte(queue: str) -> int:
    """The byte of run/xids that an intake holds while files of this queue's folder have two names."""
    return _byte(b"dropping:" + queue.encode("utf-8", "surrogateescape"))


def deduplication_byte(queue: str, key: str) -> int:
    """The byte of run/xids that a transaction holds while it puts a message with this key."""
    return _byte(b"deduplication:" + queue.encode("ascii") + b"/" + key.encode("utf-8", "surrogatepass"))


def group_byte(queue: str, group: str) -> int:
    """The byte of run/xids that a transaction holds while it has messages of this group."""
    return _byte(b"group:" + queue.encode("ascii") + b"/" + group.encode("utf-8", "surrogatepass"))


def _byte(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 2


# -- which processes have the space open ------------------------------------------------------------------------------


class OpenLock:
    """One opener's locks on the space's directory."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.handle = disk.open_directory("")

    def enter(self, deadline: Deadline) -> bool:
        """Begin to open the space, one at a time. True: nobody else has it open, or can before ``settle``."""
        tell_at: float | None = deadline.clock.monotonic() + _SILENT_SECONDS
        for _ in deadline.polls():
            if self.disk.flock(self.handle):
                return self.disk.some_lock(self.handle, _ALIVE, 1) is None
            if tell_at is not None and deadline.clock.monotonic() >= tell_at:
                tell_at = None
                log.warning("waiting for %s, which is opening the space %s", self._opener(), self.disk.root)
        raise WaitExpired(
            f"the space is being opened by {self._opener()}, which is not done within {deadline.seconds:g} s"
        )

    def _opener(self) -> str:
        return " and ".join(self.holders()) or "a process that this user may not see"

    def settle(self) -> None:
        """The space is open: others may come in, and see that somebody lives."""
        self.disk.lock(self.handle, _ALIVE, shared=True)
        self.disk.funlock(self.handle)

    def others(self) -> bool:
        """Whether somebody else has the space open, too."""
        return self.disk.some_lock(self.handle, _ALIVE, 1) is not None

    def is_alone(self) -> bool:
        """Whether nobody has the space open now, or is opening it; for who only looks, and does not come in."""
        handle = self.disk.open_directory("")
        try:
            return self.disk.some_lock(handle, _ALIVE, 1) is None and self.disk.flock(handle)
        finally:
            self.disk.close(handle)

    def holders(self) -> list[str]:
        """Who has the space open, as far as this user may see, e.g. ``["process 4711 (python3)"]``."""
        return self.disk.lock_holders(self.handle, _ALIVE)

    def close(self) -> None:
        self.disk.close(self.handle)
