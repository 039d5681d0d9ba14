"""Scenarios of several processes: those of the protocol's model with the real code, and further ones.

Each function adds processes to a simulation, each with its program; ``model`` names the scenario of tests/protocol.
"""

import errno
from functools import partial
from unittest import mock

import spool
from spool.coordination.locks import coordinator_byte
from spool.disk.disk import FlushFailed
from spool.errors import CommitUnknown, DiskFailure, TransactionRolledBack
from spool.index.stored_run import StoredRun
from spool.log import write_set
from spool.log.adoption import UnknownBranch
from spool.model import layout
from spool.policies import heuristics
from spool.remote import remote_branch as remote_branch
from spool.store import feed
from spool.transactions import two_phase
from tests import door
from tests.crash.compactions import COMPACTIONS
from tests.crash.intakes import INTAKES
from tests.crash.interleave import Scenario, Simulation
from tests.crash.operations import NOTHING, Operation, OperationLog
from tests.crash.posted import POSTED
from tests.crash.programs import (
    ROUND,
    XID,
    Program,
    claiming,
    deciding,
    delete,
    getting,
    looking,
    one_after_the_other,
    opening,
    prepare,
    preparing,
    putting,
    reclaiming,
    replying,
    rolling_back,
    unjournaled,
    until_stopped,
)
from tests.crash.readers import READERS
from tests.crash.rounds import ROUNDS
from tests.crash.schedule import ScheduledDisk
from tests.crash.subscriptions import SUBSCRIPTIONS
from tests.crash.together import TOGETHER
from tests.simdisk import ROOT, SimulatedDisk


def _commits_and_takes(simulation: Simulation) -> None:
    simulation.process("A", putting(simulation.log, "A", 2))
    simulation.process("B", putting(simulation.log, "B", 1, group=2))
    simulation.process("C", getting(simulation.log, "C", 3))


def _commits_and_looks(simulation: Simulation) -> None:
    simulation.process("A", putting(simulation.log, "A"))
    simulation.process("B", putting(simulation.log, "B"))
    simulation.process("L", looking(simulation.log, 2))


def _ring_overrun(simulation: Simulation) -> None:
    """More commits than the ring has slots, beside a process that looks now and then, and one that opens the space."""
    simulation.process("A", putting(simulation.log, "A", feed.SLOTS))
    simulation.process("B", one_after_the_other(putting(simulation.log, "B", 2), getting(simulation.log, "B", 2)))
    simulation.process("L", looking(simulation.log, 3))
    simulation.newcomer("O", opening(getting(simulation.log, "O")))


def _claim_beside_removal(simulation: Simulation) -> None:
    simulation.process("R", getting(simulation.log, "R"))
    simulation.process("L", getting(simulation.log, "L", 2))


def _claims_beside_takes(simulation: Simulation) -> None:
    simulation.process("C", claiming(simulation.log, "C", 2))
    simulation.process("D", claiming(simulation.log, "D"))
    simulation.process("T", getting(simulation.log, "T", 2))
    simulation.newcomer("O", opening(getting(simulation.log, "O")))


def _prepare_and(decision: str, simulation: Simulation) -> None:
    simulation.process("P", preparing(simulation.log))
    simulation.process("D", deciding(simulation.log, decision, patience=5))
    simulation.process("T", getting(simulation.log, "T", 2))


def _prepare_take_and_commit(simulation: Simulation) -> None:
    """As the scenario before, but the taking process is at work when the decision comes."""
    simulation.process("P", preparing(simulation.log))
    simulation.process("T", getting(simulation.log, "T", 2))
    simulation.process("D", deciding(simulation.log, "commit", patience=5))


def _open_beside_a_number(simulation: Simulation) -> None:
    """A reader that rebuilds its index leaves out a file that is not published yet."""
    simulation.process("A", putting(simulation.log, "A"))
    simulation.newcomer("L", opening(replying(simulation.log, "L")))
    simulation.newcomer("N", opening(getting(simulation.log, "N", 2, queue="b")))


def _vote_beside_a_take(simulation: Simulation) -> None:
    simulation.process("P", preparing(simulation.log))
    simulation.process("T", getting(simulation.log, "T", 2))


def _rollback_beside_takes(simulation: Simulation) -> None:
    simulation.process("R", deciding(simulation.log, "rollback"))
    simulation.process("T", getting(simulation.log, "T", 2))


def _in_doubt(space: spool.Space, log: OperationLog) -> None:
    prepare(log, space)


def _moved_while_unpublished(simulation: Simulation) -> None:
    simulation.process("D", deciding(simulation.log, "commit"))
    simulation.process("M", lambda space: two_phase.finish_moves(door.store(space)) and None)
    simulation.newcomer("O", opening(getting(simulation.log, "O")))


def _two_finish_a_number(simulation: Simulation) -> None:
    simulation.process("W", putting(simulation.log, "W"))
    simulation.process("F", putting(simulation.log, "F"))
    simulation.process("G", one_after_the_other(getting(simulation.log, "G", 2), reclaiming))


def _removal_beside_a_get_and_a_put(simulation: Simulation) -> None:
    """A get of the message, or the next commit, decides for both processes whether the dead process took the
    message."""
    simulation.process("R", replying(simulation.log, "R", begin=unjournaled))
    simulation.process("L", getting(simulation.log, "L"))
    simulation.process("F", putting(simulation.log, "F"))


def _three_decide(simulation: Simulation) -> None:
    simulation.process("B", deciding(simulation.log, "commit"))
    simulation.process("R", deciding(simulation.log, "rollback"))
    simulation.process("D", deciding(simulation.log, "commit"))


def _late_reader(simulation: Simulation) -> None:
    simulation.process(
        "R", one_after_the_other(getting(simulation.log, "R"), reclaiming, putting(simulation.log, "R", 2))
    )
    simulation.process("S", getting(simulation.log, "S", 2))
    simulation.newcomer("L", opening(getting(simulation.log, "L")))


def _adopt_take_and_reclaim(simulation: Simulation) -> None:
    for name in ("B", "D"):
        simulation.process(
            name,
            one_after_the_other(
                deciding(simulation.log, "commit"), getting(simulation.log, name, queue="b"), reclaiming, reclaiming
            ),
        )


def _coordinator_ends(simulation: Simulation) -> None:
    """A process that meets the branch of a coordinator that may have decided looks at its lock first."""
    simulation.process("D", _round(simulation.log))
    simulation.process("Z", lambda space: two_phase.resolve_orphans(door.store(space), door.deadline(space)) and None)


def _driver_task_and_cleaner(simulation: Simulation) -> None:
    simulation.process("D", _round(simulation.log))
    simulation.process("Z", getting(simulation.log, "Z"))
    simulation.process("N", replying(simulation.log, "n"))


def _round(log: OperationLog) -> Program:
    """A forwarding round: hold, let a task write and prepare its branch, adopt it."""

    def run(space: spool.Space) -> None:
        store = door.store(space)
        byte = coordinator_byte(ROUND.gtrid)
        assert store.shared.xids.try_lock(byte)
        operation = log.begin("round", from_queue="a")
        tx = door.branch(space, timeout=None, counted=False)
        if held := tx.hold("a", 1):
            disk = type(store.files.disk)(store.files.disk.machine, store.files.disk.schedule)  # type: ignore[attr-defined]
            try:
                with mock.patch.object(remote_branch, "Disk", return_value=disk):
                    _task(operation, held[0])
            except TransactionRolledBack:
                if not store.files.disk.dead:  # type: ignore[attr-defined]
                    raise
                return  # the task outlived its driver, and noticed
            with log.ending(operation):
                tx.commit(adopt=[ROUND])
        else:
            operation.ended, operation.from_queue = True, None
        tx.abandon()
        store.shared.xids.unlock(byte)

    return run


def _task(operation: Operation, held: StoredRun) -> None:
    """A process of its own, which may outlive its driver."""
    branch = remote_branch.RemoteBranch(ROOT, ROUND)
    body = next(branch.messages([held])).raw.decode()
    operation.takes, operation.puts, operation.from_queue = [("a", body)], [("b", f"r{body}")], None
    door.add(branch, ("put", "b", [f"r{body}".encode()], {"codec": "text"}), ("remove", *held.position, 1, "dequeued"))
    branch.prepare()
    branch.close()


def _run_deleted_while_closed(simulation: Simulation) -> None:
    simulation.process("W", putting(simulation.log, "W", 2))
    simulation.process("V", getting(simulation.log, "V"))

    def administrator(simulation: Simulation, disk: SimulatedDisk) -> None:
        while not simulation.others_are_done():
            simulation.clock.sleep(0.01)
        for space in simulation.spaces:
            simulation.machine.kill(door.disk(space))  # type: ignore[arg-type]
        for name in disk.names(layout.RUN):
            disk.unlink(f"{layout.RUN}/{name}")
        space = simulation.open(disk)
        getting(simulation.log, "O")(space)
        putting(simulation.log, "O")(space)

    simulation.newcomer("O", administrator)


def _run_deleted_while_in_use(simulation: Simulation) -> None:
    """A process that misses a file of ``run/`` stops. A new process is refused while the others live."""
    simulation.process("A", until_stopped(putting(simulation.log, "A", 2)))
    simulation.process(
        "B", until_stopped(one_after_the_other(preparing(simulation.log), deciding(simulation.log, "commit")))
    )
    simulation.process("C", until_stopped(getting(simulation.log, "C", 2)))
    simulation.newcomer(
        "N", lambda simulation, disk: until_stopped(opening(getting(simulation.log, "N")))(simulation, disk)
    )
    simulation.newcomer("D", lambda simulation, disk: delete(disk, *reversed(disk.names(layout.RUN))))


def _open_beside_commits(simulation: Simulation) -> None:
    simulation.newcomer("A", opening(putting(simulation.log, "A")))
    simulation.newcomer("B", opening(getting(simulation.log, "B")))
    simulation.newcomer("C", opening(getting(simulation.log, "C")))


def _mixed(simulation: Simulation) -> None:
    simulation.process("A", replying(simulation.log, "A"))
    simulation.process("B", rolling_back(simulation.log, "B"))
    simulation.process("C", one_after_the_other(putting(simulation.log, "C"), getting(simulation.log, "C")))


def _opener_beside_a_branch(simulation: Simulation) -> None:
    """An opener removes the files of dead branches from active/, and keeps the file of a live branch."""
    simulation.process("P", preparing(simulation.log))
    simulation.newcomer("O", opening(putting(simulation.log, "O")))
    simulation.newcomer("U", opening(getting(simulation.log, "U")))


def _rebuild_beside_commits(simulation: Simulation) -> None:
    """A reader that was overtaken by reclaim starts again while others commit."""
    simulation.process("S", getting(simulation.log, "S", 2))
    simulation.process("R", one_after_the_other(getting(simulation.log, "R"), reclaiming))
    simulation.process("A", putting(simulation.log, "A", 2))


def _two_threads(simulation: Simulation) -> None:
    simulation.process("A", putting(simulation.log, "A"), getting(simulation.log, "a", 2))
    simulation.process("C", getting(simulation.log, "C"))


def _two_create_queues(simulation: Simulation) -> None:
    """A queue that is lost would take its message with it."""

    def creating(letter: str) -> Program:
        def run(space: spool.Space) -> None:
            space.create_queue(letter.lower())
            simulation.log.put(space, f"{letter} puts", letter.lower(), f"{letter}0")

        return run

    simulation.process("X", creating("X"))
    simulation.process("Y", creating("Y"))


class FailingFlush(ScheduledDisk):
    """The first process of the schedule has a disk whose flushes fail: its writes never become durable."""

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        if self.schedule.actors and self is self.schedule.actors[0].disk and self.schedule.steps:
            self._step("flush", handle)
            raise FlushFailed(errno.EIO, "Input/output error")
        super().make_durable(handle, directory, new=new, stamped=stamped)


class FailingCounters(ScheduledDisk):
    """The first process of the schedule cannot say once that its first flushed commit is visible."""

    _flushed = _failed = False

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        super().make_durable(handle, directory, new=new, stamped=stamped)
        self._flushed = bool(self.schedule.actors and self is self.schedule.actors[0].disk and self.schedule.steps)

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        if self._flushed and not self._failed and self._handle(handle) is self.machine.lookup(layout.COUNTERS):
            self._step("write_at", handle, offset, len(data))
            self._failed = True
            raise OSError(errno.EIO, "Input/output error")
        super().write_at(handle, offset, data)


def _cannot_be_made_visible(simulation: Simulation) -> None:
    """The writer lives and has released its message. The next claim of the message finishes the commit first."""

    def not_knowing(space: spool.Space) -> None:
        try:
            replying(simulation.log, "A")(space)
        except (CommitUnknown, DiskFailure):  # DiskFailure: the unpublished commit was that of a dead writer
            pass

    simulation.process("A", not_knowing)
    simulation.process("C", replying(simulation.log, "C"))
    simulation.process("G", getting(simulation.log, "G"))


def _heuristic(simulation: Simulation) -> None:
    """An administrator decides for the coordinator, which comes back meanwhile; the fact outlives reclaim."""

    def administrator(space: spool.Space) -> None:
        (operation,) = (operation for operation in simulation.log.operations if operation.xid == str(XID))
        if not operation.ended:
            operation.outcomes |= {NOTHING}
        operation.may_return = True
        try:
            space.engine.decide(XID, commit=False)
        except UnknownBranch:
            assert heuristics.heuristic_outcome(door.store(space), XID) is None, (
                "nothing was decided, and a fact says so"
            )
            return
        operation.may(NOTHING)
        operation.ended = True
        door.reclaim(space)
        assert heuristics.heuristic_outcome(door.store(space), XID) == heuristics.ROLLED_BACK

    simulation.process("H", administrator)
    simulation.process("B", deciding(simulation.log, "commit"))
    simulation.process("G", one_after_the_other(getting(simulation.log, "G", 2), reclaiming))


def _streaming(simulation: Simulation) -> None:
    """A branch whose sections are written before it commits, beside an opener that cleans active/ and a reclaimer."""

    def streams(space: spool.Space) -> None:
        with mock.patch.object(write_set, "SECTION_MESSAGES", 2):
            log = simulation.log
            log.put(space, "S streams", "a", *(f"S{place}" for place in range(5)))

    simulation.process("S", streams)
    simulation.newcomer("O", opening(getting(simulation.log, "O")))
    simulation.process("G", one_after_the_other(getting(simulation.log, "G", 2), reclaiming))


def _half_taken(simulation: Simulation) -> None:
    """One of two messages of a commit is taken: the file with the removal remains as long as the commit's file."""

    pair, last = putting(simulation.log, "H", group=2), putting(simulation.log, "I")
    simulation.process("H", one_after_the_other(pair, getting(simulation.log, "H"), last, reclaiming))
    simulation.newcomer("O", opening(getting(simulation.log, "O")))


def _one_flush_fails(simulation: Simulation) -> None:
    simulation.process("A", until_stopped(putting(simulation.log, "A")))
    simulation.process("B", until_stopped(putting(simulation.log, "B", 2)))
    simulation.process("C", until_stopped(getting(simulation.log, "C", 2)))


def _clock_steps_back(simulation: Simulation) -> None:
    def stepping(space: spool.Space) -> None:
        simulation.clock.wall_step = -86_400
        putting(simulation.log, "K")(space)

    simulation.process("A", putting(simulation.log, "A", 2))
    simulation.process("K", stepping)
    simulation.process("C", getting(simulation.log, "C", 3))


def _loses(space: spool.Space, log: OperationLog) -> None:
    space.change_queue("a", durability="none")
    log.losing = frozenset("a")


def _lossy_commits_and_takes(simulation: Simulation) -> None:
    """Several processes, with durable transactions and a reclaim that flushes at the same time."""
    simulation.process("A", putting(simulation.log, "A", 2))
    simulation.process("B", one_after_the_other(getting(simulation.log, "B"), reclaiming))
    simulation.process("C", replying(simulation.log, "C"))


SCENARIOS = (
    *COMPACTIONS,
    Scenario("commits beside takes", _commits_and_takes, ("m0",), model="puts-at-once"),
    Scenario("commits beside looks", _commits_and_looks, ("m0",), model="puts-at-once"),
    Scenario("a ring that is overrun", _ring_overrun, ("m0", "m1")),
    Scenario("a claim beside a removal", _claim_beside_removal, ("m0", "m1"), model="claim-beside-removal"),
    Scenario("claims beside takes", _claims_beside_takes, ("m0", "m1", "m2")),
    Scenario(
        "prepare, commit by another, take", partial(_prepare_and, "commit"), ("m0", "m1"), model="vote-beside-claim"
    ),
    Scenario("prepare, take, commit by another", _prepare_take_and_commit, ("m0", "m1"), model="vote-beside-claim"),
    Scenario("an opener beside a new number", _open_beside_a_number, ("m0",), model="opener-beside-commit"),
    Scenario(
        "prepare, rollback by another, take", partial(_prepare_and, "rollback"), ("m0", "m1"), model="vote-beside-claim"
    ),
    Scenario("a vote beside a take", _vote_beside_a_take, ("m0", "m1")),
    Scenario("a rollback beside takes", _rollback_beside_takes, ("m0", "m1"), _in_doubt, "listing-beside-rollback"),
    Scenario(
        "an adopted branch is moved beside its head", _moved_while_unpublished, ("m0", "m1"), _in_doubt, "early-move"
    ),
    Scenario("two finish a dead writer's number", _two_finish_a_number, ("m0",), model="two-finishers"),
    Scenario("a removal beside a get and a put", _removal_beside_a_get_and_a_put, ("m0",), model="dead-remover"),
    Scenario(
        "commit, rollback and commit race", _three_decide, ("m0", "m1"), _in_doubt, "decisions-race and unflushed-vote"
    ),
    Scenario(
        "a late reader beside reclaim and recycling",
        _late_reader,
        ("m0", "m1", "m2"),
        model="late-reader and file-used-again",
    ),
    Scenario("adopt, take and reclaim by two", _adopt_take_and_reclaim, ("m0",), _in_doubt, "reclaim-order"),
    Scenario("a coordinator decides and ends", _coordinator_ends, ("m0",), model="coordinator-dies"),
    Scenario("run/ deleted while closed", _run_deleted_while_closed, ("m0",), model="empty-number and run-deleted"),
    Scenario("half of a commit is taken, and reclaim", _half_taken, ()),
    Scenario("run/ deleted while in use", _run_deleted_while_in_use, ("m0", "m1")),
    Scenario("two open beside a commit", _open_beside_commits, ("m0",), model="openers-beside-commits"),
    Scenario("driver, task and cleaner", _driver_task_and_cleaner, ("m0", "m1"), model="round-of-tasks"),
    Scenario("reply, rollback and put", _mixed, ("m0", "m1"), model="attempts"),
    Scenario("an opener beside a live branch", _opener_beside_a_branch, ("m0", "m1"), model="opener-cleans"),
    Scenario("a rebuild beside commits", _rebuild_beside_commits, ("m0", "m1", "m2"), model="opener-beside-commit"),
    Scenario("two threads of a process", _two_threads, ("m0",)),
    Scenario("two create queues", _two_create_queues),
    *INTAKES,
    Scenario("one process's flush fails", _one_flush_fails, ("m0",), disk=FailingFlush),
    Scenario("a commit that cannot be made visible", _cannot_be_made_visible, ("m0",), disk=FailingCounters),
    Scenario("an administrator beside the coordinator", _heuristic, ("m0", "m1"), _in_doubt),
    Scenario("a branch that streams", _streaming, ("m0", "m1")),
    Scenario("the clock steps back", _clock_steps_back, ("m0",)),
    *TOGETHER,
    *POSTED,
    *READERS,
    *ROUNDS,
    *SUBSCRIPTIONS,
    Scenario("a queue without durability", _lossy_commits_and_takes, ("m0",), _loses),
)
