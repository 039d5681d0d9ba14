"""Which dropped files were renamed into place, as far as the kernel told it since the folder is watched.

A rename says that the file is complete: its writer gave it its name when it was done. It is the only change of a file
that says so. That a file's status changed later than its bytes (its times) is no evidence: a ``chmod`` or a second
name does that, too, while the writer goes on. So what was there before the watch began is not known to be renamed.
"""

from spool.disk.disk import Disk
from spool.model import layout


class Renames:
    """Of the folders of one space that are watched."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._handle: int | None = None
        self._numbers: dict[str, int] = {}  # of each queue's folder
        self._renamed: set[tuple[int, str]] = set()

    def watch(self, queue: str) -> None:
        """From now on; where that cannot be had, no file of this folder is known to be renamed."""
        try:
            self._handle, self._numbers[queue] = self._disk.watch_names(self._handle, f"{layout.DROP}/{queue}")
        except OSError:
            self._numbers.pop(queue, None)

    def include(self, queue: str, name: str) -> bool:
        """Whether the file that the caller has looked at, under this name, was renamed into place. (It must have
        looked before: then no change that took the name from another file is still to come.)"""
        if self._handle is None:
            return False
        for change in self._disk.changes_of_names(self._handle):
            if not change.name:
                self._renamed.clear()
            elif change.renamed_in:
                self._renamed.add((change.directory, change.name))
            else:
                self._renamed.discard((change.directory, change.name))
        return (self._numbers.get(queue), name) in self._renamed

    def close(self) -> None:
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
        self._numbers.clear()
        self._renamed.clear()
