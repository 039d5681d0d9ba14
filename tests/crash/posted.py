"""Processes that find a leader post their commits, and the next leader makes them in its own file."""

from contextlib import suppress

import spool
from spool.errors import TransactionTimeout
from spool.model import layout
from tests.crash import programs
from tests.crash.interleave import Scenario, Simulation
from tests.crash.operations import OperationLog
from tests.crash.schedule import ScheduledDisk

# The places of the actors. The process that opens the space first expects no others, so its program does nothing.
FIRST, LEADS, LEADS_NEXT, REPLIES, TAKES = range(5)


class Visited(ScheduledDisk):
    """Before the flush of the first leader's first commit, the other processes come as far as they can: they post."""

    _was_visited = False

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        actors = self.schedule.actors
        begun = bool(self.schedule.steps and actors and self is actors[LEADS].disk)
        if directory == layout.COMMITTED and begun and not self._was_visited:
            self._was_visited = True
            self.schedule.let_others_come()
        super().make_durable(handle, directory, new=new, stamped=stamped)


def patiently(program: programs.Program) -> programs.Program:
    """Let the program end early, because a process that is stopped may hold up the others for too long."""

    def run(space: spool.Space) -> None:
        with suppress(TransactionTimeout):
            program(space)

    return programs.until_stopped(run)


def _nothing(_: spool.Space) -> None:
    pass


def _posted_commits(simulation: Simulation) -> None:
    log = simulation.log
    simulation.process("F", _nothing)
    simulation.process("A", patiently(programs.putting(log, "A")))
    simulation.process("B", patiently(programs.putting(log, "B", 2)))
    simulation.process("C", patiently(programs.replying(log, "C", begin=programs.unjournaled)))
    simulation.process("L", patiently(programs.one_after_the_other(programs.getting(log, "L", 2), programs.reclaiming)))


def _posted_beside_a_look(simulation: Simulation) -> None:
    log = simulation.log
    simulation.process("F", _nothing)
    simulation.process("A", patiently(programs.putting(log, "A")))
    simulation.process("B", patiently(programs.putting(log, "B")))
    simulation.process("C", patiently(programs.getting(log, "C")))
    simulation.process("L", programs.looking(log, 2))


def _posted_decision(simulation: Simulation) -> None:
    _decide_beside_puts(simulation)
    simulation.process("T", patiently(programs.getting(simulation.log, "T", 2)))


def _posted_decision_and_rollback(simulation: Simulation) -> None:
    _decide_beside_puts(simulation)
    simulation.process("R", patiently(programs.deciding(simulation.log, "rollback")))


def _decide_beside_puts(simulation: Simulation) -> None:
    log = simulation.log
    simulation.process("F", _nothing)
    simulation.process("A", patiently(programs.putting(log, "A")))
    simulation.process("B", patiently(programs.putting(log, "B")))
    simulation.process("D", patiently(programs.deciding(log, "commit", told=True)))


def _in_doubt(space: spool.Space, log: OperationLog) -> None:
    programs.prepare(log, space)


POSTED = (
    Scenario("posted decision", _posted_decision, ("m0", "m1"), _in_doubt, disk=Visited),
    Scenario("posted decision beside a rollback", _posted_decision_and_rollback, ("m0", "m1"), _in_doubt, disk=Visited),
    Scenario("posted commits", _posted_commits, ("m0", "m1"), disk=Visited),
    Scenario("posted commits beside a look", _posted_beside_a_look, ("m0", "m1"), disk=Visited),
)
