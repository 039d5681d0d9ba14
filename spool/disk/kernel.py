"""System calls on descriptors and paths that Python's ``os`` lacks: RENAME_NOREPLACE, inotify, leases, byte locks.

The arguments are descriptors; only ``Disk`` knows the open descriptors. Errors are ``OSError``, or ``Unsupported`` if
the file system lacks a call that the protocol needs.
"""

import ctypes
import errno
import fcntl
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)
renameat2 = _libc.renameat2  # returns 0, or sets ctypes.get_errno()
renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
RENAME_NOREPLACE = 1
# Earlier kernels return 0 from syncfs(2) even if they could not write all dirty pages.
SYNCFS_TELLS = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 8)

# struct file_handle: the number of bytes, the type, the bytes.
_HANDLE_HEAD, _MAX_HANDLE_BYTES, _AT_FDCWD = struct.Struct("Ii"), 128, -100

_IN_MODIFY, _IN_DONT_FOLLOW = 0x2, 0x2000000
EVENTS_BYTES = 4096

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for open-file-description locks), padding.
FLOCK = struct.Struct("hhqqi4x")
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # errors of a file system without locks

# The longest time that a flush waits for its turn, and the pause between two attempts. A flush waits while another
# thread flushes the directory, or is stopped during its flush.
_TURN_SECONDS, _TURN_POLL_SECONDS = 30.0, 0.0002


class Unsupported(OSError):
    """The file system lacks a call that the protocol needs, so a retry does not help."""


def as_unsupported(error: OSError, *codes: int) -> OSError:
    """Return the error; if its code is in ``codes``, return ``Unsupported`` instead."""
    if error.errno not in codes:
        return error
    return Unsupported(error.errno, error.strerror, error.filename, None, error.filename2)


def last_error(path: str | None = None, other: str | None = None) -> OSError:
    """Return the error of the C function that has just failed in this thread."""
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path, None, other)


def check_no_such_rename(source: str, target: str) -> None:
    """Raise the error of ``renameat2``. Return only if the kernel or the file system lacks this kind of rename."""
    if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
        raise as_unsupported(last_error(source, target), errno.EXDEV)


def syncfs(descriptor: int) -> None:
    """Flush all bytes and names of the file system of an open file (syncfs(2))."""
    if _libc.syncfs(descriptor):
        raise last_error()


def file_handle(path: str) -> bytes:
    """Return the kernel's handle of a file (name_to_handle_at(2)), or no bytes if the kernel gives no handle.

    The handle has the number and the generation of the inode. A rename, a mount and a restart keep the handle. A copy
    has another handle, and so has a later file with the same inode number.
    """
    buffer = ctypes.create_string_buffer(_HANDLE_HEAD.pack(_MAX_HANDLE_BYTES, 0), _HANDLE_HEAD.size + _MAX_HANDLE_BYTES)
    mount = ctypes.c_int()
    try:
        failed = _libc.name_to_handle_at(_AT_FDCWD, os.fsencode(path), buffer, ctypes.byref(mount), 0)
    except AttributeError:  # the C library lacks the function
        return b""
    if failed:
        return b""
    length, _ = _HANDLE_HEAD.unpack_from(buffer)
    return buffer.raw[_HANDLE_HEAD.size : _HANDLE_HEAD.size + length]


def set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of a new file if a umask has cleared too many bits. On some file systems all files have one mode."""
    with suppress(PermissionError):
        os.chmod(by_descriptor(descriptor), mode)


def owner_of(root: str) -> tuple[int, int] | None:
    """Return the user and the group of a directory, or None if the directory belongs to root."""
    found = os.stat(root)
    return None if found.st_uid == 0 else (found.st_uid, found.st_gid)


def give(descriptor: int, owner: tuple[int, int], path: str) -> None:
    """Give an open file to this user and group, if this process runs as root.

    The function uses the descriptor, because the owner may rename files meanwhile. ``path``: the path for the error
    text.
    """
    if os.geteuid() != 0:  # (the process may have given up root's rights since it opened the space)
        return
    if os.fstat(descriptor).st_uid == owner[0]:
        return
    try:
        os.chown(by_descriptor(descriptor), *owner)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def by_descriptor(descriptor: int) -> str:
    """Return a path that leads to an open file even after a rename.

    Some callers need this path because fchown(2) and fchmod(2) refuse a descriptor that was opened with O_PATH.
    """
    return f"/proc/self/fd/{descriptor}"


# -- changes that the kernel reports ---------------------------------------------------------------------------------


def watch_writes(directory: int, name: str) -> int:
    """Open a descriptor of inotify(7) that reports writes to a file in ``directory``."""
    descriptor = new_notifier()
    try:
        add_watch(descriptor, directory, name)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def new_notifier() -> int:
    """Open a descriptor of inotify(7) that reports nothing yet."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise last_error()
    return descriptor


def add_watch(descriptor: int, directory: int, name: str) -> int:
    """Let a descriptor of inotify(7) report writes to a file in ``directory``; returns the number of the watch. All
    watches of one file have the same number."""
    path = os.fsencode(f"{by_descriptor(directory)}/{name}")
    watch = int(_libc.inotify_add_watch(descriptor, path, _IN_MODIFY | _IN_DONT_FOLLOW))
    if watch < 0:
        raise last_error()
    return watch


def remove_watch(descriptor: int, watch: int) -> None:
    """End a watch. Do nothing if the kernel has ended the watch, because the file was removed."""
    _libc.inotify_rm_watch(descriptor, watch)


def has_writer(descriptor: int) -> bool | None:
    """Return whether any process has this file open for writing, or None if the kernel gives this user no answer
    (fcntl(2), "Leases").

    The kernel grants a read lease only while no process has the file open for writing. If a writer opened the file at
    that moment, the signal SIGIO would kill this process. So the function chooses the signal SIGURG, which a process
    ignores by default.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None


# -- locks of open file descriptions ----------------------------------------------------------------------------------


@contextmanager
def file_locked(directory: int, name: str, mode: int) -> Iterator[bool]:
    """Hold the lock on a file in ``directory`` (filelock). Yields False at once if another process holds the lock."""
    if "filelock" not in sys.modules:
        # A fork waits for the end of this import, because the child could never import the package. The function is
        # registered this late, so that it is called before others take locks that the import needs, e.g. of logging.
        os.register_at_fork(before=lambda: import_module("filelock"))
    filelock = import_module("filelock")  # late: the import is slow, and short commands do not need the package
    guard = filelock.FileLock(f"{by_descriptor(directory)}/{name}", timeout=0, mode=mode)
    try:
        guard.acquire()
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        guard.release()


def await_turn(flock: Callable[[int], bool], descriptor: int, directory: str) -> None:
    """Wait until ``flock`` locks the directory. Raises TimeoutError after a while, because the holder may be stopped.

    If the file system has no locks, the function returns at once, because no space can be open on that file system.
    """
    until = time.monotonic() + _TURN_SECONDS
    try:
        while not flock(descriptor):
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, "another process flushes this directory without an end", directory)
            time.sleep(_TURN_POLL_SECONDS)
    except Unsupported:
        pass


_TO_THE_END = 2**63 - 1  # the last byte of a lock of a whole file


class ProcessLock(NamedTuple):
    """A byte range of a file that a process has locked: the file's descriptor, and the first and the last byte."""

    descriptor: int
    first: int
    last: int
    pid: int
    program: str


def process_locks(descriptors: Iterable[int]) -> list[ProcessLock]:
    """Return the locks of these files, of all processes that this user may see. The call takes some 10 ms for each
    thousand of descriptors that the processes of the machine have open."""
    by_inode = {str(os.fstat(descriptor).st_ino): descriptor for descriptor in descriptors}
    # A line of /proc/<pid>/fdinfo, e.g. ``lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:123 7 7``, ends with inode and range.
    locked = re.compile(rf"^lock:.*:({'|'.join(by_inode)}) (\d+) (\d+|EOF)$", re.MULTILINE)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            ranges = [held for entry in os.scandir(f"/proc/{pid}/fdinfo") for held in locked.findall(_text(entry.path))]
            program = _text(f"/proc/{pid}/comm").strip() if ranges else ""
        except OSError:
            continue  # the process has ended, or belongs to another user
        for inode, first, last in ranges:
            end = _TO_THE_END if last == "EOF" else int(last)
            found.append(ProcessLock(by_inode[inode], int(first), end, int(pid), program))
    return found


def flock_holder(descriptor: int) -> str:
    """Return the process that locked the whole file with flock(2), in the form for error texts; "" if no holder is
    visible.

    If that process has ended, and a child has inherited the descriptor, the child holds the lock.
    """
    # A line of /proc/locks, e.g. ``7: FLOCK  ADVISORY  WRITE 4711 fe:00:123 0 EOF``, names the process and the inode.
    locked = re.compile(rf"^\d+: FLOCK .* (\d+) \S+:{os.fstat(descriptor).st_ino} 0 EOF$", re.MULTILINE)
    try:
        found = locked.search(_text("/proc/locks"))
        return f"process {found[1]} ({_text(f'/proc/{found[1]}/comm').strip()})" if found else ""
    except OSError:  # the process has ended
        heirs = [lock for lock in process_locks([descriptor]) if (lock.first, lock.last) == (0, _TO_THE_END)]
        return f"process {heirs[0].pid} ({heirs[0].program})" if heirs else ""


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
