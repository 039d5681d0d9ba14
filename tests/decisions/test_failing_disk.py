"""A disk whose calls fail: the log tells the truth, stops after a failed flush, and its coordinator remains alive.

A flush that fails drops its bytes from the simulated disk, although processes go on seeing them, as Linux does.
"""

import errno
from collections.abc import Callable

import pytest

from spool.decisions.directory import log_name
from spool.errors import CommitUnknown, SystemFailure
from tests.decisions import machines
from tests.decisions.cuts import end, recover
from tests.faults.disks import FaultySimulatedDisk
from tests.faults.plan import Plan, Spread
from tests.machine import Machine
from tests.simdisk import SimulatedDisk
from tests.strides import Stride
from tests.survivors import Rules, survivors

SPACE, SHOP = "space /a", "PostgreSQL 7 shop"


class Watched(machines.Coordinator):
    """A coordinator that goes on after errors; after each call it is checked that others see it alive."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk, daring=True)

    def register(self, resource: str) -> None:
        super().register(resource)
        self.expect_alive()

    def decide(self, serial: int) -> None:
        super().decide(serial)
        self.expect_alive()

    def expect_alive(self) -> None:
        assert self.told.coordinator is not None
        found = self.disk.machine.lookup(log_name(self.told.coordinator))
        assert found.locks, "others would take the coordinator for dead, and roll its branches back"


def decides(process: machines.Coordinator) -> None:
    process.register(SPACE)
    process.decide(1)
    process.decide(2)
    process.end(1)
    process.decide(3)
    process.end(2)
    process.register(SHOP)
    process.decide(4)
    process.decide(5)
    process.end(4)
    process.decide(6)
    process.decide(7)  # the log is full, and is written again
    process.end(3, 5, 6, 7)


def decides_together(process: machines.Coordinator) -> None:
    process.register(SPACE)
    process.decide_together(1, 2)
    process.decide_together(3, 4)
    process.end(1, 2, 3)
    process.decide(5)  # the log is full, and is written again
    process.decide_together(6, 7)


def play(program: machines.Program, rules: Rules, plan: Plan) -> tuple[Machine, Watched]:
    """Run a program on a disk that fails by the plan, and let it die."""
    machine = machines.new_machine(rules)
    process = Watched(FaultySimulatedDisk(machine, plan))
    with machines.simulation(1):
        try:
            process.open()
        except OSError as error:
            process.errors.append(error)
        else:
            program(process)
            expect_stopped_after_unknown(process)
            process.close()
    end(machine, process.disk)
    return machine, process


def expect_stopped_after_unknown(process: Watched) -> None:
    unknown = [place for place, error in enumerate(process.errors) if isinstance(error, CommitUnknown)]
    later = process.errors[unknown[0] :] if unknown else []
    assert all(isinstance(error, CommitUnknown | SystemFailure) for error in later), process.errors
    if unknown:
        with pytest.raises(SystemFailure, match="close this transaction manager"):
            process.log.check()


def look_everywhere(machine: Machine, process: Watched, rules: Rules, plan: Plan) -> None:
    """Recover after the death of the process, and after a power cut before or after that recovery."""
    try:
        logs: machines.Logs = {}
        twin = machine.copy()
        recover(SimulatedDisk(twin), logs)
        machines.check(logs, process.told)
        again = [inode for inode in twin.flushed_again if inode.entries is None]
        assert not again, "a file was flushed again whose flush had failed, and the kernel says that all is well"
        for before, cut in (({}, machine), (logs, twin)):
            for survivor in survivors(cut, rules, limit=6):
                after: machines.Logs = {}
                recover(SimulatedDisk(machines.new_machine(rules, survivor.image, boot=2)), after)
                machines.check(after, process.told)
                machines.check_kept(before, after, process.told)
    except Exception as error:
        error.add_note(f"{rules.value}; {plan}; the program was told {process.errors}")
        raise


BY_PROGRAM = pytest.mark.parametrize("program", [decides, decides_together], ids=lambda program: program.__name__)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("rules", "spread"),
    [
        pytest.param(
            rules,
            spread,
            id=f"{rules.value}, {spread.value}",
            marks=()
            if rules in (Rules.STRICT, Rules.NAMES_FOLLOW) and spread in (Spread.ONCE, Spread.READ_ONLY)
            else pytest.mark.slow,
        )
        for rules in Rules
        for spread in Spread
    ],
)
@BY_PROGRAM
def test_x03_a_failing_call_of_the_disk_is_told_as_it_is(
    program: machines.Program,
    rules: Rules,
    spread: Spread,
    stride: Stride,
    record_property: Callable[[str, object], None],
) -> None:
    faults, kinds = 0, set()
    with machines.overwritten_in_place():
        for code in (errno.EIO, errno.ENOSPC, errno.EMFILE):
            for begin in range(1, 10_000, stride(4)):
                plan = Plan(code, begin, spread)
                machine, process = play(program, rules, plan)
                if not plan.failed:
                    break
                faults += 1
                kinds |= {type(error) for error in process.errors}
                look_everywhere(machine, process, rules, plan)
    assert {CommitUnknown, SystemFailure} <= kinds
    record_property("decision logs: faults", faults)
