"""Two intakes read the same drop folder while a third process takes their messages."""

import spool
from spool.intake import Intake
from spool.model import layout
from tests import door
from tests.crash.interleave import Scenario, Simulation
from tests.crash.operations import DONE, OperationLog, text
from tests.crash.programs import Program
from tests.machine import OF_ANOTHER


def taking_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def _two_intakes(simulation: Simulation) -> None:
    simulation.process("I", taking_in)
    simulation.process("J", taking_in)
    simulation.process("C", _getting_dropped(simulation.log))


DROPPED = ("d", "e")


def drop(space: spool.Space, log: OperationLog, owner: str = "") -> None:
    disk = door.disk(space)
    for name in DROPPED:
        handle = disk.create(f"{layout.DROP}/a/{owner}{name}")
        disk.write_at(handle, 0, name.encode())
        disk.flush(handle)
        disk.close(handle)
        log.begin("dropped", ("a", name)).may(DONE)
    disk.flush_directory(f"{layout.DROP}/a")


def _drop_as_another_user(space: spool.Space, log: OperationLog) -> None:
    drop(space, log, OF_ANOTHER)


def _getting_dropped(log: OperationLog) -> Program:
    """The queue may still be empty: the schedule decides when the intakes run."""

    def run(space: spool.Space) -> None:
        for _ in DROPPED:
            operation = log.begin("C gets", from_queue="a")
            try:
                with log.ending(operation):
                    body = text(space.get("a", transaction=None))
                    operation.takes, operation.from_queue = [("a", body)], None
            except spool.Empty:
                operation.from_queue = None

    return run


INTAKES = (
    Scenario("two intakes", _two_intakes, (), drop, afterwards=taking_in),
    Scenario("two intakes and another user's files", _two_intakes, (), _drop_as_another_user, afterwards=taking_in),
)
