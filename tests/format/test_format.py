"""The format is the one of docs/format.md, and does not change."""

import zlib
from array import array
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.disk import Disk
from spool.errors import CorruptedFile, NewerFormat
from spool.format.commands import Remove, Take, Update
from spool.format.header import (
    CLASS_BYTES,
    MAX_HEADER_BYTES,
    VERSION,
    Adoption,
    BranchEntry,
    Header,
    SectionEntry,
    decode_header,
    encode_header,
    header_checksum,
    stamp,
)
from spool.format.reader import prove
from spool.format.table import Table, decode_table, head_sizes, section_of, table_of
from spool.model.xid import Xid
from tests.golden import make

GOLDEN = Path(make.__file__).parent
FILES = ("commit.msgpack", "branch.msgpack", "head.msgpack", "compaction.msgpack", "vote.msgpack")


def objects(name: str) -> list[Any]:
    with (GOLDEN / name).open("rb") as file:
        return list(msgpack.Unpacker(file))


@pytest.mark.parametrize("name", FILES)
def test_x02_a_stock_unpacker_reads_a_file_to_its_end_and_every_checksum_holds(name: str) -> None:
    """With plain msgpack and zlib, by the rules of the page, without our code."""
    data = (GOLDEN / name).read_bytes()
    header, *rest = objects(name)
    assert list(header) == [
        "format", "version", "number", "number_check", "length", "time", "writer", "branches", "adopts", "supersedes",
        "sections", "durable_mark", "flushed", "padding", "checksum",
    ]  # fmt: skip
    assert (header["format"], header["version"]) == ("xaspool", VERSION)
    assert int.from_bytes(data[35:43], "big") == header["number"]
    assert int.from_bytes(data[57:61], "big") == header["number_check"] == zlib.crc32(data[35:43])
    length = header["length"]
    assert int.from_bytes(data[69:73], "big") == length
    covered = data[:35] + data[43:57] + data[61 : length - 4]
    assert zlib.crc32(covered) == header["checksum"] == int.from_bytes(data[length - 4 : length], "big")
    at = length
    for table_bytes, table_checksum, bodies_bytes, messages in header["sections"]:
        assert zlib.crc32(data[at : at + table_bytes]) == table_checksum
        table, rest = rest[0], rest[1:]
        bodies, rest = rest[:messages], rest[messages:]
        assert [len(body) for body in bodies] == table["lengths"]
        assert [zlib.crc32(body) for body in bodies] == table["checksums"]
        assert sum(count for _, _, count in table["runs"]) == messages
        at += table_bytes + bodies_bytes
    assert at == len(data)
    assert rest == []


def test_the_golden_files_hold_the_messages_put_into_them() -> None:
    header, table, *bodies = objects("commit.msgpack")
    assert (header["number"], header["time"], header["durable_mark"]) == (42, 1790000000.25, 41)
    assert bodies == [
        b"", b"two", b"x" * 300, "text \N{SNOWMAN}".encode(), b'{"a": 1}', b"top", b"before", b"another",
    ]  # fmt: skip
    assert table["attributes"][2]["headers"] == {"tenant": "acme"}
    assert [command[0] for command in table["commands"]] == ["remove", "update", "update", "update", "take"]
    branch = objects("branch.msgpack")[0]
    (adoption,) = objects("head.msgpack")[0]["adopts"]
    size = (GOLDEN / "branch.msgpack").stat().st_size
    assert adoption == ["7.Z2xvYmFs.YnJhbmNo", size, branch["checksum"], 0, 1]
    assert branch["number"] == 0
    assert objects("vote.msgpack")[0]["number"] == 2**63 + (7 << 24)
    assert (GOLDEN / "vote.msgpack").stat().st_size == 4096  # padded, so that later files of this size fit into it


def test_our_writer_makes_the_same_bytes(tmp_path: Path) -> None:
    make.make(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes(), name


@pytest.mark.parametrize("name", FILES)
def test_x02_a_header_may_have_integers_of_any_width(name: str) -> None:
    """Another program may write integers in their narrowest form."""
    data = (GOLDEN / name).read_bytes()
    narrow = with_narrow_integers(data)
    ours, theirs = decode_header(data, len(data)), decode_header(narrow, len(narrow))
    assert theirs.length < ours.length
    assert [entry[1:] for entry in theirs.sections] == [entry[1:] for entry in ours.sections]
    nothing = {"length": 0, "size": 0, "checksum": 0, "sections": ()}
    assert theirs._replace(**nothing) == ours._replace(**nothing)


def with_narrow_integers(data: bytes) -> bytes:
    """The file with each integer of its header after the length in msgpack's narrowest form."""
    header = msgpack.unpackb(data[: decode_header(data, len(data)).length])
    rest = b"".join(msgpack.packb(part) for field in list(header.items())[5:-1] for part in field)
    length = 73 + len(rest) + len(b"\xa8checksum\xce") + 4
    front = data[:69] + length.to_bytes(4, "big") + rest + b"\xa8checksum\xce"
    return front + header_checksum(front).to_bytes(4, "big") + data[header["length"] :]


@pytest.mark.parametrize("name", FILES)
def test_e12_any_flipped_byte_and_any_truncation_is_noticed(name: str, tmp_path: Path) -> None:
    data = (GOLDEN / name).read_bytes()
    disk = Disk(str(tmp_path))
    number = objects(name)[0]["number"]

    def verdict(changed: bytes) -> str:
        (tmp_path / "file").write_bytes(changed)
        handle = disk.open("file")
        try:
            found = prove(disk, handle).header.number
        except NewerFormat:
            return "newer"
        except CorruptedFile:
            return "corrupted"
        finally:
            disk.close(handle)
        return "same" if found == number else "number" if found == -1 else "wrong"

    assert verdict(data) == "same"
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x40
        expected = {"corrupted"}
        if 35 <= place < 43 or 57 <= place < 61:
            expected = {"number"}  # outside the header's checksum, and under its own
        assert verdict(bytes(changed)) in expected, f"byte {place}"
        assert verdict(data[:place]) == "corrupted", f"cut at {place}"


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
fields = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(1, 100), "not_before": st.floats(0, 1e12), "delay": st.integers(0, 9),
        "correlation_id": names, "headers": st.dictionaries(names, names, max_size=2), "codec": names,
        "user_code": st.integers(-(2**63), 2**63 - 1),
    },
)  # fmt: skip
values = st.dictionaries(names, st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | names, max_size=4)
ranges = (st.integers(1, 2**39 - 1), st.integers(0, 2**23), st.integers(1, 2**18))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    queues = draw(st.lists(names, min_size=1, max_size=3))
    attributes = draw(st.lists(fields, min_size=1, max_size=3))
    runs = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(queues) - 1), st.integers(0, len(attributes) - 1), st.integers(1, 5)
            ).map(list),
            max_size=4,
        )
    )  # fmt: skip
    count = sum(run[2] for run in runs)
    numbers = st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count)
    lengths = draw(st.lists(st.integers(0, 70_000), min_size=count, max_size=count))
    commands = draw(
        st.lists(
            st.one_of(
                st.builds(Remove, st.just("remove"), *ranges, names),
                st.builds(Update, st.just("update"), *ranges, fields | st.just({"queue": "q", "not_before": None})),
                st.builds(
                    Take,
                    st.just("take"),
                    st.just("drop.q.1"),
                    st.binary(max_size=9).map(lambda n: b"x" + n.hex().encode()),
                ),
            ),
            max_size=3,
        )
    )
    facts = draw(
        st.lists(st.tuples(names.filter("totals".__ne__), values, st.none() | st.floats(0, 1e12)).map(list), max_size=2)
    )
    return Table(queues, attributes, runs, array("I", lengths), array("I", draw(numbers)), commands, facts)


@settings(max_examples=40)
@given(tables())
def test_tables_come_back_as_they_were_written(table: Table) -> None:
    data = section_of(table, ()).parts[0]
    size = sum(table.lengths) + sum(head_sizes(table.lengths))
    entry = SectionEntry(0, len(data), zlib.crc32(data), size, len(table.lengths))
    decoded = decode_table(data, entry)
    assert decoded == table == table_of(data)
    assert list(map(type, decoded.commands)) == list(map(type, table.commands))


xids = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=64), st.binary(max_size=64))


@given(
    st.floats(0, 1e12), st.lists(xids, max_size=3), st.lists(xids, max_size=3), st.integers(0, 2**39 - 1),
    st.booleans(), st.integers(0, 5000), st.integers(1, 2**39 - 1),
)  # fmt: skip
def test_headers_come_back_as_they_were_written(
    time: float, own: list[Xid], adopted: list[Xid], mark: int, flushed: bool, room: int, number: int
) -> None:
    header = Header(
        number=0, time=time, writer={"pid": 1}, durable_mark=mark, flushed=flushed,
        branches=tuple(BranchEntry(xid, b"i" * 12, 0, 0) for xid in own),
        adopts=tuple(Adoption(xid, 1, 2, 4 * place, 4) for place, xid in enumerate(adopted)),
    )  # fmt: skip
    data = bytearray(encode_header(header, room=room))
    offset, stamped = stamp(number)
    data[offset : offset + len(stamped)] = stamped
    found = decode_header(bytes(data), len(data))
    assert len(data) >= room
    assert (found.number, found.time, found.durable_mark, found.flushed) == (number, time, mark, flushed)
    assert (found.branches, found.adopts, found.length) == (header.branches, header.adopts, len(data))


def test_a_later_version_is_refused_by_name_and_a_flipped_bit_is_none() -> None:
    data = with_version(encode_header(Header(0, 1.0, {})), VERSION + 1)
    with pytest.raises(CorruptedFile):
        decode_header(data[:-1] + bytes([data[-1] ^ 1]), len(data))
    with pytest.raises(NewerFormat, match="use a later version"):
        decode_header(data, len(data))


def test_a_version_that_no_program_writes_is_damage() -> None:
    data = with_version(encode_header(Header(0, 1.0, {})), VERSION - 1)
    with pytest.raises(CorruptedFile, match="version 0"):
        decode_header(data, len(data))


@given(st.integers(0, 3 * CLASS_BYTES))
def test_a_padded_header_and_its_sections_fill_the_class(beside: int) -> None:
    header = Header(0, 1.5, {"pid": 1, "program": "p"})
    padded, plain = encode_header(header, beside=beside), encode_header(header)
    assert (len(padded) + beside) % CLASS_BYTES == 0
    assert len(padded) - len(plain) < CLASS_BYTES < MAX_HEADER_BYTES
    assert len(encode_header(header, room=len(padded) + 1)) == len(padded) + 1, "a header fills its room"


def with_version(header: bytes, version: int) -> bytes:
    """The header with another version, at the offset that docs/format.md names, and with the checksum that is right."""
    data = header[:25] + version.to_bytes(2, "big") + header[27:-4]
    return data + header_checksum(data).to_bytes(4, "big")
