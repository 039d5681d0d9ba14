"""A disk that refuses every change of the space: it shows the effects of an opening in advance."""

import errno
from typing import NoReturn

from spool.disk.disk import Disk
from spool.disk.memory import ByCalls, SharedBytes
from spool.model import layout


class LookingDisk(Disk):
    """A `Disk` that reads and locks, and changes nothing.

    If a file of ``run/`` is missing, an empty file in memory takes its place.
    """

    def sibling(self, root: str) -> "LookingDisk":
        return LookingDisk(root)

    def open(self, name: str, *, write: bool = False) -> int:
        return super().open(name)

    def create(self, name: str) -> int:
        if not name.startswith(f"{layout.RUN}/"):
            self._refuse(name)
        return self.create_in_memory(name)

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)

    def rename_new(self, source: str, target: str) -> None:
        self._refuse(source)

    def link(self, source: str, target: str) -> None:
        self._refuse(source)

    def unlink(self, name: str) -> None:
        self._refuse(name)

    def set_mode(self, name: str, mode: int, group: int | None = None) -> None:
        self._refuse(name)

    def make_directory(self, name: str) -> bool:
        if name != layout.RUN:
            self._refuse(name)
        return False

    def remove_directory(self, name: str) -> None:
        self._refuse(name)

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        self._refuse("")

    def truncate(self, handle: int, length: int) -> None:
        self._refuse("")

    def set_modified(self, handle: int, modified_ns: int) -> None:
        self._refuse("")

    def map(self, handle: int, length: int) -> SharedBytes:
        return ByCalls(self, handle)

    def names(self, directory: str) -> list[str]:
        """List a directory; a missing directory counts as empty, because an opener would create the directory."""
        try:
            return super().names(directory)
        except FileNotFoundError:
            return []

    def _refuse(self, name: str) -> NoReturn:
        raise OSError(errno.EROFS, "a dry run changes nothing", self.path(name))
