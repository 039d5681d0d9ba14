"""Faults at real files: system calls below the seam are short, descriptors run out or calls fail, and none leaks."""

import errno
import gc
import os
import shutil
from pathlib import Path

import pytest

import spool
from spool.disk import Disk
from spool.errors import DiskFailure, SpoolError
from tests.at_once import AT_ONCE
from tests.faults.disks import FaultyDisk
from tests.faults.harness import drain, look, play
from tests.faults.plan import Plan, Spread
from tests.histories.contents import QUEUES, Contents
from tests.histories.history import History
from tests.histories.table import BY_NAME, HISTORIES
from tests.strides import Stride

SOME = [BY_NAME[name] for name in ("transaction", "two-phase commit", "reclaim", "intake")]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _template(path: Path, history: History) -> Path:
    with spool.create(path, defaults=AT_ONCE) as space:
        for queue in QUEUES:
            space.create_queue(queue)
        history.setup(space)
    return path


def _play_on(path: Path, history: History, plan: Plan) -> frozenset[Contents]:
    """The contents that may be found after the history; the plan's fault comes once the space is open."""
    space, trial = play(history, FaultyDisk(str(path), plan), plan)
    plan.armed = False
    space.close()
    return trial.allowed


@pytest.mark.every(2)
@pytest.mark.parametrize("history", SOME, ids=str)
def test_each_call_fails_on_real_files(history: History, tmp_path: Path, stride: Stride) -> None:
    template = _template(tmp_path / "template", history)
    gc.collect()  # otherwise spaces that earlier tests interrupted are closed while this test counts
    before = _descriptors()
    for begin in range(1, 10_000, stride(9)):
        plan = Plan(errno.EIO, begin, Spread.ONCE)
        path = Path(shutil.copytree(template, tmp_path / str(begin)))
        allowed = _play_on(path, history, plan)
        assert _descriptors() == before, plan
        with spool.open(path) as space:
            history.finish(space)
            shown = look(space)
            assert shown in allowed, plan
            assert not space.check() or shown.in_doubt, plan
            drain(space, shown)
        shutil.rmtree(path)
        if not plan.failed:
            return
    raise AssertionError("the history has no end")


@pytest.mark.parametrize(
    "history", [h for h in HISTORIES if h.name not in ("close", "a due message of a schedule")], ids=str
)
def test_short_reads_and_writes_go_on(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may read or write only half of the bytes each time."""
    pread, pwrite = os.pread, os.pwrite
    path = _template(tmp_path / "space", history)
    monkeypatch.setattr("os.pread", lambda handle, length, offset: pread(handle, (length + 1) // 2, offset))
    monkeypatch.setattr("os.pwrite", lambda handle, data, at: pwrite(handle, data[: (len(data) + 1) // 2], at))
    allowed = _play_on(path, history, Plan())
    monkeypatch.undo()
    with spool.open(path) as space:
        assert look(space) in allowed
        drain(space, look(space))


@pytest.mark.parametrize("then", [0, errno.ENOSPC])
def test_a_write_that_stays_short_is_a_full_disk(then: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("a")
        space.put("a", "there")
        calls = []

        def short(handle: int, data: bytes, offset: int) -> int:
            calls.append(offset)
            if len(calls) % 2:
                return pwrite(handle, data[: len(data) // 2], offset)
            if then:
                raise OSError(then, os.strerror(then))
            return 0

        monkeypatch.setattr("os.pwrite", short)
        with pytest.raises(DiskFailure) as refused:
            space.put("a", "too much")
        monkeypatch.undo()
        assert refused.value.errno == errno.ENOSPC
        assert (space.get("a").body, space.stats("a").ready) == ("there", 0)


def test_no_descriptors_left(tmp_path: Path) -> None:
    """EMFILE by the kernel itself: the call fails clearly, and works again when descriptors are free."""
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("a")
        space.put_many("a", ["one", "two"])
        taken = []
        with pytest.raises(OSError, match="open files"):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        try:
            with pytest.raises(SpoolError, match="ulimit"):
                space.put("a", "no")
            with pytest.raises(SpoolError, match="ulimit"):
                space.get("a")
        finally:
            for handle in taken:
                os.close(handle)
        assert [message.body for message in space.get_many("a", 5)] == ["one", "two"]


def test_a_file_that_cannot_be_looked_for_is_not_called_absent(tmp_path: Path) -> None:
    os.symlink("loop", tmp_path / "loop")
    disk = Disk(str(tmp_path))
    with pytest.raises(OSError, match="symlink"):
        disk.exists("loop/x")
    assert disk.exists("loop")
    assert not disk.exists("none/x")
