"""Read an export, to verify the export or to write its files into the directory of a new space.

A reader trusts no part of an export before it has read the end. Three things must hold: each file has the checksum that
the manifest lists, the manifest matches its own checksum, and the compressed stream ends. Anyone can write an export,
so a reader accepts only file names that exports use. The reader follows no links, and no export can make the reader
allocate much memory or nest calls deeply.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from spool.admin import manifest
from spool.admin.export import check_stream, messages_of
from spool.admin.findings import Finding, Kind
from spool.admin.manifest import ExportReport, Progress
from spool.admin.tar_stream import Member, Reader
from spool.disk.content import ensure_directory, new_file, opened, write_chunks
from spool.disk.disk import Disk
from spool.errors import CorruptedFile
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import MAX_SETTINGS_BYTES, parse, with_mirror
from spool.model.text import shown
from spool.store.identity import MAX_TEXT_BYTES, parse_id
from spool.store.store import Store

_MAX_ENTRY_BYTES = 255

Keep = Callable[[str, Iterator[bytes]], object]


class Unpacked(NamedTuple):
    """The parts of a verified export. ``id``: the id of the exported space. ``void``: the names of members that do not
    belong to the space."""

    settings: str
    id: str
    config: SpaceConfig
    report: ExportReport
    void: list[str]


def verify_export(file: BinaryIO, *, progress: Callable[[Progress], None] | None = None) -> ExportReport:
    """Verify that a file is a whole export, to its last byte, and return a report of the contents. The call creates no
    space.

    Args:
        file: the export, open for reading bytes; the compression is recognised.
        progress: called with the number of files so far.

    Raises:
        CorruptedFile: the file is damaged, or is not an export.
        NewerFormat: a later version of the library wrote it.
    """
    return read(file, lambda name, pieces: deque(pieces, 0), progress).report


def unpack(disk: Disk, stream: BinaryIO, progress: Callable[[Progress], None] | None) -> Unpacked:
    """Write all files of an export except the settings into the empty directories of a space. The files are durable
    when this call returns.

    Raises:
        CorruptedFile: the stream is no whole export of a space. Some of the files may have been written.
    """
    folders: set[str] = set()

    def keep(name: str, pieces: Iterator[bytes]) -> None:
        folder = name.rpartition("/")[0]
        if folder not in folders:
            folders.add(folder)
            if folder not in layout.DIRECTORIES:
                ensure_directory(disk, folder)
        with new_file(disk, name) as handle:
            write_chunks(disk, handle, pieces)
            disk.flush(handle)

    found = read(stream, keep, progress)
    for name in found.void:
        disk.unlink(name)
    for name, modified_ns in found.report.dropped.items():
        with opened(disk, name, write=True) as handle:  # (an intake takes dropped files in the order of their times)
            disk.set_modified(handle, modified_ns)
    for folder in sorted(folders - set(layout.DIRECTORIES)):
        if not disk.names(folder):
            disk.remove_directory(folder)
        else:
            disk.flush_directory(folder)
    for queue in found.config.queues:
        ensure_directory(disk, f"{layout.DROP}/{queue}")
    for directory in layout.DIRECTORIES:
        disk.flush_directory(directory)
    return found


def differences(store: Store, report: ExportReport) -> list[Finding]:
    """Compare the number of messages in each queue with the exported space. Return a finding for each difference.

    The bytes were verified, so a difference means that the exported space was already damaged.
    """
    there = messages_of(store)
    return [
        Finding(
            Kind.DAMAGED, layout.COMMITTED,
            f"queue {queue} has {there.get(queue, 0):,} messages, and the space that was exported had {count:,}",
        )
        for queue, count in report.messages.items()
        if there.get(queue, 0) != count
    ]  # fmt: skip


def read(stream: BinaryIO, keep: Keep, progress: Callable[[Progress], None] | None) -> Unpacked:
    """Read an export to its end. Call ``keep`` with the name and the bytes of each file except the settings.

    Raises:
        CorruptedFile, NewerFormat: the files that were passed to ``keep`` are not verified.
    """
    check_stream(stream, "read")
    try:
        members = _Members(stream)
        if members.next() != manifest.BEGIN:
            raise CorruptedFile("it does not begin as one")
        about = manifest.read_begin(members.content(manifest.MAX_BEGIN_BYTES))
        settings = space_id = b""
        while (name := members.next()) != manifest.MANIFEST:
            if name == layout.SETTINGS:
                settings = members.content(MAX_SETTINGS_BYTES)
            elif name == layout.SPACE_ID:
                space_id = members.content(MAX_TEXT_BYTES)
            elif _is_ours(name):
                keep(name, members.pieces())
            else:
                raise CorruptedFile(f"it holds {shown(name)}, which is no file that an export writes")
            if progress is not None:
                done = len(members.read) - 1
                progress(Progress(done, max(done, about)))
        files = list(members.read.values())
        text = members.content(manifest.max_manifest_bytes(len(files)))
        members.check_end()
        return _consistent(settings, space_id, manifest.read_manifest(text, files), {file.name for file in files})
    except CorruptedFile as error:
        raise CorruptedFile(f"it is not a whole export of a space: {error}") from None


class _Members:
    """The members of an export, in order. ``read``: the members that were read, by name."""

    def __init__(self, stream: BinaryIO) -> None:
        self.read: dict[str, Member] = {}
        self._archive = Reader(stream)
        self._name, self._size = "", 0

    def next(self) -> str:
        """Return the name of the next member. Next, the caller reads the member's ``content`` or ``pieces``."""
        if (found := self._archive.next()) is None:
            raise CorruptedFile("its manifest is missing")
        self._name, self._size = found
        if self._name in self.read:
            raise CorruptedFile(f"it holds {shown(self._name)} twice")
        return self._name

    def content(self, most: int) -> bytes:
        """Read a member of at most ``most`` bytes."""
        if self._size > most:
            raise CorruptedFile(f"{self._name} has {self._size:,} bytes in it, and {most:,} is the most")
        return b"".join(self.pieces())

    def check_end(self) -> None:
        if self._archive.next() is not None:
            raise CorruptedFile("more members follow its manifest")
        self._archive.check_end()

    def pieces(self) -> Iterator[bytes]:
        checksum = hashlib.sha256()
        for piece in self._archive.pieces(self._size):
            checksum.update(piece)
            yield piece
        self.read[self._name] = Member(self._name, self._size, checksum.hexdigest())


def _is_ours(name: str) -> bool:
    directory, _, entry = name.rpartition("/")
    if not entry or entry in (".", "..") or len(os.fsencode(entry)) > _MAX_ENTRY_BYTES:
        return False
    if directory in (layout.COMMITTED, layout.PREPARED):
        return bool(layout.OWN_NAMES[directory](entry))
    if directory == layout.QUARANTINE:
        return True
    parent, _, folder = directory.partition("/")
    if parent == layout.DROP:
        return bool(layout.is_queue_name(folder)) and not layout.is_unfinished(entry)
    return parent == layout.ACTIVE and layout.is_capture(folder) and layout.is_captured(entry)


def _consistent(settings: bytes, space_id: bytes, report: ExportReport, names: set[str]) -> Unpacked:
    """Check that the parts of an export agree. Right checksums are not enough, because another program may have written
    the export."""
    try:
        text = settings.decode("utf-8")
        config = parse(text, layout.SETTINGS)
        if config.mirror is not None:  # the mirror belongs to the exported space, not to the new space
            text = with_mirror(text, None)
    except (ValueError, RecursionError) as error:  # InvalidArgument is a ValueError
        raise CorruptedFile(str(error)) from None
    if (id := parse_id(space_id)) is None:
        raise CorruptedFile(f"it lacks the {layout.SPACE_ID} of the space")
    dropped = {name for name in names if name.startswith((f"{layout.DROP}/", f"{layout.ACTIVE}/"))}
    void = dropped - report.dropped.keys()
    void |= {name for name in names & report.left_out.keys() if name.startswith(f"{layout.QUARANTINE}/")}
    queues = {name.split("/")[1] for name in dropped - void if name.startswith(layout.DROP)}
    if (report.files, report.newest) != (len(names) - 1, manifest.newest_of(names)):
        raise CorruptedFile("its manifest counts other files than it lists")
    if report.dropped.keys() - (dropped - void) or queues - config.queues.keys():
        raise CorruptedFile("it lacks a dropped file, or the queue of one")
    return Unpacked(text, id, config, report, sorted(void))
