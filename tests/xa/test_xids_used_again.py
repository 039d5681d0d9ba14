"""A coordinator uses the xid of a reclaimed branch for another branch, beside a process that remembers the first one:
the second branch stays in doubt, and no other consumer gets its messages."""

from collections.abc import Callable

import pytest

import spool
import xa
from spool.recovery import repair
from spool.transactions.two_phase import resolve_orphans
from tests import door
from tests.at_once import AT_ONCE
from tests.machine import NO_FILES, Machine
from tests.simdisk import SimulatedDisk

XID, OTHER = xa.Xid(7, b"order", b"1"), xa.Xid(7, b"order", b"2")


def _vote(space: spool.Space, xid: xa.Xid, body: str, *, taking: bool = False) -> xa.ResourceManager:
    rm = xa.ResourceManager(space)
    with rm.branch(xid):
        space.put("replies", body)
        if taking:
            space.get("orders")
    rm.prepare(xid)
    return rm


def _looks(space: spool.Space) -> None:
    assert list(space.browse("orders")) == []


def _lists_again(space: spool.Space) -> None:
    _vote(space, OTHER, "third")
    _looks(space)


def _resolves(space: spool.Space) -> None:
    resolve_orphans(door.store(space), door.deadline(space))


def _repairs(space: spool.Space) -> None:
    assert [str(finding.kind) for finding in repair.repair(door.store(space))] == ["in doubt"]


@pytest.mark.parametrize("act", [_looks, _lists_again, _resolves, door.reclaim, _repairs])
@pytest.mark.parametrize("seen", [None, "the commit", "the reclaim"])
def test_e03_a_branch_with_a_used_xid_stays_in_doubt_beside_a_process_that_remembers_the_xid(
    act: Callable[[spool.Space], object], seen: str | None
) -> None:
    machine = Machine(NO_FILES)
    with spool.create(SimulatedDisk(machine), defaults=AT_ONCE) as space:
        space.create_queue("orders")
        space.create_queue("replies")
    voter, beside = (spool.open(SimulatedDisk(machine)) for _ in range(2))
    _vote(voter, XID, "first").commit(XID)
    if seen == "the commit":
        list(beside.browse("replies"))
    voter.get("replies")
    voter.put("orders", "held")
    assert door.reclaim(voter) > 0
    if seen == "the reclaim":
        list(beside.browse("replies"))
    _vote(voter, XID, "second", taking=True)
    act(beside)
    machine.kill(door.disk(voter))  # type: ignore[arg-type]
    with pytest.raises(spool.Empty):
        beside.get("orders")
    manager = xa.ResourceManager(beside)
    assert XID in manager.recover()
    manager.commit(XID)
    _looks(beside)
    assert "second" in [message.body for message in beside.browse("replies")]
    assert [finding for finding in beside.check() if finding.kind != "in doubt"] == []
