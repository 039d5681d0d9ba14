"""A process is stopped for so long that all files it has read were consumed, reclaimed and overwritten. When it goes
on, it delivers no message twice, loses none, and trusts no overwritten byte.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import spool
from spool.errors import CommitUnknown, TransactionRolledBack
from spool.intake import Intake
from spool.model import layout
from spool.policies.attempt_journal import become_owner
from tests import door
from tests.at_once import AT_ONCE
from tests.clocks import timed
from tests.crash import programs
from tests.crash.intakes import drop
from tests.crash.interleave import Interleaver, Scenario, Simulation
from tests.crash.operations import OperationLog, Unexplained, text
from tests.crash.planted import OF_NARROW_WINDOWS, planted
from tests.crash.schedule import Stop, Switch
from tests.strides import Stride
from tests.survivors import Rules
from tests.torture import aftermath, windows, worker
from tests.torture.history import Log
from tests.torture.nursery import Nursery
from tests.torture.test_stopped_processes import Hasty, stopped_in
from tests.torture.windows import WindowDisk
from tests.torture.worker import KINDS

# -- at each call, simulated -------------------------------------------------------------------------------------------

THERE = ("m0", "m1", "m2")

STOPPED: dict[str, Callable[[Simulation], programs.Program]] = {
    "puts": lambda simulation: programs.putting(simulation.log, "V", 2),
    "gets": lambda simulation: programs.getting(simulation.log, "V", 2),
    "replies": lambda simulation: programs.replying(simulation.log, "V"),
    "rolls back": lambda simulation: programs.rolling_back(simulation.log, "V"),
    "looks": lambda simulation: programs.looking(simulation.log, 2),
    "votes and commits": lambda simulation: programs.one_after_the_other(
        programs.preparing(simulation.log), programs.deciding(simulation.log, "commit")
    ),
    "votes and rolls back": lambda simulation: programs.one_after_the_other(
        programs.preparing(simulation.log), programs.deciding(simulation.log, "rollback")
    ),
    "gets and reclaims": lambda simulation: programs.one_after_the_other(
        programs.getting(simulation.log, "V"), programs.reclaiming
    ),
    "takes dropped files": lambda simulation: lambda space: Intake(space).run(once=True) and None,
    "checks": lambda simulation: lambda space: _expect_no_damage(space),
}


def _getting_dropped(log: OperationLog, name: str, queue: str) -> programs.Program:
    """The queue may be empty: the dropped files become messages when another process takes them in."""

    def run(space: spool.Space) -> None:
        operation = log.begin(f"{name} gets", from_queue=queue)
        try:
            with log.ending(operation):
                body = text(space.get(queue, transaction=None))
                operation.takes, operation.from_queue = [(queue, body)], None
        except spool.Empty:
            operation.from_queue = None

    return run


def _expect_no_damage(space: spool.Space) -> None:
    damaged = [str(finding) for finding in space.check() if finding.kind == "damaged"]
    if damaged:
        raise Unexplained(f"check found damage that there is not: {damaged}")


def _patient(program: Callable[..., object]) -> Callable[..., None]:
    """A process that was stopped, or that waits for a stopped process, may get an error because the time is over."""

    def run(*args: object) -> None:
        with suppress(TransactionRolledBack, CommitUnknown):
            program(*args)

    return run


class Overtaken:
    """Counts the stops after which files that existed at the stop were missing."""

    stops = 0
    gone = 0


def _scenario(stopped: str, overtaken: Overtaken, *, opens: bool) -> Scenario:
    def consumes(simulation: Simulation) -> programs.Program:
        """Consume all messages again and again, so that names and files get other contents."""

        def run(space: spool.Space) -> None:
            before = set(door.disk(space).names(layout.COMMITTED))
            for turn in range(3):
                for queue in ("a", "b"):
                    for _ in THERE:
                        gets = _getting_dropped if "dropped" in stopped else programs.getting
                        _patient(gets(simulation.log, f"R{turn}", queue=queue))(space)
                for letter in "RS":
                    _patient(programs.putting(simulation.log, f"{letter}{turn}"))(space)
                _patient(programs.reclaiming)(space)
            overtaken.stops += 1
            overtaken.gone += not before.issubset(door.disk(space).names(layout.COMMITTED))

        return run

    def add_processes(simulation: Simulation) -> None:
        simulation.clock.sleep = lambda seconds: simulation.schedule.sleeping(max(seconds, 1.0))  # type: ignore[method-assign]
        program = _patient(STOPPED[stopped](simulation))
        if opens:
            simulation.newcomer("V", programs.opening(program))
        else:
            simulation.process("V", program)
            become_owner(door.store(simulation.spaces[-1]))  # or most of its calls would be those of its first claim
        simulation.process("R", consumes(simulation))

    setup = drop if "dropped" in stopped else None
    return Scenario(f"{stopped}, stopped", add_processes, THERE, setup, afterwards=_expect_nothing_set_aside)


def _expect_nothing_set_aside(space: spool.Space) -> None:
    """Expect an empty quarantine: a process must not take a missing file for a damaged one."""
    if found := [str(finding) for finding in space.quarantined()]:
        raise Unexplained(f"set aside, and nothing was damaged: {found}")


def _stop_before_each_call(stopped: str, thin: int, *, opens: bool = False) -> Overtaken:
    overtaken = Overtaken()
    explorer = Interleaver(_scenario(stopped, overtaken, opens=opens), Rules.ORDERED, limit=0)
    alone = explorer.play((Switch(1, 0),)).trace
    overtaken.stops = overtaken.gone = 0
    steps = [n for n, (actor, _) in enumerate(alone, 1) if actor == 0]
    for step in steps[1::thin]:
        explorer.play((Switch(1, 0), Stop(step)))
    return overtaken


@pytest.mark.every(3)
@pytest.mark.parametrize("stopped", STOPPED)
def test_a_process_stopped_before_any_call_goes_on_after_all_files_it_read_are_gone(
    stopped: str, quiet, record_property, stride: Stride
) -> None:
    overtaken = _stop_before_each_call(stopped, stride(9))
    assert overtaken.gone > overtaken.stops / 8
    record_property("stopped processes: stops", overtaken.stops)
    record_property("stopped processes: what they saw was gone", overtaken.gone)


def test_a_process_stopped_while_it_opens_the_space_goes_on(quiet, record_property, stride: Stride) -> None:
    overtaken = _stop_before_each_call("gets", stride(17), opens=True)
    assert overtaken.gone > 0
    record_property("stopped processes: stops", overtaken.stops)


def test_a_stopped_process_that_goes_on_without_a_second_look_is_noticed(quiet) -> None:
    (bug,) = (bug for bug, _ in OF_NARROW_WINDOWS if bug.what == "no second look")
    with planted(bug), pytest.raises(Unexplained):
        _stop_before_each_call("gets", 1)


# -- real processes ----------------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("window", "kind"),
    [
        (windows.CLAIM_TO_SECOND_LOOK, "getter"),
        (windows.PREPARE_TO_UNLOCK, "xa-putter"),
        (windows.DECISION_TO_MOVE, "xa-putter"),
        (windows.COMMIT_TO_REMOVAL, "dropper"),
    ],
)
def test_a_real_process_goes_on_if_all_that_it_saw_is_gone(window: str, kind: str, tmp_path: Path, record_property):
    root, logs = tmp_path / "space", tmp_path / "logs"
    logs.mkdir()
    with spool.create(root, defaults=AT_ONCE) as space:
        worker.make_queues(space)
    log = Log(str(logs / "bystander.log"), "bystander")
    disk = WindowDisk(str(root), log, random.Random(0), {}, lambda window: None)
    nursery = Nursery()
    with spool.open(timed(disk, Hasty())) as space:
        bystanders = _Bystanders(space, log)
        for _ in range(3):
            bystanders.step("putter", "transaction-putter")
        with stopped_in(window, kind, root, logs, nursery):
            there = set((root / layout.COMMITTED).iterdir())
            for turn in range(60):
                bystanders.step("getter", "getter", "putter")
                door.reclaim(space)
                gone = there - set((root / layout.COMMITTED).iterdir())
                if turn > 10 and len(gone) >= len(there) / 2:
                    break
    assert gone, "nothing was reclaimed behind its back"
    aftermath.look(str(root), logs, random.Random(1)).assert_nothing_is_broken()
    record_property("stopped processes: stops", 1)


class _Bystanders:
    """Workers of this process, one of a kind."""

    def __init__(self, space: spool.Space, log: Log) -> None:
        self._log = log
        self._workers = {}
        for kind in ("putter", "transaction-putter", "getter"):
            log.worker = f"bystander-{kind}"
            self._workers[kind] = KINDS[kind](space, log, 0, random.Random(kind))

    def step(self, *kinds: str) -> None:
        for kind in kinds:
            self._log.worker = f"bystander-{kind}"
            with suppress(TransactionRolledBack, CommitUnknown):
                self._workers[kind].step()
