"""A process checks a branch again before it decides the branch, because another process may have decided or left it."""

from collections.abc import Callable

import pytest

import spool
import xa
from spool.coordination.locks import coordinator_byte
from spool.log.adoption import UnknownBranch
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from spool.policies import heuristics
from spool.transactions import two_phase
from tests import door
from tests.meanwhile import XID, Processes, Watched, commit, prepare, rollback
from tests.shown import bodies

ROUND = Xid(FORMAT_ROUND, b"round", b"1")


# -- branches that another process decides ----------------------------------------------------------------------------


def committed_and_not_moved(processes: Processes) -> int:
    """Another process commits the branch, and dies before it moves it."""
    committer, disk = processes.open()
    disk.dies_before("rename_new", lambda: commit(committer), "prepared/")
    return processes.newest()


def committed_and_not_published(processes: Processes) -> int:
    """Another process commits the branch, and dies before its commit is visible."""
    committer, disk = processes.open()
    disk.dies_before("make_durable", lambda: commit(committer), "committed")
    return processes.newest()


HOW_IT_DIED = pytest.mark.parametrize("committed", [committed_and_not_moved, committed_and_not_published])


@HOW_IT_DIED
@pytest.mark.parametrize(
    "decision", [commit, lambda space: commit(space, told=False), rollback], ids=["commit", "untold commit", "rollback"]
)
def test_a_branch_that_a_process_committed_that_died_is_decided(
    processes: Processes,
    space: spool.Space,
    committed: Callable[[Processes], int],
    decision: Callable[[spool.Space], object],
) -> None:
    """The second decision is refused, says which commit it was, and writes nothing."""
    space.put("orders", "one")
    prepare(space, take=True)
    number = committed(processes)
    with pytest.raises(UnknownBranch) as refused:
        decision(space)
    assert refused.value.committed_by == number
    assert door.counters(space).published == number
    assert bodies(space) == ["new"]


def test_a_decision_about_a_branch_that_was_committed_and_moved_says_by_which_commit(
    space: spool.Space, other: spool.Space
) -> None:
    prepare(space)
    number = commit(other)
    with pytest.raises(UnknownBranch) as refused:
        commit(space)
    assert refused.value.committed_by == number


@pytest.mark.parametrize("listed", [True, False])
def test_a_branch_that_was_rolled_back_and_came_up_again_is_another_branch(
    space: spool.Space, watched: Watched, listed: bool
) -> None:
    """A process that was told the first one's vote does not commit the second, whether or not it has read the first."""
    committer, disk = watched
    prepare(space)
    if listed:
        assert bodies(committer) == []

    def again() -> None:
        rollback(space)
        prepare(space)

    disk.before("write_at", again)
    with pytest.raises(UnknownBranch):
        commit(committer)
    commit(space)
    assert bodies(committer) == ["new"]
    assert space.check() == []


def test_no_xid_is_used_again_while_its_committer_stands_still_before_the_move(space: spool.Space, watched: Watched):
    """The committer would give the committed name to the file of the second branch."""
    committer, disk = watched
    prepare(space)

    def use_again() -> None:
        for number in range(3):
            space.get("orders")
            space.put("orders", number)
            door.reclaim(space)
        with pytest.raises(xa.XAError, match="was committed a while ago"):
            xa.ResourceManager(space).start(XID)

    disk.before("rename_new", use_again, "prepared/")
    commit(committer)
    assert not disk.waits_for("rename_new")
    assert (door.reclaim(space) > 0, space.check()) == (True, [])


def test_no_process_reclaims_while_an_opener_moves_the_branch_of_a_dead_committer(
    processes: Processes, space: spool.Space
) -> None:
    prepare(space)
    committed_and_not_moved(processes)
    space.get("orders")
    space.put("orders", "later")
    reclaimed: list[int] = []
    opener = processes.disk()
    opener.before("rename_new", lambda: reclaimed.append(door.reclaim(space)), "prepared/")
    spool.open(opener).close()
    assert (reclaimed, door.reclaim(space) > 0) == ([0], True)


@pytest.mark.parametrize("told", [True, False])
@HOW_IT_DIED
def test_a_branch_that_a_process_committed_that_died_is_not_in_doubt(
    processes: Processes, space: spool.Space, committed: Callable[[Processes], int], told: bool
) -> None:
    prepare(space)
    committed(processes)
    assert two_phase.in_doubt(door.store(space), door.deadline(space, 1), known_votes=[XID] if told else []) == []


def test_a_branch_that_was_committed_and_not_moved_is_not_prepared_and_is_moved_by_an_opener(
    processes: Processes, space: spool.Space
) -> None:
    prepare(space)
    number = committed_and_not_moved(processes)
    assert not space.engine.is_prepared(XID)
    assert bodies(processes.space()) == ["new"]
    assert door.disk(space).exists(layout.committed(number, 1))


def test_commits_are_looked_for_before_their_branches_are_moved(processes: Processes, space: spool.Space) -> None:
    prepare(space)
    number = committed_and_not_moved(processes)
    assert two_phase.finish_moves(door.store(space)) == [XID]
    assert door.disk(space).exists(layout.committed(number, 1))


def test_an_administrator_s_decision_is_known_in_every_process(space: spool.Space, other: spool.Space) -> None:
    prepare(space)
    other.engine.decide(XID, commit=True)
    assert space.engine.decision(XID) == heuristics.COMMITTED


# -- branches of a coordinator that died ------------------------------------------------------------------------------


def test_the_branch_of_a_coordinator_that_died_frees_its_messages_for_the_next_get(
    space: spool.Space, other: spool.Space, watched: Watched
) -> None:
    space.put("orders", "one")
    doomed, disk = watched
    assert door.store(doomed).shared.xids.try_lock(coordinator_byte(ROUND.gtrid))
    prepare(doomed, ROUND, take=True)
    assert bodies(other) == []
    assert other.engine.resolve_orphans() == [], "it lives"
    disk.die()
    assert other.get("orders").body == "one"


def test_branches_of_a_dead_coordinator_are_listed_before_they_are_rolled_back(space: spool.Space, other: spool.Space):
    prepare(space, ROUND)
    assert other.engine.resolve_orphans() == [ROUND]
