"""With a mirror, nothing is heard of before it is durable on both disks; either one is enough (A05).

Power cuts of both disks are ``tests/crash/test_mirrored.py``'s.
"""

import errno
import os
import shutil
import threading
from pathlib import Path
from unittest import mock

import pytest

import spool
from spool import mirrors
from spool.disk.disk import Disk, FlushFailed
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from spool.store.mirror import Mirror
from spool.transactions.coordinated import CoordinatedTransaction
from tests import door
from tests.held import PATIENT_SECONDS
from tests.shown import bodies
from tests.store.mirrored import commits, expect_same, files

XID = Xid(7, b"global", b"branch")


class Side(Disk):
    """The mirror's. ``hold``: flushes wait for it; ``fails`` is raised by writes."""

    hold: threading.Event | None = None
    came = threading.Event()
    fails: OSError | None = None

    def flush(self, handle: int, *, data_only: bool = False) -> None:
        if self.hold is not None:
            self.came.set()
            assert self.hold.wait(PATIENT_SECONDS)
        super().flush(handle, data_only=data_only)

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
    space = spool.create(Front(str(tmp_path / "space")), mirror=str(tmp_path / "mirror"), max_body_bytes=1000)
    space.create_queue("orders")
    return space


def branch(space: spool.Space) -> CoordinatedTransaction:
    return door.branch(space, xid=XID, timeout=30.0)


def commit_a_branch(space: spool.Space) -> None:
    tx = branch(space)
    tx.put("orders", "voted")
    tx.prepare()
    space.engine.commit_branch(XID, vote_known=True)


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
    commit_a_branch(space)
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
    side = door.disk(space).side
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
    door.disk(space).side.fails = full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(spool.CommitUnknown, match="mirror drop") as unknown:
        space.put("orders", "unknown")
    assert len(unknown.value.ids) == 1
    with pytest.raises(spool.SpaceStopped):
        space.put("orders", "after")
    space.close()
    with mock.patch.object(Disk, "sibling", lambda disk, root: Front(disk.root).sibling(root)):
        with mock.patch.object(Side, "fails", full), pytest.raises(spool.SpoolError, match="remove the cause"):
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


def test_the_first_opener_copies_earlier_commits_to_the_mirror(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        space.put_many("orders", ["a", "b"])
        space.get("orders")
        commit_a_branch(space)
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
    assert door.reclaim(space) > 0
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
    commit_a_branch(space)
    space.close()
    (number,) = (int(name[:16]) for name in commits(tmp_path / "mirror") if "-1." in name)
    side = Told(str(tmp_path / "mirror"))
    return number, Mirror(Disk(str(tmp_path / "space")), side), side


def test_a_branch_is_copied_before_its_head_unless_reclaim_was_removing_it(adopted: tuple[int, Mirror, Told]) -> None:
    number, mirror, side = adopted
    head, its_branch = f"{number:016}.msgpack", f"{number:016}-1.msgpack"
    for retired, first, second in ((set(), its_branch, head), ({number}, head, its_branch)):
        mirror.forget({number: 1})
        side.did.clear()
        mirror.catch_up(retired, {number: 1}, agrees=True)
        assert side.did == [f"+{first}", "flush", f"+{second}", "flush"]


def test_the_head_of_a_reclaimed_commit_is_removed_first(adopted: tuple[int, Mirror, Told], tmp_path: Path) -> None:
    _, mirror, side = adopted
    for name in ("0000000000000099.msgpack", "0000000000000099-1.msgpack"):
        (tmp_path / "mirror" / name).write_bytes(b"a commit")
    mirror.catch_up(set(), {}, agrees=True)
    assert side.did == ["-0000000000000099.msgpack", "flush", "-0000000000000099-1.msgpack", "flush"]
    expect_same(tmp_path)


def test_a_failed_flush_of_the_space_s_own_waits_for_the_mirror(space: spool.Space, tmp_path: Path) -> None:
    """Otherwise the thread would use closed descriptors, whose numbers may belong to other files."""
    with mock.patch.object(door.disk(space), "make_durable", side_effect=FlushFailed(errno.EIO, "bad")):
        with pytest.raises(spool.CommitUnknown):
            space.put("orders", "a")
    assert not [thread for thread in threading.enumerate() if thread.name == "xaspool mirror" and thread.is_alive()]
    space.close()


def test_a_space_keeps_its_mirror_if_the_next_cannot_take_a_damaged_commit(space: spool.Space, tmp_path: Path) -> None:
    with space:
        space.put("orders", "one")
    max(Path(space.path, "committed").iterdir()).write_bytes(b"")
    with pytest.raises(spool.DiskFailure, match="cannot take commit"):
        mirrors.begin(space.path, tmp_path / "second")
    state = mirrors.describe(space.path)
    assert state is not None
    assert state.mirror == str(tmp_path / "mirror")


def test_a_vote_that_the_mirror_does_not_keep_is_durable_in_the_space(space: spool.Space) -> None:
    branch = door.branch(space, xid=Xid(FORMAT_ROUND, b"round", b"1"), timeout=30.0)
    branch.put("orders", "one")
    with mock.patch.object(Front, "make_durable", autospec=True, side_effect=Disk.make_durable) as flushed:
        branch.prepare()
    assert [call.args[2] for call in flushed.call_args_list] == [layout.PREPARED]
