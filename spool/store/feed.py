"""The feed: what commits did, in shared memory, so that a process follows others without reading their files.

A note in the ring says what the index needs of a commit: the positions that it removes or changes, and its content.
A commit whose content does not fit into a slot has a note of the positions only; one that adopts branches, which are
files of their own, or that addresses too many messages, has an empty note. What a note does not say is read from the
commit's file.

Until its number is published, a note is a hint: its writer may die, and the number end as an empty commit.
"""

import sys
from array import array
from typing import Any

import msgpack

from spool.coordination.ring import NOTE_BYTES, Ring
from spool.disk.disk import Disk
from spool.format.header import UNREADABLE, BranchEntry, Header, SectionEntry
from spool.format.reader import FileContents
from spool.format.schema import ADDRESSING
from spool.format.table import Table
from spool.index.commit import Commit, Part
from spool.model.position import PositionRanges
from spool.model.xid import FORMAT_LOCAL, Xid

_NO_FIELDS: dict[str, Any] = {}  # what most messages have, once


class Feed:
    """The notes of commits. ``make``: see ``Ring``."""

    def __init__(self, disk: Disk, *, make: bool) -> None:
        self.ring = Ring(disk, make=make)

    def put(self, number: int, contents: FileContents) -> None:
        """Note what a commit does: the content of its file. Caller holds its number's byte, and no file has the number
        yet."""
        self.ring.write(number, encode(contents))

    def retract(self, number: int) -> None:
        """Empty the note of a commit: it is read from its file. Caller holds its number's byte, or it is published."""
        self.ring.write(number, b"")

    def commit(self, number: int) -> Commit | None:
        """Return a published commit as its file says; None if it is to be read from that."""
        note = self.ring.read(number)
        return decode(number, note) if note else None

    def may_address(self, number: int, ranges: PositionRanges) -> bool:
        """Return whether a commit, published or not, may remove or change one of these messages."""
        note = self.ring.read(number)
        addressed = addressed_in(note) if note else None
        return addressed is None or any(
            claimed == target and first < start + length and start < first + count
            for target, start, length in addressed
            for claimed, first, count in ranges
        )


def encode(contents: FileContents) -> bytes:
    """Encode a file as a note: the positions that it addresses, and its content or None. Empty: neither fits."""
    header, tables = contents
    if header.adopts:
        return b""
    addressed: list[list[int]] = []
    branches: list[tuple[Any, ...]] = []
    sections: list[tuple[Any, ...]] = []
    size = 0
    for branch in header.branches:
        local = branch.xid == (FORMAT_LOCAL, branch.id, b"")
        branches += ((branch.id, branch.count) if local else (branch.id, branch.count, str(branch.xid)),)
    for entry, table in zip(header.sections, tables, strict=True):
        for command in table.commands:
            if command[0] in ADDRESSING:
                addressed += (command[1:4],)
        size += entry.table_bytes
        if size < 2 * NOTE_BYTES:  # else it is surely too much
            sections += (
                (
                    entry[1:], table.queues, table.attributes, table.runs, table.lengths.tobytes(),
                    table.checksums.tobytes(), table.commands, table.facts,
                ),
            )  # fmt: skip
    if not header.supersedes and size < 2 * NOTE_BYTES:
        content = header.time, header.durable_mark, header.flushed, header.length, header.checksum, branches, sections
        note: bytes = msgpack.packb((addressed, content))
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

    Only the name of the writer is not in it.
    """
    try:
        _, content = msgpack.unpackb(note, strict_map_key=False)
        if content is None:
            return None
        time, durable_mark, flushed, length, checksum, packed_branches, packed_sections = content
        branches, first = [], 0
        for id_, count, *xid in packed_branches:
            branches.append(BranchEntry(Xid.parse(*xid) if xid else Xid(FORMAT_LOCAL, id_, b""), id_, first, count))
            first += count
        sections, tables, size = [], [], length
        for entry, queues, attributes, runs, lengths, checksums, commands, facts in packed_sections:
            sections.append(SectionEntry(size, *entry))
            size += sections[-1].size
            tables.append(
                Table(
                    [sys.intern(name) for name in queues], [fields or _NO_FIELDS for fields in attributes], runs,
                    array("I", lengths), array("I", checksums), commands, facts,
                )
            )  # fmt: skip
    except UNREADABLE:
        return None
    header = Header(
        number, time, {}, tuple(branches), (), (), tuple(sections), durable_mark, flushed, length, size, checksum
    )
    return Commit(number, [Part(0, None, 0, FileContents(header, tuple(tables)))], [])
