"""The feed: the effects of commits in shared memory, so that other processes need not read the commit files.

``run/feed`` is a ring of slots. Number n uses slot n modulo the number of slots, so a later number overwrites the slot.
A slot records its number and the life of the ring, and has a checksum. (The life is a random value that each first
opener chooses.) A torn, overwritten or older slot counts as empty. So a reader must not depend on any slot.

A slot has a note with the parts of a commit that the index needs. These parts are the positions that the commit removes
or changes, and the content of its file and adopted branches. If the content does not fit into a slot, the note has the
positions only. If the positions do not fit either, the note is empty. A reader takes the rest from the commit's files.

Until the number is published, its note is only a hint: the writer may die, and the number may end as an empty commit.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import msgpack

from spool.coordination.locks import open_shared, write_whole
from spool.disk.descriptors import not_open
from spool.disk.disk import Disk
from spool.disk.memory import SharedBytes
from spool.format.header import UNREADABLE, Adoption, BranchEntry, Header, SectionEntry
from spool.format.reader import FileContents
from spool.format.table import Table, table_of
from spool.index.commit import Commit, CommitFile
from spool.model.layout import FEED
from spool.model.position import PositionRanges
from spool.model.xid import FORMAT_LOCAL, Xid

SLOTS = 2048
SLOT_BYTES = 1024
_CHECKSUM = struct.Struct("<I")  # the checksum of the bytes after this field, up to the end of the note
_FRONT = struct.Struct("<I8sQ")  # length of the note, life, number
_SLOT = struct.Struct(_CHECKSUM.format + _FRONT.format[1:])
NOTE_BYTES = SLOT_BYTES - _SLOT.size
_LIFE_BYTES = 8
_SLOTS_AT = SLOT_BYTES  # the life of the ring takes the space of one slot, before the first slot

_LEAST_BRANCH_BYTES = 60  # the least size of an adopted branch in a note
_LEAST_ADDRESS_BYTES = 4  # the least size of a message's position in a note


class Feed:
    """The notes of commits. If the disk had no room for the file when the first process opened the space, no notes
    exist.
    """

    def __init__(self, disk: Disk, *, make: bool) -> None:
        """Open the ring. ``make``: see ``open_shared``; the first opener then calls ``start``."""
        self.disk = disk
        self._handle = open_shared(disk, FEED, make=make)
        self._memory: SharedBytes | None = None
        self._slots = 0
        self._life = b""
        if not make:
            self._share()

    def start(self) -> None:
        """Begin a new life of the ring: every earlier slot counts as empty. Only the first opener may call this.

        After a power cut the bytes of the file may be of any age, and a number may be issued again. The whole file is
        written: see ``write_whole``.
        """
        write_whole(self.disk, self._handle, os.urandom(_LIFE_BYTES).ljust(_SLOTS_AT + SLOTS * SLOT_BYTES, b"\0"))
        self._share()

    def _share(self) -> None:
        size = self.disk.handle_identity(self._handle).size
        self._slots = (size - _SLOTS_AT) // SLOT_BYTES
        if self._slots > 0:
            self._memory = self.disk.map(self._handle, size)
            self._life = self._memory[0:_LIFE_BYTES]

    # -- notes -----------------------------------------------------------------------------------------------------

    def retract(self, number: int) -> None:
        """Empty the note of a number, so that readers read the file.

        The number is published, or the caller holds the number's byte.
        """
        self.write(number, b"")

    def commit(self, number: int) -> Commit | None:
        """Return a published commit, or None if the commit must be read from its files."""
        note = self.read(number)
        return commit_of(number, note) if note else None

    def may_address(self, number: int, ranges: PositionRanges) -> bool:
        """Return whether a commit, published or not, may remove or change one of these messages."""
        return addresses(self.read(number), ranges) is not False

    # -- slots ------------------------------------------------------------------------------------------------------

    def write(self, number: int, note: bytes) -> None:
        """Write the note of a number. The caller holds the number's byte, and its file has the name of the number.

        Raises OSError if the write fails and an earlier note of the number remains.
        """
        if self._memory is None:
            return
        start, length = _SLOTS_AT + number % self._slots * SLOT_BYTES, len(note)
        proven = _FRONT.pack(length, self._life, number) + note
        try:
            self._memory[start : start + _SLOT.size + length] = _CHECKSUM.pack(zlib.crc32(proven)) + proven
        except ValueError:
            raise not_open() from None
        except OSError:
            if self.read(number) is not None:
                raise

    def read(self, number: int) -> bytes | None:
        """Return the note of a number, or None."""
        if self._memory is None:
            return None
        start = _SLOTS_AT + number % self._slots * SLOT_BYTES
        try:
            slot = self._memory[start : start + SLOT_BYTES]
            checksum, length, life, found = _SLOT.unpack_from(slot)
        except ValueError:
            raise not_open() from None
        except struct.error:
            return None  # the file ends here
        end = _SLOT.size + length
        if found != number or life != self._life or length > NOTE_BYTES:
            return None
        return slot[_SLOT.size : end] if zlib.crc32(slot[_CHECKSUM.size : end]) == checksum else None


def note_of(contents: FileContents, adopted: Sequence[FileContents] = ()) -> bytes:
    """Return the note of a commit: the addressed positions, and the headers and tables of its file and of the adopted
    branches.

    If the content does not fit, the note has None instead of the content. If the positions do not fit either, the note
    is empty. The caller holds the number lock, so this function stops early if the commit is large.
    """
    addressed: PositionRanges = []
    files: list[tuple[Any, ...]] = []
    size = _LEAST_BRANCH_BYTES * len(adopted) if adopted else 0
    for header, tables in (contents, *adopted):
        branches: list[tuple[Any, ...]] = []
        sections: list[tuple[Any, ...]] = []
        for branch in header.branches:
            local = branch.xid == (FORMAT_LOCAL, branch.id, b"")
            branches += ((branch.id, branch.count) if local else (branch.id, branch.count, str(branch.xid)),)
        for (_, *entry), table in zip(header.sections, tables, strict=True):
            for command in table.commands:
                if command.name == "remove" or command.name == "update":  # (as ``addressing``, without a call)
                    addressed += (command[1:4],)
                    if len(addressed) > NOTE_BYTES // _LEAST_ADDRESS_BYTES:
                        return b""
            size += entry[0]
            sections += ((entry, table.encoded),)  # (a large table is not there, and does not fit)
        fields = header.time, header.durable_mark, header.flushed, header.length, header.checksum, branches, sections
        files += (fields,)
    if not contents.header.supersedes and size < NOTE_BYTES:
        note: bytes = msgpack.Packer().pack((addressed, files))  # (``packb`` also creates a packer)
        if len(note) <= NOTE_BYTES:
            return note
    note = msgpack.packb((addressed, None))
    return note if len(note) <= NOTE_BYTES else b""


def addressed_in(note: bytes) -> list[tuple[int, int, int]] | None:
    """Return the positions that a commit addresses, as (number, first ordinal, count), or None for an invalid note."""
    try:
        addressed, _ = msgpack.unpackb(note, strict_map_key=False)
        return [(target, first, count) for target, first, count in addressed]
    except UNREADABLE:
        return None


def addresses(note: bytes | None, ranges: PositionRanges) -> bool | None:
    """Return whether a commit addresses one of these messages; None if the note is missing, empty or invalid.

    Posted requests begin with the addressed positions, as a note does, so ``note`` may also be posted requests.
    """
    addressed = addressed_in(note) if note else None
    if addressed is None:
        return None
    return any(
        claimed == target and first < start + length and start < first + count
        for target, start, length in addressed
        for claimed, first, count in ranges
    )


def commit_of(number: int, note: bytes) -> Commit | None:
    """Return the commit of a note, without the names of the writers; None if the note lacks the content."""
    files: list[CommitFile] = []
    adopts: list[Adoption] = []
    end = 0  # the ordinal after the last message
    try:
        _, packed = msgpack.unpackb(note, strict_map_key=False)
        if packed is None:
            return None
        for time, durable_mark, flushed, length, checksum, packed_branches, packed_sections in packed:
            branches: list[BranchEntry] = []
            first = 0
            for id_, count, *xid in packed_branches:
                named = Xid.parse(*xid) if xid else Xid(FORMAT_LOCAL, id_, b"")
                branches.append(BranchEntry(named, id_, first, count))
                first += count
            sections: list[SectionEntry] = []
            tables: list[Table] = []
            size = length
            for entry, encoded in packed_sections:
                table_bytes, table_checksum, bodies_bytes, messages = entry
                sections.append(SectionEntry(size, table_bytes, table_checksum, bodies_bytes, messages))
                size += table_bytes + bodies_bytes
                tables.append(table_of(encoded))
            of_branch = branches[0].xid if files else None
            if of_branch is not None:
                adopts.append(Adoption(of_branch, size, checksum, end, first))
            begun, places = tuple(branches), tuple(sections)
            stamped = 0 if files else number  # a branch carries no number
            header = Header(stamped, time, {}, begun, (), (), places, durable_mark, flushed, length, size, checksum)
            files.append(CommitFile(len(files), of_branch, end, FileContents(header, tuple(tables))))
            end += first
        if adopts:
            head = files[0].contents
            files[0] = files[0]._replace(contents=head._replace(header=head.header._replace(adopts=tuple(adopts))))
        return Commit(number, files, []) if files else None
    except UNREADABLE:
        return None
