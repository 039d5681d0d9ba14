"""With a mirror, nothing is heard of before it is durable on both disks; either one is enough (A05).

Power cuts of both disks are ``tests/crash/test_mirrored.py``'s.
"""

import errno
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

import spool
from spool import mirrors
from spool.coordination.locks import OpenLock
from spool.disk.disk import Disk, FlushFailed
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.model.xid import Xid
from spool.store.mirror import Mirror
from spool.transactions import two_phase
from spool.transactions.coordinated import CoordinatedTransaction
from tests.held import PATIENT_SECONDS
from tests.shown import bodies

XID = Xid(7, b"global", b"branch")


class Side(Disk):
    """The mirror's. ``hold``: flushes wait for it; ``fails`` is raised by writes."""

    hold: threading.Event | None = None
    came = threading.Event()
    fails: OSError | None = None

    def flush(self, handle: int) -> None:
        if self.hold is not None:
            self.came.set()
            assert self.hold.wait(PATIENT_SECONDS)
        super().flush(handle)

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        if self.fails is not None:
            raise self.fails
        super().write_at(handle, offset, data)


class Front(Disk):
    def sibling(self, root: str) -> Side:
        self.side = Side(root)
        return self.side


@pytest.fixture
def space(tmp_path: Path) -> spool.Space:
    (tmp_path / "space").mkdir()
    space = spool.create(
        tmp_path / "space", disk=Front(str(tmp_path / "space")), mirror=str(tmp_path / "mirror"), max_body_bytes=1000
    )
    space.create_queue("orders")
    return space


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def commits(mirror: Path) -> dict[str, bytes]:
    """The mirror without its id and its copy of the settings."""
    found = files(mirror)
    assert found.pop(layout.MIRROR_ID)
    assert found.pop(layout.MIRROR_SETTINGS)
    return found


def expect_same(path: Path) -> None:
    assert commits(path / "mirror") == files(path / "space" / "committed")


def branch(space: spool.Space) -> CoordinatedTransaction:
    return CoordinatedTransaction(space.engine, xid=XID, timeout=30.0)


def test_a05_every_commit_is_in_both_when_it_is_heard_of(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    expect_same(tmp_path)
    space.submit("orders", "b").result(PATIENT_SECONDS)
    expect_same(tmp_path)
    with space.transaction() as tx:
        tx.put("orders", tx.get("orders").body)
    expect_same(tmp_path)
    with space.transaction() as tx:
        tx.get("orders")
        tx.set_rollback_only()
    expect_same(tmp_path)
    space.get("orders")
    expect_same(tmp_path)
    tx = branch(space)
    tx.put("orders", "voted")
    tx.prepare()
    two_phase.commit_prepared(space.engine, XID, vote_known=True)
    assert any("-1" in name for name in files(tmp_path / "mirror"))
    expect_same(tmp_path)
    space.close()


def test_a_space_can_be_made_of_its_mirror(space: spool.Space, tmp_path: Path) -> None:
    ids = [space.put("orders", n) for n in range(5)]
    space.get("orders")
    space.close()
    shutil.rmtree(tmp_path / "space")
    before = files(tmp_path / "mirror")
    with mirrors.restore(tmp_path / "new", tmp_path / "mirror") as new:
        assert files(tmp_path / "mirror") == before
        assert [message.id for message in new.browse("orders")] == ids[1:]
        assert bodies(new) == [1, 2, 3, 4]
        new.put("orders", "more")
        assert new.check() == []


def test_a05_nothing_is_heard_of_before_the_mirror_has_it(space: spool.Space, tmp_path: Path) -> None:
    side = space._store.files.disk.side
    side.hold, go_on = threading.Event(), None
    side.came.clear()
    future = space.submit("orders", "a")
    assert side.came.wait(PATIENT_SECONDS)
    assert not future.done()
    with spool.open(tmp_path / "space") as other:
        assert bodies(other) == []
        go_on, side.hold = side.hold, None
        go_on.set()
        future.result(PATIENT_SECONDS)
        assert bodies(other) == ["a"]
    space.close()


def test_a_mirror_that_fails_stops_the_space_until_it_is_mended(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "before")
    space._store.files.disk.side.fails = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(spool.CommitUnknown, match="mirror") as unknown:
        space.put("orders", "unknown")
    assert len(unknown.value.ids) == 1
    with pytest.raises(spool.SpaceStopped):
        space.put("orders", "after")
    space.close()
    with mock.patch.object(Disk, "sibling", lambda disk, root: Front(disk.root).sibling(root)):
        with mock.patch.object(Side, "fails", OSError(errno.EIO, "still bad")), pytest.raises(spool.SpoolError):
            spool.open(tmp_path / "space")
        with spool.open(tmp_path / "space") as again:
            assert bodies(again) in (["before"], ["before", "unknown"])
            again.put("orders", "after")
            expect_same(tmp_path)
            assert again.check() == []


def test_a_mirror_that_is_taken_out_of_the_settings_is_asked_no_more(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.close()
    shutil.rmtree(tmp_path / "mirror")
    with pytest.raises(spool.SpoolError, match="mirror"):
        spool.open(tmp_path / "space")
    settings = tmp_path / "space" / "space.toml"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("mirror")))
    with spool.open(tmp_path / "space") as again:
        assert bodies(again) == ["a"]


def test_what_was_there_before_is_brought_over_by_who_opens_alone(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        space.put_many("orders", ["a", "b"])
        space.get("orders")
        tx = branch(space)
        tx.put("orders", "voted")
        tx.prepare()
        two_phase.commit_prepared(space.engine, XID, vote_known=True)
    with mirrors.begin(tmp_path / "space", tmp_path / "mirror"):
        expect_same(tmp_path)
    (tmp_path / "mirror" / "0000000000000099.msgpack.tmp").write_bytes(b"torn")
    with spool.open(tmp_path / "space") as space:
        expect_same(tmp_path)
        space.put("orders", "c")
        expect_same(tmp_path)


def test_reclaim_takes_the_mirror_s_files_too(space: spool.Space, tmp_path: Path) -> None:
    for n in range(10):
        space.put("orders", n)
        space.get("orders")
    assert reclaim(space._store) > 0
    expect_same(tmp_path)
    assert len(commits(tmp_path / "mirror")) < 10
    space.close()


class Told(Disk):
    """Tells which names appear and go, and when that is durable."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.did: list[str] = []

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.did.append(f"+{target}")

    def unlink(self, name: str) -> None:
        super().unlink(name)
        self.did.append(f"-{name}")

    def flush_directory(self, name: str) -> None:
        super().flush_directory(name)
        self.did.append("flush")


@pytest.fixture
def adopted(space: spool.Space, tmp_path: Path) -> tuple[int, Mirror, Told]:
    """A commit that adopted a branch: its number, and the mirror, which no other process uses now."""
    tx = branch(space)
    tx.put("orders", "voted")
    tx.prepare()
    two_phase.commit_prepared(space.engine, XID, vote_known=True)
    space.close()
    (number,) = (int(name[:16]) for name in commits(tmp_path / "mirror") if "-1." in name)
    side = Told(str(tmp_path / "mirror"))
    return number, Mirror(Disk(str(tmp_path / "space")), side), side


def test_a_branch_comes_over_before_its_head_unless_reclaim_was_removing_it(adopted: tuple[int, Mirror, Told]) -> None:
    number, mirror, side = adopted
    head, its_branch = f"{number:016}.msgpack", f"{number:016}-1.msgpack"
    for retired, first, second in ((set(), its_branch, head), ({number}, head, its_branch)):
        mirror.forget({number: 1})
        side.did.clear()
        mirror.catch_up(retired, {number: 1}, agrees=True)
        assert side.did == [f"+{first}", "flush", f"+{second}", "flush"]


def test_of_a_commit_that_the_space_has_reclaimed_the_head_goes_first(
    adopted: tuple[int, Mirror, Told], tmp_path: Path
) -> None:
    _, mirror, side = adopted
    for name in ("0000000000000099.msgpack", "0000000000000099-1.msgpack"):
        (tmp_path / "mirror" / name).write_bytes(b"a commit")
    mirror.catch_up(set(), {}, agrees=True)
    assert side.did == ["-0000000000000099.msgpack", "flush", "-0000000000000099-1.msgpack", "flush"]
    expect_same(tmp_path)


def set_mirror(path: Path, mirror: Path) -> None:
    """As somebody does who edits the file by hand."""
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
    for inside in (path / "mirror", path / "drop" / "mirror"):
        with pytest.raises(spool.InvalidArgument, match="lies inside the space"):
            mirrors.begin(path, inside)
        assert not inside.exists()
    mirrors.begin(path, tmp_path / "space-mirror").close()  # a longer name beside it is not inside


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
    monkeypatch.setattr(mirrors, "_WAIT_SECONDS", 0.0)
    both = [f"process {os.getpid()} (spool-admin)", "process 7 (python)"]
    monkeypatch.setattr(OpenLock, "holders", lambda lock: both)
    with pytest.raises(spool.SystemFailure, match=r"^process 7 \(python\) has "):
        mirrors.drop(space.path)
    both.append("process 8 (python)")
    with pytest.raises(spool.SystemFailure, match=r"^process 7 \(python\) and process 8 \(python\) have "):
        mirrors.drop(space.path)
    space.close()


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


def puts(path: Path, *texts: str) -> None:
    with spool.open(path) as space:
        for text in texts:
            space.put("orders", text)


def test_a_space_that_is_older_than_its_mirror_is_refused_and_restored(space: spool.Space, tmp_path: Path) -> None:
    """A backup of the space was put back: every acknowledged message is still in the mirror."""
    space.put("orders", "monday")
    space.close()
    shutil.copytree(tmp_path / "space", tmp_path / "backup")
    puts(tmp_path / "space", "tuesday", "wednesday")
    shutil.rmtree(tmp_path / "space")
    shutil.copytree(tmp_path / "backup", tmp_path / "space")
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


def test_the_one_commit_that_a_backup_lacks_comes_back_from_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    """Nothing tells it from the commit that a power cut took from the space alone: both are right to be there."""
    space.put("orders", "monday")
    space.close()
    shutil.copytree(tmp_path / "space", tmp_path / "backup")
    puts(tmp_path / "space", "tuesday")
    shutil.rmtree(tmp_path / "space")
    (tmp_path / "backup").rename(tmp_path / "space")
    with spool.open(tmp_path / "space") as again:
        assert bodies(again) == ["monday", "tuesday"]
        expect_same(tmp_path)


def test_a_damaged_commit_that_only_the_mirror_has_is_not_removed(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "monday")
    space.close()
    shutil.copytree(tmp_path / "space", tmp_path / "backup")
    puts(tmp_path / "space", "tuesday")
    shutil.rmtree(tmp_path / "space")
    (tmp_path / "backup").rename(tmp_path / "space")
    damaged = max((tmp_path / "mirror").glob("*.msgpack"))
    damaged.write_bytes(damaged.read_bytes().replace(b"tuesday", b"tUesday"))
    before = files(tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match="cannot be read"):
        spool.open(tmp_path / "space")
    assert files(tmp_path / "mirror") == before


def test_what_the_space_lost_by_damage_stays_in_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.put("orders", "b")
    space.close()
    lost = min((tmp_path / "space" / "committed").iterdir())
    lost.unlink()
    with spool.open(tmp_path / "space") as again:
        assert again.recovery.damaged
        assert bodies(again) == ["b"]
    for _ in range(2):  # not even if the loss is no longer counted as one
        with spool.open(tmp_path / "space") as again:
            assert [finding.kind for finding in again.check(repair=True)] == ["damaged"]
        assert lost.name in files(tmp_path / "mirror")
    with mirrors.restore(tmp_path / "new", tmp_path / "mirror") as new:
        assert "a" in bodies(new)
        assert new.check() == []


def test_a_space_that_went_on_without_its_mirror_does_not_take_it_again(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    space.close()
    before = files(tmp_path / "mirror")
    assert mirrors.drop(tmp_path / "space") == str(tmp_path / "mirror")
    with pytest.raises(spool.InvalidArgument, match="has no mirror"):
        mirrors.drop(tmp_path / "space")
    puts(tmp_path / "space", "b")
    set_mirror(tmp_path / "space", tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match="before it went on without this mirror"):
        spool.open(tmp_path / "space")
    assert files(tmp_path / "mirror") == before


def test_a_copy_of_a_space_does_not_write_into_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "a")
    shutil.copytree(tmp_path / "space", tmp_path / "copy")
    before = files(tmp_path / "mirror")
    with pytest.raises(spool.MirrorMismatch, match="a copy of"):
        spool.open(tmp_path / "copy")
    with pytest.raises(spool.MirrorMismatch, match="close its space"):
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


def test_an_opening_that_fails_behind_the_lock_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_failed_flush_of_the_space_s_own_waits_for_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    """Or its thread would use descriptors that are closed, and somebody else's by then."""
    with mock.patch.object(space._store.files.disk, "make_durable", side_effect=FlushFailed(errno.EIO, "bad")):
        with pytest.raises(spool.CommitUnknown):
            space.put("orders", "a")
    assert not [thread for thread in threading.enumerate() if thread.name == "xaspool mirror" and thread.is_alive()]
    space.close()


def test_a_space_that_opens_as_a_restore_looks_at_the_locks_keeps_it_from_the_mirror_or_is_kept(
    space: spool.Space, tmp_path: Path
) -> None:
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
    """The others close between the two: nobody else holds the mirror as the restore looks."""
    space.close()
    restoring, joining = (
        Mirror(Disk(str(tmp_path / name)), Disk(str(tmp_path / "mirror"))) for name in ("new", "space")
    )
    try:
        restoring.hold_for_restore()
        with pytest.raises(spool.MirrorMismatch, match="restores a space from it"):
            joining.hold(alone=False)
    finally:
        restoring.disk.close_all()
        joining.disk.close_all()
