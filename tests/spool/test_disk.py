"""The seam's flushes reach the system, and one that fails is an error of its own kind."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from spool.disk import Disk, FlushFailed

FLUSHES: dict[str, Callable[[Disk, int], None]] = {
    "flush": lambda disk, handle: disk.flush(handle),
    "flush_directory": lambda disk, handle: disk.flush_directory(""),
    "make_durable": lambda disk, handle: disk.make_durable(handle, ""),
}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("flush", FLUSHES.values(), ids=FLUSHES)
def test_a_flush_is_asked_of_the_system_and_its_failure_is_told(
    tmp_path: Path, flush: Callable[[Disk, int], None], ordered: bool
) -> None:
    disk = Disk(str(tmp_path))
    disk.ordered = ordered
    handle = disk.create("file")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fail.__name__ = "fsync"
    with mock.patch("os.fsync", fail), mock.patch("os.fdatasync", fail), pytest.raises(FlushFailed):
        flush(disk, handle)
    flush(disk, handle)
    disk.close(handle)


@pytest.mark.parametrize(("ordered", "expected"), [(True, ["fsync"]), (False, ["fdatasync", "fsync"])])
def test_what_makes_a_name_durable_is_the_file_or_the_file_and_its_directory(
    tmp_path: Path, ordered: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fsync(handle: int) -> None:
        asked.append("fsync")

    def fdatasync(handle: int) -> None:
        asked.append("fdatasync")

    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr("os.fdatasync", fdatasync)
    disk = Disk(str(tmp_path))
    disk.ordered = ordered
    handle = disk.create("file")
    disk.make_durable(handle, "")
    disk.close(handle)
    assert asked == expected
