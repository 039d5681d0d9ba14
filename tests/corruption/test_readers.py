"""Whoever wrote a file, its reader takes it within the limits or says with the documented error why not.

The bytes are valid ones with any value inside changed and all checksums right (a reader that trusts a checksum meets
these), valid ones damaged, and claims that no file could hold. Beyond the error, what a reader does accept must hold
what the rest of the program relies on.
"""

import math
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spool import codecs, dropped, layout, notes
from spool import settings as space_settings
from spool.commits import Commit, Part
from spool.counters import Page
from spool.disk import Disk
from spool.entries import MOST_ADDRESSED
from spool.errors import CorruptedFile, InvalidArgument, NewerFormat
from spool.format import (
    BRANCH_ID_BYTES,
    SECTION_MESSAGES,
    BranchEntry,
    Header,
    SectionEntry,
    Table,
    bodies_bytes,
    decode_header,
    decode_table,
)
from spool.index import Index
from spool.layout import MAX_NUMBER, MAX_ORDINAL
from spool.quarantine import REASON_SUFFIX, quarantine
from spool.reader import FileImage, image_of, prove, read_bodies
from spool.store import targets
from spool.xid import Xid
from tests.corruption.hostile import (
    BOMBS,
    GOLDEN,
    changed,
    damaged,
    each_changed,
    header_bytes,
    header_fields,
    pack,
    packed_fields,
    values,
    vouched,
)  # fmt: skip

XID = Xid(7, b"global", b"branch")
OPTIONS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


_MOST_BYTES = 64 << 20


@contextmanager
def little_memory() -> Iterator[None]:
    """For one input: what hypothesis and the tests before keep does not count."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    yield
    assert tracemalloc.get_traced_memory()[1] - before < _MOST_BYTES


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Iterator[dict[str, int]]:
    """Counts what a test fed to its reader, which may take 64 MiB of memory for each and no more."""
    counts = {"refused": 0, "accepted": 0}
    record_property("hostile inputs read", counts)
    tracemalloc.start()
    try:
        yield counts
    finally:
        tracemalloc.stop()


def whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


# -- headers --------------------------------------------------------------------------------------------------------


def check_header(header: Header, size: int) -> None:
    assert whole(header.number, -1, MAX_NUMBER)
    assert math.isfinite(header.time)
    assert whole(header.durable_mark, 0, 2**64)
    assert header.length <= header.size <= size
    end = header.length
    for entry in header.sections:
        assert entry.offset == end
        assert whole(entry.table_bytes, 0, size)
        assert whole(entry.bodies_bytes, 0, size)
        assert whole(entry.messages, 0, SECTION_MESSAGES)
        end += entry.size
    for part in (*header.branches, *header.adopts):
        assert whole(part.first, 0, MAX_ORDINAL + 1)
        assert whole(part.count, 0, MAX_ORDINAL + 1 - part.first)
    assert all(isinstance(branch.id, bytes) and len(branch.id) == 12 for branch in header.branches)
    assert all(whole(number, 0, MAX_NUMBER) for number in header.supersedes)
    assert all(isinstance(adoption.size, int) and isinstance(adoption.checksum, int) for adoption in header.adopts)


def try_header(data: bytes, size: int, tried: dict[str, int]) -> None:
    try:
        with little_memory():
            header = decode_header(data, size)
    except (CorruptedFile, NewerFormat):
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
        check_header(header, size)


@OPTIONS
@given(data=st.data(), name=st.sampled_from(sorted(GOLDEN)), number=st.integers(0, MAX_NUMBER + 1))
def test_e12_a_header_with_any_value_in_it_is_within_the_limits_or_refused(
    data: st.DataObject, name: str, number: int, tried: dict[str, int]
) -> None:
    fields = data.draw(changed(header_fields(name)))
    if not isinstance(fields, dict):
        fields = {"time": fields}
    encoded = header_bytes(number, packed_fields(fields), min(15, len(fields) + 6))
    try_header(encoded, len(encoded) + data.draw(st.integers(0, 2000)), tried)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_e12_a_header_with_each_value_at_its_edges_is_within_the_limits_or_refused(
    name: str, tried: dict[str, int]
) -> None:
    for fields in each_changed(header_fields(name)):
        if isinstance(fields, dict):
            encoded = header_bytes(1, packed_fields(fields), min(15, len(fields) + 6))
            try_header(encoded, len(encoded) + 2000, tried)


@pytest.mark.parametrize("field", sorted(header_fields("v1-commit.msgpack")))
@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_e12_no_field_of_a_header_is_a_bomb(field: str, bomb: str, tried: dict[str, int]) -> None:
    fields = header_fields("v1-commit.msgpack")
    rest = b"".join(pack(k) + (BOMBS[bomb] if k == field else pack(v)) for k, v in fields.items())
    encoded = header_bytes(1, rest)
    with pytest.raises(CorruptedFile), little_memory():
        decode_header(encoded, 2**40)
    tried["refused"] += 1


# -- tables ---------------------------------------------------------------------------------------------------------


def golden_table(name: str) -> tuple[bytes, SectionEntry]:
    header = decode_header(GOLDEN[name], len(GOLDEN[name]))
    entry = header.sections[0]
    return GOLDEN[name][entry.offset : entry.offset + entry.table_bytes], entry


def check_table(table: Table, entry: SectionEntry) -> None:
    assert len(table.lengths) == len(table.checksums) == sum(run[2] for run in table.runs) == entry.messages
    assert bodies_bytes(table.lengths) == entry.bodies_bytes
    assert all(isinstance(name, str) for name in table.queues)
    assert all(isinstance(key, str) for attributes in table.attributes for key in attributes)
    for queue, attributes, count in table.runs:
        assert whole(queue, 0, len(table.queues) - 1)
        assert whole(attributes, 0, len(table.attributes) - 1)
        assert whole(count, 1, SECTION_MESSAGES)
    for name, *arguments in table.commands:
        if name in ("remove", "update"):
            assert whole(arguments[0], 0, MAX_NUMBER)
            assert whole(arguments[1], 0, MAX_ORDINAL)
            assert whole(arguments[2], 0, MAX_ORDINAL + 1)
    assert all(expiry is None or math.isfinite(expiry) for _, _, expiry in table.facts)


@OPTIONS
@given(data=st.data(), name=st.sampled_from(["v1-branch.msgpack", "v1-commit.msgpack", "v2-sweep.msgpack"]))
def test_e12_a_table_with_any_value_in_it_is_within_the_limits_or_refused(
    data: st.DataObject, name: str, tried: dict[str, int]
) -> None:
    original, like = golden_table(name)
    try_table(pack(data.draw(changed(msgpack.unpackb(original)))), like, tried)


@pytest.mark.parametrize("name", ["v1-branch.msgpack", "v1-commit.msgpack", "v2-sweep.msgpack"])
def test_e12_a_table_with_each_value_at_its_edges_is_within_the_limits_or_refused(
    name: str, tried: dict[str, int]
) -> None:
    original, like = golden_table(name)
    for fields in each_changed(msgpack.unpackb(original)):
        try_table(pack(fields), like, tried)


def try_table(encoded: bytes, like: SectionEntry, tried: dict[str, int]) -> None:
    entry = vouched(encoded, like)
    try:
        with little_memory():
            table = decode_table(encoded, entry)
    except CorruptedFile:
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
        check_table(table, entry)
        with little_memory():
            try_index(table, entry)


def try_index(table: Table, entry: SectionEntry) -> None:
    """What opening a space does with a table: index it, look at what is there, and see what it holds if prepared."""
    branch = BranchEntry(XID, bytes(BRANCH_ID_BYTES), 0, entry.messages)
    image = FileImage(Header(0, 1.0, {}, branches=(branch,), sections=(entry,)), (table,))
    index = Index(mock.Mock(table=lambda source, section: table), {})
    for number in (3, 5):
        index.apply(Commit(number, [Part(0, None, 0, image)]))
    for queue in table.queues:
        list(index.in_order(queue, 1e9))
    index.totals()
    for _ in targets(image):
        pass


def test_e12_commands_address_no_more_messages_than_fit_into_memory(tried: dict[str, int]) -> None:
    original, like = golden_table("v1-commit.msgpack")
    fields = {**msgpack.unpackb(original), "commands": [["remove", 1, 0, MOST_ADDRESSED, "dequeued"]] * 2}
    with pytest.raises(CorruptedFile), little_memory():
        decode_table(pack(fields), vouched(pack(fields), like))
    tried["refused"] += 1


@pytest.mark.parametrize("field", sorted(msgpack.unpackb(golden_table("v1-commit.msgpack")[0])))
@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_e12_no_field_of_a_table_is_a_bomb(field: str, bomb: str, tried: dict[str, int]) -> None:
    original, like = golden_table("v1-commit.msgpack")
    fields = msgpack.unpackb(original)
    encoded = b"\x87" + b"".join(pack(k) + (BOMBS[bomb] if k == field else pack(v)) for k, v in fields.items())
    with pytest.raises(CorruptedFile), little_memory():
        decode_table(encoded, vouched(encoded, like))
    tried["refused"] += 1


# -- whole files ----------------------------------------------------------------------------------------------------


def bodies_of(disk: Disk, name: str, *, salvage: bool) -> list[bytes]:
    """The bodies that a reader would deliver, each by its own read."""
    image = image_of(disk, name, salvage=salvage)
    assert image is not None
    handle = disk.open(name)
    bodies = []
    try:
        for entry, table in zip(image.header.sections, image.tables, strict=True):
            for end, length, checksum in zip(table.ends(entry), table.lengths, table.checksums, strict=True):
                try:
                    bodies += read_bodies(disk, handle, [end], [length], [checksum])
                except CorruptedFile:
                    pass
    finally:
        disk.close(handle)
    return bodies


@OPTIONS
@given(data=st.data(), name=st.sampled_from(sorted(GOLDEN)), salvage=st.booleans())
def test_e12_a_damaged_file_delivers_nothing_that_was_not_put(
    data: st.DataObject, name: str, salvage: bool, tmp_path: Path, tried: dict[str, int]
) -> None:
    try_file(tmp_path, GOLDEN[name], data.draw(damaged(GOLDEN[name])), tried, salvage=salvage)


def try_file(directory: Path, original: bytes, content: bytes, tried: dict[str, int], *, salvage: bool = False) -> None:
    disk = Disk(str(directory))
    (directory / "whole").write_bytes(original)
    (directory / "damaged").write_bytes(content)
    put = bodies_of(disk, "whole", salvage=False)
    try:
        with little_memory():
            found = bodies_of(disk, "damaged", salvage=salvage)
    except (CorruptedFile, NewerFormat):
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
        assert len(found) <= len(put)
        assert all(body in put for body in found)
    handle = disk.open("damaged")
    try:
        header = prove(disk, handle).header
    except (CorruptedFile, NewerFormat):
        pass
    else:  # proven: only the number, which has a checksum of its own, and bytes behind the end may differ
        same = original[: header.size]
        assert content[:35] + content[43:57] + content[61 : header.size] == same[:35] + same[43:57] + same[61:]
        assert header.number == -1 or content[35:43] == same[35:43]
    finally:
        disk.close(handle)


# -- notes, counters, settings, dropped files, reasons, bodies ------------------------------------------------------


def note_bytes(records: list[Any]) -> bytes:

    return b"".join(
        packed + pack(zlib.crc32(packed)) for packed in (r if isinstance(r, bytes) else pack(r) for r in records)
    )


def read_note(tmp_path: Path, data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    (tmp_path / layout.ACTIVE).mkdir(exist_ok=True)
    (tmp_path / layout.note(XID)).write_bytes(data)
    with little_memory():
        owner, ranges = notes.read_note(SimpleNamespace(disk=Disk(str(tmp_path))), XID)  # type: ignore[arg-type]
    assert isinstance(owner, int)
    for number, first, count in ranges:
        assert whole(number, 1, MAX_NUMBER)
        assert whole(first, 0, MAX_ORDINAL)
        assert whole(count, 1, MAX_ORDINAL + 1 - first)
    return owner, ranges


NOTE = [["xaspool-claims", 1, 12], [5, 0, 3], [5, 9, 1], [6, 2, 7]]


@OPTIONS
@given(records=changed(NOTE))
def test_x06_a_note_with_any_value_in_it_names_possible_messages_only(
    records: Any, tmp_path: Path, tried: dict[str, int]
) -> None:
    _, ranges = read_note(tmp_path, note_bytes(records if isinstance(records, list) else [records]))
    tried["accepted" if len(ranges) == 3 else "refused"] += 1


def test_x06_a_note_with_each_value_at_its_edges_names_possible_messages_only(
    tmp_path: Path, tried: dict[str, int]
) -> None:
    for records in each_changed(NOTE):
        if isinstance(records, list):
            _, ranges = read_note(tmp_path, note_bytes(records))
            tried["accepted" if len(ranges) == 3 else "refused"] += 1


@OPTIONS
@given(data=damaged(note_bytes(NOTE)))
def test_x06_a_damaged_note_names_what_was_noted_or_less(data: bytes, tmp_path: Path, tried: dict[str, int]) -> None:
    _, ranges = read_note(tmp_path, data)
    assert {*ranges} <= {(5, 0, 3), (5, 9, 1), (6, 2, 7)}
    tried["accepted" if len(ranges) == 3 else "refused"] += 1


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_x06_no_record_of_a_note_is_a_bomb(bomb: str, tmp_path: Path, tried: dict[str, int]) -> None:
    start = note_bytes(NOTE[:2])
    assert read_note(tmp_path, start + note_bytes([BOMBS[bomb]]))[1] in ([(5, 0, 3)], [])
    tried["refused"] += 1


@OPTIONS
@given(data=st.binary(max_size=400))
def test_x05_any_bytes_are_counters(data: bytes, tried: dict[str, int]) -> None:
    page = Page(data.ljust(320, b"\0")[:320])
    assert isinstance(page.boot_id, str)
    for value in (page.issued, page.published, page.durable, page.prepared, page.settings, page.owner):
        assert whole(value, 0, 2**64 - 1)
    tried["accepted"] += 1


TOML = b"""# comment
format = 1
max_body_bytes = 1000
flush = "auto"
[queues]
[queues.orders]
order = ["priority", "fifo"]
retries = 3
retry_delay = 2.5
error_queue = "failures"
[queues.failures]
"""
TOML_BOMBS = {
    "arrays in arrays": "a = " + "[" * 100_000,
    "tables in tables": "a = " + "{a=" * 100_000,
    "arrays in arrays, line by line": "a = " + "[\n" * 100_000,
    "tables in tables, in a short line": "a = " + "{a=" * 600,
    "key of many parts": "a." * 100_000 + "a = 1",
    "table of many parts": "[" + "a." * 100_000 + "a]",
    "long number": "a = " + "9" * 100_000,
    "long text": 'a = "' + "x" * 100_000,
    "year 9999": "format = 9999-99-99T99:99:99Z",
    "surrogate": 'a = "\\ud800"',
}


def parse_settings(text: str, tried: dict[str, int]) -> None:
    try:
        with little_memory():
            config = space_settings.parse(text, "space.toml")
    except (InvalidArgument, NewerFormat) as error:
        said = str(error)
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
        said = "space.toml: "
        assert whole(config.max_body_bytes, 1, 2**32 - 1)
        assert all(math.isfinite(queue.retry_delay) for queue in config.queues.values())
    assert said.startswith("space.toml: ")
    assert len(said) < 3000


@OPTIONS
@given(data=damaged(TOML))
def test_a08_damaged_settings_are_read_or_refused_by_name(data: bytes, tried: dict[str, int]) -> None:
    parse_settings(data.decode("utf-8", "replace"), tried)


@pytest.mark.parametrize("bomb", sorted(TOML_BOMBS))
def test_a08_settings_are_no_bomb(bomb: str, tried: dict[str, int]) -> None:
    parse_settings("format = 1\n" + TOML_BOMBS[bomb], tried)


PUTS = [
    {"body": b"raw", "priority": 3, "headers": {"a": "b"}, "delay": 2.5, "content_type": "text/plain"},
    {"body": {"a": [1, None]}, "correlation_id": "c", "reply_queue": "answers", "user_code": -5},
]


def try_dropped(data: bytes, tried: dict[str, int]) -> None:
    try:
        with little_memory():
            puts = dropped.puts_of("file.msgpack", data, 1000)
    except InvalidArgument:
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
        assert all(len(codecs.encode(put.body, put.options.get("content_type"))[0]) <= 1000 for put in puts)


@OPTIONS
@given(found=changed(PUTS))
def test_t09_a_dropped_stream_with_any_value_in_it_is_taken_or_refused(found: Any, tried: dict[str, int]) -> None:
    try_dropped(b"".join(map(pack, found if isinstance(found, list) else [found])), tried)


def test_t09_a_dropped_stream_with_each_value_at_its_edges_is_taken_or_refused(tried: dict[str, int]) -> None:
    for found in each_changed(PUTS):
        if isinstance(found, list):
            try_dropped(b"".join(map(pack, found)), tried)


@OPTIONS
@given(data=damaged(b"".join(map(pack, PUTS))))
def test_t09_a_damaged_dropped_stream_is_taken_or_refused(data: bytes, tried: dict[str, int]) -> None:
    try_dropped(data, tried)


@pytest.mark.parametrize("where", ["alone", "body", "headers"])
@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_t09_no_dropped_stream_is_a_bomb(bomb: str, where: str, tried: dict[str, int]) -> None:
    start = {"alone": b"", "body": b"\x81\xa4body", "headers": b"\x82\xa4body\xa1x\xa7headers"}[where]
    try_dropped(pack(PUTS[0]) + start + BOMBS[bomb], tried)


@OPTIONS
@given(
    name=st.binary(min_size=1, max_size=250).filter(lambda raw: not {0, 47} & {*raw} and raw not in (b".", b"..")),
    reason=st.text(max_size=200) | st.just("\ud800"),
)
def test_r08_whatever_the_name_and_the_reason_a_file_is_kept_with_it(
    name: bytes, reason: str, tmp_path_factory: pytest.TempPathFactory, tried: dict[str, int]
) -> None:
    root = tmp_path_factory.mktemp("space")
    for directory in (layout.ACTIVE, layout.QUARANTINE):
        (root / directory).mkdir()
    path = f"{layout.ACTIVE}/" + name.decode("utf-8", "surrogateescape")
    (root / path).write_bytes(b"kept")
    target = quarantine(Disk(str(root)), path, reason)
    assert (root / target).read_bytes() == b"kept"
    assert (root / (target + REASON_SUFFIX)).exists()
    assert not (root / path).exists()
    tried["accepted"] += 1


@OPTIONS
@given(data=st.binary(max_size=60) | values.map(pack) | st.sampled_from([*BOMBS.values()]), codec=st.text(max_size=7))
@pytest.mark.parametrize("known", [*codecs.CODECS, None, "other"])
def test_e12_a_body_that_its_codec_did_not_write_is_a_corrupted_file(
    data: bytes, codec: str, known: str | None, tried: dict[str, int]
) -> None:
    try:
        with little_memory():
            codecs.decode(data, codec if known == "other" else known)
    except CorruptedFile:
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
