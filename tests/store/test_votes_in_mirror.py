"""The votes of branches in doubt belong to the mirror, too: the loss of the space's disk decides no transaction."""

import os
import shutil
from pathlib import Path

import pytest

import spool
import xa
from spool.model import layout
from tests import door

XID = xa.Xid(1, b"transfer", b"shop")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A space with a mirror, an order, and a branch in doubt that answers the order."""
    path = tmp_path / "space"
    with spool.create(path, mirror=str(tmp_path / "mirror")) as space:
        for queue in ("orders", "answers"):
            space.create_queue(queue, retry_delay=0)
        space.put("orders", "tea")
        rm = xa.ResourceManager(space)
        with rm.branch(XID):
            space.put("answers", space.get("orders").body)
        assert rm.prepare(XID) == xa.XA_OK
    return path


def restored(path: Path) -> spool.Space:
    """The disk of the space dies, and the mirror takes its place."""
    shutil.rmtree(path)
    return spool.mirrors.restore(path, path.parent / "mirror")


def votes(path: Path) -> list[str]:
    return [name for name in os.listdir(path.parent / "mirror") if layout.parse_xid(name)]


def bodies(space: spool.Space) -> dict[str, list[object]]:
    return {queue: [message.body for message in space.browse(queue)] for queue in ("orders", "answers")}


def test_a_vote_whose_file_has_the_name_of_another_is_not_given_back(path: Path) -> None:
    [name], mirror = votes(path), path.parent / "mirror"
    (mirror / name).rename(mirror / layout.prepared(xa.Xid(1, b"other", b"")).partition("/")[2])
    with spool.open(path) as space:
        assert (xa.ResourceManager(space).recover(), space.recovery.damaged) == ([XID], [])


@pytest.mark.parametrize("commit", [True, False])
def test_a_branch_in_doubt_is_in_doubt_in_the_restored_space(path: Path, commit: bool) -> None:
    with restored(path) as space:
        rm = xa.ResourceManager(space)
        assert rm.recover() == [XID]
        assert bodies(space) == {"orders": [], "answers": []}
        (rm.commit if commit else rm.rollback)(XID)
        assert bodies(space) == ({"orders": [], "answers": ["tea"]} if commit else {"orders": ["tea"], "answers": []})


@pytest.mark.parametrize("commit", [True, False])
def test_a_branch_that_was_decided_is_decided_in_the_restored_space(path: Path, commit: bool) -> None:
    with spool.open(path) as space:
        rm = xa.ResourceManager(space)
        (rm.commit if commit else rm.rollback)(XID)
        decided = bodies(space)
        assert votes(path) == []
    with restored(path) as space:
        assert xa.ResourceManager(space).recover() == []
        assert bodies(space) == decided


def test_a_mirror_that_is_begun_later_has_the_votes(path: Path) -> None:
    spool.mirrors.begin(path, path.parent / "second").close()
    assert [name for name in os.listdir(path.parent / "second") if layout.parse_xid(name)] == votes(path)


def test_a_damaged_vote_is_given_back_by_the_mirror(path: Path) -> None:
    [name] = votes(path)
    vote = path / layout.PREPARED / name
    whole = vote.read_bytes()
    vote.write_bytes(whole[:200])
    with spool.open(path) as space:
        assert xa.ResourceManager(space).recover() == [XID]
        assert vote.read_bytes() == whole


def test_a_vote_in_an_older_copy_of_the_mirror_is_not_believed(path: Path) -> None:
    mirror, copy = path.parent / "mirror", path.parent / "copy"
    shutil.copytree(mirror, copy)
    with spool.open(path) as space:
        xa.ResourceManager(space).commit(XID)
        space.get("answers")
        for body in ("bread", "milk"):
            space.put("orders", body)
        space.get("orders")
        while door.reclaim(space):
            pass
        assert not list((path / layout.COMMITTED).glob("*-*")), "the commit of the branch was reclaimed"
    shutil.rmtree(mirror)
    copy.rename(mirror)
    with spool.open(path) as space:
        assert xa.ResourceManager(space).recover() == []
        assert bodies(space) == {"orders": ["milk"], "answers": []}
        assert votes(path) == []


def test_a_mirror_that_fails_takes_no_vote(path: Path) -> None:
    with spool.open(path) as space:
        rm = xa.ResourceManager(space)
        rm.rollback(XID)
        with rm.branch(XID):
            space.put("answers", "milk")
        shutil.rmtree(path.parent / "mirror")
        with pytest.raises(xa.XAError):
            rm.prepare(XID)
        assert os.listdir(path / layout.PREPARED) == []
