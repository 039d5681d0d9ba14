"""The dropped files of an export: files that an intake would take, and files that intakes have captured.

Intakes continue meanwhile, so an export first reads the files, and then takes its snapshot. If a file was removed or
became a message before the snapshot, the export does not count the file (``waiting``). So the export has each file
once, as a file or as a message. The caller holds the reclaim lock, so no process removes the records of captured files.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spool.disk.content import is_directory
from spool.disk.stat import FileIdentity
from spool.model import layout
from spool.policies.dropped_states import MARK, TAKE, Action, by_kind, by_name, judge_named
from spool.store.store import Store

Version = tuple[int, int, int, int]  # of a file and its content (``FileIdentity.version``)


class DroppedFile(NamedTuple):
    """A dropped file: its name, relative to the space, and its identity when it was listed."""

    name: str
    identity: FileIdentity


class DroppedFiles:
    """The dropped files of a space. ``left_out``: by name, the reasons why files are not exported."""

    def __init__(self, store: Store) -> None:
        self.left_out: dict[str, str] = {}
        self._store = store
        self._disk = store.files.disk

    def to_read(self) -> Iterator[DroppedFile]:
        """Yield the complete files, folder by folder, each folder in the order of the last changes.

        Captured files are listed last, so the list includes files that an intake moves while the other files are read.
        """
        for folder in self._folders():
            yield from _by_time(self._in_folder(folder))
        for folder in self._captures():
            paths = (f"{folder}/{name}" for name in self._names(folder) if layout.is_captured(name))
            yield from _by_time(file for path in paths for file in self._captured(path))

    def waiting(self) -> dict[Version, str]:
        """Return the names of the files that wait now, by the version of each file. The caller holds the number lock.

        The search also finds a file that an intake moves during the search. No intake removes a file, because no commit
        gets a number during the search.
        """
        found: dict[Version, str] = {}
        for folder in self._folders():
            for name in self._names(folder):
                if not layout.is_unfinished(name):
                    self._note(found, f"{folder}/{name}")
        for path in self.captured():
            self._note(found, path)
        return found

    def captured(self, queue: str | None = None) -> Iterator[str]:
        """Yield the files, of one queue or of all, that intakes have captured and that are no messages yet."""
        taken = self._store.view.index.captured
        for folder in self._captures():
            directory = folder.rpartition("/")[2]
            for name in self._names(folder) if queue in (None, layout.queue_of_capture(directory)) else ():
                if (directory, os.fsencode(name)) not in taken and layout.is_captured(name):
                    yield f"{folder}/{name}"

    def _note(self, found: dict[Version, str], path: str) -> None:
        identity = self._disk.identity(path)
        if identity is not None and identity.is_regular:
            found.setdefault(identity.version, path)

    def _folders(self) -> Iterator[str]:
        queues = self._store.settings.current().config.queues
        for name in sorted(self._disk.names(layout.DROP)):
            folder = f"{layout.DROP}/{name}"
            if name in queues and is_directory(self._disk, folder):
                yield folder
            else:
                self._leave_out(folder, "it belongs to no queue")

    def _captures(self) -> Iterator[str]:
        for name in sorted(self._disk.names(layout.ACTIVE)):
            if layout.is_capture(name):
                yield f"{layout.ACTIVE}/{name}"

    def _names(self, folder: str) -> list[str]:
        try:
            return self._disk.names(folder)
        except (FileNotFoundError, NotADirectoryError):  # the queue, or the intake's directory, was removed meanwhile
            return []

    def _in_folder(self, folder: str) -> Iterator[DroppedFile]:
        queue = self._store.settings.known.config.queues[folder.rpartition("/")[2]]
        names = self._names(folder)
        there = set(names)
        if queue.drop_marker is not None:  # a marker may be captured already, after which its file waits
            for path in self._captures():
                if layout.queue_of_capture(path.rpartition("/")[2]) == queue.name:
                    there.update(self._names(path))
        for name in names:
            decision = by_name(name, there, queue)
            if decision in (MARK, TAKE):
                is_declared = decision is MARK or queue.drop_marker is not None
                yield from self._dropped(queue.name, f"{folder}/{name}", is_declared)
            else:
                self._leave_out(f"{folder}/{name}", decision.why)

    def _dropped(self, queue: str, path: str, is_declared: bool) -> Iterator[DroppedFile]:
        identity = self._disk.identity(path)
        decision = by_kind(identity, self._disk.identity(layout.ACTIVE))
        if identity is not None and decision is TAKE:
            if identity.size > self._store.settings.known.config.max_dropped_bytes:
                self._leave_out(path, "it is too large for a message")
                return
            decision, identity = judge_named(self._store, path, queue, identity, lambda: is_declared)
            if decision.step is Action.TAKE:
                yield DroppedFile(path, identity)
        if decision.why:
            self._leave_out(path, decision.why)

    def _captured(self, path: str) -> Iterator[DroppedFile]:
        identity = self._disk.identity(path)
        if identity is not None and identity.is_regular:
            if identity.size > self._store.settings.known.config.max_dropped_bytes:
                self._leave_out(path, "it is too large for a message")
            else:
                yield DroppedFile(path, identity)

    def _leave_out(self, name: str, reason: str) -> None:
        self.left_out[name] = reason


def _by_time(files: Iterable[DroppedFile]) -> list[DroppedFile]:
    return sorted(files, key=lambda file: (file.identity.modified_ns, file.name))
