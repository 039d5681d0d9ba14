"""The feed: what commits did, in shared memory, so that a process follows others without reading their files.

``run/feed`` is a ring of slots. The slot of number n is slot n modulo the number of slots, so a later number overwrites
it. A slot says for which number it was written, in which life of the ring, and has a checksum: one that is torn,
overwritten or older counts as none. So nothing may depend on a slot being there.

A slot has a note, which says what the index needs of a commit: the positions that it removes or changes, and the
content of its file and of the branches that it adopts. A commit whose content does not fit into a slot has a note of
the positions only; one that addresses too many messages has an empty note. What a note does not say is read from the
commit's files.

Until its number is published, a note is a hint: its writer may die, and the number end as an empty commit.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import msgpack

from spool.coordination.locks import open_shared
from spool.disk.descriptors import not_open
from spool.disk.disk import Disk
from spool.disk.memory import SharedBytes
from spool.errors import NO_ROOM
from spool.format.header import UNREADABLE, Adoption, BranchEntry, Header, SectionEntry
from spool.format.reader import FileContents
from spool.format.schema import ADDRESSING
from spool.format.table import Table
from spool.index.commit import Commit, Part
from spool.model.layout import FEED
from spool.model.position import PositionRanges
from spool.model.xid import FORMAT_LOCAL, Xid

SLOTS = 2048
SLOT_BYTES = 512
_CHECKSUM = struct.Struct("<I")  # of all that follows, up to the end of the note
_FRONT = struct.Struct("<I8sQ")  # bytes of the note, life, number
_SLOT = struct.Struct(_CHECKSUM.format + _FRONT.format[1:])
NOTE_BYTES = SLOT_BYTES - _SLOT.size
_LIFE_BYTES = 8
_SLOTS_AT = SLOT_BYTES  # the life stands in front, in the room of a slot

_LEAST_BRANCH_BYTES = 60  # that an adopted branch takes in a note
_PLAIN: list[dict[str, Any]] = [{}]  # the control fields of most sections, once


class Feed:
    """The notes of commits. Where the disk had no room for them when the first process opened the space, there are
    none."""

    def __init__(self, disk: Disk, *, make: bool) -> None:
        """Open the ring. ``make``: see ``open_shared``; the opener that is alone then calls ``start``."""
        self.disk = disk
        self._handle = open_shared(disk, FEED, make=make)
        self._memory: SharedBytes | None = None
        self._slots = 0
        self._life = b""
        if not make:
            self._share()

    def start(self) -> None:
        """Begin a new life: no slot that was written before is there any more. Only an opener that is alone may.

        What a power cut left of the file proves nothing, and a number may be given out again after it.
        """
        if self.disk.handle_identity(self._handle).size != _SLOTS_AT + SLOTS * SLOT_BYTES:
            try:
                self.disk.truncate(self._handle, 0)
                self.disk.write_at(self._handle, 0, bytes(_SLOTS_AT + SLOTS * SLOT_BYTES))
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.disk.truncate(self._handle, 0)
                return
        self.disk.write_at(self._handle, 0, os.urandom(_LIFE_BYTES))
        self._share()

    def _share(self) -> None:
        size = self.disk.handle_identity(self._handle).size
        self._slots = (size - _SLOTS_AT) // SLOT_BYTES
        if self._slots > 0:
            self._memory = self.disk.map(self._handle, size)
            self._life = self._memory[0:_LIFE_BYTES]

    # -- of commits -------------------------------------------------------------------------------------------------

    def put(self, number: int, contents: FileContents, adopted: Sequence[FileContents] = ()) -> None:
        """Note what a commit does: the content of its file, and of the branches that it adopts. Caller holds its
        number's byte, and no file has the number yet."""
        self.write(number, encode(contents, adopted))

    def retract(self, number: int) -> None:
        """Empty the note of a commit: it is read from its file. Caller holds its number's byte, or it is published."""
        self.write(number, b"")

    def commit(self, number: int) -> Commit | None:
        """Return a published commit as its files say; None if it is to be read from that."""
        note = self.read(number)
        return decode(number, note) if note else None

    def may_address(self, number: int, ranges: PositionRanges) -> bool:
        """Return whether a commit, published or not, may remove or change one of these messages."""
        note = self.read(number)
        addressed = addressed_in(note) if note else None
        return addressed is None or any(
            claimed == target and first < start + length and start < first + count
            for target, start, length in addressed
            for claimed, first, count in ranges
        )

    # -- slots ------------------------------------------------------------------------------------------------------

    def write(self, number: int, note: bytes) -> None:
        """Write the note of a number. Caller holds the number's byte.

        Raises OSError if that fails and an earlier note of the number may still be there.
        """
        if self._memory is None:
            return
        start = _SLOTS_AT + number % self._slots * SLOT_BYTES
        proven = _FRONT.pack(len(note), self._life, number) + note
        try:
            self._memory[start : start + _CHECKSUM.size + len(proven)] = _CHECKSUM.pack(zlib.crc32(proven)) + proven
        except ValueError:
            raise not_open() from None
        except OSError:
            if self.read(number) is not None:
                raise

    def read(self, number: int) -> bytes | None:
        """Return the note of a number; None if it is not there."""
        if self._memory is None:
            return None
        start = _SLOTS_AT + number % self._slots * SLOT_BYTES
        try:
            slot = self._memory[start : start + SLOT_BYTES]
            checksum, length, life, found = _SLOT.unpack_from(slot)
        except ValueError:
            raise not_open() from None
        except struct.error:
            return None  # it ends here
        end = _SLOT.size + length
        if found != number or life != self._life or length > NOTE_BYTES:
            return None
        return slot[_SLOT.size : end] if zlib.crc32(slot[_CHECKSUM.size : end]) == checksum else None


def encode(contents: FileContents, adopted: Sequence[FileContents] = ()) -> bytes:
    """Encode a commit as a note: the positions that it addresses, and the content of its file and of the branches that
    it adopts, or None. Empty: neither fits."""
    addressed: list[list[int]] = []
    files: list[tuple[Any, ...]] = []
    size = _LEAST_BRANCH_BYTES * len(adopted)
    for header, tables in (contents, *adopted):
        branches: list[tuple[Any, ...]] = []
        sections: list[tuple[Any, ...]] = []
        for branch in header.branches:
            local = branch.xid == (FORMAT_LOCAL, branch.id, b"")
            branches += ((branch.id, branch.count) if local else (branch.id, branch.count, str(branch.xid)),)
        for (_, *entry), table in zip(header.sections, tables, strict=True):
            for command in table.commands:
                if command[0] in ADDRESSING:
                    addressed += (command[1:4],)
            size += entry[0]
            if size < 2 * NOTE_BYTES:  # else it is surely too much
                sections += (
                    (
                        entry, table.queues, table.attributes, table.runs, table.lengths.tobytes(),
                        table.checksums.tobytes(), table.commands, table.facts,
                    ),
                )  # fmt: skip
        files += (
            (header.time, header.durable_mark, header.flushed, header.length, header.checksum, branches, sections),
        )
    if not contents.header.supersedes and size < 2 * NOTE_BYTES:
        note: bytes = msgpack.Packer().pack((addressed, files))  # (as ``packb``, which makes a packer, too)
        if len(note) <= NOTE_BYTES:
            return note
    note = msgpack.packb((addressed, None))
    return note if len(note) <= NOTE_BYTES else b""


def addressed_in(note: bytes) -> list[tuple[int, int, int]] | None:
    """Return the positions that a commit addresses, as (number, first ordinal, count); None if the note is none."""
    try:
        addressed, _ = msgpack.unpackb(note, strict_map_key=False)
        return [(target, first, count) for target, first, count in addressed]
    except UNREADABLE:
        return None


def decode(number: int, note: bytes) -> Commit | None:
    """Decode a commit; None if the note does not have its content.

    Only the names of the writers are not in it.
    """
    new = tuple.__new__  # (a named tuple's own is a function of Python)
    parts: list[Part] = []
    adopts: list[Adoption] = []
    end = 0  # of the ordinals of the messages
    try:
        _, files = msgpack.unpackb(note, strict_map_key=False)
        if files is None:
            return None
        for time, durable_mark, flushed, length, checksum, packed_branches, packed_sections in files:
            branches: list[BranchEntry] = []
            first = 0
            for id_, count, *xid in packed_branches:
                named = Xid.parse(*xid) if xid else new(Xid, (FORMAT_LOCAL, id_, b""))
                branches += (BranchEntry(named, id_, first, count),)
                first += count
            sections: list[SectionEntry] = []
            tables: list[Table] = []
            size = length
            for entry, queues, attributes, runs, lengths, checksums, commands, facts in packed_sections:
                table_bytes, table_checksum, bodies_bytes, messages = entry
                sections += (new(SectionEntry, (size, table_bytes, table_checksum, bodies_bytes, messages)),)
                size += table_bytes + bodies_bytes
                if attributes == _PLAIN:
                    attributes = _PLAIN
                tables += (
                    Table(queues, attributes, runs, array("I", lengths), array("I", checksums), commands, facts),
                )
            of_branch = branches[0].xid if parts else None
            if of_branch is not None:
                adopts += (Adoption(of_branch, size, checksum, end, first),)
            begun, places = tuple(branches), tuple(sections)
            stamped = 0 if parts else number  # a branch carries none
            header = new(
                Header, (stamped, time, {}, begun, (), (), places, durable_mark, flushed, length, size, checksum)
            )
            parts += (new(Part, (len(parts), of_branch, end, new(FileContents, (header, tuple(tables))))),)
            end += first
        if adopts:
            head = parts[0].contents
            parts[0] = parts[0]._replace(contents=head._replace(header=head.header._replace(adopts=tuple(adopts))))
        return new(Commit, (number, parts, [])) if parts else None
    except UNREADABLE:
        return None
