"""A repair while other processes work: they keep the messages and branches that they hold, decide or take meanwhile."""

import pytest

import spool
from spool.admin.findings import Kind
from spool.coordination.locks import NUMBER
from spool.model import layout
from spool.recovery import repair as repair_module
from spool.runtime.clock import WaitExpired
from tests import door
from tests.meanwhile import XID, Processes, Watched, commit, prepare

VOTE = layout.prepared(XID)


def repair(space: spool.Space) -> list[tuple[Kind, str]]:
    """The files that are still damaged."""
    return [(one.kind, one.name) for one in space.check(repair=True) if one.kind is Kind.DAMAGED and not one.action]


def quarantined(space: spool.Space) -> list[str]:
    return [finding.name for finding in space.quarantined()]


@pytest.mark.parametrize("is_vote", [True, False])
def test_a_damaged_branch_is_left_to_its_live_owner_and_to_its_committer(
    space: spool.Space, watched: Watched, is_vote: bool
) -> None:
    live, disk = watched

    def come_too_early() -> None:
        disk.damage(VOTE)
        assert repair(space) == [(Kind.DAMAGED, VOTE)]

    if is_vote:
        disk.before("make_durable", come_too_early, layout.PREPARED)
        prepare(live)
        assert quarantined(space) == []
        repair(space)
        assert quarantined(space) == [f"{layout.QUARANTINE}/prepared.{XID}.msgpack"]
    else:
        prepare(space)
        disk.before("rename_new", come_too_early, layout.ACTIVE)
        commit(live)
        assert quarantined(space) == []


@pytest.mark.parametrize(("call", "about"), [("rename_new", "prepared/"), ("make_durable", "committed")])
def test_a_damaged_branch_of_a_dead_committer_is_repaired_as_committed(
    processes: Processes, space: spool.Space, watched: Watched, call: str, about: str
) -> None:
    prepare(space)
    doomed, disk = watched
    disk.dies_before(call, lambda: commit(doomed), about)
    processes.disk().damage(VOTE)
    assert repair(space) == []
    assert not [name for name in quarantined(space) if name.startswith(f"{layout.QUARANTINE}/prepared")]
    assert space.check() == []


@pytest.mark.parametrize(("call", "about"), [("rename_new", "prepared/"), ("make_durable", "committed")])
def test_a_damaged_branch_that_is_committed_during_its_repair_is_committed(
    processes: Processes, space: spool.Space, watched: Watched, call: str, about: str
) -> None:
    """The process dies: the next repair finds the branch among the committed ones."""
    prepare(space)
    processes.disk().damage(VOTE)
    doomed, its_disk = processes.open()
    mending, disk = watched
    disk.before("names", lambda: its_disk.dies_before(call, lambda: commit(doomed), about), layout.ACTIVE)
    repair(mending)
    assert not disk.waits_for("names")
    assert not [name for name in quarantined(space) if name.startswith(f"{layout.QUARANTINE}/prepared")]
    repair(mending)
    assert space.check() == []


def test_a_damaged_branch_leaves_the_list_of_prepared_ones_with_its_file(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    """A process that lists just then waits; otherwise the branch's messages would look held for ever."""
    space.put("orders", "one")
    prepare(space, take=True)
    processes.disk().damage(VOTE)
    mending, disk = watched

    def list_too_early() -> None:
        with pytest.raises(WaitExpired):
            list(space.browse("orders"))

    disk.before("rename", list_too_early, VOTE)
    repair(mending)
    assert not disk.waits_for("rename")
    assert space.get("orders").body == "one"
    assert mending.check() == []


def test_a_lost_branch_that_is_committed_is_reported_with_its_xid(processes: Processes, space: spool.Space) -> None:
    prepare(space)
    lost = layout.committed(commit(space), 1)
    processes.disk().unlink(lost)
    assert [(one.name, one.detail) for one in space.check()] == [(lost, f"it is missing (branch {XID})")]


def test_a_damaged_message_that_another_process_takes_meanwhile_is_quarantined_once(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    space.put("orders", "one")
    processes.disk().damage(layout.committed(1))
    mending, disk = watched

    def take() -> None:
        with pytest.raises(spool.Empty):
            space.get("orders")

    disk.before("open", take, layout.claim_file(1))
    repair(mending)
    assert not disk.waits_for("open")
    assert len(quarantined(space)) == 1
    assert space.stats("orders").failed == 1


def test_no_process_reclaims_while_files_are_repaired(space: spool.Space, watched: Watched) -> None:
    space.put("orders", "one")
    space.get("orders")
    space.put("orders", "newest")
    mending, disk = watched
    counts: list[int] = []
    disk.before("open", lambda: counts.append(door.reclaim(space)), layout.COMMITTED)
    repair(mending)
    assert counts == [0]
    assert door.reclaim(space) > 0


@pytest.mark.parametrize("spare", range(14))
def test_a_commit_during_a_repair_is_no_stray(space: spool.Space, watched: Watched, spare: int) -> None:
    repairing, disk = watched
    space.put("orders", "before")
    disk.before("names", lambda: space.put_many("orders", ["meanwhile", "and more"]), spare=spare)
    assert repairing.check(repair=True) == []
    assert not disk.waits_for("names")
    assert quarantined(space) == []
    assert [message.body for message in space.browse("orders")] == ["before", "meanwhile", "and more"]


@pytest.mark.parametrize("spare", range(14))
def test_a_file_whose_number_is_issued_before_its_repair_remains(
    space: spool.Space, watched: Watched, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    repairing, disk = watched
    monkeypatch.setattr(repair_module, "free_room", lambda store: None)  # (it may rename the file once it is consumed)

    def no_process_commits() -> None:
        assert not door.store(space).shared.control.is_free(NUMBER)

    space.put("orders", "one")
    disk.close(disk.create(layout.committed(3)))
    disk.before("names", lambda: [space.put("orders", body) for body in ("two", "three")], spare=spare)
    disk.before("rename", no_process_commits, layout.committed(3))
    assert [one for one in repairing.check(repair=True) if one.kind is Kind.DAMAGED] == []
    assert not disk.waits_for("names")
    assert space.check() == []
    assert [message.body for message in space.browse("orders")] == ["one", "two", "three"]


def test_a_file_with_the_next_number_belongs_to_a_dead_writer(space: spool.Space, watched: Watched) -> None:
    """The writer may have died between the rename to the number and the store of the number."""
    repairing, disk = watched
    space.put("orders", "one")
    torn = disk.create(layout.committed(3))
    disk.write_at(torn, 0, b"torn")
    disk.close(torn)
    disk.before("names", lambda: space.put("orders", "two"), layout.QUARANTINE)
    repairing.check(repair=True)
    assert not disk.waits_for("names")
    assert space.quarantined() == []
    space.put("orders", "three")
    assert ["its writer died" in finding.detail for finding in space.quarantined()] == [True]


def test_no_number_is_given_out_while_a_file_with_a_number_to_come_is_moved(space: spool.Space, watched: Watched):
    repairing, disk = watched
    space.put("orders", "one")
    disk.close(disk.create(layout.committed(3)))
    free: list[bool] = []
    disk.before("rename", lambda: free.append(door.store(space).shared.control.is_free(NUMBER)), layout.committed(3))
    repairing.check(repair=True)
    assert free == [False]
    assert len(quarantined(space)) == 1
