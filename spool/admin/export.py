"""Write a space into one file, and read it back: for a backup, or to move it to another machine.

The file is a tar of the space's own files, as they are at one moment: all commits up to one number, and the branches
that are in doubt. So it keeps everything that is durable: ids, positions, order, times, tries, facts and counts. Claims
are not kept: a message that a transaction held is ready in the copy. Files in ``drop/`` are no messages yet: left out.

Other processes may use the space meanwhile. The reclaim lock is held, so that no file of the snapshot is removed.
"""

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from spool.coordination.locks import NUMBER
from spool.disk.content import new_file, write_chunks
from spool.disk.disk import Disk
from spool.errors import CorruptedFile, InvalidArgument, NewerFormat, SystemFailure
from spool.log.sequence import settle_all, with_number_lock
from spool.log.visibility import catch_up
from spool.model import layout
from spool.model.settings_file import MAX_SETTINGS_BYTES, without_mirror
from spool.model.xid import Xid
from spool.store.settings import read_settings_text
from spool.store.store import Store
from spool.text import shown

_BEGIN, _END = "xaspool-export.json", "xaspool-export-end.json"
_FORMAT = 1
_MAX_NOTE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_MAX_FILE_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Progress:
    """How many files are done, `of` all."""

    files: int
    of: int


def check_stream(stream: object, what: str) -> None:
    """Raise InvalidArgument if `stream` has no method `what`, as a name has none."""
    if not callable(getattr(stream, what, None)):
        raise InvalidArgument(f"export and import_space take a file that is open for bytes, not {shown(stream)}")


# -- out ---------------------------------------------------------------------------------------------------------------


def export(store: Store, stream: BinaryIO, progress: Callable[[Progress], None] | None, compress: bool) -> int:
    """Write the space to a stream; return the number of files.

    Raises:
        SystemFailure: another process held the reclaim lock for the whole time.
    """
    check_stream(stream, "write")
    with _reclaim_blocked(store):
        settings, names = _snapshot(store)
        with tarfile.open(fileobj=stream, mode="w|gz" if compress else "w|") as archive:
            _add(archive, _BEGIN, json.dumps({"format": _FORMAT, "files": len(names)}).encode())
            _add(archive, layout.SETTINGS, settings.encode())
            written = 0
            for done, name in enumerate(names, 1):
                written += _add_file(store, archive, name)
                if progress is not None:
                    progress(Progress(done, len(names)))
            _add(archive, _END, json.dumps({"files": written}).encode())
    return written


@contextmanager
def _reclaim_blocked(store: Store) -> Iterator[None]:
    deadline = store.deadline()
    for _ in deadline.polls():
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as locked:
            if locked:
                yield
                return
    raise SystemFailure(f"another process has been reclaiming for {deadline.seconds:g} s: try again later")


def _snapshot(store: Store) -> tuple[str, list[str]]:
    """Return the settings and the names of all files at one moment, when no commit is unpublished."""
    deadline = store.deadline()
    with_number_lock(store.shared.control, deadline)
    try:
        settle_all(store, deadline)
        settings = read_settings_text(store.files.disk)
        names = [
            f"{layout.PREPARED}/{name}" for name in store.files.disk.names(layout.PREPARED) if layout.parse_xid(name)
        ]
        numbered = (name for name in store.files.disk.names(layout.COMMITTED) if layout.parse_committed(name))
        names += [f"{layout.COMMITTED}/{name}" for name in sorted(numbered)]
    finally:
        store.shared.control.unlock(NUMBER)
    quarantined = (f"{layout.QUARANTINE}/{name}" for name in sorted(store.files.disk.names(layout.QUARANTINE)))
    for name in quarantined:
        identity = store.files.disk.identity(name)
        if identity is not None and identity.is_regular:
            names.append(name)
    return settings, names


def _add_file(store: Store, archive: tarfile.TarFile, name: str) -> bool:
    handle = _open(store, name)
    if handle is None:
        return False
    try:
        size = store.files.disk.handle_identity(handle).size
        archive.addfile(_member(name, size), io.BufferedReader(_Reader(store.files.disk, handle, size), _PIECE_BYTES))
    finally:
        store.files.disk.close(handle)
    return True


def _open(store: Store, name: str) -> int | None:
    """Open a file of the snapshot; None if it is a branch that was rolled back since.

    A branch that was committed since has its file under another name.
    """
    try:
        return store.files.disk.open(name)
    except FileNotFoundError:
        xid = layout.parse_xid(name.rpartition("/")[2])
        if xid is None or not name.startswith(layout.PREPARED):
            raise
    moved = _adopted_as(store, xid)
    try:
        return None if moved is None else store.files.disk.open(moved)
    except FileNotFoundError:
        return None


def _adopted_as(store: Store, xid: Xid) -> str | None:
    catch_up(store)
    with store.view.mutex:
        number = store.view.index.adopted.get(xid)
        return (
            None if number is None else layout.committed(number, store.view.index.files[number].adopted.index(xid) + 1)
        )


class _Reader(io.RawIOBase):
    """The first `size` bytes of an open file of the space."""

    def __init__(self, disk: Disk, handle: int, size: int) -> None:
        self._disk, self._handle, self._left, self._at = disk, handle, size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._disk.read_at(self._handle, self._at, min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._at += len(data)
        self._left -= len(data)
        return len(data)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    archive.addfile(_member(name, len(data)), io.BytesIO(data))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


# -- in ----------------------------------------------------------------------------------------------------------------


def unpack(disk: Disk, stream: BinaryIO, progress: Callable[[Progress], None] | None) -> str:
    """Write an export's files into empty directories, durably; return the text of the settings.

    The caller writes the settings last: with them, the directory is a space.

    Raises:
        CorruptedFile: it is no whole export of a space.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            settings = _unpack(disk, archive, progress)
    except (tarfile.TarError, EOFError, ValueError, LookupError, zlib.error) as error:
        raise CorruptedFile(f"it is not a whole export of a space: {error}") from None
    for directory in layout.DIRECTORIES:
        disk.flush_directory(directory)
    return settings


def _unpack(disk: Disk, archive: tarfile.TarFile, progress: Callable[[Progress], None] | None) -> str:
    begin = archive.next()
    if begin is None or begin.name != _BEGIN:
        raise CorruptedFile("it is not an export of a space")
    head = _note(archive, begin)
    if head["format"] > _FORMAT:
        raise NewerFormat(f"the export has format {head['format']}, and this program reads {_FORMAT}: use a later one")
    settings: str | None = None
    done = 0
    while (member := archive.next()) is not None:
        if member.name == _END:
            if settings is None or _note(archive, member)["files"] != done:
                break
            return settings
        content = archive.extractfile(member) if _is_ours(member) else None
        if content is None:
            raise CorruptedFile(f"it holds {shown(member.name)}, which is no file of a space")
        if member.name == layout.SETTINGS:
            settings = without_mirror(content.read().decode("utf-8"))
            continue
        _write(disk, member, content)
        done += 1
        if progress is not None:
            progress(Progress(done, head["files"]))
    raise CorruptedFile("it is not a whole export of a space: its end is missing")


def _note(archive: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    """Read the first or last entry, which tell the format and the number of files."""
    content = archive.extractfile(member)
    if content is None or member.size > _MAX_NOTE_BYTES:
        raise CorruptedFile("it is not an export of a space")
    fields = json.loads(content.read())
    if not isinstance(fields, dict):
        raise CorruptedFile("it is not an export of a space")
    return {name: int(value) for name, value in fields.items()}


def _is_ours(member: tarfile.TarInfo) -> bool:
    if not member.isreg() or not 0 <= member.size <= _MAX_FILE_BYTES:
        return False
    if member.name == layout.SETTINGS:
        return member.size <= MAX_SETTINGS_BYTES
    directory, slash, name = member.name.partition("/")
    if not slash or "/" in name or "\0" in name or name in ("", ".", ".."):
        return False
    if directory == layout.QUARANTINE:
        return True
    return directory in (layout.COMMITTED, layout.PREPARED) and bool(layout.OWN_NAMES[directory](name))


def _write(disk: Disk, member: tarfile.TarInfo, content: Any) -> None:
    with new_file(disk, member.name) as handle:
        write_chunks(disk, handle, iter(partial(content.read, _PIECE_BYTES), b""))
        disk.flush(handle)
