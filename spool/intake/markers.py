"""Markers of dropped files. If the queue's ``drop_marker`` is ".ok", the file NAME is complete once NAME.ok exists.

The intake captures the marker before its file, and removes the marker after the capture of the file. So a marker in the
folder never belongs to a file that was already taken, and a program may at once drop its next file under the same name.
If an intake dies between the two captures, the next intake takes over the marker, and captures the file.
"""

from collections.abc import Collection, Sequence

from spool.intake.capture import Capture
from spool.intake.directories import CapturedFile
from spool.model import layout
from spool.policies.dropped_states import Seen
from spool.store.store import Store


class Markers:
    """The captured markers of one intake whose files are still in their folders."""

    def __init__(self, store: Store, capture: Capture) -> None:
        self._store = store
        self._capture = capture
        self._captured: list[CapturedFile] = []

    def suffix(self, queue: str) -> str | None:
        config = self._store.settings.known.config.queues.get(queue)
        return None if config is None else config.drop_marker

    def names(self, queue: str) -> set[str]:
        return {marker.name for marker in self._captured if marker.queue == queue}

    def keep(self, file: CapturedFile, *, is_new: bool = False) -> bool:
        """If a captured file is a marker, keep it for the capture of its file, and return True.

        If the file was not captured as a marker just now, it is a marker only if its file is in the folder or captured,
        too. Otherwise it is a message that was dropped when the queue had another ``drop_marker``.
        """
        marked, disk = self._marked_by(file), self._store.files.disk
        if marked is not None and not is_new and not disk.exists(marked):
            name, prefix = marked.rpartition("/")[2], f"{layout.CAPTURE_PREFIX}{file.queue}."
            folders = [each for each in disk.names(layout.ACTIVE) if each.startswith(prefix)]
            if not any(disk.exists(f"{layout.ACTIVE}/{each}/{name}") for each in folders):
                return False
        self._captured += [file] * (marked is not None)
        return marked is not None

    def capture(self, queue: str, arrivals: Sequence[tuple[str, Seen]]) -> list[CapturedFile]:
        """Capture files and their markers. Returns the captured files without the markers, as ``Capture.capture``."""
        if (suffix := self.suffix(queue)) is None:
            return self._capture.capture(queue, arrivals)
        known = self.names(queue)
        markers = {name + suffix: None for name, _ in arrivals if name + suffix not in known}
        files = self._capture.capture(queue, [*markers.items()])
        captured = [file for file in files if not self.keep(file, is_new=file.name in markers)]
        known = self.names(queue)
        files = self._capture.capture(queue, [arrival for arrival in arrivals if arrival[0] + suffix in known])
        # (A file that a dead intake had captured has no ``seen``, and needs no marker.)
        own = [file for file in files if file.seen is not None]
        self._remove({file.first + suffix for file in own}, own)
        return captured + files

    def remove_old(self) -> None:
        """Remove each captured marker whose file was captured or removed, or has changed since. Markers remain if an
        intake died, or the capture of a file failed."""
        old, disk = set(), self._store.files.disk
        for marker in self._captured:
            path, identity = self._marked_by(marker), disk.identity(marker.path)
            file = None if path is None else disk.identity(path)
            if file is None or identity is None or file.modified_ns > identity.modified_ns:
                old.add(marker.first)
        self._remove(old)

    def _marked_by(self, file: CapturedFile) -> str | None:
        """Return the path of the file that a captured marker marks; None if the captured file is no marker."""
        suffix = self.suffix(file.queue)
        return file.first.removesuffix(suffix) if suffix is not None and file.name.endswith(suffix) else None

    def _remove(self, paths: Collection[str], files: Sequence[CapturedFile] = ()) -> None:
        """Remove markers by the paths at which they were dropped. ``files``: the files of the markers.

        A power cut must not undo the capture of a file whose marker is removed, because the file would wait for ever.
        """
        old = [marker for marker in self._captured if marker.first in paths]
        if old:
            self._capture.make_durable([*old, *files])
        for marker in old:
            self._capture.remove(marker)
        self._captured = [marker for marker in self._captured if marker.first not in paths]

    def clear(self) -> None:
        """Leave the markers to the next intake."""
        self._captured.clear()
