"""Which dropped files were renamed into their folder, as the kernel (inotify) reports it.

A rename is evidence that the file is complete: its writer gave it its name at the end. No other change is. In
particular, a status that changed later than the bytes is none: a ``chmod``, or a second name, changes it while the
writer goes on. So a file that was there before the watch began is not known to be renamed.
"""

from spool.disk.disk import Disk
from spool.model import layout


class Renames:
    """The renames into the watched folders of one space."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._handle: int | None = None
        self._numbers: dict[str, int] = {}  # of each queue's folder
        self._renamed: set[tuple[int, str]] = set()

    def watch(self, queue: str) -> None:
        """Watch a queue's folder from now on. If the kernel refuses, no file of the folder is known to be renamed."""
        try:
            self._handle, self._numbers[queue] = self._disk.watch_names(self._handle, f"{layout.DROP}/{queue}")
        except OSError:
            self._numbers.pop(queue, None)

    def includes(self, queue: str, name: str) -> bool:
        """Return whether the file with this name was renamed into place.

        The caller has looked at the file before: then no change that took the name from another file is still to come.
        """
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
