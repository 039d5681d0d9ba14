"""The bytes of a decision log: damage never invents a decision, and never hides a decision that is known as durable."""

import os
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spool.decisions import COORDINATOR_BYTES, LogContents, records

SLOT_BYTES = 32
BLOCK_BYTES = 4096
MAGIC = b"xaspool decisions 1\n"
SERIALS = st.integers(0, 2**64 - 1)
COORDINATORS = st.binary(min_size=COORDINATOR_BYTES, max_size=COORDINATOR_BYTES)
CONTENTS = st.builds(
    LogContents,
    COORDINATORS,
    COORDINATORS,
    st.lists(st.text(), unique=True).map(tuple),
    st.frozensets(SERIALS, max_size=40),
    st.dictionaries(st.text(), st.integers(0, 2**32) | st.text()),
)


class Slot(NamedTuple):
    serial: int
    durable: int  # the number of slots that were durable when this slot was written


class File(NamedTuple):
    """A log as a coordinator has written it: ``flushed`` of its slots are durable."""

    contents: LogContents
    start: int
    slots: Sequence[Slot]
    flushed: int

    @property
    def data(self) -> bytes:
        data, _ = records.pack_log(self.contents)
        first = len(self.contents.committed)
        for place, slot in enumerate(self.slots[first:], first):
            data = overwritten(
                data, records.slot_offset(self.start, place), records.pack_slots([slot.serial], place, slot.durable)
            )
        return data

    @property
    def decided(self) -> set[int]:
        return {slot.serial for slot in self.slots}

    def is_known_durable(self, place: int, but: int) -> bool:
        """Return whether a slot besides ``but`` tells that the slot of this place was durable."""
        return any(slot.durable > place for at, slot in enumerate(self.slots) if at != but)


@st.composite
def files(draw: st.DrawFn) -> File:
    """Groups of decisions share a flush; the last group may not have been flushed."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=5))
    first = draw(st.integers(0, 5))
    serials = draw(st.lists(SERIALS, unique=True, min_size=first + sum(sizes), max_size=first + sum(sizes)))
    contents = LogContents(b"directory", draw(COORDINATORS), ("space /a",), frozenset(serials[:first]), {"pid": 1})
    slots = [Slot(serial, first) for serial in sorted(contents.committed)]
    flushed = first
    for number, size in enumerate(sizes):
        begin = len(slots)
        slots += (Slot(serial, flushed) for serial in serials[begin : begin + size])
        if number < len(sizes) - 1 or draw(st.booleans()):
            flushed = len(slots)
    return File(contents, records.pack_log(contents)[1], slots, flushed)


def overwritten(data: bytes, offset: int, piece: bytes) -> bytes:
    return data[:offset] + piece + data[offset + len(piece) :]


def log_with_header(packed: bytes, slots: bytes = b"") -> bytes:
    """A log of full size whose header has these bytes and the right checksum."""
    head = MAGIC + struct.pack("<II", len(packed), zlib.crc32(packed)) + packed
    head = head.ljust(-(-len(head) // BLOCK_BYTES) * BLOCK_BYTES, b"\0")
    return head + slots.ljust(records.SLOTS * SLOT_BYTES, b"\0")


def read_or_refuse(data: bytes) -> LogContents | None:
    """Unpack bytes; None if they are refused. Any other exception fails the test."""
    try:
        found = records.unpack_log(data)
    except records.DamagedLogError:
        return None
    assert isinstance(found.coordinator, bytes)
    assert isinstance(found.resources, tuple)
    assert all(isinstance(resource, str) for resource in found.resources)
    assert isinstance(found.committed, frozenset)
    assert isinstance(found.writer, dict)
    return found


# -- round trips -----------------------------------------------------------------------------------------------------


@given(CONTENTS)
def test_x03_a_log_is_read_as_it_was_written(contents: LogContents) -> None:
    data, start = records.pack_log(contents)
    assert records.unpack_log(data) == contents
    assert start % BLOCK_BYTES == 0
    assert len(data) == start + records.SLOTS * SLOT_BYTES, "the file has its full size from the beginning"


@given(files())
def test_x03_decisions_that_are_written_later_are_read(file: File) -> None:
    assert records.unpack_log(file.data) == file.contents._replace(committed=frozenset(file.decided))


def test_x03_a_full_log_is_read() -> None:
    contents = LogContents(b"directory", bytes(COORDINATOR_BYTES), (), frozenset(range(records.SLOTS)), {})
    assert records.unpack_log(records.pack_log(contents)[0]) == contents


@pytest.mark.parametrize("count", [1, 100, 50_000])
def test_x03_many_resources_are_read(count: int) -> None:
    resources = tuple(f"space /queues/{number}" for number in range(count))
    contents = LogContents(b"directory", bytes(COORDINATOR_BYTES), resources, frozenset([1, 2]), {})
    data, _ = records.pack_log(contents)
    assert records.unpack_log(data) == contents
    assert len(data) < records.MAX_FILE_BYTES


def test_x03_a_path_that_is_no_utf_8_is_read() -> None:
    name = f"space {os.fsdecode(b'/queues/caf' + bytes([0xE9]))}"
    contents = LogContents(b"directory", bytes(COORDINATOR_BYTES), (name,), frozenset(), {"program": name})
    assert records.unpack_log(records.pack_log(contents)[0]) == contents


# -- damage ----------------------------------------------------------------------------------------------------------


@given(files(), st.data())
def test_x03_a_truncated_log_is_damaged(file: File, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(file.data) - 1) | st.sampled_from([0, BLOCK_BYTES, len(file.data) - 1]))
    with pytest.raises(records.DamagedLogError):
        records.unpack_log(file.data[:length])


@given(files(), st.data())
def test_x03_a_log_with_more_bytes_is_read(file: File, data: st.DataObject) -> None:
    assert records.unpack_log(file.data + data.draw(st.binary())).committed == file.decided


@given(files(), st.data(), st.integers(1, 255))
def test_x03_a_flipped_byte_is_noticed_unless_it_came_last(file: File, data: st.DataObject, flips: int) -> None:
    end_of_slots = records.slot_offset(file.start, len(file.slots))
    near = st.integers(0, min(120, file.start)) | st.integers(file.start, end_of_slots + SLOT_BYTES)
    at = data.draw(near | st.integers(0, len(file.data) - 1))
    if (found := read_or_refuse(overwritten(file.data, at, bytes([file.data[at] ^ flips])))) is None:
        assert at < end_of_slots, "bytes that no slot uses yet do not matter"
        return
    assert found._replace(committed=file.contents.committed) == file.contents
    assert found.committed <= file.decided, "a decision was found that nobody has made"
    place = (at - file.start) // SLOT_BYTES
    lost = file.decided - found.committed
    assert lost <= {file.slots[place].serial} if 0 <= place < len(file.slots) else not lost
    if lost:
        assert not file.is_known_durable(place, but=place), "a durable decision was lost silently"


@given(files(), st.data())
def test_x03_slots_that_are_lost_are_noticed_if_a_later_slot_counts_them(file: File, data: st.DataObject) -> None:
    """Whole slots are zeros, as after a lost write."""
    gone = data.draw(st.sets(st.integers(0, max(0, len(file.slots) - 1)), max_size=len(file.slots)))
    damaged = file.data
    for place in gone:
        damaged = overwritten(damaged, records.slot_offset(file.start, place), bytes(SLOT_BYTES))
    kept = [slot for place, slot in enumerate(file.slots) if place not in gone]
    counted = max((slot.durable for slot in kept), default=0)
    if any(place < counted for place in gone):
        with pytest.raises(records.DamagedLogError, match=f"slot {min(gone)} "):
            records.unpack_log(damaged)
    else:
        assert records.unpack_log(damaged).committed == {slot.serial for slot in kept}


@given(files(), st.data())
def test_x03_a_torn_group_that_was_not_flushed_is_no_damage(file: File, data: st.DataObject) -> None:
    """A power cut leaves of each slot of the last group all, nothing, or some bytes, in any order of the slots."""
    torn = file.data
    for place in range(file.flushed, len(file.slots)):
        offset = records.slot_offset(file.start, place)
        written, cut = torn[offset : offset + SLOT_BYTES], data.draw(st.integers(0, SLOT_BYTES))
        halves = [written[:cut].ljust(SLOT_BYTES, b"\0"), written[cut:].rjust(SLOT_BYTES, b"\0")]
        torn = overwritten(torn, offset, data.draw(st.sampled_from(halves)))
    found = records.unpack_log(torn).committed
    assert {slot.serial for slot in file.slots[: file.flushed]} <= found <= file.decided


@given(files(), files())
def test_x03_a_slot_of_another_place_is_no_decision(file: File, other: File) -> None:
    """A disk that puts a sector in the wrong place invents no decision."""
    moved = other.data[records.slot_offset(other.start, 0) :][: SLOT_BYTES * len(other.slots)]
    at = records.slot_offset(file.start, len(file.slots) + 1)
    found = read_or_refuse(overwritten(file.data, at, moved))
    assert found is None or found.committed == file.decided


@given(files())
def test_x03_zeros_are_damage(file: File) -> None:
    for data in (b"", bytes(len(file.data)), bytes(BLOCK_BYTES) + file.data[BLOCK_BYTES:]):
        with pytest.raises(records.DamagedLogError, match="begin"):
            records.unpack_log(data)


# -- hostile bytes ---------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=20)
    | st.text(max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 999_999_999)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 99) | st.binary(), inner),
    max_leaves=8,
)
BOMBS = {
    "lists in lists": b"\x91" * 100_000,
    "lists in lists, closed": b"\x91" * 100_000 + b"\xc0",
    "dicts in dicts": b"\x81\xa0" * 100_000,
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a dict of 4 billion": b"\xdf\xff\xff\xff\xff",
    "bytes of 4 billion": b"\xc6\xff\xff\xff\xff",
    "a text of 4 billion": b"\xdb\xff\xff\xff\xff",
    "an extension of 4 billion": b"\xc9\xff\xff\xff\xff\x01",
    "a wrong time": b"\xd4\xff\x00",
    "a list as a key": b"\x93\xa0\x90\x81\x90\xc0",
    "a number as a key": b"\x93\xa0\x90\x81\x01\xc0",
    "no utf-8": b"\x93\xc4\x00\x91\xa1\xff\x80",
    "nothing": b"",
    "the reserved byte": b"\xc1",
    "more bytes after the value": msgpack.packb([b"", b"", [], {}]) + b"\0",
    "a million of numbers": b"\xdd\x00\x0f\x42\x40" + bytes(1_000_000),
}


@given(st.binary() | st.binary().map(MAGIC.__add__))
def test_x03_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert read_or_refuse(data) is None


@given(VALUES | st.lists(VALUES, min_size=3, max_size=3))
@example([7, [], {}])
@example([b"c", 7, {}])
@example([b"c", None, {}])
@example([b"c", {"space": 1}, {}])
@example([b"c", "space", {}])
@example([b"c", [7], {}])
@example([b"c", [["space"]], {}])
@example([b"c", [], []])
@example(["c", [], {}])
@example({"a": 1, "b": 2, "c": 3})
@example("abc")
def test_x03_a_header_with_other_values_is_read_or_refused(value: object) -> None:
    found = read_or_refuse(log_with_header(msgpack.packb(value)))
    assert found is None or [found.coordinator, list(found.resources), found.writer] == value


@given(st.binary(max_size=60))
def test_x03_a_header_of_any_bytes_is_read_or_refused(packed: bytes) -> None:
    read_or_refuse(log_with_header(packed))


@pytest.mark.parametrize("packed", BOMBS.values(), ids=BOMBS)
def test_x03_a_header_that_would_use_much_memory_is_refused(packed: bytes) -> None:
    for header in (
        packed,
        b"\x94\xc4\x00" + packed,
        b"\x94\xc4\x00\xc4\x00" + packed,
        b"\x94\xc4\x00\xc4\x00\x90" + packed,
    ):
        found = read_or_refuse(log_with_header(header))
        assert found is None or found.resources in ((), ("\udcff",))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=100))
@example(2**32 - 1, 0, b"")
@example(0, 0, b"")
@example(2**31, zlib.crc32(b""), b"")
def test_x03_a_header_of_any_length_is_read_or_refused(length: int, checksum: int, rest: bytes) -> None:
    data = MAGIC + struct.pack("<II", length, checksum) + rest
    assert read_or_refuse(data) is None
    assert read_or_refuse(data.ljust(2 * BLOCK_BYTES + records.SLOTS * SLOT_BYTES, b"\0")) is None


@given(st.lists(st.tuples(st.integers(0, 3) | SERIALS, SERIALS, st.integers(0, 5) | SERIALS), max_size=5))
def test_x03_slots_with_any_numbers_are_read_or_refused(slots: list[tuple[int, int, int]]) -> None:
    packed = b"".join(records.pack_slots([serial], place, durable) for place, serial, durable in slots)
    found = read_or_refuse(log_with_header(msgpack.packb([b"d", b"c", [], {}]), packed))
    in_place = {serial for at, (place, serial, _) in enumerate(slots) if place == at}
    counted = max((durable for at, (place, _, durable) in enumerate(slots) if place == at), default=0)
    readable = [at for at, (place, _, _) in enumerate(slots) if place == at]
    is_damaged = any(place not in readable for place in range(min(counted, records.SLOTS)))
    assert (found is None) is is_damaged
    assert found is None or found.committed == in_place
