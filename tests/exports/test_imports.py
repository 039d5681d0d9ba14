"""An import that fails at any step leaves nothing, and keeps the files that its directory had before."""

import errno
import io
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from spool.disk import Disk
from tests.exports.archives import contents, export_of

CALLS = ("create", "write_at", "set_modified", "flush", "make_durable", "flush_directory", "make_directory", "rename")


class _Failing:
    """A call of ``Disk`` that fails the n-th time, for want of room; 0: never."""

    def __init__(self, call: str, at: int) -> None:
        self._real, self._at, self.count = getattr(Disk, call), at, 0

    def __get__(self, disk: Disk, kind: type[Disk]) -> Any:
        return lambda *args, **kwargs: self(disk, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.count == self._at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(*args, **kwargs)


@pytest.mark.parametrize("call", CALLS)
def test_an_import_that_fails_leaves_nothing_or_a_whole_space(tmp_path: Path, call: str) -> None:
    data, whole = export_of("drop and branches in doubt", tmp_path / "of")
    with mock.patch.object(Disk, call, _Failing(call, 0)) as counted:
        spool.import_space(tmp_path / "counted", io.BytesIO(data)).close()
    nothing = 0
    for at in range(1, counted.count + 1):
        target = tmp_path / f"failed {at}"
        with mock.patch.object(Disk, call, _Failing(call, at)):
            try:
                spool.import_space(target, io.BytesIO(data)).close()
            except spool.DiskFailure:
                nothing += not target.exists()
        if target.exists():  # the import was done, and the opening or the close has failed, or no call of the import
            with spool.open(target) as space:
                assert contents(space) == whole
            break
    assert nothing


def test_an_empty_directory_of_the_users_own_stays(tmp_path: Path) -> None:
    for names in ([], ["lost+found"]):
        for name in names:
            (tmp_path / name).mkdir()
        with pytest.raises(spool.CorruptedFile):
            spool.import_space(tmp_path, io.BytesIO(b"no export"))
        assert os.listdir(tmp_path) == names
    data, whole = export_of("plain", tmp_path / "lost+found" / "of")
    with spool.import_space(tmp_path, io.BytesIO(data)) as space:
        assert contents(space) == whole


def test_nothing_is_imported_into_a_directory_with_something_in_it(tmp_path: Path) -> None:
    data, _ = export_of("plain", tmp_path / "of")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/committed").mkdir()
    for target in ("of", "mine"):
        before = sorted(os.walk(tmp_path / target))
        with pytest.raises(spool.SpaceExists):
            spool.import_space(tmp_path / target, io.BytesIO(data))
        assert sorted(os.walk(tmp_path / target)) == before


def test_the_mark_of_an_import_that_died_when_all_was_done_is_removed(tmp_path: Path) -> None:
    data, whole = export_of("plain", tmp_path / "of")
    spool.import_space(tmp_path / "copy", io.BytesIO(data)).close()
    (tmp_path / "copy/space.toml.import").touch()
    with spool.create(tmp_path / "copy", exist_ok=True) as space:
        assert contents(space) == whole
        assert space.check() == []
    assert not (tmp_path / "copy/space.toml.import").exists()
