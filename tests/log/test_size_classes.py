"""A flushed file fills a multiple of 4 KiB, so a later commit overwrites it without a change of its size.

Then ``fdatasync`` need not commit the file system's journal.
"""

import random
from pathlib import Path

import pytest

import spool
from spool.disk import Disk
from spool.format.header import CLASS_BYTES
from spool.model import layout
from tests import door


class Watched(Disk):
    """Counts the commits that overwrote a file, and those that changed its size."""

    overwritten = changed = 0

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._sizes: dict[int, int] = {}

    def open_to_overwrite(self, name: str) -> tuple[int, int, bool]:
        handle, size, is_alone = super().open_to_overwrite(name)
        self._sizes[handle] = size
        self.overwritten += 1
        return handle, size, is_alone

    def close(self, handle: int) -> None:
        if (before := self._sizes.pop(handle, None)) is not None:
            self.changed += self.handle_identity(handle).size != before
        super().close(handle)

    _close = close


@pytest.mark.parametrize("size", [0, 1, 1024, 3_500, 4_096, 20_000, 300_000])
def test_the_file_of_a_put_and_of_a_removal_fill_their_size_class(size: int, tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("q")
        for _ in range(3):
            space.put("q", bytes(size))
        space.get("q")
        with space.transaction() as transaction:
            transaction.put("q", transaction.get("q").body)
    sizes = [file.stat().st_size for file in (tmp_path / "space" / layout.COMMITTED).iterdir()]
    assert len(sizes) == 5
    assert {size % CLASS_BYTES for size in sizes} == {0}


def test_commits_of_mixed_sizes_overwrite_files_without_a_change_of_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "space").mkdir()
    disk, sizes = Watched(str(tmp_path / "space")), random.Random(5)
    with spool.create(disk) as space:
        space.create_queue("q")
        for _ in range(3):
            for _ in range(40):
                space.put("q", sizes.randbytes(sizes.randrange(200, 3_000)))
            for _ in range(40):
                space.get("q")
            door.reclaim(space)
        before = disk.overwritten, disk.changed
        for _ in range(30):
            space.put("q", sizes.randbytes(sizes.randrange(200, 3_000)))
            space.get("q")
    assert disk.overwritten - before[0] >= 50
    assert disk.changed == before[1]
