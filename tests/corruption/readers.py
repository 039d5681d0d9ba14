"""The demands of tests and of the fuzzer on each reader: a value within the limits, or the documented error, in little
memory. An accepted value must have the properties that the rest of the program needs.
"""

import math
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings

from spool.disk import Disk
from spool.errors import CorruptedFile, InvalidArgument, NewerFormat
from spool.format.header import SECTION_MESSAGES, Header, SectionEntry, decode_header
from spool.format.reader import contents_of, prove
from spool.format.table import bodies_bytes, decode_table
from spool.index import Index
from spool.index.body_files import read_bodies
from spool.index.commit import Commit, CommitFile
from spool.intake import dropfile
from spool.model import codecs, layout
from spool.model import settings_file as space_settings
from spool.model.layout import MAX_NUMBER, MAX_ORDINAL
from spool.model.xid import Xid
from spool.policies import attempt_journal
from spool.store.parts import addressed_positions
from tests import door
from tests.corruption.hostile import GOLDEN, pack, vouched

XID = Xid(7, b"global", b"branch")

OPTIONS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

_MOST_BYTES = 64 << 20


@contextmanager
def little_memory() -> Iterator[None]:
    """Limit the memory for one input; memory that hypothesis and earlier tests keep does not count."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()


def whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


# -- headers ----------------------------------------------------------------------------------------------------------


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
    assert header.messages == sum(branch.count for branch in header.branches)
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


# -- tables -----------------------------------------------------------------------------------------------------------


def golden_table(name: str) -> tuple[bytes, SectionEntry]:
    header = decode_header(GOLDEN[name], len(GOLDEN[name]))
    entry = header.sections[0]
    return GOLDEN[name][entry.offset : entry.offset + entry.table_bytes], entry


def check_table(table: Any, entry: SectionEntry) -> None:
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


def try_index(table: Any, entry: SectionEntry) -> None:
    """Treat a table as an opening does: index it, list its messages, and list the messages that it holds if
    prepared."""
    contents = door.contents_with(table, entry)
    index = Index(mock.Mock(table=lambda source, section: table), {})
    for number in (3, 5):
        index.apply(Commit(number, [CommitFile(0, None, 0, contents)], []))
    for queue in table.queues:
        list(index.messages.in_order(queue, 1e9))
    index.totals()
    for _ in addressed_positions(contents):
        pass


# -- whole files ------------------------------------------------------------------------------------------------------


def bodies_of(disk: Disk, name: str, *, salvage: bool) -> list[bytes]:
    """The bodies that a reader would deliver, each by its own read."""
    contents = contents_of(disk, name, salvage=salvage)
    assert contents is not None
    handle = disk.open(name)
    bodies = []
    try:
        for entry, table in zip(contents.header.sections, contents.tables, strict=True):
            for end, length, checksum in zip(table.ends(entry), table.lengths, table.checksums, strict=True):
                with suppress(CorruptedFile):
                    bodies += read_bodies(disk, handle, [end], [length], [checksum], bytes)
    finally:
        disk.close(handle)
    return bodies


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


# -- notes, settings, dropped files -----------------------------------------------------------------------------------

NOTE = [["xaspool-claims", 1, 12, 77, "worker.py", 1.5e9], [5, 0, 3], [5, 9, 1], [6, 2, 7]]  # of the version before
SLOTS = b"".join(attempt_journal._slot(*claim, 7, 1.5e9) for claim in [(5, 0, 3), (5, 9, 1), (6, 2, 7)])


def note_bytes(records: list[Any]) -> bytes:
    return b"".join(
        packed + pack(zlib.crc32(packed)) for packed in (r if isinstance(r, bytes) else pack(r) for r in records)
    )


def read_note(tmp_path: Path, data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    (tmp_path / layout.ACTIVE).mkdir(exist_ok=True)
    (tmp_path / layout.attempt_journal(XID)).write_bytes(data)
    with little_memory():
        note = attempt_journal.read_journal(Disk(str(tmp_path)), XID)
    assert isinstance(note.pid, int | None)
    assert isinstance(note.program, str | None)
    assert isinstance(note.owner, int)
    for number, first, count in note.ranges:
        assert whole(number, 1, MAX_NUMBER)
        assert whole(first, 0, MAX_ORDINAL)
        assert whole(count, 1, MAX_ORDINAL + 1 - first)
    return note.owner, note.ranges


TOML = b"""# comment
format = 1
max_body_bytes = 1000
sync_method = "auto"
[queues]
[queues.orders]
order = ["priority", "fifo"]
retries = 3
retry_delay = 2.5
error_queue = "failures"
[queues.failures]
"""


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


PUTS = [
    {"body": b"raw", "priority": 3, "headers": {"a": "b"}, "delay": 2.5, "content_type": "text/plain"},
    {"body": {"a": [1, None]}, "correlation_id": "c", "reply_queue": "answers", "user_code": -5},
]


def try_dropped(data: bytes, tried: dict[str, int]) -> None:
    try:
        with little_memory():
            puts = dropfile.puts_of("file.msgpack", data, 1000)
    except InvalidArgument:
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
        assert all(len(codecs.encode(put.body, put.options.get("content_type"))[0]) <= 1000 for put in puts)
    with little_memory():
        try:
            [put] = dropfile.puts_of("file.json", data, 1000)
        except InvalidArgument:
            return
        raw, codec, _ = codecs.encode(put.body)
        codecs.decode(raw, codec)
