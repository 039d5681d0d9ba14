"""A disk that refuses every change of the space. With it, a dry run shows the changes that an opening would make."""

import errno
import os
from typing import Any, NoReturn

from spool.disk.disk import Disk
from spool.disk.memory import ByCalls, SharedBytes
from spool.model import layout


class ReadOnlyDisk(Disk):
    """A `Disk` that can read and lock files, but changes nothing.

    If a file of ``run/`` is missing, an empty file in memory takes its place.
    """

    def sibling(self, root: str) -> "ReadOnlyDisk":
        return ReadOnlyDisk(root)

    def open(self, name: str, *, write: bool = False) -> int:
        return super().open(name)

    def create(self, name: str) -> int:
        if not name.startswith(f"{layout.RUN}/"):
            self._refuse(name)
        return self._opened(os.memfd_create, os.path.basename(name), os.MFD_CLOEXEC)

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        path = self.path(args[0] if isinstance(args[0], str) else "")
        raise OSError(errno.EROFS, "a dry run changes nothing", path)

    rename = rename_new = link = unlink = set_mode = remove_directory = _refuse  # each with a name
    write_at = truncate = set_modified = _refuse  # each with a handle

    def make_directory(self, name: str) -> bool:
        if name != layout.RUN:
            self._refuse(name)
        return False

    def map(self, handle: int, length: int) -> SharedBytes:
        return ByCalls(self, handle)

    def names(self, directory: str) -> list[str]:
        """List a directory; a missing directory counts as empty, because an opener would create the directory."""
        try:
            return super().names(directory)
        except FileNotFoundError:
            return []
