"""``Disk``: every read and every change of a space's files goes through this class.

No other code of the project renames, flushes, unlinks or locks a file of a space. So a test can replace the disk by a
simulated one, and cut the power between any two calls. A disk is path-like: a test passes the simulated disk to
``spool.open`` in place of the path.

Names are relative to the space's directory. The kernel resolves each name below the descriptor of a directory
(openat(2), renameat2(2)). ``Directories`` keeps these descriptors. Handles are small integers. Errors are ``OSError``.
A failed flush raises ``FlushFailed`` and is never retried: the kernel has dropped the pages, and a second flush would
report success. ``spool.disk.durability`` makes names durable.
"""

import errno
import fcntl
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fcntl import F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_UNLCK, F_WRLCK
from functools import partial
from typing import Any, TypeVar

from spool.disk import kernel
from spool.disk import stat as file_stat
from spool.disk.descriptors import STAGES, Directories, not_open, opening
from spool.disk.durability import durability_of
from spool.disk.kernel import FLOCK, NO_LOCKS, RENAME_NOREPLACE, as_unsupported, renameat2
from spool.disk.memory import ByCalls, Futexes, Mapped, SharedBytes
from spool.disk.stat import FileIdentity, FileSystem, identity_of
from spool.errors import NO_ROOM, SpoolError
from spool.model.paths import local_path
from spool.runtime.clock import Clock

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
PASSAGE_MODE = 0o711  # if a group may drop files: other users may enter, but not list, the space and drop/
PUBLISHED_MODE = 0o640  # for a file that a group may read
# For a folder in which a group drops files: the dropped files also belong to the group. Only a file's owner and the
# folder's owner may rename or remove the file (sticky bit).
SHARED_MODE = 0o3770

_BY_NAME_ALONE = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW  # to open a file of any kind and mode, but not for reading
_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_TO_WRITE = _TO_READ | os.O_RDWR
T = TypeVar("T")
_ENCODING = sys.getfilesystemencoding()
_KIND_OF_FILE = 0o170000  # the bits of a mode that ``stat.S_IFMT`` returns
_SMALL_READ_BYTES = 1 << 20
_MACHINE_ID = "/etc/machine-id"


class FlushFailed(OSError):
    """``fsync`` reported an error, so the content of the disk is unknown."""


def is_full(error: OSError) -> bool:
    """Return whether the disk had no room for a file, so that nothing has happened. (A commit that may have happened
    raises CommitUnknown.)"""
    return error.errno in NO_ROOM and not isinstance(error, SpoolError | FlushFailed)


def raise_unless_full(error: OSError) -> None:
    """Raise the error unless ``is_full``."""
    if not is_full(error):
        raise error


class Disk:
    """The files of one space on a real file system. A disk serves one opening of the space at a time.

    flushes: the number of flushes so far.
    durability: the strategy that makes names durable on this file system.
    clock: the clocks of the machine, which a test replaces.
    """

    clock = Clock()

    # The user and the group that own the space; None unless this process runs as root and another user owns the space.
    owner: tuple[int, int] | None = None
    futexes: Futexes | None = None  # words that wake threads that wait for byte locks; None if no thread can be woken

    def __init__(self, root: str, owner: tuple[int, int] | None = None) -> None:
        self.root = os.path.abspath(local_path(root))
        self._handles: dict[int, None] = {}  # the open handles, in the order of their opening
        self._memory: list[SharedBytes] = []
        self.flushes = 0
        self._guarantees = file_stat.guarantees_of(self.root)
        self.durability = durability_of(self._guarantees)
        if owner is None and os.path.isdir(self.root) and os.geteuid() == 0:
            owner = kernel.owner_of(self.root)
        self.owner = owner
        self._directories = Directories(self.root, owner and owner[0])

    def use_sync_method(self, sync_method: str) -> None:
        """Make names durable by the strategy that the settings of the space name. "auto" means the strategy for the
        file system."""
        if sync_method != "auto":
            self.durability = durability_of(self._guarantees, sync_method)

    def sibling(self, root: str) -> "Disk":
        """Return a disk for a mirror's directory. Files in the mirror get the same owner as files in the space.

        Every user who may write ``space.toml`` can choose the mirror's directory. So a process of root raises
        DiskFailure if the directory and the space belong to different users.
        """
        side = Disk(root, self.owner)
        if os.path.isdir(side.root):
            side.identity("")
        return side

    @staticmethod
    def of(path: str | os.PathLike[str]) -> "Disk":
        """Return the disk of a directory. If the path is a disk, return this disk."""
        return path if isinstance(path, Disk) else Disk(os.fspath(path))

    def __fspath__(self) -> str:
        return self.root

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _complete(self, error: OSError, name: str, other: str | None = None) -> None:
        """Put whole paths into an error, because the kernel got only names within a directory.

        If the error is FileNotFoundError because a stage was moved or removed, raise OSError (ESTALE) instead.
        """
        if isinstance(error, FileNotFoundError):
            for used in (name, other or name):
                self._directories.check_in_place(used.rpartition("/")[0])
        if not isinstance(error.filename, str) or not error.filename.startswith("/"):
            error.filename = self.path(name.rstrip("/"))
            error.filename2 = None if other is None else self.path(other)

    def _by_name(self, call: Callable[..., T], name: str, *args: int) -> T:
        """Call a function with the last part of the name and the descriptor of its directory, as those of ``os``."""
        directory, _, last = name.rpartition("/")
        try:
            return call(last or ".", *args, dir_fd=self._directories[directory])
        except OSError as error:
            self._complete(error, name)
            raise

    def _open_named(self, name: str, flags: int, mode: int = 0) -> int:
        """Open the file or directory with this name, and return the handle."""
        return self._by_name(partial(self._opened, os.open), name, flags, mode)

    def close(self, handle: int) -> None:
        """Close the descriptor. The kernel releases the descriptor's locks."""
        if handle not in self._handles:
            raise not_open()
        del self._handles[handle]
        os.close(handle)

    _close = close  # the methods of this class call this, because a subclass counts the calls of ``close``

    def _opened(self, opener: Callable[..., int], *args: Any, **place: int) -> int:
        """Call the opener, and register its descriptor."""
        with opening:
            handle = opener(*args, **place)
            self._handles[handle] = None
        return handle

    def _checked(self, handle: int) -> int:
        """Return the handle if this disk has the handle open. Otherwise raise OSError (EBADF).

        The number of a closed handle may already belong to another file.
        """
        if handle not in self._handles:
            raise not_open()
        return handle

    def close_all(self) -> None:
        """Close all handles, the newest first. The kernel releases the locks of the handles."""
        self.futexes = None
        while self._memory:
            self._memory.pop().close()
        for handle in reversed(list(self._handles)):
            with suppress(OSError):  # close(2) closes the descriptor even if it reports an error
                self.close(handle)
        self._directories.clear()

    def disown(self) -> None:
        """Close a forked child's copies of the descriptors, without unlocking. Later calls raise OSError (EBADF)."""
        self._directories.disown()
        self.close_all()

    # -- files by name ------------------------------------------------------------------------------------------

    def create(self, name: str) -> int:
        """Create an empty file, open for reading and writing. Raises FileExistsError if the name is taken."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = self._open_named(name, flags, FILE_MODE)
        if stat.S_IMODE(os.fstat(handle).st_mode) != FILE_MODE:
            kernel.set_mode(handle, FILE_MODE)
        if self.owner is not None:
            try:
                kernel.give(handle, self.owner, self.path(name))
            except OSError:
                self._close(handle)
                self.unlink(name)
                raise
        return handle

    def give_to_owner(self, name: str) -> None:
        """Give a file to the owner of the space, if this process runs as root. A file with a second name is not
        changed."""
        if self.owner is None:
            return
        handle = self._open_named(name, _BY_NAME_ALONE)
        try:
            found = identity_of(os.fstat(handle))
            if found.is_directory or found.links == 1:
                kernel.give(handle, self.owner, self.path(name))
        finally:
            self._close(handle)

    def open(self, name: str, *, write: bool = False) -> int:
        """Open an existing regular file. Raises OSError for a symlink, a FIFO or a directory."""
        directory, _, last = name.rpartition("/")
        try:
            with opening:
                handle = os.open(last, _TO_WRITE if write else _TO_READ, dir_fd=self._directories[directory])
                self._handles[handle] = None
        except OSError as error:
            self._complete(error, name)
            raise
        if os.fstat(handle).st_mode & _KIND_OF_FILE != stat.S_IFREG:
            raise self._not_regular(handle, name)
        return handle

    def open_to_overwrite(self, name: str) -> tuple[int, int, bool]:
        """Open a file for writing. Return the handle, the size, and whether the file has only this name."""
        directory, _, last = name.rpartition("/")
        try:
            with opening:
                handle = os.open(last, _TO_WRITE, dir_fd=self._directories[directory])
                self._handles[handle] = None
        except OSError as error:
            self._complete(error, name)
            raise
        found = os.fstat(handle)
        if found.st_mode & _KIND_OF_FILE != stat.S_IFREG:
            raise self._not_regular(handle, name)
        return handle, found.st_size, found.st_nlink == 1

    def _not_regular(self, handle: int, name: str) -> OSError:
        self._close(handle)
        return OSError(errno.EINVAL, "not a regular file", self.path(name))

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically; a target that exists is replaced."""
        before, _, old = source.rpartition("/")
        after, _, new = target.rpartition("/")
        directories = self._directories
        try:
            os.rename(old, new, src_dir_fd=directories[before], dst_dir_fd=directories[after])
        except OSError as error:
            self._complete(error, source, target)
            raise as_unsupported(error, errno.EXDEV) from None

    def rename_new(self, source: str, target: str) -> None:
        """Rename a file atomically. Raises FileExistsError if the target exists (renameat2(2), RENAME_NOREPLACE).

        Raises OSError (ESTALE) if the target's stage was moved or replaced since it was opened.
        """
        before, _, old = source.rpartition("/")
        after, _, new = target.rpartition("/")
        directories = self._directories
        if after in STAGES:
            try:  # (as ``check_in_place``, without a call)
                found = os.lstat(f"{self.root}/{after}")
                is_in_place = (found.st_ino, found.st_dev) == directories[after].place
            except (FileNotFoundError, NotADirectoryError):
                is_in_place = False
            if not is_in_place:
                directories.check_in_place(after)
        encoded = old.encode(_ENCODING, "surrogateescape"), new.encode(_ENCODING, "surrogateescape")
        if renameat2(directories[before], encoded[0], directories[after], encoded[1], RENAME_NOREPLACE) == 0:
            return
        kernel.check_no_such_rename(self.path(source), self.path(target))
        self.durability.note_two_steps()
        self.link(source, target)
        self.unlink(source)

    def link(self, source: str, target: str) -> None:
        before, _, old = source.rpartition("/")
        after, _, new = target.rpartition("/")
        at = self._directories
        try:
            os.link(old, new, src_dir_fd=at[before], dst_dir_fd=at[after], follow_symlinks=False)
        except OSError as error:
            self._complete(error, source, target)
            raise as_unsupported(error, errno.EXDEV, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP) from None

    def unlink(self, name: str) -> None:
        self._by_name(os.unlink, name)

    def exists(self, name: str) -> bool:
        """Return whether the name exists; a symlink is not followed.

        Raises OSError if the file system gives no answer. So False always means that the name does not exist.
        """
        directory, _, last = name.rpartition("/")
        try:
            os.lstat(last, dir_fd=self._directories[directory])
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._complete(error, name)
            raise
        return True

    def set_mode(self, name: str, mode: int, group: int | None = None) -> None:
        """Set the permissions of a file or a directory. A symlink is not followed.

        The change is not flushed.
        """
        handle = self._open_named(name, _TO_READ)
        try:
            if group is not None:
                os.fchown(handle, -1, group)  # fchown clears the set-group-ID bit, so call fchmod afterwards
            os.fchmod(handle, mode)
        finally:
            self._close(handle)

    def identity(self, name: str) -> FileIdentity | None:
        """Return the identity of the file with this name, or None. Only a symlink to the space itself is followed."""
        directory, _, last = name.rpartition("/")
        try:
            place = self._directories[directory]
            found = os.lstat(last, dir_fd=place) if name else os.fstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._complete(error, name)
            raise
        return identity_of(found)

    def lasting_identity(self, name: str) -> str:
        """Return an identity that a file keeps after a rename, a mount or a restart, and that no copy of the file has.

        Compare two identities with ``spool.disk.stat.is_same_original``. Raises FileNotFoundError.
        """
        path = f"{self.root}/{name}"
        return f"{os.lstat(path).st_ino}-{kernel.file_handle(path).hex()}"

    def same_file(self, name: str, identity: FileIdentity) -> bool:
        """Return whether the name still leads to the file with this identity.

        The kernel resolves the whole path, as for other processes. A lock on a file that was moved away would exclude
        no process.
        """
        try:
            found = os.lstat(f"{self.root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return found.st_ino == identity.inode and found.st_dev == identity.device

    # -- directories --------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        """List the names in a directory, unsorted."""
        handle = self.open_directory(directory)
        try:
            return os.listdir(handle)
        finally:
            self._close(handle)

    def make_directory(self, name: str) -> bool:
        """Create a directory; return False if it exists. Raises FileExistsError if the name is a file or a symlink."""
        self._directories.check_in_place(name)  # otherwise a new directory would replace a stage that was moved away
        try:
            if name:
                self._by_name(os.mkdir, name, DIRECTORY_MODE)
            else:
                os.mkdir(self.root, DIRECTORY_MODE)
        except FileExistsError:
            found = self.identity(name)
            if found is None or not found.is_directory:
                raise
            return False
        flags = _BY_NAME_ALONE | os.O_DIRECTORY
        # The directory of a new mirror does not belong to the owner yet, so ``Directories`` would refuse to open it.
        handle = self._open_named(name, flags) if name else self._opened(os.open, self.root, flags)
        try:
            if stat.S_IMODE(os.fstat(handle).st_mode) != DIRECTORY_MODE:
                kernel.set_mode(handle, DIRECTORY_MODE)
            if self.owner is not None:
                kernel.give(handle, self.owner, self.path(name))
        finally:
            self._close(handle)
        return True

    def check_stages_in_place(self) -> None:
        """Raise OSError (ESTALE) if a stage was moved or replaced since this process opened it."""
        for name in STAGES:
            self._directories.check_in_place(name)

    def remove_directory(self, name: str) -> None:
        self._by_name(os.rmdir, name)
        self._directories.pop(name, None)

    def open_directory(self, name: str) -> int:
        """Open a directory, to lock or flush it. Raises OSError for a symlink, except a symlink to the space."""
        return self._open_named(name and f"{name}/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def keeping(self, *directories: str) -> AbstractContextManager[None]:
        """Return a context for many calls about names in these directories: each directory is opened once.

        Meanwhile the names lead to the same directories, even if a directory was renamed or removed.
        """
        return self._directories.keeping(directories)

    # -- bytes by handle ----------------------------------------------------------------------------------------

    def read_at(self, handle: int, offset: int, length: int) -> bytes:
        """Read ``length`` bytes, or fewer at the end of the file. The buffer is never larger than the file."""
        if handle not in self._handles:
            raise not_open()
        if length > _SMALL_READ_BYTES:
            length = max(0, min(length, os.fstat(handle).st_size - offset))
        data = os.pread(handle, length, offset)
        if len(data) == length or not data:
            return data
        parts, missing = [data], length - len(data)
        while missing and data:
            data = os.pread(handle, missing, offset + length - missing)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def will_read(self, handle: int, length: int) -> None:
        """Ask the kernel to read a file's first bytes in the background (posix_fadvise(2))."""
        os.posix_fadvise(self._checked(handle), 0, length, os.POSIX_FADV_WILLNEED)

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        """Write all of the data, by several calls if necessary. Raises OSError, e.g. on a full disk."""
        if handle not in self._handles:
            raise not_open()
        while data := data[(written := os.pwrite(handle, data, offset)) :]:
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            offset += written

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(self._checked(handle), length)

    def map(self, handle: int, length: int) -> SharedBytes:
        """Share the first ``length`` bytes of a file with other processes. The file must not be shorter."""
        in_place = file_stat.overwrites_in_place(self.root)
        memory = Mapped(self._checked(handle), length) if in_place else ByCalls(self, self._checked(handle))
        self._memory.append(memory)
        return memory

    def set_modified(self, handle: int, modified_ns: int) -> None:
        """Set the time of a file's last change, in nanoseconds since the epoch. The time is not flushed."""
        os.utime(self._checked(handle), ns=(modified_ns, modified_ns))

    def handle_identity(self, handle: int) -> FileIdentity:
        return identity_of(os.fstat(self._checked(handle)))

    # -- durability ---------------------------------------------------------------------------------------------

    def flush(self, handle: int, *, data_only: bool = False, everything: bool = False) -> None:
        """Flush a file's bytes and metadata or a directory's names (fsync(2)); ``data_only``: fdatasync(2).

        ``everything``: see ``flush_everything``.
        """
        if handle not in self._handles:
            raise not_open()
        self.flushes += 1
        flush = os.fdatasync if data_only else kernel.syncfs if everything else os.fsync
        try:
            flush(handle)
        except OSError as error:
            if error.errno is None:  # no error of the system: e.g. another thread has raised TimeoutError here
                raise
            raise FlushFailed(error.errno, f"{flush.__name__}: {error.strerror}") from error

    def begin_flush(self, handle: int) -> None:
        """Ask the kernel to begin to write a file's bytes (posix_fadvise(2)). Only a flush makes them durable."""
        with suppress(OSError):
            os.posix_fadvise(self._checked(handle), 0, 0, os.POSIX_FADV_DONTNEED)

    def flush_everything(self, handle: int) -> None:
        """Flush all bytes and names of the file system. For many files this is much faster than to flush each file.

        Args:
            handle: a handle that was opened before the files were written. A handle that was opened later gets no
                report of an error that the kernel has already reported to another program.
        """
        self.flush(handle, everything=True)

    def flush_directory(self, name: str) -> None:
        """Flush the names in the directory."""
        with self.durability.turn(self, name) as handle:
            self.flush(handle)

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        """Flush the data of a file. Also flush the file's name in ``directory``, unless recovery can restore the name.

        Args:
            new: whether the name is new. A new name was given by a rename while the handle was open, and no other file
                had the name before.
            stamped: whether the file carries the number from which recovery restores its name.
        """
        if self.durability.needs_links:
            self.durability.commit_name(self, handle, directory, new=new)
        else:  # one flush makes the earlier renames durable, too; a journal writes them later
            self.flush(handle, data_only=stamped and self.durability.restores_names)

    # -- changes ------------------------------------------------------------------------------------------------

    def watch(self, name: str) -> int:
        """Watch a file for writes from now on (inotify(7)); returns a handle for ``wait_for_change``.

        Raises OSError if the kernel refuses the watch. The kernel limits the number of watches of each user.
        """
        return self._by_name(lambda last, dir_fd: self._opened(kernel.watch_writes, dir_fd, last), name)

    def watch_with(self, notifier: int, name: str) -> int:
        """Let a descriptor of inotify(7), which is not of this disk, report writes to a file; returns the number of the
        watch. Raises OSError as ``watch``."""
        return self._by_name(lambda last, dir_fd: kernel.add_watch(notifier, dir_fd, last), name)

    def wait_for_change(self, handle: int, seconds: float) -> bool:
        """Wait at most ``seconds``; return True if the file was written since the last call."""
        poll = select.poll()
        poll.register(self._checked(handle), select.POLLIN)
        if not poll.poll(1000 * seconds):
            return False
        with suppress(BlockingIOError):  # (another thread may have read the events)
            os.read(handle, kernel.EVENTS_BYTES)
        return True

    @contextmanager
    def descriptor_path(self, directory: str) -> Iterator[bytes]:
        """Yield a path to a directory of the space, by the directory's descriptor.

        The path leads to the same directory even after a rename.
        """
        descriptor = self._directories[directory]  # the removal of the last reference closes the descriptor
        yield os.fsencode(f"{kernel.by_descriptor(descriptor)}/.")

    # -- locks --------------------------------------------------------------------------------------------------

    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        """Try to lock bytes for this open file description (fcntl(2)).

        Return False if another open file description has locked one of the bytes.
        """
        if handle not in self._handles:
            raise not_open()
        asked = FLOCK.pack(F_RDLCK if shared else F_WRLCK, os.SEEK_SET, start, length, 0)
        try:
            fcntl.fcntl(handle, F_OFD_SETLK, asked)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise as_unsupported(error, *NO_LOCKS) from None
        return True

    def unlock(self, handle: int, start: int, length: int = 1) -> None:
        """Release bytes that ``lock`` has locked."""
        if handle not in self._handles:
            raise not_open()
        fcntl.fcntl(handle, F_OFD_SETLK, FLOCK.pack(F_UNLCK, os.SEEK_SET, start, length, 0))

    def some_lock(self, handle: int, start: int, length: int) -> tuple[int, int] | None:
        """Return (start, length) of a lock that another open file description holds in this range, or None."""
        asked = FLOCK.pack(F_WRLCK, os.SEEK_SET, start, length, 0)
        try:
            kind, _, found, size, _ = FLOCK.unpack(fcntl.fcntl(self._checked(handle), F_OFD_GETLK, asked))
        except OSError as error:
            raise as_unsupported(error, *NO_LOCKS) from None
        return None if kind == F_UNLCK else (found, size)

    def flock(self, handle: int) -> bool:
        """Try to lock a whole file or directory (flock(2)); return False if the lock is held elsewhere."""
        try:
            fcntl.flock(self._checked(handle), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise as_unsupported(error, *NO_LOCKS) from None
        return True

    def funlock(self, handle: int) -> None:
        """Release a lock that ``flock`` took."""
        fcntl.flock(self._checked(handle), fcntl.LOCK_UN)

    def flock_holder(self, handle: int) -> str:
        """Return the process that locked the whole file with ``flock``, as ``lock_holders`` names it, or ""."""
        return kernel.flock_holder(self._checked(handle))

    def lock_holders(self, handle: int, start: int, *, others: bool = False) -> list[str]:
        """Return the processes that lock the byte or the file, as in error texts: ``process 4711 (python3)``.

        ``others``: leave this process out.
        """
        found = [lock[3:] for lock in self.process_locks([handle]) if lock.first <= start <= lock.last]
        me = os.getpid() if others else None
        return [f"process {pid} ({program})" for pid, program in dict.fromkeys(found) if pid != me]

    def process_locks(self, handles: Iterable[int]) -> list[kernel.ProcessLock]:
        """Return the locks of these files with their processes; see ``kernel.process_locks``."""
        return kernel.process_locks(map(self._checked, handles))

    @contextmanager
    def exclusively(self, name: str) -> Iterator[bool]:
        """Hold a maintenance lock on a separate file. Yields False at once if another process holds the lock."""
        found = self.identity(name)
        if found is None:  # a new file would not exclude the holder of the old file
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path(name))
        if not found.is_plain:
            raise OSError(errno.EINVAL, "not a plain file with one name", self.path(name))
        directory, _, last = name.rpartition("/")
        with kernel.file_locked(self._directories[directory], last, FILE_MODE) as ours:
            yield ours

    def has_writer(self, handle: int) -> bool | None:
        """Return whether a process has this file open for writing, or None if the kernel gives no answer."""
        return kernel.has_writer(self._checked(handle))

    def run_beside(self, name: str, run: Callable[[], None]) -> bool:
        """Run the function in a new thread. A disk without threads returns False, and the caller runs the function."""
        threading.Thread(target=run, name=name, daemon=True).start()
        return True

    # -- the machine --------------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        """Return the id of this boot of the machine. After a restart, the counters in ``run/`` are only lower
        bounds."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()

    def machine_id(self) -> str:
        """Return the id of this machine's installation (machine-id(5)), or "-" if the machine has no id, e.g. in a
        container."""
        try:
            with open(_MACHINE_ID, encoding="ascii", errors="replace") as file:
                found = file.read(64).strip()
        except OSError:
            return "-"
        return found if len(found) == 32 and found.isalnum() else "-"

    def file_system(self) -> FileSystem:
        return file_stat.file_system(self.root)

    def network_file_system(self) -> str | None:
        """Return the kind of the network file system on which the space lies, or None."""
        return file_stat.network_file_system(self.root)
