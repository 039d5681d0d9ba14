"""Arrivals in drop folders, as the kernel (inotify) reports them: one watch wakes the intake and proves renames.

A rename is evidence that a file is complete: its writer gave the file its name at the end. No other change is. In
particular a later status change proves nothing: a ``chmod``, or a second name, changes the status while the writer goes
on. A file that existed before the watch began is not known to be renamed.

Such evidence must be current when a file is judged, so the intake reads the kernel's queue itself. The package watchdog
cannot do this: its threads deliver an event up to half a second late. Meanwhile a file that was renamed away still
counts as renamed into place, and a half-written file under its name would be taken
(tests/intake/test_other_users.py, a rename that says nothing of the next file of that name).
"""

from spool.disk.disk import Disk
from spool.model import layout
from spool.runtime.clock import Clock


class Arrivals:
    """The files that arrive in the watched folders of one space."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._handle: int | None = None
        self._numbers: dict[str, int] = {}  # of each queue's folder
        self._renamed: set[tuple[int, str]] = set()
        self._arrived = False

    def watch(self, queue: str) -> None:
        """Watch a queue's folder from now on. If the kernel refuses, no file of the folder is known to be renamed."""
        try:
            self._handle, self._numbers[queue] = self._disk.watch_names(self._handle, f"{layout.DROP}/{queue}")
        except OSError:
            self._numbers.pop(queue, None)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; return whether a file arrived since the last call. An arrival may be missed."""
        if self._handle is None:
            self._clock.sleep(seconds)
        elif not self._arrived:
            self._read(seconds)
        arrived, self._arrived = self._arrived, False
        return arrived

    def is_renamed(self, queue: str, name: str) -> bool:
        """Return whether the file with this name was renamed into place.

        The caller has read the file's identity before: so the kernel has queued each earlier change of that name.
        """
        self._read(0)
        return (self._numbers.get(queue), name) in self._renamed

    def _read(self, seconds: float) -> None:
        """Read the changes since the last call; wait at most so long for the first one."""
        if self._handle is None:
            return
        for change in self._disk.changes_of_names(self._handle, seconds):
            self._arrived |= change.renamed_in or change.closed
            if not change.name:
                self._renamed.clear()
            elif change.renamed_in:
                self._renamed.add((change.directory, change.name))
            elif not change.closed:
                self._renamed.discard((change.directory, change.name))

    def close(self) -> None:
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
        self._numbers.clear()
        self._renamed.clear()
