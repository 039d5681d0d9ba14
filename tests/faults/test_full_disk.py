"""A full disk: puts fail clearly and lose nothing; gets succeed, because a removal fits into existing files."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

import spool
from spool.errors import DiskFailure
from tests import door
from tests.at_once import AT_ONCE
from tests.full import no_room
from tests.machine import NO_FILES, Machine, error_of
from tests.simdisk import SimulatedDisk


class FullDisk(SimulatedDisk):
    """Once ``full``, no file grows; existing files can be overwritten, renamed and removed."""

    full = False

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        room = len(self._handle(handle).data) - offset
        if self.full and room < len(data):
            super().write_at(handle, offset, data[: max(0, room)])
            raise error_of(errno.ENOSPC, str(handle))
        super().write_at(handle, offset, data)


@pytest.mark.parametrize("in_transactions", [False, True], ids=["get", "a transaction's get"])
def test_every_message_can_be_taken_from_a_full_disk(in_transactions: bool) -> None:
    machine = Machine(NO_FILES)
    disk = FullDisk(machine)
    bodies = [f"message {place}" for place in range(40)]
    with spool.create(disk, defaults=AT_ONCE) as space:
        space.create_queue("a")
        for body in bodies:
            space.put("a", body)
        disk.full = True
        with pytest.raises(DiskFailure, match="free space on the disk") as refused:
            space.put("a", "no room for this")
        assert refused.value.errno == errno.ENOSPC
        assert f"{error_of(errno.ENOSPC, '').strerror}: " in str(refused.value), "it names a path"
        for body in bodies:
            if in_transactions:
                with space.transaction() as tx:
                    assert tx.get("a").body == body
            else:
                assert space.get("a").body == body
        with pytest.raises(spool.Empty):
            space.get("a")
        assert space.check() == []
    machine = Machine(machine.image(), boot=2)
    with spool.open(SimulatedDisk(machine)) as space:
        assert space.stats("a").ready == 0
        assert not space.check()


def test_a_message_that_cannot_be_taken_from_a_full_disk_remains() -> None:
    """Many messages of one commit: each get needs a file, and none is free before the last message is taken."""
    machine = Machine(NO_FILES)
    disk = FullDisk(machine)
    with spool.create(disk, defaults=AT_ONCE) as space:
        space.create_queue("a")
        space.put_many("a", [f"message {place}" for place in range(10)])
        disk.full = True
        taken = []
        with pytest.raises(DiskFailure):
            while True:
                taken.append(space.get("a").body)
        disk.full = False
        taken += [message.body for message in space.get_many("a", 100)]
        assert taken == [f"message {place}" for place in range(10)]
        assert space.check() == []


@pytest.mark.root
def test_a_real_file_system_without_room(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("this machine may not mount a tmpfs")
    try:
        with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
            space.create_queue("a")
            put = 0
            with pytest.raises(DiskFailure) as refused:
                while True:
                    space.put("a", bytes(100_000))
                    put += 1
            assert refused.value.errno == errno.ENOSPC
            for _ in range(put):
                assert len(space.get("a").body) == 100_000
            assert space.check() == []
            space.put("a", b"there is room again")
        with spool.open(tmp_path / "space") as space:
            assert space.get("a").body == b"there is room again"
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_the_housekeeping_tells_the_next_step_of_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*, due: bool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with spool.create(tmp_path / "space") as space:
        monkeypatch.setattr(door.housekeeper(space), "_do_steps", full)
        assert door.housekeep(space, due=False)
    assert "housekeeping stopped early: [Errno 28] No space left on device: free space on the disk" in caplog.text
    assert "spool-admin queue purge works without room" in caplog.text


def test_the_housekeeping_reclaims_although_a_compaction_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("a")
        space.put("a", 1)
        space.get("a")
        housekeeper, reclaims = door.housekeeper(space), list[int]()
        monkeypatch.setattr(housekeeper._compactor, "has_work", no_room)
        monkeypatch.setattr(housekeeper, "_reclaim", lambda behind, _: reclaims.append(behind))
        monkeypatch.setattr("spool.maintenance.triggers.is_reclaim_due", lambda *_, **__: True)
        assert door.housekeep(space)
    assert reclaims
    assert "housekeeping stopped early: [Errno 28] No space left on device: free space on the disk" in caplog.text
