"""Creating a space, and opening one with remains of dead processes, on a disk that fails."""

import contextlib
from collections.abc import Callable
from unittest import mock

import spool
from spool.coordination.locks import coordinator_byte
from spool.errors import SpaceExists, SpoolError
from spool.intake import Intake
from spool.log import write
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from tests import door
from tests.at_once import AT_ONCE
from tests.faults.disks import FaultySimulatedDisk
from tests.faults.harness import Tally, Violation, drain, expect, expect_no_damage, look, telling, told
from tests.faults.plan import Plan
from tests.histories.branches import branch
from tests.histories.contents import QUEUES, XID, Contents
from tests.histories.dropped import two_files
from tests.machine import NO_FILES, Image, Machine, PowerCut
from tests.simdisk import SimulatedDisk, repeatable


class Leftovers:
    """A disk that six processes left in the middle of something, all at the same moment."""

    def __init__(self, *, ordered: bool = True) -> None:
        self.machine = Machine(NO_FILES, boot=1, ordered=ordered)
        with repeatable(1):
            with self._open(spool.create) as space:
                for queue in QUEUES:
                    space.create_queue(queue, **AT_ONCE)
                space.put_many("a", ["one", "two", "three", "four"])
                space.put("b", "there")
                two_files(space)
            ways = (_adopted, _voted, _round, _claims, _taken, _unpublished)
            spaces = [self._open(spool.open) for _ in ways]
            for leave, space in zip(ways, spaces, strict=True):
                leave(space)
            for space in spaces:
                self.machine.kill(door.disk(space))  # type: ignore[arg-type]
        self.image = self.machine.image()

    def _open(self, way: Callable[..., spool.Space]) -> spool.Space:
        return way(SimulatedDisk(self.machine))


def _adopted(space: spool.Space) -> None:
    """A committed branch that was not moved to its place."""
    voted = branch(space)
    voted.put("b", "adopted")
    assert voted.prepare()
    tx = door.branch(space)
    tx.put("b", "own")
    _dying(write, "move_adopted", lambda: tx.commit(adopt=[XID]))


def _voted(space: spool.Space) -> None:
    tx = door.branch(space, xid=Xid(4711, b"foreign", b"2"))
    tx.get("a")
    tx.put("b", "in doubt")
    assert tx.prepare()


def _round(space: spool.Space) -> None:
    """A branch of a forwarding round."""
    assert door.store(space).shared.xids.try_lock(coordinator_byte(b"round"))
    tx = door.branch(space, xid=Xid(FORMAT_ROUND, b"round", b"0"))
    tx.get("a")
    assert tx.prepare()


def _claims(space: spool.Space) -> None:
    """A claim, its journal, and the beginning of a large branch."""
    tx = space.transaction()
    tx.get("a")
    tx._hold.open_file(tx.xid)
    door.disk(space).create(layout.active(tx.xid))


def _taken(space: spool.Space) -> None:
    assert len(list(Intake(space)._ready())) == 2


def _unpublished(space: spool.Space) -> None:
    """A number that was given out."""
    _dying(door.store(space).shared.counters, "publish_next", lambda: space.put("b", "unpublished"))


def _dying(owner: object, call: str, act: Callable[[], object]) -> None:
    with mock.patch.object(owner, call, side_effect=PowerCut), contextlib.suppress(PowerCut):
        act()


class Openings:
    """Open that disk by one that fails, in the same boot or after another; then by a healthy one."""

    def __init__(self, image: Image, *, boot: int, ordered: bool = True) -> None:
        self.image = image
        self.boot = boot
        self.ordered = ordered
        self.tally = Tally()
        self.truth = self._look(self._machine())

    def _machine(self) -> Machine:
        return Machine(self.image, boot=self.boot, ordered=self.ordered)

    def _look(self, machine: Machine) -> Contents:
        with spool.open(SimulatedDisk(machine)) as space:
            expect_no_damage(space)
            return look(space)

    def one(self, plan: Plan) -> bool:
        """False if opening has fewer calls than that."""
        machine = self._machine()
        with telling(f"opening in boot {self.boot}: {plan}", plan), repeatable(2):
            disk = FaultySimulatedDisk(machine, plan)
            self._open(machine, disk, plan)
            if not plan.failed:
                return False
            self.tally.faults += 1
            self.tally.stopped += plan.failed_flushes > 0
            left = [handle for handle in machine.handles.values() if handle.process is disk]
            expect(not left, f"{len(left)} descriptors are left open")
            shown = self._look(machine)
            expect(shown == self.truth, f"found {shown}, not {told([self.truth])}")
            with spool.open(SimulatedDisk(machine)) as space:
                drain(space, look(space))
            again = [inode for inode in machine.flushed_again if inode.entries is None]
            expect(not again, f"{len(again)} files were flushed again after a failed flush")
        return True

    def _open(self, machine: Machine, disk: FaultySimulatedDisk, plan: Plan) -> None:
        try:
            space = spool.open(disk)
        except SpoolError:
            self.tally.raised += bool(plan.failed)
            return
        except Exception as error:
            raise Violation(f"the caller saw {type(error).__name__}: {error}") from error
        self.tally.survived += bool(plan.failed)
        plan.armed = False
        if plan.failed and not plan.failed_flushes:
            shown = look(space)
            expect(shown == self.truth, f"found {shown}, not {told([self.truth])}")
        space.close()


def creating(plan: Plan, tally: Tally) -> bool:
    """Make a space; if that fails, make it again. False if it has fewer calls than that."""
    machine = Machine(NO_FILES, boot=1)
    with telling(f"creating: {plan}", plan), repeatable(2):
        disk = FaultySimulatedDisk(machine, plan)
        try:
            spool.create(disk, defaults=AT_ONCE).close()
            tally.survived += bool(plan.failed)
        except SpoolError:
            tally.raised += 1
        except Exception as error:
            raise Violation(f"the caller saw {type(error).__name__}: {error}") from error
        if not plan.failed:
            return False
        tally.faults += 1
        expect(not machine.handles, "descriptors are left open")
        healthy = SimulatedDisk(machine)
        try:
            space = spool.create(healthy, defaults=AT_ONCE)
        except SpaceExists:
            space = spool.open(healthy)
        with space:
            space.create_queue("a")
            space.put("a", "x")
            expect(space.get("a").body == "x", "the new space does not work")
    return True
