"""A hand-made export of any shape gives one clear error, and changes nothing outside the directory."""

import io
import json
import lzma
import os
import random
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.admin import manifest, tar_stream, unpack
from spool.admin.tar_stream import header
from tests.exports.archives import SETTINGS, consistent, imported, members_of, tar

BEGIN = (manifest.BEGIN, manifest.begin(1))
_ID = ("space.id", b"0" * 32 + b"\n")
_SETTINGS = ("space.toml", SETTINGS)
_SPACE = [_SETTINGS, _ID]
_LONG = header(b"././@LongLink", 120, b"L") + b"n" * 119 + bytes(393)


def _of_tarfile(**fields: Any) -> bytes:
    """A tar with one member of that kind after the first."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as made:
        first = tarfile.TarInfo(manifest.BEGIN)
        first.size, first.mode = len(BEGIN[1]), 0o600
        made.addfile(first, io.BytesIO(BEGIN[1]))
        member = tarfile.TarInfo(fields.pop("name", "committed/0000000000000001.msgpack"))
        member.mode = 0o600
        for name, value in fields.items():
            setattr(member, name, value)
        made.addfile(member)
    return file.getvalue()


def _sealed(line: bytes) -> tuple[str, bytes]:
    return manifest.BEGIN, manifest._sealed(line + b"\n")


NESTED = b"[" * 2000 + b"]" * 2000
SHAPES = {
    "nothing": b"",
    "no tar": b"no tar",
    "zeros": bytes(10_240),
    "another tar": tar([("other", b"")]),
    "the first member alone": tar([BEGIN]),
    "no manifest": tar([BEGIN, *_SPACE]),
    "a first member that is no object": tar([_sealed(b"[]")]),
    "a first member that is nested": tar([_sealed(NESTED)]),
    "a first member without checksum": tar([(manifest.BEGIN, b'{"format": 1, "files": 1}\n')]),
    "a first member of another type": tar([_sealed(b'{"format": "1", "files": 1}')]),
    "a first member with a number of 5,000 digits": tar([_sealed(b'{"format": ' + b"1" * 3000 + b', "files": []}')]),
    "a first member that is large": tar([(manifest.BEGIN, bytes(1 << 20))]),
    "5,000 long names": tar([BEGIN])[:1024] + _LONG * 5000 + bytes(10_240),
    "a long name that is short": header(b"././@LongLink", 5, b"L") + b"abcd".ljust(512, b"\0") + bytes(10_240),
    "a long name of 1 TiB": header(b"././@LongLink", 1 << 40, b"L") + bytes(10_240),
    "a size of 1 TiB": tar([BEGIN])[:1024] + header(b"committed/0000000000000001.msgpack", 1 << 40),
    "a size of 2 to the 80": tar([BEGIN])[:1024] + header(b"committed/0000000000000001.msgpack", 1 << 80),
    "a size below 0": tar([BEGIN])[:1024] + header(b"committed/0000000000000001.msgpack", -512) + bytes(10_240),
    "a directory": _of_tarfile(type=tarfile.DIRTYPE, name="committed"),
    "a device": _of_tarfile(type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "a FIFO": _of_tarfile(type=tarfile.FIFOTYPE),
    "a symlink": _of_tarfile(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": _of_tarfile(type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a sparse file": _of_tarfile(type=tarfile.GNUTYPE_SPARSE),
    "a pax header": _of_tarfile(type=tarfile.XHDTYPE),
    "a name twice": consistent([*_SPACE, *2 * [("quarantine/a", b"x")]]),
    "the settings twice": consistent([*_SPACE, _SETTINGS]),
    "no id": consistent([_SETTINGS]),
    "an id that is none": consistent([_SETTINGS, ("space.id", b"F" * 32 + b"\n")]),
    "no settings": consistent([_ID, ("quarantine/a", b"x")]),
    "settings that are no text": consistent([_ID, ("space.toml", b"\xff")]),
    "settings that are nested": consistent([_ID, ("space.toml", b"format = 1\na = " + NESTED)]),
    "settings of unknown keys": consistent([_ID, ("space.toml", b"format = 1\nunknown = 1\n")]),
    "settings that are large": consistent([_ID, ("space.toml", b"#" * (5 << 20))]),
    "a manifest that counts other files": consistent(_SPACE, files=3),
    "a manifest with another newest commit": consistent(_SPACE, newest=1),
    "a manifest with a dropped file that is missing": consistent(_SPACE, dropped={"drop/q/a": 1}),
    "a manifest with a dropped file that is another": consistent(_SPACE, dropped={"space.toml": 1}),
    "a manifest with a time that is none": consistent([*_SPACE, ("drop/q/a", b"")], dropped={"drop/q/a": 1 << 70}),
    "a manifest with a time of another type": consistent([*_SPACE, ("drop/q/a", b"")], dropped={"drop/q/a": "now"}),
    "a manifest with counts of another type": consistent(_SPACE, messages={"q": NESTED.decode()}),
    "a dropped file of no queue": consistent([*_SPACE, ("drop/other/a", b"x")]),
}
NAMES = [
    "", "/", "../outside", "/tmp/outside", "committed/../../outside", "committed/", "committed/.", "committed/..",
    "committed/stranger", "committed/0000000000000000.msgpack", "committed/9999999999999999.msgpack",
    "committed/0000000000000001-0.msgpack", "prepared/stranger.msgpack", "quarantine/", "quarantine/..",
    "quarantine/a/b", "quarantine/" + "n" * 256, "quarantine/a\0b", "run/counters", "free/0-0", "active/stranger",
    "active/drop.q.0123456789abcdef", "active/drop.q.0123456789abcde/a", "active/drop.q.0123456789abcdef/.late.1.1",
    "active/drop.q.0123456789abcdef/../a", "active/drop.q.0123456789abcdef/a/b", "active/drop.../a", "drop/a",
    "drop/q/.hidden", "drop/q/a.tmp", "drop/q/a/b", "drop/../a", "drop/./a", "drop//a", "drop/q/", "drop/q/..",
    "space.toml.import", "mirror/a", "xaspool-manifest.json/a", "q" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_any_shape_is_one_clear_error(tmp_path: Path, shape: str) -> None:
    with pytest.raises(spool.CorruptedFile, match="not a whole export of a space"):
        spool.verify_export(io.BytesIO(SHAPES[shape]))
    assert imported(SHAPES[shape], tmp_path / "space") is None
    assert os.listdir(tmp_path) == []


def test_a_member_with_a_name_of_no_file_of_a_space_is_refused(tmp_path: Path) -> None:
    for name in NAMES:
        assert imported(consistent([*_SPACE, (name, b"x")]), tmp_path / "space") is None, name
        assert os.listdir(tmp_path) == [], name


def test_a_consistent_export_is_imported(tmp_path: Path) -> None:
    """The other tests are of use only if a consistent export is imported."""
    names = ["quarantine/...", "drop/q/a", "active/drop.q.0123456789abcdef/.first.a", "quarantine/" + "n" * 255]
    assert imported(consistent([*_SPACE, *((name, b"x") for name in names)]), tmp_path / "space") is not None


def test_a_commit_that_is_no_commit_is_damage_of_the_space(tmp_path: Path) -> None:
    file = consistent([*_SPACE, ("committed/0000000000000001.msgpack", b"\x91" * 5000)], newest=1, messages={"q": 3})
    with spool.import_space(tmp_path / "space", io.BytesIO(file)) as space:
        assert [
            "queue q has 0 messages, and the space that was exported had 3" in str(finding)
            for finding in space.recovery.damaged
        ].count(True) == 1


def test_a_later_format_is_said(tmp_path: Path) -> None:
    later = tar([_sealed(b'{"format": 2, "files": 1, "more": 1}')])
    with pytest.raises(spool.NewerFormat, match="format 2"):
        spool.import_space(tmp_path / "space", io.BytesIO(later))
    assert os.listdir(tmp_path) == []


def test_a_bomb_is_read_piece_by_piece() -> None:
    """A reader decompresses only the first piece of 64 MiB of zeros."""
    bomb = b"".join(_compressed_zeros(64 << 20))
    reader = tar_stream.Reader(io.BytesIO(bomb))
    assert reader.next() is None
    with pytest.raises(spool.CorruptedFile, match="more bytes"):
        reader.check_end()
    assert reader._offset < 20_000


def _compressed_zeros(length: int) -> Iterable[bytes]:
    compressor = zlib.compressobj(wbits=31)
    for _ in range(length >> 20):
        yield compressor.compress(bytes(1 << 20))
    yield compressor.flush()


def test_xz_may_not_ask_for_much_memory() -> None:
    asks = lzma.compress(
        b"x",
        filters=[
            {
                "id": lzma.FILTER_LZMA2,
                "dict_size": 300 << 20,
                "mode": lzma.MODE_FAST,
                "mf": lzma.MF_HC3,
                "nice_len": 3,
                "lc": 0,
                "lp": 0,
                "pb": 0,
            }
        ],
    )
    with pytest.raises(spool.CorruptedFile, match="emory"):
        spool.verify_export(io.BytesIO(asks))


def _mutations(seed: int) -> bytes:
    """A consistent export, of which a few fields of headers are changed, with checksums made right again."""
    numbers = random.Random(seed)
    names = ["committed/0000000000000001.msgpack", "quarantine/" + "n" * 120, "drop/q/a"]
    data = bytearray(consistent([*_SPACE, *((name, b"x" * numbers.randrange(1500)) for name in names)], newest=1))
    blocks = len(data) // 512
    for _ in range(numbers.randint(1, 4)):
        start = 512 * numbers.randrange(blocks)
        field, length = numbers.choice(
            [(0, 100), (100, 8), (124, 12), (136, 12), (148, 8), (156, 1), (157, 100), (257, 8), (345, 155)]
        )
        place = start + field
        how = numbers.randrange(6)
        if how == 0:
            data[place + numbers.randrange(length)] = numbers.randrange(256)
        elif how == 1:
            data[place : place + length] = numbers.randbytes(length)
        elif how == 2:
            data[start + 156 : start + 157] = numbers.choice(
                [b"L", b"K", b"x", b"g", b"S", b"5", b"1", b"2", b"\0", b"0"]
            )
        elif how == 3:
            data[start + 124 : start + 136] = numbers.choice(
                [
                    b"\x80" + bytes(10) + b"\5",
                    b"77777777777\0",
                    b"-0000000001\0",
                    struct.pack(">B11s", 0xFF, b"\xff" * 11),
                ]
            )
        elif how == 4:
            data[start : start + 512] = data[512 * numbers.randrange(blocks) :][:512].ljust(512, b"\0")
        else:
            del data[start : start + 512 * numbers.randint(1, 3)]
            blocks = len(data) // 512
        block = data[start : start + 512]
        if len(block) == 512 and numbers.randrange(4):
            block[148:156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(data)


def test_headers_that_are_changed_at_random_are_one_clear_error(trials: int) -> None:
    noticed = 0
    for seed in range(trials):
        data = _mutations(seed)
        try:
            spool.verify_export(io.BytesIO(data))
        except spool.CorruptedFile:
            noticed += 1
        else:
            assert len(members_of(data)) == 7, seed
    assert noticed > 0.9 * trials


@pytest.fixture
def trials(pytestconfig: pytest.Config) -> int:
    return 20_000 if pytestconfig.getoption("--long") else 1000


def test_a_manifest_that_is_changed_at_random_is_one_clear_error() -> None:
    whole = members_of(consistent([*_SPACE, ("quarantine/a", b"x")]))
    summary = json.loads(whole[-1][1].splitlines()[0])
    others = whole[-1][1].splitlines(keepends=True)[1:-1]
    values: list[Any] = [
        None,
        -1,
        1 << 80,
        1.5,
        "",
        "x",
        [],
        {},
        [[]],
        {"q": {}},
        {"q": -1},
        {"q": None},
        True,
        "\ud800",
    ]
    for name in summary:
        for value in values:
            lines = json.dumps({**summary, name: value}).encode() + b"\n" + b"".join(others)
            data = tar([*whole[:-1], (manifest.MANIFEST, manifest._sealed(lines))])
            try:
                unpack.verify_export(io.BytesIO(data))
            except (spool.CorruptedFile, spool.NewerFormat):
                continue
            assert (name, value) in [("messages", {}), ("left_out", {}), ("dropped", {})], (name, value)
