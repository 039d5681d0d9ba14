"""The open directory descriptors, and a lock that prevents forks while a file is opened.

The kernel releases a lock when its descriptor is closed. No close, fork or reused descriptor
number may release a lock by mistake. So a ``Disk`` keeps a table of its descriptors.
"""

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from spool.disk.advice import user_name
from spool.errors import DiskFailure
from spool.model import layout

# A thread holds this lock while it opens a file and puts the handle into a table, so no fork happens meanwhile.
# Otherwise the child would have a copy of a descriptor that is in no table, and would keep the parent's locks.
opening = threading.RLock()
os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=opening.release)

STAGES = frozenset((layout.ACTIVE, layout.PREPARED, layout.COMMITTED, layout.FREE))
_KEPT = STAGES | {"", layout.RUN}
_AS_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # to resolve names, not to read or lock the directory


def not_open() -> OSError:
    """Return the error of a call with a handle that is not open."""
    return OSError(errno.EBADF, "the space is closed, or was opened by this process's parent")


class Directory(int):
    """The descriptor of a directory, used as ``dir_fd`` by calls on names in the directory.

    ``close`` or the removal of the last reference closes the descriptor. No descriptor is closed twice, because after
    the first close the number may belong to another file.

    place: for a stage, the inode and the device of the directory; otherwise (0, 0).
    """

    _is_open = True
    place = (0, 0)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                os.close(self)

    __del__ = close


class Directories(dict[str, Directory]):
    """The directories of a space. The keys are names relative to the space; ``""`` is the space itself.

    A directory is opened below its parent's descriptor, and no symlink is followed, except a symlink to the space
    itself. So the owner of the space cannot make a process of root use files outside the space.

    The space, its four stages and ``run/`` are opened once. Any other directory is opened again for each call, because
    a queue's drop folder can be removed and created again while the space is open.

    owner: in a process of root, the user who owns the space. The process opens no other user's directory.
    """

    def __init__(self, root: str, owner: int | None = None) -> None:
        self.root: str | None = root
        self._owner = owner
        self._kept = {*_KEPT}

    def __missing__(self, name: str) -> Directory:
        # No other variable holds the new descriptor, because the traceback of an error would keep the variable alive.
        if self.root is None:
            raise not_open()
        parent, _, last = name.rpartition("/")
        with opening:
            try:
                found = Directory(
                    os.open(last, _AS_PLACE | os.O_NOFOLLOW, dir_fd=self[parent]) if name
                    else os.open(self.root, _AS_PLACE)
                )  # fmt: skip
            except OSError as error:
                raise self._of(error, name) from None
            if not name and self._owner is not None:
                self._check_owner(os.fstat(found).st_uid)
            if name in STAGES:
                opened = os.fstat(found)
                found.place = opened.st_ino, opened.st_dev
            if name in self._kept:
                self[name] = found
        return found

    def _of(self, error: OSError, name: str) -> OSError:
        """Return the error with the whole path. If a symlink is the cause, the text names it as the cause."""
        path = f"{self.root}/{name}" if name else self.root
        if error.errno == errno.ENOTDIR and name and os.path.islink(str(path)):
            return OSError(errno.ELOOP, "it is a symlink, and none is followed", path)
        error.filename = path
        return error

    def _check_owner(self, user: int) -> None:
        if self._owner is not None and user != self._owner:
            raise DiskFailure(
                errno.EPERM,
                f"{self.root} belongs to user {user_name(user)}, and the space to user {user_name(self._owner)}, in "
                "whose name root uses no directory of another user: run this as the owner of the space, or give both "
                "to one user (chown -R)",
            )

    @contextmanager
    def keeping(self, names: Iterable[str]) -> Iterator[None]:
        """Keep these directories open during the body, from their first use."""
        kept = {*names} - self._kept
        self._kept |= kept
        try:
            yield
        finally:
            self._kept -= kept
            for name in kept:
                self.pop(name, None)

    def check_in_place(self, name: str) -> None:
        """Raise OSError (ESTALE) if the path of an open stage leads to no directory or to another directory.

        No later opener would find a commit in a directory that was moved away.
        """
        if name not in STAGES or name not in self:
            return
        path = f"{self.root}/{name}"
        try:
            there = os.lstat(path)
            if (there.st_ino, there.st_dev) == self[name].place:
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        raise OSError(errno.ESTALE, "it was moved, replaced or removed while the space was open", path)

    def disown(self) -> None:
        """Close all descriptors in a forked child; later uses raise OSError (EBADF).

        References to directories may remain in frames of the parent's other threads, which the child never clears.
        """
        self.root = None
        for directory in self.values():
            directory.close()
        self.clear()
