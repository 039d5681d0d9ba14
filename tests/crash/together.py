"""Threads of one process commit in one file, beside other processes; and commits with a mirror."""

import errno
import os

import spool
from spool.disk.disk import FlushFailed
from spool.format.header import CLASS_BYTES
from spool.model import layout
from tests import door
from tests.crash.interleave import Scenario, Simulation
from tests.crash.mirrors import MirrorLast
from tests.crash.operations import OperationLog
from tests.crash.programs import (
    Program,
    acknowledging,
    getting,
    looking,
    one_after_the_other,
    opening,
    putting,
    reclaiming,
    replying,
    rolling_back,
    until_stopped,
)
from tests.crash.schedule import ScheduledDisk

MUCH = 3 * CLASS_BYTES  # bytes; more than fit on the full disk in one write
_ROOM = 2 * CLASS_BYTES  # bytes: a commit without the large message fits, in a padded file


class Crowded(ScheduledDisk):
    """Before a commit's flush all other threads of the process come as far as they can: they are the next commit."""

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        if directory == layout.COMMITTED:
            self.schedule.let_siblings_come()
        super().make_durable(handle, directory, new=new, stamped=stamped)

    @property
    def first(self) -> bool:
        """Return whether this is the first process's disk, and the schedule has begun."""
        return bool(self.schedule.actors and self is self.schedule.actors[0].disk and self.schedule.steps)


class Full(Crowded):
    """The disk of the first process has room for small files only."""

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        if self.first and len(data) > _ROOM:
            self._step("write_at", handle, offset, len(data))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_at(handle, offset, data)


class SecondFlushFails(Crowded):
    """The first process's second commit flush fails: that of the commits which gathered during the first flush."""

    _commits = 0

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        self._commits += self.first and directory == layout.COMMITTED
        if self._commits > 1:
            self._step("flush", handle)
            raise FlushFailed(errno.EIO, os.strerror(errno.EIO))
        super().make_durable(handle, directory, new=new, stamped=stamped)


class LateMirror(MirrorLast, Crowded):
    """If a commit flushes both disks, the mirror's flush comes last."""


def putting_much(log: OperationLog, letter: str) -> Program:
    def run(space: spool.Space) -> None:
        log.put(space, f"{letter} puts much", "a", f"{letter}0".ljust(MUCH, "."))

    return run


def company(simulation: Simulation) -> Program:
    """Let a thread that has taken a message wait until the first thread of the process has begun its commit."""

    def wait(space: spool.Space) -> None:
        first = simulation.schedule.actors[0]
        simulation.schedule.wait_until(lambda: door.is_led(space) or first.done)

    return wait


def politely(simulation: Simulation, *programs: Program) -> Program:
    """Begin after the other threads have their messages: no message can be taken while a commit is flushed."""
    return one_after_the_other(lambda space: simulation.schedule.let_siblings_come(), *programs)


def _group_beside_a_look(simulation: Simulation) -> None:
    log = simulation.log
    first, second = politely(simulation, putting(log, "A")), politely(simulation, putting(log, "B", group=2))
    simulation.process("A", first, second, replying(log, "C", company(simulation)))
    simulation.process("L", looking(log, 2))


def _group_beside_takes(simulation: Simulation) -> None:
    """Messages of one file are taken one by one, as soon as they can be seen."""
    log = simulation.log
    simulation.process("A", putting(log, "A"), putting(log, "B"), putting(log, "C"))
    simulation.process("G", one_after_the_other(getting(log, "G", 3), reclaiming))


def _two_groups(simulation: Simulation) -> None:
    log, together = simulation.log, company(simulation)
    first, second = politely(simulation, putting(log, "A")), politely(simulation, putting(log, "B"))
    simulation.process("A", first, second, acknowledging(log, "a", together))
    simulation.process("E", replying(log, "E"), putting(log, "F"), rolling_back(log, "e"))


def _group_beside_an_opener(simulation: Simulation) -> None:
    """An opener cleans ``active/``, where the group's file is written."""
    log = simulation.log
    first, second = politely(simulation, putting(log, "A")), politely(simulation, putting(log, "B"))
    simulation.process("A", first, second, replying(log, "C", company(simulation)))
    simulation.newcomer("O", opening(getting(log, "O", 2)))


def _group_on_a_full_disk(simulation: Simulation) -> None:
    """Only callers that put get the error; callers that only take succeed."""
    log, together = simulation.log, company(simulation)
    puts = until_stopped(politely(simulation, putting(log, "A")))
    much = until_stopped(politely(simulation, putting_much(log, "B")))
    replies = until_stopped(replying(log, "C", together))
    simulation.process("A", puts, much, replies, acknowledging(log, "a", together))
    simulation.process("G", getting(log, "G"))


def _flush_of_a_group_fails(simulation: Simulation) -> None:
    log = simulation.log
    simulation.process("A", *(until_stopped(putting(log, letter)) for letter in "ABC"))
    simulation.process("G", until_stopped(getting(log, "G", 2)))


def _commits_with_a_mirror(simulation: Simulation) -> None:
    log = simulation.log
    first, second = politely(simulation, putting(log, "A")), politely(simulation, putting(log, "B"))
    simulation.process("A", first, second, replying(log, "C", company(simulation)))
    simulation.process("G", getting(log, "G"))
    simulation.process("L", looking(log))


def _reclaim_with_a_mirror(simulation: Simulation) -> None:
    """A second process finishes the reclaim of a dead one, while a third keeps the space open."""
    log = simulation.log
    simulation.process("R", one_after_the_other(getting(log, "R"), putting(log, "R"), reclaiming))
    simulation.newcomer("C", opening(one_after_the_other(reclaiming, getting(log, "C"), putting(log, "C"), reclaiming)))
    simulation.process("S", looking(log))


THERE = ("m0", "m1")

TOGETHER = (
    Scenario("a group beside a look", _group_beside_a_look, THERE, disk=Crowded),
    Scenario("a group beside takes", _group_beside_takes, (), disk=Crowded),
    Scenario("two groups", _two_groups, THERE, disk=Crowded),
    Scenario("a group beside an opener", _group_beside_an_opener, THERE, disk=Crowded),
    Scenario("a group on a full disk", _group_on_a_full_disk, (*THERE, "m2"), disk=Full),
    Scenario("the flush of a group fails", _flush_of_a_group_fails, THERE, disk=SecondFlushFails),
    Scenario("a group with a mirror", _commits_with_a_mirror, THERE, disk=Crowded, mirrored=True),
    Scenario("a group with a mirror that comes last", _commits_with_a_mirror, THERE, disk=LateMirror, mirrored=True),
    Scenario("reclaim with a mirror", _reclaim_with_a_mirror, THERE, mirrored=True),
)
