"""Open descriptors of one space, and the locks on them, which live as long as they do.

The kernel lets go of a lock when its descriptor is closed, so who keeps the table of what is open decides what a close,
a fork and a number that was used again mean for locks.
"""

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for open-file-description locks), padding.
_FLOCK = struct.Struct("hhqqi4x")

# A file system without locks says one of these.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Unsupported(OSError):
    """The file system cannot do something that the protocol stands on: no trying again helps."""


# Held from a file's opening until its handle is in a table: no fork comes between the two, or the child would keep a
# copy that it does not know of, and with it the locks of its parent.
_opening = threading.RLock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


class Descriptors:
    """Handles are small integers, as the system's. Errors are ``OSError``."""

    _disowned = False

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._handles: dict[int, None] = {}  # open ones, in the order in which they were opened

    def path(self, name: str) -> str:
        if self._disowned:
            raise not_open()
        return f"{self.root}/{name}" if name else self.root

    def _opened(self, opener: Callable[..., int], *args: Any) -> int:
        with _opening:
            handle = opener(*args)
            self._handles[handle] = None
        return handle

    def _ours(self, handle: int) -> int:
        """A number that this disk has closed may be another file's by now."""
        if handle not in self._handles:
            raise not_open()
        return handle

    def close(self, handle: int) -> None:
        self._closed(handle)

    def _closed(self, handle: int) -> None:
        del self._handles[self._ours(handle)]
        os.close(handle)

    def close_all(self) -> None:
        """What was opened last goes first; the kernel lets go of the locks."""
        for handle in reversed(list(self._handles)):
            with suppress(OSError):  # the number is free all the same (close(2))
                self.close(handle)

    def disown(self) -> None:
        """In a forked child: its copies are closed, nothing is unlocked, and nothing more is done to the files."""
        self._disowned = True
        self.close_all()

    # -- locks --------------------------------------------------------------------------------------------------

    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        """Try an open-file-description lock (fcntl(2)); False if another description holds a byte of it."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(self._ours(handle), fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise as_unsupported(error, *_NO_LOCKS) from None
        return True

    def unlock(self, handle: int, start: int, length: int = 1) -> None:
        release = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0)
        fcntl.fcntl(self._ours(handle), fcntl.F_OFD_SETLK, release)

    def some_lock(self, handle: int, start: int, length: int) -> tuple[int, int] | None:
        """(start, length) of another description's lock in the range, not always the lowest; None if there is none."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        try:
            kind, _, found, size, _ = _FLOCK.unpack(fcntl.fcntl(self._ours(handle), fcntl.F_OFD_GETLK, asked))
        except OSError as error:
            raise as_unsupported(error, *_NO_LOCKS) from None
        return None if kind == fcntl.F_UNLCK else (found, size)

    def hold(self, handle: int) -> bool:
        """Try to hold a whole file or directory (flock(2)); False if another description does."""
        try:
            fcntl.flock(self._ours(handle), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise as_unsupported(error, *_NO_LOCKS) from None
        return True

    def let_go(self, handle: int) -> None:
        """Of what ``hold`` got."""
        fcntl.flock(self._ours(handle), fcntl.LOCK_UN)

    def lock_holders(self, handle: int, start: int) -> list[str]:
        """Who holds the byte, or the whole file, e.g. ``["process 4711 (python3)"]``: from /proc/<pid>/fdinfo, for
        error texts only."""
        inode = os.fstat(self._ours(handle)).st_ino
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                held = any(
                    _holds(line, inode, start)
                    for entry in os.scandir(f"/proc/{pid}/fdinfo")
                    for line in _lines(entry.path)
                )
                if held:
                    found.append(f"process {pid} ({''.join(_lines(f'/proc/{pid}/comm')).strip()})")
            except OSError:
                continue  # gone meanwhile, or somebody else's
        return found


def not_open() -> OSError:
    return OSError(errno.EBADF, "the space is closed, or was opened by this process's parent")


def as_unsupported(error: OSError, *codes: int) -> OSError:
    """The same, as ``Unsupported`` if it is one of those."""
    if error.errno not in codes:
        return error
    return Unsupported(error.errno, error.strerror, error.filename, None, error.filename2)


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readlines()


def _holds(line: str, inode: int, start: int) -> bool:
    """Whether a line of fdinfo, ``lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:123 7 7``, is a lock on that byte."""
    words = line.split()
    if len(words) < 9 or words[0] != "lock:" or words[-3].rsplit(":", 1)[-1] != str(inode):
        return False
    return int(words[-2]) <= start and (words[-1] == "EOF" or start <= int(words[-1]))
