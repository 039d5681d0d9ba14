"""``run/`` may be deleted while no process has the space open. If a user deletes ``run/`` while the space is in use, no
message is lost or doubled. A new process cannot open the space, and a process that misses a file of ``run/`` stops.
Both get one error that tells the user how to go on."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import spool
from spool.coordination import locks
from spool.errors import SpaceStopped
from spool.model import layout
from tests import door
from tests.at_once import AT_ONCE
from tests.crash import programs
from tests.crash.harness import SEED, Explorer
from tests.crash.interleave import Interleaver, Simulation
from tests.crash.operations import Unexplained
from tests.crash.planted import Bug, planted
from tests.crash.scenarios import Scenario
from tests.crash.schedule import Switch
from tests.histories.history import History
from tests.histories.table import HISTORIES
from tests.machine import Machine
from tests.simdisk import SimulatedDisk, repeatable
from tests.strides import Stride
from tests.survivors import Rules

# -- run/ is deleted while the space is closed ------------------------------------------------------------------------


class Forgetful(Explorer):
    """After a kill at each step, a user deletes ``run/`` before a process opens the space again."""

    def explore_without_run(self, thin: int) -> int:
        with repeatable(SEED):
            self.base = self._set_up()
        steps = self._steps()[::thin]
        for step in steps:
            machine, expected, call = self._cut_at(step)
            with self._telling(f"{self.history.name}: killed before {call}, then run/ deleted"):
                for process in {handle.process for handle in machine.handles.values()}:
                    machine.kill(process)
                shown = expected.allowed
                for turn in (1, 2):
                    _delete_run(machine)
                    with repeatable(SEED + 1000 * turn):
                        shown = frozenset([self._open_and_look(machine, shown, told=True)])
                self._open_again(machine, *shown)
        return len(steps)


def _delete_run(machine: Machine) -> None:
    disk = SimulatedDisk(machine)
    programs.delete(disk, *disk.names(layout.RUN))
    disk.remove_directory(layout.RUN)


@pytest.mark.every(3)
@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_run_deleted_while_closed_after_a_kill_at_any_step_loses_nothing(
    history: History, quiet, record_property, stride: Stride
) -> None:
    """The deletion follows a kill at each step. The space has messages, claims, branches that voted or are half
    committed, and dropped files that are half taken."""
    thin = stride(11)
    kills = Forgetful(history, Rules.ORDERED).explore_without_run(thin)
    record_property("run/ deleted: while closed, after a kill", kills)


# -- run/ is deleted while the space is in use, in each order of the calls --------------------------------------------

TOLD = re.compile("was deleted while the space is in use.*close the space in every process, then open it again")
FILES = ("control", "counters", "feed", "numbers", "xids", "claims-01", "claims-02", "all")


def _explorer(file: str, worker: str) -> Interleaver:
    """Four processes: a worker, one that deletes the file, one that opens the space, and one that has the space open
    but idles."""

    def add_processes(simulation: Simulation) -> None:
        simulation.process("W", _telling(WORKERS[worker](simulation)))
        simulation.newcomer(
            "D", lambda _, disk: programs.delete(disk, *(disk.names(layout.RUN) if file == "all" else [file]))
        )
        simulation.newcomer("N", _telling(programs.opening(programs.getting(simulation.log, "N"))))
        simulation.process("I", _telling(programs.getting(simulation.log, "I")))

    return Interleaver(Scenario(f"{file} deleted", add_processes, ("m0", "m1")), Rules.ORDERED, limit=0)


def _telling(program: Callable[..., None]) -> Callable[..., None]:
    """The program may end with SpaceStopped, whose text must tell the user how to go on."""

    def run(*args: object) -> None:
        try:
            program(*args)
        except SpaceStopped as error:
            if not TOLD.search(str(error)):
                raise AssertionError(f"nobody knows what to do: {error}") from error
            raise

    return programs.until_stopped(run)


WORKERS: dict[str, Callable[[Simulation], programs.Program]] = {
    "puts": lambda simulation: programs.putting(simulation.log, "W", 2),
    "gets": lambda simulation: programs.getting(simulation.log, "W", 2),
    "prepares and commits": lambda simulation: programs.one_after_the_other(
        programs.preparing(simulation.log), programs.deciding(simulation.log, "commit")
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("file", FILES)
def test_nothing_is_lost_or_doubled_when_a_file_of_run_is_deleted_before_any_call(
    file: str, worker: str, quiet, record_property, stride: Stride
) -> None:
    """Before each call of a worker, one process deletes the file and a second opens the space. Then a third, which has
    the space open already, goes on."""
    thin = stride(19)
    schedules = _before_each_call(_explorer(file, worker), thin, FILES.index(file))
    record_property("run/ deleted: while in use, schedules", schedules)


def _before_each_call(explorer: Interleaver, thin: int, offset: int = 0) -> int:
    worker, administrator = 0, 1
    alone = explorer.play((Switch(1, worker),)).trace
    steps = [n for n, (actor, _) in enumerate(alone, 1) if actor == worker][1:]
    tried = steps[offset % thin :: thin]
    for step in tried:
        plan = (Switch(1, worker), Switch(step, administrator))
        deleting = explorer.play(plan).trace
        end = next((n for n, (by, _) in enumerate(deleting, 1) if n > step and by != administrator), len(deleting))
        for following in (2, 3):
            explorer.play((*plan, Switch(end, following)))
    return 3 * len(tried)


MAKES_IT_ANEW = Bug("who misses a file makes it anew", locks.open_shared,
                    (("if not make and", "if False and"), ("if not make:", "if False:")), "")  # fmt: skip
COMES_IN_ALONE = Bug("who comes does not see the others", locks.OpenLock.enter,
                     (("self.disk.some_lock(self.handle, _ALIVE, 1) is None", "True"),), "")  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("bug", "file", "worker"),
    [(MAKES_IT_ANEW, "claims-01", "gets"), (COMES_IN_ALONE, "claims-01", "gets")],
    ids=["makes it anew", "comes in alone"],
)
def test_a_newcomer_beside_a_deleted_run_would_be_noticed(bug: Bug, file: str, worker: str, quiet) -> None:
    explorer = _explorer(file, worker)
    with planted(bug), pytest.raises(Unexplained):
        _before_each_call(explorer, 1)


def test_no_process_reclaims_by_a_lock_file_that_was_made_again(tmp_path: Path) -> None:
    """Otherwise two processes would reclaim, and count the removed files twice."""
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("a")
        for _ in range(3):
            space.put("a", "one")
            space.get("a")
        (tmp_path / "space" / layout.RECLAIM_LOCK).unlink()
        assert door.reclaim(space) == 0
        assert not (tmp_path / "space" / layout.RECLAIM_LOCK).exists()
    with spool.open(tmp_path / "space") as space:
        assert door.reclaim(space) > 0
        assert space.check() == []


# -- run/ is deleted while real processes use the space ---------------------------------------------------------------

WORK = """
import sys, spool
root, name, kind = sys.argv[1:]
space = spool.open(root)
def say(*words):
    print(*words, flush=True)
def work(turn):
    body = f"{name}-{turn}"
    if kind == "waits":
        space.get("nothing", timeout=None)
    elif kind == "puts":
        space.put("a", body)
        say("put", body)
    else:
        try:
            with space.transaction() as tx:
                body = tx.get("a", timeout=1).body
                tx.put("b", body)
                say("moving", body)
            say("moved", body)
        except spool.Empty:  # those who put were stopped before; a put notices it, too
            space.put("a", body)
            say("put", body)
turn = 0
say("begun")
try:
    while True:
        work(turn)
        turn += 1
except spool.SpoolError as error:
    say("stopped", type(error).__name__, error)
sys.stdin.read()
space.close()
"""


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(4))
def test_real_processes_stop_when_run_is_deleted_and_lose_nothing(seed: int, tmp_path: Path, record_property) -> None:
    numbers = random.Random(seed)
    root = tmp_path / "space"
    with spool.create(root, defaults=AT_ONCE) as space:
        for queue in ("a", "b", "nothing"):
            space.create_queue(queue)
        first = [space.put("a", f"first-{place}") and f"first-{place}" for place in range(30)]
    kinds = ("puts", "puts", "moves", "moves", "waits")
    workers = [_start(root, f"w{place}", kind) for place, kind in enumerate(kinds)]
    for worker in workers:
        assert worker.stdout.readline() == "begun\n"
    said = [[worker.stdout.readline() for _ in range(numbers.randint(1, 12))] for worker in workers[:-1]]
    _remove_in_any_order(root / layout.RUN, numbers)
    with pytest.raises(SpaceStopped, match=TOLD):
        spool.open(root)
    said = [[*lines, *_until_stopped(worker)] for worker, lines in zip(workers, [*said, []], strict=True)]
    with pytest.raises(SpaceStopped, match=TOLD):
        spool.open(root)
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0
    _assert_nothing_lost_or_doubled(root, first, [line.split() for lines in said for line in lines])
    record_property("run/ deleted: under real processes", 1)


def _start(root: Path, name: str, kind: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WORK, root, name, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _remove_in_any_order(directory: Path, numbers: random.Random) -> None:
    names = sorted(os.listdir(directory))
    numbers.shuffle(names)
    for name in names:
        (directory / name).unlink()
    directory.rmdir()


def _until_stopped(worker: "subprocess.Popen[str]") -> list[str]:
    lines = []
    while not lines or not lines[-1].startswith("stopped "):
        line = worker.stdout.readline()
        assert line, "it ended without a word"
        lines.append(line)
    _, kind, text = lines[-1].split(" ", 2)
    assert kind in ("SpaceStopped", "CommitUnknown"), lines[-1]
    assert TOLD.search(text), text
    return lines


def _assert_nothing_lost_or_doubled(root: Path, first: list[str], said: list[list[str]]) -> None:
    put = {*first, *(words[1] for words in said if words[0] == "put")}
    moved = {words[1] for words in said if words[0] == "moved"}
    moving = {words[1] for words in said if words[0] == "moving"}
    with spool.open(root) as space:
        assert space.recovery.alone
        waiting, replies = ([message.body for message in space.browse(queue)] for queue in "ab")
        assert not space.recovery.damaged
        assert [finding for finding in space.check() if finding.kind == "damaged"] == []
    everything = [*waiting, *replies]
    assert len(everything) == len(set(everything)), "a message is there twice"
    assert put <= set(everything), "an acknowledged message is lost"
    assert moved <= set(replies) <= moving, "an acknowledged move is lost, or one that nobody made is there"
