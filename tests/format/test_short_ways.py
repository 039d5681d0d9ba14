"""Short ways of a put and a get: bodies are read in few pieces, messages share their common fields, and recycled files
fit."""

import pickle
import zlib
from pathlib import Path

import pytest

import spool
from spool.disk import Disk
from spool.disk.recycler import Recycler
from spool.errors import CorruptedFile
from spool.index.body_files import read_bodies
from spool.model import layout
from spool.model.message import Message
from spool.model.position import Position


def test_neighbours_are_the_messages_that_were_put_one_by_one(space: spool.Space) -> None:
    ids = space.put_many("orders", [b"one", b"two"], priority=9)
    found = space.get_many("orders", 2)
    number, enqueued_at = found[0].position.number, found[0].enqueued_at
    assert found == [
        Message(ids[0], "orders", b"one", enqueued_at, Position(number, 0), {"priority": 9}),
        Message(ids[1], "orders", b"two", enqueued_at, Position(number, 1), {"priority": 9}),
    ]
    assert pickle.loads(pickle.dumps(found)) == found


def test_bodies_are_read_in_pieces_and_each_is_proven(tmp_path: Path) -> None:
    bodies = [bytes([place]) * size for place, size in enumerate([0, 1, 700_000, 400_000, 3 << 20, 5])]
    ends, data = [], b""
    for body in bodies:
        data += b"head" + body
        ends.append(len(data))
    (tmp_path / "file").write_bytes(data)
    disk = Disk(str(tmp_path))
    handle = disk.open("file")
    lengths, checksums = list(map(len, bodies)), list(map(zlib.crc32, bodies))
    assert read_bodies(disk, handle, ends, lengths, checksums, bytes) == bodies
    assert read_bodies(disk, handle, ends[3:4], lengths[3:4], checksums[3:4], bytes) == bodies[3:4]
    with pytest.raises(CorruptedFile):
        read_bodies(disk, handle, ends, lengths, [*checksums[:-1], 1], bytes)
    disk.close(handle)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [(300, 340), (341, 340), (350, 360), (5_000, 360), (60_000, 100_000), (100_001, 100_000), (900_000, 100_000)],
)
def test_the_spare_file_that_is_nearest_in_size_is_taken(tmp_path: Path, wanted: int, taken: int) -> None:
    for name in (layout.FREE, layout.ACTIVE):
        (tmp_path / name).mkdir()
    for size in (340, 360, 100_000):
        (tmp_path / layout.FREE / f"{size}-000000000000abcd").write_bytes(bytes(size))
    disk = Disk(str(tmp_path))
    found = Recycler(disk).take(f"{layout.ACTIVE}/new", wanted)
    assert found is not None
    handle, size, _ = found
    disk.close(handle)
    assert size == taken
