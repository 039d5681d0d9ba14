"""Each commit number is given out once and published in its turn, even if the process that got the number dies."""

import errno
from collections.abc import Callable
from unittest import mock

import pytest

import spool
from spool.admin.findings import Kind
from spool.coordination.locks import NUMBER
from spool.disk.content import opened
from spool.errors import CommitUnknown, DiskFailure, TransactionTimeout
from spool.format.reader import read_header
from spool.log.sequence import settle_all
from spool.log.visibility import is_branch_file
from spool.model import layout
from spool.runtime.clock import WaitExpired
from tests import door
from tests.machine import PowerCut
from tests.meanwhile import Processes, Watched
from tests.shown import bodies

pytestmark = pytest.mark.unled("the steps are those of a commit of this process")


def test_a_commit_under_the_name_of_its_branch_is_no_branch(space: spool.Space) -> None:
    space.put("orders", "one")
    with opened(door.disk(space), layout.committed(1)) as handle:
        header = read_header(door.disk(space), handle)
    assert not is_branch_file(header, header.branches[0].xid)


# -- numbers that are given out ---------------------------------------------------------------------------------------


def test_a_number_with_a_file_that_was_not_issued_is_not_issued_again(space: spool.Space, watched: Watched) -> None:
    doomed, disk = watched
    disk.before("rename_new", lambda: disk.before("store", disk.die), layout.ACTIVE)
    with pytest.raises(PowerCut):
        doomed.put("orders", "one")
    assert space.check() == [], "its file is no stray"
    space.put("orders", "two")
    assert bodies(space) == ["two"]


def test_a_commit_whose_number_cannot_be_stored_as_issued_did_nothing(space: spool.Space, watched: Watched) -> None:
    space.put("orders", "one")
    unlucky, disk = watched

    def cannot() -> None:
        raise OSError(errno.EIO, "it fails")

    disk.before("rename_new", lambda: disk.before("store", cannot, spare=2), layout.ACTIVE)  # (the feed comes first)
    with pytest.raises(DiskFailure):
        unlucky.get("orders")
    assert space.get("orders").body == "one"
    space.put("orders", "two")
    assert bodies(space) == bodies(unlucky) == ["two"]
    assert space.check() == []


@pytest.mark.parametrize("call", ["store", "unlock", "make_durable"])
def test_a_numbered_file_without_a_stamp_is_no_commit(space: spool.Space, watched: Watched, call: str) -> None:
    """The file's writer died before or after it stored the number, or after the stamp."""
    doomed, disk = watched
    disk.before("rename_new", lambda: disk.before(call, disk.die), layout.ACTIVE)
    with pytest.raises(PowerCut):
        doomed.put("orders", "one")
    space.put("orders", "two")
    assert bodies(space) == (["one", "two"] if call == "make_durable" else ["two"])
    assert space.check() == []
    assert door.index(space).applied == 2


@pytest.mark.parametrize("what", ["the lock on numbers", "the number's byte"])
def test_a_commit_waits_for_a_process_that_is_at_its_number(space: spool.Space, other: spool.Space, what: str) -> None:
    shared = door.store(other).shared
    assert shared.control.try_lock(NUMBER) if what == "the lock on numbers" else shared.numbers.try_lock(1)
    hidden = mock.patch.object(type(door.disk(space)), "lock_holders", return_value=[])  # as in another container
    with hidden, pytest.raises((TransactionTimeout, WaitExpired), match="held by a process that /proc does not show"):
        space.put("orders", "one")
    assert bodies(space) == []


@pytest.mark.parametrize("copy", [0, 1])
def test_a_counter_of_which_one_copy_is_damaged_is_known_by_the_other(
    space: spool.Space, processes: Processes, copy: int
) -> None:
    space.put_many("orders", ["one"])
    space.put("orders", "two")
    before = door.counters(space)
    disk = processes.disk()
    size = len(disk.read_at(disk.open(layout.COUNTERS), 0, 1 << 12))
    for offset in range(128 + 16 * copy, size, 32):
        disk.damage(layout.COUNTERS, offset)
    after = door.counters(space)
    for name in ("issued", "published", "durable", "prepared", "settings", "owner"):
        assert getattr(after, name) == getattr(before, name), name


# -- numbers that are published ---------------------------------------------------------------------------------------


def test_a_number_is_not_published_before_those_of_living_writers(space: spool.Space, watched: Watched) -> None:
    """No other process finishes their numbers either: it waits."""
    slow, disk = watched

    def come_behind() -> None:
        with pytest.raises(CommitUnknown, match="commit 1 is held by"):
            space.put("orders", "two")
        assert bodies(space) == []

    disk.before("make_durable", come_behind)
    slow.put("orders", "one")
    assert bodies(space) == ["one"]
    space.put("orders", "three")
    assert bodies(space) == ["one", "two", "three"]


def test_a_process_that_finishes_a_number_checks_whether_another_has(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    processes.lose_a_writer()
    slow, disk = watched
    disk.before("lock", lambda: space.put("orders", "two"))
    settle_all(door.store(slow), door.deadline(slow))
    assert door.counters(slow).published == 2


def damaged_body(processes: Processes) -> None:
    processes.disk().damage(layout.committed(2))


def bytes_of_another(processes: Processes) -> None:
    """A recycled file with its old, whole content."""
    disk = processes.disk()
    source, target = disk.open(layout.committed(1)), disk.open(layout.committed(2), write=True)
    data = disk.read_at(source, 0, 1 << 20)
    disk.truncate(target, len(data))
    disk.write_at(target, 0, data)


@pytest.mark.parametrize("leave", [damaged_body, bytes_of_another])
@pytest.mark.parametrize("alone", [True, False])
def test_the_file_of_a_dead_writer_is_proven_before_it_counts(
    processes: Processes, leave: Callable[[Processes], None], alone: bool
) -> None:
    """The commit was never acknowledged: its file is quarantined, and its number becomes an empty commit."""
    space, its_disk = processes.open()
    space.put("orders", "one")
    doomed, disk = processes.open()
    disk.dies_before("make_durable", lambda: doomed.put("orders", "two"), layout.COMMITTED)
    leave(processes)
    if alone:
        its_disk.die()
        space = processes.space()
        found = [(one.kind, one.name) for one in space.recovery.findings if one.name == layout.committed(2)]
        assert found == [(Kind.TORN, layout.committed(2))]
    space.put("orders", "three")
    assert bodies(space) == ["one", "three"]
    assert len(space.quarantined()) == 1
    assert [one for one in space.check() if one.kind is Kind.DAMAGED] == []
