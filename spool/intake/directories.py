"""Capture directories: directories in ``active/`` for the files that an intake has captured.

A capture directory belongs to the intake that holds the directory's byte (``capture_byte``). No name in the directory
is used twice, so the name that a commit records always means the same file. After an intake has died, the next intake
that gets the byte takes over the directory.
"""

import os
from contextlib import suppress

from spool.coordination.locks import capture_byte
from spool.disk.content import is_directory
from spool.errors import SpoolError
from spool.model import layout
from spool.policies.dropped_states import Seen
from spool.store.store import Store

_MOST_NAMES = 10_000  # the limit of names in one directory, because the intake remembers all names


class CapturedFile:
    """A file in a capture directory.

    name: the name under which the file was dropped.
    seen: the file when this intake last saw it; None for a marker, and at first for a file of a dead intake.
    first: the first name of the file: the path at which a program dropped it.
    path, folder: the present name of the file, and its directory.
    """

    def __init__(
        self, queue: str, directory: str, name: str, seen: Seen | None = None, *, came_meanwhile: bool = False
    ) -> None:
        """``came_meanwhile``: whether the file was dropped during the capture of another file of the same name. Then
        the file has a different name in the capture directory."""
        self.queue = queue
        self.directory = directory
        self.name = name
        self.seen = seen
        self.first = f"{layout.DROP}/{queue}/{name}"
        self.folder = f"{layout.ACTIVE}/{directory}"
        self._entry = f"{layout.FIRST_PREFIX}{name}" if came_meanwhile else name
        self.path = f"{self.folder}/{self._entry}"

    def order(self) -> tuple[int, str]:
        """Return the sort key of a file within its folder: the time of the last change, then the name."""
        return self.seen.identity.modified_ns if self.seen is not None else 0, self.name

    @property
    def record(self) -> tuple[str, bytes]:
        """Return the directory, and the name in bytes, with which a commit records the file."""
        return self.directory, os.fsencode(self._entry)


class CaptureDirectories:
    """The capture directories of one intake, and the names of other intakes' capture directories."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._disk = store.files.disk
        self._current: dict[str, str] = {}  # by queue: the directory for the queue's next file
        self._used: dict[str, set[str]] = {}  # by directory: all names that files in the directory have had
        self._held: list[str] = []  # all directories whose byte this intake holds

    def names(self, queue: str | None = None) -> list[str]:
        """Return the directories of all intakes, for one queue or for all."""
        prefix = layout.CAPTURE_PREFIX + ("" if queue is None else f"{queue}.")
        return [name for name in sorted(self._disk.names(layout.ACTIVE)) if name.startswith(prefix)]

    def for_file(self, queue: str, name: str) -> str:
        """Return this intake's directory for a file. If the current directory is full, or has already had a file of
        this name, create a new directory."""
        if (directory := self._current.get(queue)) is not None:
            used = self._used[directory]
            if name not in used and len(used) < _MOST_NAMES:
                return directory
        directory = f"{layout.CAPTURE_PREFIX}{queue}.{os.urandom(8).hex()}"
        if not self._store.shared.xids.try_lock(capture_byte(directory)):
            raise SpoolError(f"the new directory {directory} is taken already")
        self._held.append(directory)
        self._disk.make_directory(f"{layout.ACTIVE}/{directory}")
        # A power cut must not lose the directory with its files. Flush the directory before its name. Otherwise, on a
        # file system without a journal, the name could lead to another inode.
        if self._disk.durability.needs_links:
            self._disk.flush_directory(f"{layout.ACTIVE}/{directory}")
        self._disk.flush_directory(layout.ACTIVE)
        self._used.pop(self._current.get(queue, ""), None)
        self._current[queue], self._used[directory] = directory, set()
        return directory

    def newest(self, queue: str) -> list[str]:
        """Return the path of the directory for the queue's next file, if there is one."""
        return [f"{layout.ACTIVE}/{self._current[queue]}"] if queue in self._current else []

    def note_used(self, file: CapturedFile) -> None:
        """Record that the file's capture directory has had the file's name."""
        self._used[file.directory].add(file.name)

    def take_over(self, directory: str) -> bool:
        """Lock a directory whose intake has died. Return False if the directory's intake lives."""
        return self._store.shared.xids.try_lock(capture_byte(directory))

    def keep(self, directory: str) -> None:
        """Hold a directory that was taken over, until it is empty."""
        self._held.append(directory)

    def unlock(self, directory: str) -> None:
        self._store.shared.xids.unlock(capture_byte(directory))

    def flush_of_the_dead(self, queue: str) -> None:
        """Flush the directories of intakes that died. A dead intake may have removed a copy without a flush, so the
        copy could exist again after a power cut. By then this intake may have captured and removed the original, and
        the next intake would mistake the copy for a lost file."""
        for directory in self.names(queue):
            path = f"{layout.ACTIVE}/{directory}"
            if is_directory(self._disk, path) and self._store.shared.xids.is_free(capture_byte(directory)):
                with suppress(FileNotFoundError):
                    self._disk.flush_directory(path)

    def release_unused(self) -> None:
        """Remove and unlock the empty directories that take no more files."""
        wanted = set(self._current.values())
        self._held = [name for name in self._held if name in wanted or not self._remove_if_empty(name)]

    def release_all(self) -> None:
        """Unlock all directories, and remove the empty directories. The next intake finishes the other directories."""
        for directory in self._held:
            if not self._remove_if_empty(directory):
                self.unlock(directory)
        self._held.clear()
        self._current.clear()
        self._used.clear()

    def _remove_if_empty(self, directory: str) -> bool:
        """Remove and unlock a directory. Return False if the directory is not empty."""
        try:
            self._disk.remove_directory(f"{layout.ACTIVE}/{directory}")
        except FileNotFoundError:
            pass
        except OSError:
            return False
        self.unlock(directory)
        return True
