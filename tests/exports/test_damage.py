"""Every damage of an export is noticed: an import makes nothing, or makes all messages."""

import errno
import gzip
import io
import random
import tarfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from spool.admin import tar_stream
from tests.conftest import in_memory
from tests.exports.archives import SPACES, Contents, edges, export_of, imported, members_of, plain, tar

Export = tuple[bytes, Contents]
FLIPS = 200


@pytest.fixture(scope="module", params=SPACES)
def export(request: pytest.FixtureRequest) -> Export:
    with in_memory() as directory:
        return export_of(request.param, directory / "of")


@pytest.fixture
def every(pytestconfig: pytest.Config) -> bool:
    """Return whether a test damages every place instead of a few."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="module")
def small() -> Export:
    with in_memory() as directory:
        return export_of("plain", directory / "of")


def is_noticed(data: bytes, whole: Contents, directory: Path) -> bool:
    """Return whether an import notices the damage; if not, the import must have all messages."""
    try:
        spool.verify_export(io.BytesIO(data))
    except spool.CorruptedFile:
        return True
    assert imported(data, directory) == whole
    return False


def test_a_whole_export_comes_back(export: Export, tmp_path: Path) -> None:
    data, whole = export
    report = spool.verify_export(io.BytesIO(data))
    assert sum(report.messages.values()) == len(whole["q"])
    assert report.left_out == {}
    assert imported(data, tmp_path / "copy") == whole


def _flips(export: Export, count: int, directory: Path) -> int:
    data, whole = export
    places = random.Random(26).sample(range(8 * len(data)), min(count, 8 * len(data)))
    unnoticed = 0
    for place in places:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        unnoticed += not is_noticed(bytes(damaged), whole, directory / "flipped")
    return unnoticed


def test_each_bit_that_is_flipped_is_noticed_or_nothing_is_missing(export: Export, tmp_path: Path) -> None:
    unnoticed = _flips(export, FLIPS, tmp_path)
    print(f"{unnoticed} of {FLIPS} flips change nothing")
    assert unnoticed <= FLIPS // 20  # a time in the head of a gzip stream


def test_every_bit_of_a_tar_that_is_not_compressed_is_proven(tmp_path: Path) -> None:
    data = tar([("xaspool-export.json", b"x"), ("n" * 120, b"y")])
    for place in random.Random(1).sample(range(8 * len(data)), 1000):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        try:
            found = members_of(bytes(damaged))
            reader = tar_stream.Reader(io.BytesIO(damaged))
            while (member := reader.next()) is not None:
                assert sum(map(len, reader.pieces(member[1]))) == member[1]
            reader.check_end()
        except spool.CorruptedFile:
            continue
        assert found != members_of(data)  # a byte of a member, of which the manifest has the checksum, or its name


def test_an_export_that_ends_at_the_edge_of_a_member_is_noticed(export: Export, tmp_path: Path, every: bool) -> None:
    """The writer of the export died at the edge, or ended the archive there."""
    data, whole = export
    members, uncompressed = members_of(plain(data)), plain(data)
    for count, end in [*enumerate(edges(uncompressed)[:-1])][:: 1 if every else max(1, len(members) // 15)]:
        for rest in (b"", bytes(1024), bytes(-end % 10_240)):
            assert is_noticed(uncompressed[:end] + rest, whole, tmp_path / "cut")
        for compression in (None, "gz"):
            assert is_noticed(tar(members[:count], compression), whole, tmp_path / "cut")


def test_an_export_that_ends_anywhere_is_noticed(export: Export, tmp_path: Path) -> None:
    data, whole = export
    for end in (*random.Random(2).sample(range(len(data)), 40), len(data) - 1):
        assert is_noticed(data[:end], whole, tmp_path / "cut")


@pytest.mark.parametrize("change", ["missing", "twice", "exchanged", "unknown", "after the end", "empty", "another"])
def test_a_member_not_as_the_manifest_says_is_noticed(export: Export, tmp_path: Path, every: bool, change: str) -> None:
    data, whole = export
    members = members_of(plain(data))
    for place in range(0, len(members), 1 if every else max(1, len(members) // 8)):
        changed = members.copy()
        name, content = members[place]
        if change == "missing":
            del changed[place]
        elif change == "twice":
            changed.insert(place, changed[place])
        elif change == "exchanged":
            changed[place], changed[place - 1] = changed[place - 1], changed[place]
        elif change == "unknown":
            changed.insert(place, ("committed/0000000000009999.msgpack", content))
        elif change == "after the end":
            changed.append((f"quarantine/{place}", b"more"))
        elif change == "empty":
            changed[place] = (name, b"")
        else:
            changed[place] = (name, content[:-1] + bytes([content[-1] ^ 1]) if content else b"x")
        assert is_noticed(tar(changed), whole, tmp_path / "space"), name


@pytest.mark.parametrize("compression", [None, *tar_stream.COMPRESSIONS])
@pytest.mark.parametrize("rest", [b"\0", bytes(10_240), b"x", b"\x1f\x8b"])
def test_bytes_after_the_end_are_noticed(small: Export, tmp_path: Path, compression: str | None, rest: bytes) -> None:
    data, _ = small
    assert imported(tar(members_of(data), compression) + rest, tmp_path / "space") is None


def test_two_compressed_streams_are_not_one_export(small: Export, tmp_path: Path) -> None:
    half = gzip.compress(small[0][:5120]) + gzip.compress(small[0][5120:])
    assert imported(half, tmp_path / "space") is None


def test_an_export_may_be_compressed_in_another_way_afterwards(small: Export, tmp_path: Path) -> None:
    data, whole = small
    assert imported(gzip.compress(data), tmp_path / "space") == whole


class Slow(io.RawIOBase):
    """A pipe, whose reads are short."""

    def __init__(self, data: bytes) -> None:
        self._left = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._left.readinto(memoryview(buffer)[:7])


def test_reads_of_a_stream_may_be_short(small: Export, tmp_path: Path) -> None:
    data, whole = small
    for compression in (None, *tar_stream.COMPRESSIONS):
        with spool.import_space(tmp_path / str(compression), Slow(tar(members_of(data), compression))) as space:  # type: ignore[arg-type]
            assert len([*space.browse("q")]) == len(whole["q"])


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), UserWarning("refused")])
def test_the_exception_of_a_stream_is_the_callers_and_the_space_goes_on(tmp_path: Path, error: Exception) -> None:
    """For example, the disk of the export is full, or an upload is refused: the space has not failed."""
    with spool.create(tmp_path / "space") as space:
        space.create_queue("q")
        space.put("q", "x")
        stream: Any = mock.Mock(write=mock.Mock(side_effect=error))
        for call in (partial(space.export, stream), partial(space.export, io.BytesIO(), progress=stream.write)):
            with pytest.raises(type(error)) as raised:
                call()
            assert raised.value is error
        space.put("q", "x")


def test_a_file_that_is_open_for_text_is_refused(small: Export, tmp_path: Path) -> None:
    with pytest.raises(spool.InvalidArgument, match="open for bytes"):
        spool.verify_export(io.StringIO("text"))  # type: ignore[arg-type]


def test_other_programs_can_list_and_unpack_an_export(export: Export, tmp_path: Path) -> None:
    data, _ = export
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [(member.name, archive.extractfile(member).read()) for member in archive] == members_of(plain(data))  # type: ignore[union-attr]


def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """Exports of each compression, longer than one piece."""
    content = bytes(3 * tar_stream.PIECE_BYTES + 5) + random.Random(3).randbytes(tar_stream.PIECE_BYTES + 7)
    for compression in (None, *tar_stream.COMPRESSIONS):
        assert members_of(plain(tar([("one", content), ("two", b"")], compression))) == [("one", content), ("two", b"")]


def test_a_size_beyond_eight_gib_is_written_and_read(tmp_path: Path) -> None:
    block = tar_stream.header(b"name", 9 << 30)
    assert tarfile.TarInfo.frombuf(block, "utf-8", "strict").size == tar_stream._size(block) == 9 << 30
