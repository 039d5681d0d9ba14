"""The disk's flushes reach the system, and a failed flush raises FlushFailed."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from spool.disk.disk import Disk, FlushFailed
from spool.disk.durability import durability_of
from spool.disk.stat import Guarantees

FLUSHES: dict[str, Callable[[Disk, int], None]] = {
    "flush": lambda disk, handle: disk.flush(handle),
    "flush_directory": lambda disk, handle: disk.flush_directory(""),
    "make_durable": lambda disk, handle: disk.make_durable(handle, ""),
}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("flush", FLUSHES.values(), ids=FLUSHES)
def test_a_flush_is_asked_of_the_system_and_its_failure_is_raised(
    tmp_path: Path, flush: Callable[[Disk, int], None], ordered: bool
) -> None:
    disk = Disk(str(tmp_path))
    disk.durability = durability_of(Guarantees(orders_renames=ordered))
    handle = disk.create("file")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fail.__name__ = "fsync"
    with mock.patch("os.fsync", fail), mock.patch("os.fdatasync", fail), pytest.raises(FlushFailed):
        flush(disk, handle)
    flush(disk, handle)
    disk.close(handle)


@pytest.mark.parametrize(
    ("ordered", "carries", "new", "expected"),
    [
        (True, True, True, ["fsync"]),
        (True, True, False, ["fsync"]),
        (False, False, True, ["fdatasync", "fsync"]),
        (False, True, True, ["fdatasync"]),
        (False, True, False, ["fdatasync", "fsync"]),
    ],
)
def test_a_name_becomes_durable_with_the_file_or_with_file_and_directory(
    tmp_path: Path, ordered: bool, carries: bool, new: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fsync(handle: int) -> None:
        asked.append("fsync")

    def fdatasync(handle: int) -> None:
        asked.append("fdatasync")

    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr("os.fdatasync", fdatasync)
    disk = Disk(str(tmp_path))
    disk.durability = durability_of(Guarantees(orders_renames=ordered, carries_new_names=carries))
    handle = disk.create("file")
    disk.make_durable(handle, "", new=new)
    disk.close(handle)
    assert asked == expected


@pytest.mark.parametrize("follow", [True, False], ids=["names follow", "names do not follow"])
@pytest.mark.parametrize("stamped", [True, False], ids=["stamped", "not stamped"])
def test_a_stamped_file_is_flushed_without_its_name_where_names_follow(
    tmp_path: Path, follow: bool, stamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{call}", lambda handle, call=call: asked.append(call))
    disk = Disk(str(tmp_path))
    disk.durability = durability_of(Guarantees(orders_renames=True, names_follow=follow))
    handle = disk.create("file")
    disk.make_durable(handle, "", new=True, stamped=stamped)
    disk.close(handle)
    assert asked == ["fdatasync" if follow and stamped else "fsync"]


def test_where_a_new_name_takes_two_steps_no_flush_carries_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without renameat2 a file has both its names for a moment, and the kernel may take the first for the file's."""
    disk = Disk(str(tmp_path))
    disk.durability = durability_of(Guarantees(carries_new_names=True))
    disk.close(disk.create("old"))
    monkeypatch.setattr("spool.disk.disk.renameat2", lambda *names: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.ENOSYS)
    disk.rename_new("old", "new")
    assert disk.names("") == ["new"]
    handle, before = disk.open("new"), disk.flushes
    disk.make_durable(handle, "", new=True)
    disk.close(handle)
    assert disk.flushes == before + 2


class OneAtATime(Disk):
    """Two of these are two processes, as far as the kernel's locks know: both flush in turn."""

    def __init__(self, root: str, meanwhile: Callable[[], None], *, carries: bool = False) -> None:
        super().__init__(root)
        self.durability = durability_of(Guarantees(carries_new_names=carries, needs_turns=True))
        self._meanwhile = meanwhile

    def flush(self, handle: int, **how: bool) -> None:
        self._meanwhile()
        super().flush(handle, **how)


@pytest.mark.parametrize("carries", [True, False], ids=["with the file", "with the directory"])
@pytest.mark.parametrize("other_carries", [True, False], ids=["by a file", "by the directory"])
def test_names_of_one_directory_are_flushed_by_one_at_a_time(
    tmp_path: Path, carries: bool, other_carries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, on a file system without a journal, the second flush could return before its names are on the disk."""
    monkeypatch.setattr("spool.disk.kernel._TURN_SECONDS", 0.0)
    (tmp_path / "names").mkdir()
    second = OneAtATime(str(tmp_path), lambda: None, carries=other_carries)
    theirs = second.create("names/theirs")
    refused = []

    def meanwhile() -> None:
        for flush in (lambda: second.make_durable(theirs, "names", new=True), lambda: second.flush_directory("names")):
            with pytest.raises(TimeoutError):
                flush()
            refused.append(flush)

    first = OneAtATime(str(tmp_path), meanwhile, carries=carries)
    ours = first.create("names/ours")
    first.make_durable(ours, "names", new=True)
    assert refused
    second.make_durable(theirs, "names", new=True)
    second.flush_directory("names")


def test_a_flush_waits_for_its_turn(tmp_path: Path) -> None:
    (tmp_path / "names").mkdir()
    disk = OneAtATime(str(tmp_path), lambda: None)
    other = OneAtATime(str(tmp_path), lambda: None)
    begun, go_on = threading.Event(), threading.Event()

    def hold_on() -> None:
        begun.set()
        assert go_on.wait(60)

    disk._meanwhile = hold_on
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(disk.flush_directory, "names")
        assert begun.wait(60)
        second = pool.submit(other.flush_directory, "names")
        assert other.flushes == 0
        go_on.set()
        first.result(60)
        second.result(60)
    assert (disk.flushes, other.flushes) == (1, 1)


def test_a_turn_ends_although_a_forked_child_has_a_copy_of_the_directory_s_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spool.disk.kernel._TURN_SECONDS", 0.0)
    copies = []

    class Forking(OneAtATime):
        def flock(self, handle: int) -> bool:
            copies.append(os.dup(handle))
            return super().flock(handle)

    (tmp_path / "names").mkdir()
    Forking(str(tmp_path), lambda: None).flush_directory("names")
    OneAtATime(str(tmp_path), lambda: None).flush_directory("names")
    for copy in copies:
        os.close(copy)
    assert copies


def test_a_user_who_locks_a_folder_for_dropped_files_holds_up_no_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spool.disk.kernel._TURN_SECONDS", 0.0)
    for name in ("run", "drop/q"):
        (tmp_path / name).mkdir(parents=True)
    disk, of_another_user = (OneAtATime(str(tmp_path), lambda: None) for _ in range(2))
    assert of_another_user.flock(of_another_user.open_directory("drop/q"))
    disk.flush_directory("drop/q")
    assert disk.flushes == 1


def test_an_opener_that_holds_the_space_can_flush_its_names(tmp_path: Path) -> None:
    disk = OneAtATime(str(tmp_path), lambda: None)
    assert disk.flock(disk.open_directory(""))
    disk.flush_directory("")
    assert disk.flushes == 1
    disk.close_all()
