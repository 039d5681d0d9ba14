"""Several processes open one space: only the first opener recovers, and it leaves files and locks of live processes
alone."""

import pytest

import spool
from spool.coordination.locks import OpenLock, coordinator_byte
from spool.errors import SpoolError
from spool.intake import Intake
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from spool.policies.attempt_journal import clean_up_after_dead
from spool.runtime.clock import WaitExpired
from spool.transactions.coordinated import CoordinatedTransaction
from tests import door
from tests.meanwhile import XID, Meanwhile, Processes, Watched, prepare

ROUND = Xid(FORMAT_ROUND, b"round", b"1")


# -- the first opener, and openers beside others ----------------------------------------------------------------------


def test_an_opener_beside_another_process_is_not_the_first(processes: Processes, space: spool.Space) -> None:
    assert space.recovery.alone
    assert not processes.space().recovery.alone


def test_two_never_open_at_once(processes: Processes) -> None:
    """Otherwise both would be the first opener, and recover the space."""
    disk = Meanwhile(processes.machine)

    def come_too_early() -> None:
        with pytest.raises(WaitExpired):
            processes.space()

    disk.before("names", come_too_early, layout.COMMITTED)
    assert spool.open(disk).recovery.alone


def test_an_inspection_beside_an_opener_is_not_the_first(processes: Processes) -> None:
    disk = Meanwhile(processes.machine)
    seen: list[bool] = []
    disk.before("names", lambda: seen.append(OpenLock(Meanwhile(processes.machine)).is_alone()), layout.COMMITTED)
    spool.open(disk)
    assert seen == [False]


# -- work that an opener leaves to others -----------------------------------------------------------------------------


def test_an_opener_leaves_the_number_of_a_writer_that_it_cannot_see_alive(processes: Processes) -> None:
    """No two processes may work on one number. A process that locks the number's byte but holds no lock of a live
    process breaks the protocol."""
    writer, disk = processes.open()
    disk.dies_before("make_durable", lambda: writer.put("orders", "one"))
    stranger = Meanwhile(processes.machine)
    handle = stranger.open(layout.NUMBERS, write=True)
    assert stranger.lock(handle, 1)
    with pytest.raises(SpoolError, match="has a writer"):
        processes.space()


def start_streaming(space: spool.Space) -> CoordinatedTransaction:
    """A branch whose file lies in active/ before it ends."""
    branch = door.branch(space, xid=XID, timeout=None)
    branch.put_many("orders", [bytes(1 << 20)] * 20)
    return branch


def test_an_opener_leaves_a_branch_whose_owner_locked_it_since_the_read(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    """The branch has the name of a dead process's branch, whose file another process removed."""
    doomed, disk = watched
    start_streaming(doomed)
    disk.die()
    living: list[CoordinatedTransaction] = []

    def come_up() -> None:
        clean_up_after_dead(door.store(space), door.deadline(space))
        living.append(start_streaming(space))

    opener = Meanwhile(processes.machine)
    opener.before("names", come_up, layout.COMMITTED, spare=1)
    spool.open(opener)
    living[0].commit()
    assert space.stats("orders").ready == 20


def test_an_opener_leaves_the_claims_of_a_live_consumer(processes: Processes, space: spool.Space) -> None:
    """The opener does not wait for the death of the consumer either."""
    wanted = space.put("orders", "one")
    space.transaction().get("orders")
    begun = processes.machine.clock.time
    opener = processes.space()
    assert processes.machine.clock.time == begun
    assert opener.show(wanted).attempts == 0
    assert opener.recovery.findings == []


def test_an_opener_leaves_a_vote_to_its_live_owner(processes: Processes, watched: Watched) -> None:
    voting, disk = watched
    found: list[spool.Space] = []
    disk.before("make_durable", lambda: found.append(processes.space()), layout.PREPARED)
    prepare(voting)
    assert found[0].recovery.findings == []


def test_an_opener_leaves_the_branches_of_a_live_coordinator(processes: Processes, space: spool.Space) -> None:
    assert door.store(space).shared.xids.try_lock(coordinator_byte(ROUND.gtrid))
    prepare(space, ROUND)
    assert processes.space().recovery.findings == []
    assert door.disk(space).exists(layout.prepared(ROUND))


def test_an_opener_says_nothing_of_files_that_a_live_intake_has_taken(processes: Processes, watched: Watched) -> None:
    living, disk = watched
    handle = disk.create(f"{layout.DROP}/orders/dropped")
    disk.close(handle)
    found: list[spool.Space] = []
    disk.before("make_durable", lambda: found.append(processes.space()), layout.COMMITTED)
    Intake(living).run(once=True)
    assert found[0].recovery.findings == []


# -- work that has ended ----------------------------------------------------------------------------------------------


def test_an_opener_takes_no_ended_transaction_of_a_live_process_for_a_dead_one(
    processes: Processes, space: spool.Space
) -> None:
    """The process keeps the file of an ended journal for its next transaction."""
    space.put("orders", "one")
    with space.transaction() as transaction:
        transaction.get("orders")
    opened = processes.space()
    assert opened.recovery.findings == []
    assert opened.check(repair=True) == []


def test_an_opener_takes_no_branch_for_a_dead_one_that_is_committed_at_this_moment(
    processes: Processes, space: spool.Space
) -> None:
    branch = start_streaming(space)
    opener = Meanwhile(processes.machine)
    opener.before("identity", branch.commit, layout.active(XID))
    assert spool.open(opener).recovery.findings == []
    assert not opener.waits_for("identity")
    assert space.stats("orders").ready == 20
