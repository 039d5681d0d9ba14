"""Write a space into one file, as a backup, or to move the space to another machine. ``unpack`` reads the file back.

The file is a tar of the space's files at one moment. The file has all commits up to one number, branches in doubt,
quarantine, and the dropped files that are no messages yet. So an export has everything that is durable: ids, positions,
order, times, attempts, and the other records of commits. An export has no claims, so a message that a transaction held
is ready in the copy. The last member is the manifest, which names each file that was left out, with the reason.

Other processes may use the space meanwhile. The export holds the reclaim lock, so that no file of the snapshot is
removed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO, NamedTuple

from spool.admin import manifest
from spool.admin.dropped import DroppedFile, DroppedFiles, Version
from spool.admin.manifest import ExportReport, Progress
from spool.admin.tar_stream import COMPRESSIONS, Writer
from spool.disk.content import closed_at_end, open_first
from spool.errors import CorruptedFile, InvalidArgument, SystemFailure
from spool.log.settled_lock import settled
from spool.log.visibility import catch_up
from spool.model import layout
from spool.model.settings_file import parse
from spool.model.text import shown
from spool.model.xid import Xid
from spool.runtime.call_guard import outside_of_calls
from spool.store.settings_reader import read_settings_text
from spool.store.store import Store


class _Snapshot(NamedTuple):
    """The space at the moment of the export. ``names``: the files of commits and branches. ``waiting``: the dropped
    files."""

    settings: str
    names: list[str]
    messages: dict[str, int]
    waiting: dict[Version, str]


def check_stream(stream: object, method: str) -> None:
    """Raise InvalidArgument if `stream` has no method of this name, e.g. because `stream` is the name of a file."""
    if not callable(getattr(stream, method, None)):
        raise InvalidArgument(f"an export is a file that is open for bytes, not {shown(stream)}")


def export(
    store: Store, stream: BinaryIO, progress: Callable[[Progress], None] | None, compress: bool | str
) -> ExportReport:
    """Write the space to a stream, and return a report of the export.

    Raises:
        InvalidArgument: no compression has this name.
        SystemFailure: another process held the reclaim lock for the whole time.
        CorruptedFile: a file of a commit has lost bytes while the export was written.
    """
    check_stream(stream, "write")
    compression = "gz" if compress is True else compress or None
    if compression is not None and compression not in COMPRESSIONS:
        raise InvalidArgument(f"compress is True, False or one of {', '.join(COMPRESSIONS)}, not {shown(compress)}")
    with _reclaim_blocked(store):
        return _Export(store, Writer(stream, compression), progress).write()


@contextmanager
def _reclaim_blocked(store: Store) -> Iterator[None]:
    deadline = store.deadline()
    for _ in deadline.polls():
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as locked:
            if locked:
                yield
                return
    raise SystemFailure(f"another process has been reclaiming for {deadline.seconds:g} s: try again later")


class _Export:
    def __init__(self, store: Store, writer: Writer, progress: Callable[[Progress], None] | None) -> None:
        self._store = store
        self._disk = store.files.disk
        self._writer = writer
        self._progress = progress
        self._about = len(store.view.index.files)
        self._dropped = DroppedFiles(store)
        self._left_out: dict[str, str] = {}
        self._files = 0

    def write(self) -> ExportReport:
        self._writer.add_bytes(manifest.BEGIN, manifest.begin(self._about))
        read = [file for file in self._dropped.to_read() if self._add(file.name, open_first(self._disk, [file.name]))]
        snapshot = self._snapshot()
        self._writer.add_bytes(layout.SETTINGS, snapshot.settings.encode())
        self._writer.add_bytes(layout.SPACE_ID, f"{self._store.files.id}\n".encode())
        for name in snapshot.names:
            if self._add(name, self._open_of_commit(name)) is False:
                raise CorruptedFile(f"{name} has lost bytes while it was exported: see spool-admin check")
        for name in self._quarantined():
            try:
                if self._add(name, open_first(self._disk, [name])):
                    continue
                self._left_out[name] = "it was changed or moved while the export was written"
            except PermissionError:  # its owner may have changed its mode through an open descriptor
                self._left_out[name] = "this user may not read it"
        dropped = self._still_waiting(read, snapshot.waiting)
        self._left_out.update(self._dropped.left_out)
        newest = manifest.newest_of(snapshot.names)
        report = ExportReport(len(self._writer.members) - 1, newest, snapshot.messages, dropped, self._left_out)
        self._writer.add_bytes(manifest.MANIFEST, manifest.manifest(report, self._writer.members))
        self._writer.finish()
        return report

    def _snapshot(self) -> _Snapshot:
        """Take a snapshot of the space at a moment when every commit with a number is published.

        The commits up to this moment are listed after the number lock is released. Until then no process removes their
        files, because the caller holds the reclaim lock.
        """
        store = self._store
        with settled(store, store.deadline()):
            last, messages = store.view.index.applied, messages_of(store)
            settings = read_settings_text(self._disk)
            prepared = [name for name in self._disk.names(layout.PREPARED) if layout.parse_xid(name)]
            waiting = self._dropped.waiting()
        parsed = ((name, layout.parse_committed(name)) for name in self._disk.names(layout.COMMITTED))
        numbered = [name for name, committed in parsed if committed is not None and committed.number <= last]
        names = [f"{layout.PREPARED}/{name}" for name in sorted(prepared)]
        names += [f"{layout.COMMITTED}/{name}" for name in sorted(numbered)]
        queues = parse(settings, self._disk.path(layout.SETTINGS)).queues
        return _Snapshot(settings, names, {**dict.fromkeys(queues, 0), **messages}, waiting)

    def _quarantined(self) -> Iterator[str]:
        for entry in sorted(self._disk.names(layout.QUARANTINE)):
            name = f"{layout.QUARANTINE}/{entry}"
            identity = self._disk.identity(name)
            if identity is not None and identity.is_regular:
                yield name
            else:
                self._left_out[name] = "it is no regular file"

    def _still_waiting(self, read: list[DroppedFile], waiting: dict[Version, str]) -> dict[str, int]:
        """Return the time of the last change, by name, of each file that was read and still waited at the snapshot."""
        waiting = dict(waiting)
        kept = {file.name: max(0, file.identity.modified_ns) for file in read if waiting.pop(file.identity.version, "")}
        for name in set(waiting.values()) - self._dropped.left_out.keys():
            self._left_out[name] = "it was dropped or changed while the export was written"
        return kept

    def _add(self, name: str, handle: int | None) -> bool | None:
        """Add an open file, and close it. Return None if ``handle`` is None, and False if the file has become shorter
        meanwhile."""
        if handle is None:
            return None
        with closed_at_end(self._disk, handle):
            size = self._disk.handle_identity(handle).size
            whole = self._writer.add(name, size, partial(self._disk.read_at, handle))
        if self._progress is not None:
            self._files += 1
            with outside_of_calls():
                self._progress(Progress(self._files, max(self._files, self._about)))
        return whole

    def _open_of_commit(self, name: str) -> int | None:
        """Open a file of the snapshot, even if a commit has renamed the file. Return None if the branch was rolled
        back."""
        xid = layout.parse_xid(name.rpartition("/")[2]) if name.startswith(layout.PREPARED) else None
        if xid is None:
            return self._disk.open(name)
        handle = open_first(self._disk, [name])
        moved = _adopted_as(self._store, xid) if handle is None else None
        return handle if moved is None else open_first(self._disk, [moved])


def messages_of(store: Store) -> dict[str, int]:
    """Return the number of messages in each queue that is not empty, after the last commit that this process has
    read."""
    with store.view.mutex:
        return {name: queue.live for name, queue in sorted(store.view.index.messages.queues.items()) if queue.live}


def _adopted_as(store: Store, xid: Xid) -> str | None:
    catch_up(store)
    adopted = store.view.index.adopted.get(xid)
    return None if adopted is None else layout.committed(*adopted[:2])
