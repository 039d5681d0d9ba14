"""The files of run/ that processes map have all their blocks on the disk, also in a copy of a space that has holes.

If a process stores into a hole of a mapped file, and the disk is full, the kernel kills the process (SIGBUS).
"""

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

import spool
from spool.disk.disk import Disk
from spool.model import layout
from tests.spaces import path_with

MAPPED = (layout.COUNTERS, layout.FEED, layout.REQUESTS)


path = path_with("orders", messages={"orders": ["first"]})


def first_hole(path: Path, name: str) -> int:
    handle = os.open(path / name, os.O_RDONLY)
    try:
        return os.lseek(handle, 0, os.SEEK_HOLE)
    finally:
        os.close(handle)


def make_sparse(path: Path, name: str) -> None:
    """Replace a file by a file of the same length without a block, as a sparse copy of zeros is."""
    size = (path / name).stat().st_size
    (path / name).unlink()
    with open(path / name, "wb") as file:
        file.truncate(size)
    if first_hole(path, name) == size:
        pytest.skip("this file system does not tell where a file has holes")


@pytest.mark.parametrize("name", MAPPED)
def test_the_first_opener_of_a_sparse_copy_gives_a_mapped_file_all_its_blocks(path: Path, name: str) -> None:
    make_sparse(path, name)
    with spool.open(path) as space:
        assert first_hole(path, name) == (path / name).stat().st_size > 0
        assert space.get("orders").body == "first"


@pytest.mark.parametrize("name", [layout.FEED, layout.REQUESTS])
def test_without_room_for_its_blocks_a_file_is_not_mapped_and_messages_are_taken_without_it(path: Path, name: str):
    make_sparse(path, name)
    size, write_at = (path / name).stat().st_size, Disk.write_at

    def refuse(disk: Disk, handle: int, offset: int, data: bytes) -> None:
        if len(data) == size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_at(disk, handle, offset, data)

    with mock.patch.object(Disk, "write_at", refuse):
        space = spool.open(path)
    with space:
        assert (path / name).stat().st_size == 0
        assert space.get("orders").body == "first"
        with spool.open(path) as other:
            other.put("orders", "second")
        assert space.get("orders").body == "second"
