"""The table of contents of a section, and the places of the bodies, as described in ``docs/format.md``. Pure."""

import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgpack

from spool.errors import CorruptedFile
from spool.format.commands import KINDS, Command
from spool.format.header import UNREADABLE, SectionEntry
from spool.format.schema import check_attributes, check_branch_id, check_commands, check_fact, check_time
from spool.model.checks import whole
from spool.model.layout import MAX_NUMBER, MAX_ORDINAL, ORDINAL_BITS

MOST_KEPT_BYTES = 1 << 10  # a table of at most so many bytes also keeps its encoded form, for ``store.feed``
SECTION_BYTES = 16 << 20  # a section is closed when its bodies have this many bytes
_PLAIN: list[dict[str, Any]] = [{}]  # most sections have only empty control fields; unpacked tables share this list


class Origins(NamedTuple):
    """The origins of compacted messages, as columns with one entry for each run. An entry has four values of the run's
    first message: its position, the time of its commit, its branch, and its ordinal in the branch."""

    numbers: list[int]
    ordinals: list[int]
    times: list[float]
    branches: list[bytes]
    places: list[int]


class Places(NamedTuple):
    """A compacted table sorted by position.

    starts: the first positions of the runs, sorted, each as one number.
    ends: for each run, in the order of ``starts``, the position after the last message.
    order: for each run, in the order of ``starts``, the run's index in the table.
    rows: the first row of each run, in the order of the table. The last element is the number of all rows.
    """

    starts: list[int]
    ends: list[int]
    order: list[int]
    rows: list[int]


@dataclass(slots=True)
class Table:
    """A section's table of contents.

    ``runs`` are neighbouring messages of one queue with the same control fields: (index into ``queues``, index into
    ``attributes``, count). ``lengths`` and ``checksums`` have one entry for each message, in order. ``facts`` are [key,
    value, expiry or None]. ``encoded``: the bytes of the table in its file, if they are few; else b"".
    """

    queues: list[str] = field(default_factory=list)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    runs: list[list[int]] = field(default_factory=list)
    lengths: "array[int]" = field(default_factory=partial(array, "I"))
    checksums: "array[int]" = field(default_factory=partial(array, "I"))
    commands: list[Command] = field(default_factory=list)
    facts: list[list[Any]] = field(default_factory=list)
    encoded: bytes = field(default=b"", repr=False, compare=False)
    _ends: "array[int] | None" = None

    def ends(self, entry: SectionEntry) -> "array[int]":
        """Return the offset in the file at which each body ends; computed once."""
        if self._ends is None:
            start, lengths = entry.offset + entry.table_bytes, self.lengths
            if lengths and lengths.count(lengths[0]) == len(lengths):
                step = lengths[0] + len(body_head(lengths[0]))
                self._ends = array("Q", range(start + step, start + step * len(lengths) + 1, step))
                return self._ends
            sizes = map(int.__add__, head_sizes(lengths), lengths)
            self._ends = array("Q", accumulate(sizes, initial=start))
            del self._ends[0]
        return self._ends


@dataclass(slots=True)
class CompactedTable(Table):
    """The table of a section that compaction wrote: messages of one queue that keep their positions.

    ``origins`` has one entry for each run. ``ids`` and ``correlations``: sorted keys to find runs by id and by
    correlation id (see ``index.segment``).
    """

    origins: Origins = field(default_factory=lambda: Origins([], [], [], [], []))
    ids: bytes = b""
    correlations: bytes = b""
    _places: Places | None = None

    def places(self) -> Places:
        """Return the table sorted by position; computed once."""
        if self._places is None:
            counts = [count for _, _, count in self.runs]
            pairs = zip(self.origins.numbers, self.origins.ordinals, strict=True)
            begins = [number << ORDINAL_BITS | ordinal for number, ordinal in pairs]
            order = sorted(range(len(begins)), key=begins.__getitem__)
            starts = [begins[run] for run in order]
            ends = [begins[run] + counts[run] for run in order]
            self._places = Places(starts, ends, order, list(accumulate(counts, initial=0)))
        return self._places


@lru_cache(maxsize=1024)  # one program's bodies have few different lengths
def body_head(length: int) -> bytes:
    """Return msgpack's ``bin`` head for a body."""
    if length < 1 << 8:
        return b"\xc4" + length.to_bytes(1, "big")
    if length < 1 << 16:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")


def head_sizes(lengths: "array[int]") -> list[int]:
    """Return the length of each body's ``bin`` head, in bytes."""
    return [2 if n < 256 else 3 if n < 65_536 else 5 for n in lengths]


def bodies_bytes(lengths: "array[int]") -> int:
    """Return the total size, in bytes, of the bodies with these lengths and of their heads."""
    return sum(lengths) + sum(head_sizes(lengths))


def search_keys(table: bytes) -> tuple[bytes, bytes]:
    """Return ``ids`` and ``correlations`` of a verified compacted table, without decoding the rest."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(table) + 1)
    unpacker.feed(table)
    unpacker.read_map_header()
    (_, ids), (_, correlations) = ((unpacker.unpack(), unpacker.unpack()) for _ in range(2))
    return ids, correlations


class Section(NamedTuple):
    """A section that can be written. ``parts``: the bytes of the section, in order. ``entry.offset`` is 0 until the
    section has a place in the file."""

    table: Table
    entry: SectionEntry
    parts: list[bytes]


def section_of(table: Table, bodies: Sequence[bytes]) -> Section:
    """Encode a section, whose table already has the lengths and checksums of the bodies.

    The first part is the table. The feed and posted requests carry the same bytes.
    """
    columns: dict[str, Any] = {}
    if type(table) is CompactedTable:  # the search keys are first, so that a reader need not unpack the rest
        columns = {"ids": table.ids, "correlations": table.correlations, "origins": list(table.origins)}
    columns |= {
        "queues": table.queues, "attributes": table.attributes, "runs": table.runs, "lengths": table.lengths.tolist(),
        "checksums": table.checksums.tolist(), "commands": table.commands, "facts": table.facts,
    }  # fmt: skip
    encoded: bytes = msgpack.Packer().pack(columns)  # (``packb`` would also create a packer)
    new = tuple.__new__  # (NamedTuple's own ``__new__`` runs Python code)
    parts, size, count, bodies_bytes = [encoded], len(encoded), len(bodies), 0
    table.encoded = encoded if size <= MOST_KEPT_BYTES else b""
    if count:
        parts *= 1 + 2 * count
        parts[1::2] = map(body_head, table.lengths)
        parts[2::2] = bodies
        bodies_bytes = sum(map(len, parts)) - size
    entry = new(SectionEntry, (0, size, zlib.crc32(encoded), bodies_bytes, count))
    return new(Section, (table, entry, parts))


def table_of(data: bytes) -> Table:
    """Return the table from bytes that another process shares in memory.

    Raises an error of ``UNREADABLE`` if they are no table. The values are not checked (see ``schema``).
    """
    found = msgpack.unpackb(data, strict_map_key=False)
    attributes = found["attributes"]
    if attributes == _PLAIN:
        attributes = _PLAIN
    lengths, checksums = array("I", found["lengths"]), array("I", found["checksums"])
    commands = [KINDS[values[0]](*values) for values in found["commands"]]
    return Table(found["queues"], attributes, found["runs"], lengths, checksums, commands, found["facts"], data)


def decode_table(data: bytes, entry: SectionEntry) -> Table:
    """Decode a section's table. Raises CorruptedFile if the table does not match its checksum in the header."""
    if len(data) != entry.table_bytes or zlib.crc32(data) != entry.table_checksum:
        raise CorruptedFile("a table of contents does not match its checksum")
    try:
        found = msgpack.unpackb(data, strict_map_key=False)
        columns = (
            list(map(sys.intern, found["queues"])),
            list(map(check_attributes, found["attributes"])),
            list(found["runs"]),
            array("I", found["lengths"]),
            array("I", found["checksums"]),
            check_commands(found["commands"]),
            list(map(check_fact, found["facts"])),
        )
        table = Table(*columns)
        _prove(table, entry)
        if "origins" in found:
            ids, correlations = found["ids"], found["correlations"]
            if not isinstance(ids, bytes) or not isinstance(correlations, bytes) or next(iter(found)) != "ids":
                raise ValueError("its search keys are not where they belong")
            origins = _origins(found["origins"], table.runs)
            table = CompactedTable(*columns, origins=origins, ids=ids, correlations=correlations)
        if len(data) <= MOST_KEPT_BYTES:
            table.encoded = data
    except UNREADABLE as error:
        raise CorruptedFile(f"a table of contents cannot be read: {error}") from None
    return table


def _origins(found: Any, runs: list[list[int]]) -> Origins:
    """Decode the origins. Raises ValueError if a position is impossible or is in two runs."""
    origins = Origins(*map(list, found))
    if {len(column) for column in origins} != {len(runs)}:
        raise ValueError("its columns differ in length")
    taken = []
    for (_, _, count), number, first, time, branch, ordinal in zip(runs, *origins, strict=True):
        whole(number, MAX_NUMBER), whole(first, MAX_ORDINAL), whole(ordinal, 2**32 - count)
        whole(first + count - 1, MAX_ORDINAL), check_time(time), check_branch_id(branch)
        taken.append((number << ORDINAL_BITS | first, count))
    taken.sort()
    if any(here + count > after for (here, count), (after, _) in pairwise(taken)):
        raise ValueError("two of its messages have one position")
    return origins


def _prove(table: Table, entry: SectionEntry) -> None:
    queues, attributes, left = len(table.queues), len(table.attributes), entry.messages
    for run in table.runs:
        queue, attribute, count = run
        if not (type(queue) is type(attribute) is type(count) is int and type(run) is list):
            raise ValueError("a run is no list of three whole numbers")
        if not (0 <= queue < queues and 0 <= attribute < attributes and count >= 1):
            raise ValueError("a run names a queue or control fields that the table does not have")
        left -= count
    if left or not len(table.lengths) == len(table.checksums) == entry.messages:
        raise ValueError("its columns differ in length")
    if bodies_bytes(table.lengths) != entry.bodies_bytes:
        raise ValueError("its lengths do not add up")
