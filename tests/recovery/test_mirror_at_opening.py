"""A space and its mirror as the space is opened: the opener refuses, brings over or gives back, by which is ahead.

Power cuts of both disks: ``tests/crash/test_mirrored.py``; of a restore: ``tests/crash/test_restoring.py``.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spool
from spool import mirrors
from spool.disk.disk import Disk
from spool.disk.kernel import ProcessLock
from spool.model import layout
from spool.store.mirror import Mirror
from tests import door
from tests.shown import bodies
from tests.store.mirrored import expect_same, files


@pytest.fixture
def space(tmp_path: Path) -> spool.Space:
    (tmp_path / "space").mkdir()
    space = spool.create(tmp_path / "space", mirror=str(tmp_path / "mirror"), max_body_bytes=1000)
    space.create_queue("orders")
    return space


def set_mirror(path: Path, mirror: Path) -> None:
    """Write the mirror into ``space.toml``, as an edit by hand does."""
    settings = path / "space.toml"
    lines = [line for line in settings.read_text().splitlines(keepends=True) if not line.startswith("mirror")]
    settings.write_text("".join([f'mirror = "{mirror}"\n', *lines]))


def test_the_mirror_of_another_space_is_refused(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.close()
    with pytest.raises(spool.InvalidArgument, match="not empty"):
        spool.create(tmp_path / "other", mirror=str(tmp_path / "mirror"))
    with spool.create(tmp_path / "other") as other:
        other.create_queue("orders")
        for n in range(100):
            other.put("orders", n)
    before = files(tmp_path / "mirror")
    set_mirror(tmp_path / "other", tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match=r"another space.*mirror begin"):
        spool.open(tmp_path / "other")
    assert files(tmp_path / "mirror") == before
    with pytest.raises(spool.InvalidArgument, match="absolute"):
        spool.create(tmp_path / "third", mirror="near")


def test_a_mirror_inside_its_space_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "space"
    for inside in (path / "mirror", path / "drop" / "mirror"):
        with pytest.raises(spool.InvalidArgument, match="lies inside the space"):
            spool.create(path, mirror=str(inside))
    spool.create(path).close()
    (tmp_path / "link").symlink_to(path)
    for inside in (path / "mirror", path / "drop" / "mirror", tmp_path / "link" / "mirror"):
        with pytest.raises(spool.InvalidArgument, match="lies inside the space"):
            mirrors.begin(path, inside)
        assert not inside.exists()
    mirrors.begin(path, tmp_path / "space-mirror").close()  # a longer name beside it is not inside


def test_a_repair_leaves_a_damaged_commit_to_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    """The mirror would follow the repair."""
    first, _ = space.put_many("orders", ["one", "two"])
    damaged = tmp_path / "space" / layout.committed(space.show(first).position.number)
    assert space.get("orders").body == "one"
    space.close()
    damaged.write_bytes(bytes(100))
    with spool.open(tmp_path / "space") as damaged_space:
        assert [finding.action for finding in damaged_space.check(repair=True)] == [""]
        for number in range(100):
            damaged_space.put("orders", number)
            door.reclaim(damaged_space)
    with mirrors.restore(tmp_path / "restored", tmp_path / "mirror") as restored:
        assert bodies(restored) == ["two", *range(100)]


def test_a_space_is_not_made_inside_the_mirror_that_it_is_made_of(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "one")
    space.close()
    before = files(tmp_path / "mirror")
    with pytest.raises(spool.InvalidArgument, match="lies inside the mirror"):
        mirrors.restore(tmp_path / "mirror" / "new", tmp_path / "mirror")
    assert files(tmp_path / "mirror") == before


def test_a_change_of_the_mirror_names_the_other_processes_that_have_the_space_open(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "WAIT_SECONDS", 0.0)
    both = [ProcessLock(0, 0, 2**62, os.getpid(), "spool-admin"), ProcessLock(0, 0, 2**62, 7, "python")]
    monkeypatch.setattr(Disk, "process_locks", lambda disk, handles: both)
    with pytest.raises(spool.SystemFailure, match=r"^process 7 \(python\) has "):
        mirrors.drop(space.path)
    both.append(both[1]._replace(pid=8))
    with pytest.raises(spool.SystemFailure, match=r"^process 7 \(python\) and process 8 \(python\) have "):
        mirrors.drop(space.path)
    space.close()


def test_a_mirror_is_in_use_until_the_last_process_has_left_its_space(space: spool.Space, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "space", tmp_path / "copy")
    with spool.open(tmp_path / "space"):
        space.close()
        with pytest.raises(spool.MirrorMismatch, match="in use"):
            spool.open(tmp_path / "copy")


def test_a_mount_point_whose_disk_is_missing_is_no_mirror(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.close()
    mirror = (tmp_path / "mirror").rename(tmp_path / "unmounted")
    for leave in (lambda: None, (tmp_path / "mirror").mkdir):
        leave()
        with pytest.raises(spool.MirrorMismatch, match="Mount the disk"):
            spool.open(tmp_path / "space")
    assert files(tmp_path / "mirror") == {}
    (tmp_path / "mirror").rmdir()
    mirror.rename(tmp_path / "mirror")
    with spool.open(tmp_path / "space") as again:
        assert bodies(again) == ["a"]


def test_an_older_state_of_the_mirror_is_brought_up_to_date(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.close()
    shutil.copytree(tmp_path / "mirror", tmp_path / "older")
    with spool.open(tmp_path / "space") as again:
        for n in range(5):
            again.put("orders", n)
    shutil.rmtree(tmp_path / "mirror")
    (tmp_path / "older").rename(tmp_path / "mirror")
    spool.open(tmp_path / "space").close()
    expect_same(tmp_path)


def put_back_from_backup(space: spool.Space, path: Path, *later: str) -> None:
    """Leave the space as it was after its message "monday"; its mirror has the later messages, too."""
    space.put("orders", "monday")
    space.close()
    shutil.copytree(path / "space", path / "backup")
    with spool.open(path / "space") as again:
        for text in later:
            again.put("orders", text)
    shutil.rmtree(path / "space")
    (path / "backup").rename(path / "space")


def test_a_space_that_is_older_than_its_mirror_is_refused_and_restored(space: spool.Space, tmp_path: Path) -> None:
    """A backup of the space was put back: every acknowledged message is still in the mirror."""
    put_back_from_backup(space, tmp_path, "tuesday", "wednesday")
    before = files(tmp_path / "mirror"), files(tmp_path / "space" / "committed")
    with pytest.raises(spool.MirrorMismatch, match=r"older than its mirror.*mirror restore.*mirror begin"):
        spool.open(tmp_path / "space")
    assert before == (files(tmp_path / "mirror"), files(tmp_path / "space" / "committed"))
    with pytest.raises(spool.SpaceExists, match="not empty"):
        mirrors.restore(tmp_path / "space", tmp_path / "mirror")
    (tmp_path / "space").rename(tmp_path / "older")
    with mirrors.restore(tmp_path / "space", tmp_path / "mirror") as restored:
        assert bodies(restored) == ["monday", "tuesday", "wednesday"]
        assert restored.check() == []
    with mirrors.begin(tmp_path / "older", tmp_path / "new mirror") as older:
        assert bodies(older) == ["monday"]
    assert files(tmp_path / "mirror") == before[0]


def test_the_mirror_gives_back_the_one_commit_that_a_backup_lacks(space: spool.Space, tmp_path: Path) -> None:
    """The opener cannot tell this commit from a commit that a power cut took from the space alone, and both belong into
    the space."""
    put_back_from_backup(space, tmp_path, "tuesday")
    with spool.open(tmp_path / "space") as again:
        assert bodies(again) == ["monday", "tuesday"]
        expect_same(tmp_path)


@pytest.mark.parametrize("damage", [lambda one, _: one.replace(b"tuesday", b"tUesday"), lambda _, other: other])
def test_a_damaged_commit_that_only_the_mirror_has_is_not_removed(space: spool.Space, tmp_path: Path, damage: Any):
    put_back_from_backup(space, tmp_path, "tuesday")
    other, damaged = sorted((tmp_path / "mirror").glob("*.msgpack"))
    damaged.write_bytes(damage(damaged.read_bytes(), other.read_bytes()))
    before = files(tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match="cannot be read"):
        spool.open(tmp_path / "space")
    assert files(tmp_path / "mirror") == before


def test_a_commit_lost_by_damage_remains_in_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    """Reclaim waits, otherwise the mirror would have the taken message without its removal."""
    space.put_many("orders", ["taken", "a"])
    space.get("orders")
    space.put("orders", "b")
    space.close()
    lost = min((tmp_path / "space" / "committed").iterdir())
    lost.unlink()
    with spool.open(tmp_path / "space") as again:
        assert again.recovery.damaged
        assert (bodies(again), door.reclaim(again)) == (["b"], 0)
    for _ in range(2):  # not even if the loss is no longer counted as one
        with spool.open(tmp_path / "space") as again:
            assert [finding.kind for finding in again.check(repair=True)] == ["damaged"]
        assert lost.name in files(tmp_path / "mirror")
    with mirrors.restore(tmp_path / "new", tmp_path / "mirror") as new:
        assert bodies(new) == ["a", "b"]
        assert new.check() == []


def test_a_space_that_went_on_without_its_mirror_does_not_take_it_again(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.close()
    before = files(tmp_path / "mirror")
    assert mirrors.drop(tmp_path / "space") == str(tmp_path / "mirror")
    with pytest.raises(spool.InvalidArgument, match="has no mirror"):
        mirrors.drop(tmp_path / "space")
    with spool.open(tmp_path / "space") as again:
        again.put("orders", "b")
    set_mirror(tmp_path / "space", tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match="before it continued without this mirror"):
        spool.open(tmp_path / "space")
    assert files(tmp_path / "mirror") == before


def test_a_copy_of_a_space_does_not_write_into_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    shutil.copytree(tmp_path / "space", tmp_path / "copy")
    before = files(tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match="a copy of"):
        spool.open(tmp_path / "copy")
    with pytest.raises(spool.MirrorMismatch, match="in use by a process now: close its"):  # (not by this one)
        mirrors.restore(tmp_path / "restored", tmp_path / "mirror")
    assert not (tmp_path / "restored" / "space.toml").exists()
    for change in (
        lambda: mirrors.drop(tmp_path / "space"),
        lambda: mirrors.begin(tmp_path / "space", tmp_path / "new"),
    ):
        with pytest.raises(spool.SystemFailure, match="close it in every process"):
            change()
    assert files(tmp_path / "mirror") == before
    space.close()
    with spool.open(tmp_path / "space") as one, spool.open(tmp_path / "space") as other:
        one.put("orders", "b")
        assert bodies(other) == ["a", "b"]


def test_the_mirror_has_the_queues_of_its_space(space: spool.Space, tmp_path: Path) -> None:
    space.create_queue("parcels", order=("priority", "fifo"))
    space.put("parcels", "a")
    space.close()
    with mirrors.restore(tmp_path / "new", tmp_path / "mirror") as new:
        assert new.queues()["parcels"].order == ("priority", "fifo")
        assert new.get("parcels").body == "a"
    with pytest.raises(spool.NotASpace, match="not the mirror"):
        mirrors.restore(tmp_path / "newer", tmp_path / "new")


def test_an_opening_that_fails_after_the_lock_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spool.create(tmp_path / "space", mirror=str(tmp_path / "mirror")).close()
    mirrors: list[Mirror] = []

    def fails(mirror: Mirror, *args: object, **options: object) -> None:
        mirror.disk.open_directory("")
        mirrors.append(mirror)
        raise KeyboardInterrupt

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(Mirror, "catch_up", fails)
        with pytest.raises(KeyboardInterrupt):
            spool.open(tmp_path / "space")
    assert mirrors
    assert os.listdir("/proc/self/fd") == before
    spool.open(tmp_path / "space").close()


def test_of_an_opening_and_a_restore_at_the_same_time_one_is_refused_the_mirror(space: spool.Space, tmp_path: Path):
    space.close()
    opened: list[spool.Space] = []

    class Restoring(Disk):
        looks = 0

        def _look(self) -> None:
            self.looks += 1
            if self.looks == 2:
                with suppress(spool.MirrorMismatch):
                    opened.append(spool.open(tmp_path / "space"))

        def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
            self._look()
            return super().lock(handle, start, length, shared=shared)

        def some_lock(self, handle: int, start: int, length: int) -> tuple[int, int] | None:
            self._look()
            return super().some_lock(handle, start, length)

    side = Restoring(str(tmp_path / "mirror"))
    try:
        Mirror(Disk(str(tmp_path / "new")), side).hold_for_restore()
        restores = True
    except spool.MirrorMismatch:
        restores = False
    finally:
        side.close_all()
        for one in opened:
            one.close()
    assert side.looks >= 2
    assert restores is not bool(opened)


def test_a_process_that_joins_others_does_not_get_past_a_restore(space: spool.Space, tmp_path: Path) -> None:
    """The other processes close in between: no process holds the mirror when the restore checks."""
    space.close()
    mirror = str(tmp_path / "mirror")
    restoring, joining = (Mirror(Disk(str(tmp_path / name)), Disk(mirror)) for name in ("new", "space"))
    try:
        restoring.hold_for_restore()
        with pytest.raises(spool.MirrorMismatch, match="restores a space from it"):
            joining.hold(alone=False)
    finally:
        restoring.disk.close_all()
        joining.disk.close_all()
