"""Files in each other's place, and branches whose bytes for a number are damaged: named, and repaired or
quarantined."""

import pytest

import spool
from recovery.numbers import MAX_GAP
from spool.admin.findings import Kind
from spool.format.header import stamp
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.model.xid import Xid
from spool.transactions import two_phase
from tests import door
from tests.machine import Machine
from tests.meanwhile import Processes, prepare
from tests.simdisk import SimulatedDisk

FIRST, SECOND = Xid(7, b"one", b""), Xid(7, b"two", b"")


def damaged(space: spool.Space, *, repair: bool = False) -> list[str]:
    return [finding.name for finding in space.check(repair=repair) if finding.kind is Kind.DAMAGED]


def exchange(processes: Processes, one: str, other: str) -> None:
    disk = processes.disk()
    disk.rename(one, f"{layout.ACTIVE}/aside")
    disk.rename(other, one)
    disk.rename(f"{layout.ACTIVE}/aside", other)


@pytest.mark.parametrize("decided", [True, False])
def test_branches_that_were_exchanged_are_named_and_not_served(processes: Processes, decided: bool) -> None:
    space = processes.space()
    names = []
    for xid in (FIRST, SECOND):
        prepare(space, xid)
        names.append(layout.prepared(xid))
        if decided:
            number = space.engine.commit_branch(xid, vote_known=True)
            names[-1] = layout.committed(number, 1)
    exchange(processes, *names)
    assert damaged(space) == names
    for opened in (space, None):
        store = door.store(opened or processes.space())
        if not decided:
            assert two_phase.in_doubt(store, store.deadline()) == []
        else:
            assert [message.body for message in processes.space().browse("orders")] == []
    damaged(space, repair=True)
    assert damaged(space) == []


def test_an_opener_puts_exchanged_branches_into_quarantine(processes: Processes) -> None:
    """Neither branch can be committed, because the vote of each is unknown."""
    space, disk = processes.open()
    for xid in (FIRST, SECOND):
        prepare(space, xid)
    exchange(processes, layout.prepared(FIRST), layout.prepared(SECOND))
    disk.die()
    again = processes.space()
    assert again.recovery.in_doubt == []
    assert {one.name for one in again.recovery.findings} >= {layout.prepared(FIRST), layout.prepared(SECOND)}
    assert len(again.quarantined()) == 2


@pytest.mark.parametrize("decided", [True, False])
def test_a_branch_whose_bytes_for_a_number_are_damaged_is_mended(processes: Processes, decided: bool) -> None:
    space = processes.space()
    prepare(space, FIRST)
    name = layout.prepared(FIRST)
    if decided:
        name = layout.committed(space.engine.commit_branch(FIRST, vote_known=True), 1)
    offset, stamped = stamp(1)
    processes.disk().damage(name, offset + len(stamped) - 1)
    assert damaged(space) == [name]
    damaged(space, repair=True)
    assert damaged(space) == []


def content(processes: Processes, name: str) -> bytes:
    disk = processes.disk()
    return disk.read_at(disk.open(name), 0, 1 << 20)


def overwrite(processes: Processes, name: str, data: bytes) -> None:
    disk = processes.disk()
    handle = disk.open(name, write=True)
    disk.truncate(handle, len(data))
    disk.write_at(handle, 0, data)


def after_a_restart(processes: Processes) -> spool.Space:
    machine = Machine(processes.machine.image(), boot=2)
    return spool.open(SimulatedDisk(machine))


def test_a_head_that_carries_another_number_adopts_nothing(processes: Processes) -> None:
    """The other commit adopted a branch of the same xid, but this branch is in doubt again."""
    space = processes.space()
    store = door.store(space)
    prepare(space, FIRST)
    old = content(processes, layout.committed(space.engine.commit_branch(FIRST, vote_known=True)))
    space.get("orders")
    space.put("orders", "newest")
    assert reclaim(store)
    prepare(space, FIRST)
    number = space.engine.commit_branch(FIRST, vote_known=True)
    for body in ("later", "latest"):
        space.put("orders", body)
    overwrite(processes, layout.committed(number), old)
    again = after_a_restart(processes)
    assert layout.committed(number, 1) in {one.name for one in again.recovery.findings if one.kind is Kind.RETURNED}
    assert again.recovery.in_doubt == [str(FIRST)]


def test_the_durable_mark_is_read_only_from_a_file_that_carries_its_own_number(processes: Processes) -> None:
    """Otherwise damage would count as a message that was never acknowledged."""
    space = processes.space()
    for body in ("one", "two", "three"):
        space.put("orders", body)
    overwrite(processes, layout.committed(3), content(processes, layout.committed(1)))
    processes.disk().damage(layout.committed(1), 60)
    again = after_a_restart(processes)
    assert layout.committed(1) in {one.name for one in again.recovery.damaged}


def test_a_copy_of_a_file_under_a_number_far_ahead_is_none_of_the_space(processes: Processes) -> None:
    """The copy's name has a number that its bytes lack; new numbers follow the greatest number that was issued."""
    space = processes.space()
    space.put("orders", "one")
    (number,) = (message.position.number for message in space.browse("orders"))
    far, disk = layout.committed(number + MAX_GAP + 1), processes.disk()
    disk.write_at(disk.create(far), 0, content(processes, layout.committed(number)))
    again = after_a_restart(processes)
    assert far in {one.name for one in again.recovery.findings if one.kind is Kind.STRAY}
    again.put("orders", "two")
    assert [message.body for message in again.browse("orders")] == ["one", "two"]
    assert max(message.position.number for message in again.browse("orders")) <= number + 2


def test_a_commit_whose_number_is_damaged_is_served_and_named(processes: Processes) -> None:
    """The file's name proves the number of the commit, and the checksums prove the rest."""
    space = processes.space()
    space.put("orders", "one")
    space.put("orders", "two")
    offset, stamped = stamp(1)
    processes.disk().damage(layout.committed(1), offset + len(stamped) - 1)
    again = processes.space()
    assert [message.body for message in again.browse("orders")] == ["one", "two"]
    assert damaged(again) == [layout.committed(1)]
