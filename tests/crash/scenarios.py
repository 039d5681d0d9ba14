"""What several processes do at once: the scenarios of the protocol's model with the real code, and what it leaves out.

A cast puts processes on the stage, each with its program; ``model`` names the scenario of tests/protocol.
"""

import errno
from unittest import mock

import spool
from spool.coordination.locks import coordinator_byte
from spool.disk.disk import FlushFailed
from spool.errors import CommitUnknown, DiskFailure, TransactionRolledBack
from spool.format import batch
from spool.index.stretch import Stretch
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.policies import heuristics
from spool.remote import branch as remote_branch
from spool.store import feed
from spool.transactions import resolution
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.two_phase import UnknownBranch
from tests.crash.book import NOTHING, Book, Deed
from tests.crash.compactions import COMPACTIONS
from tests.crash.intakes import INTAKES
from tests.crash.interleave import Scenario, Stage
from tests.crash.losses import LOSSY
from tests.crash.programs import (
    ROUND,
    XID,
    Program,
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


def _commits_and_takes(stage: Stage) -> None:
    stage.process("A", putting(stage.book, "A", 2))
    stage.process("B", putting(stage.book, "B", 1, group=2))
    stage.process("C", getting(stage.book, "C", 3))


def _commits_and_looks(stage: Stage) -> None:
    stage.process("A", putting(stage.book, "A"))
    stage.process("B", putting(stage.book, "B"))
    stage.process("L", looking(stage.book, 2))


def _ring_overrun(stage: Stage) -> None:
    """More commits than the ring has slots, beside a process that looks now and then, and one that opens the space."""
    stage.process("A", putting(stage.book, "A", feed.SLOTS))
    stage.process("B", one_after_the_other(putting(stage.book, "B", 2), getting(stage.book, "B", 2)))
    stage.process("L", looking(stage.book, 3))
    stage.newcomer("O", opening(getting(stage.book, "O")))


def _claim_beside_removal(stage: Stage) -> None:
    stage.process("R", getting(stage.book, "R"))
    stage.process("L", getting(stage.book, "L", 2))


def _prepare_and_commit(stage: Stage) -> None:
    stage.process("P", preparing(stage.book))
    stage.process("D", deciding(stage.book, "commit", patience=5))
    stage.process("T", getting(stage.book, "T", 2))


def _prepare_take_and_commit(stage: Stage) -> None:
    """The same; the taking process is at work when the decision comes."""
    stage.process("P", preparing(stage.book))
    stage.process("T", getting(stage.book, "T", 2))
    stage.process("D", deciding(stage.book, "commit", patience=5))


def _open_beside_a_number(stage: Stage) -> None:
    """A reader that rebuilds its index leaves out a file that is not published yet."""
    stage.process("A", putting(stage.book, "A"))
    stage.newcomer("L", opening(replying(stage.book, "L")))
    stage.newcomer("N", opening(getting(stage.book, "N", 2, queue="b")))


def _prepare_and_roll_back(stage: Stage) -> None:
    stage.process("P", preparing(stage.book))
    stage.process("D", deciding(stage.book, "rollback", patience=5))
    stage.process("T", getting(stage.book, "T", 2))


def _vote_beside_a_take(stage: Stage) -> None:
    stage.process("P", preparing(stage.book))
    stage.process("T", getting(stage.book, "T", 2))


def _rollback_beside_takes(stage: Stage) -> None:
    stage.process("R", deciding(stage.book, "rollback"))
    stage.process("T", getting(stage.book, "T", 2))


def _in_doubt(space: spool.Space, book: Book) -> None:
    prepare(book, space)


def _moved_while_unpublished(stage: Stage) -> None:
    stage.process("D", deciding(stage.book, "commit"))
    stage.process("M", lambda space: resolution.finish_moves(space._store) and None)
    stage.newcomer("O", opening(getting(stage.book, "O")))


def _two_finish_a_number(stage: Stage) -> None:
    stage.process("W", putting(stage.book, "W"))
    stage.process("F", putting(stage.book, "F"))
    stage.process("G", one_after_the_other(getting(stage.book, "G", 2), reclaiming))


def _removal_beside_a_get_and_a_put(stage: Stage) -> None:
    """Whether a dead process took its message is decided by the get of it, or by the next commit, for both alike."""
    stage.process("R", replying(stage.book, "R", begin=unjournaled))
    stage.process("L", getting(stage.book, "L"))
    stage.process("F", putting(stage.book, "F"))


def _three_decide(stage: Stage) -> None:
    stage.process("B", deciding(stage.book, "commit"))
    stage.process("R", deciding(stage.book, "rollback"))
    stage.process("D", deciding(stage.book, "commit"))


def _late_reader(stage: Stage) -> None:
    stage.process("R", one_after_the_other(getting(stage.book, "R"), reclaiming, putting(stage.book, "R", 2)))
    stage.process("S", getting(stage.book, "S", 2))
    stage.newcomer("L", opening(getting(stage.book, "L")))


def _adopt_take_and_reclaim(stage: Stage) -> None:
    for name in ("B", "D"):
        stage.process(
            name,
            one_after_the_other(
                deciding(stage.book, "commit"), getting(stage.book, name, queue="b"), reclaiming, reclaiming
            ),
        )


def _coordinator_ends(stage: Stage) -> None:
    """A process that meets the branch of a coordinator that may have decided looks at its lock first."""
    stage.process("D", _round(stage.book))
    stage.process("Z", lambda space: resolution.resolve_orphans(space._store, space._store.deadline()) and None)


def _driver_task_and_cleaner(stage: Stage) -> None:
    stage.process("D", _round(stage.book))
    stage.process("Z", getting(stage.book, "Z"))
    stage.process("N", replying(stage.book, "n"))


def _round(book: Book) -> Program:
    """A forwarding round: hold, let a task write and prepare its branch, adopt it."""

    def run(space: spool.Space) -> None:
        store = space._store
        byte = coordinator_byte(ROUND.gtrid)
        assert store.shared.xids.try_lock(byte)
        deed = book.begin("round", from_queue="a")
        tx = CoordinatedTransaction(space._core, timeout=None, counted=False)
        held = tx.hold("a", 1)
        if held:
            disk = type(store.files.disk)(store.files.disk.machine, store.files.disk.schedule)  # type: ignore[attr-defined]
            try:
                with (
                    mock.patch.object(remote_branch, "Disk", return_value=disk),
                    mock.patch.object(remote_branch, "Clock", return_value=store.clock),
                ):
                    _task(deed, held[0])
            except TransactionRolledBack:
                if not store.files.disk.dead:  # type: ignore[attr-defined]
                    raise
                return  # the task outlived its driver, and noticed
            with book.ending(deed):
                tx.commit(adopt=[ROUND])
        else:
            deed.ended, deed.from_queue = True, None
        tx.abandon()
        store.shared.xids.unlock(byte)

    return run


def _task(deed: Deed, held: Stretch) -> None:
    """A process of its own, which may outlive its driver."""
    branch = remote_branch.RemoteBranch(ROOT, ROUND, b"0123456789ab")
    body = branch.read(held)[0].decode()
    deed.takes, deed.puts, deed.from_queue = [("a", body)], [("b", f"r{body}")], None
    branch.batch.put("b", [f"r{body}".encode()], {"codec": "text"})
    branch.batch.remove(*held.position, 1, "dequeued")
    branch.prepare()
    branch.close()


def _run_deleted_while_closed(stage: Stage) -> None:
    stage.process("W", putting(stage.book, "W", 2))
    stage.process("V", getting(stage.book, "V"))

    def administrator(stage: Stage, disk: SimulatedDisk) -> None:
        while not stage.others_are_done():
            stage.clock.sleep(0.01)
        for space in stage.spaces:
            stage.machine.kill(space._store.files.disk)  # type: ignore[arg-type]
        for name in disk.names(layout.RUN):
            disk.unlink(f"{layout.RUN}/{name}")
        space = stage.open(disk)
        getting(stage.book, "O")(space)
        putting(stage.book, "O")(space)

    stage.newcomer("O", administrator)


def _run_deleted_while_in_use(stage: Stage) -> None:
    """A process that misses a file of ``run/`` stops; a newcomer is not let in, because the others are there."""
    stage.process("A", until_stopped(putting(stage.book, "A", 2)))
    stage.process("B", until_stopped(one_after_the_other(preparing(stage.book), deciding(stage.book, "commit"))))
    stage.process("C", until_stopped(getting(stage.book, "C", 2)))
    stage.newcomer("N", lambda stage, disk: until_stopped(opening(getting(stage.book, "N")))(stage, disk))
    stage.newcomer("D", lambda stage, disk: delete(disk, *reversed(disk.names(layout.RUN))))


def _open_beside_commits(stage: Stage) -> None:
    stage.newcomer("A", opening(putting(stage.book, "A")))
    stage.newcomer("B", opening(getting(stage.book, "B")))
    stage.newcomer("C", opening(getting(stage.book, "C")))


def _mixed(stage: Stage) -> None:
    stage.process("A", replying(stage.book, "A"))
    stage.process("B", rolling_back(stage.book, "B"))
    stage.process("C", one_after_the_other(putting(stage.book, "C"), getting(stage.book, "C")))


def _opener_beside_a_branch(stage: Stage) -> None:
    """An opener cleans active/ of what dead branches left, and leaves what a live one writes."""
    stage.process("P", preparing(stage.book))
    stage.newcomer("O", opening(putting(stage.book, "O")))
    stage.newcomer("U", opening(getting(stage.book, "U")))


def _rebuild_beside_commits(stage: Stage) -> None:
    """A reader that was overtaken by reclaim starts again while others commit."""
    stage.process("S", getting(stage.book, "S", 2))
    stage.process("R", one_after_the_other(getting(stage.book, "R"), reclaiming))
    stage.process("A", putting(stage.book, "A", 2))


def _two_threads(stage: Stage) -> None:
    stage.process("A", putting(stage.book, "A"), getting(stage.book, "a", 2))
    stage.process("C", getting(stage.book, "C"))


def _two_create_queues(stage: Stage) -> None:
    """A queue that is lost would take its message with it."""

    def creating(letter: str) -> Program:
        def run(space: spool.Space) -> None:
            space.create_queue(letter.lower())
            stage.book.put(space, f"{letter} puts", letter.lower(), f"{letter}0")

        return run

    stage.process("X", creating("X"))
    stage.process("Y", creating("Y"))


class FailingFlush(ScheduledDisk):
    """The first process of the schedule has a disk whose flushes fail: what it wrote never becomes durable."""

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


def _cannot_be_made_visible(stage: Stage) -> None:
    """Its writer lives, and has let go of what it took: a claim of that finishes the commit before it looks."""

    def not_knowing(space: spool.Space) -> None:
        try:
            replying(stage.book, "A")(space)
        except (CommitUnknown, DiskFailure):  # DiskFailure: what it could not publish was a dead writer's commit
            pass

    stage.process("A", not_knowing)
    stage.process("C", replying(stage.book, "C"))
    stage.process("G", getting(stage.book, "G"))


def _heuristic(stage: Stage) -> None:
    """An administrator decides for the coordinator, which comes back meanwhile; the fact outlives reclaim."""

    def administrator(space: spool.Space) -> None:
        (deed,) = (deed for deed in stage.book.deeds if deed.xid == str(XID))
        if not deed.ended:
            deed.outcomes |= {NOTHING}
        deed.may_return = True
        try:
            resolution.decide_heuristically(space._core, XID, space._store.deadline(), commit=False)
        except UnknownBranch:
            assert heuristics.heuristic_outcome(space._store, XID) is None, "nothing was decided, and a fact says so"
            return
        deed.may(NOTHING)
        deed.ended = True
        reclaim(space._store)
        assert heuristics.heuristic_outcome(space._store, XID) == heuristics.ROLLED_BACK

    stage.process("H", administrator)
    stage.process("B", deciding(stage.book, "commit"))
    stage.process("G", one_after_the_other(getting(stage.book, "G", 2), reclaiming))


def _streaming(stage: Stage) -> None:
    """A branch whose sections are written before it commits, beside an opener that cleans active/ and a reclaimer."""

    def streams(space: spool.Space) -> None:
        with mock.patch.object(batch, "SECTION_MESSAGES", 2):
            book = stage.book
            book.put(space, "S streams", "a", *(f"S{place}" for place in range(5)))

    stage.process("S", streams)
    stage.newcomer("O", opening(getting(stage.book, "O")))
    stage.process("G", one_after_the_other(getting(stage.book, "G", 2), reclaiming))


def _half_taken(stage: Stage) -> None:
    """One of two messages of a commit is taken: what says so stays as long as the commit does."""

    pair, last = putting(stage.book, "H", group=2), putting(stage.book, "I")
    stage.process("H", one_after_the_other(pair, getting(stage.book, "H"), last, reclaiming))
    stage.newcomer("O", opening(getting(stage.book, "O")))


def _one_flush_fails(stage: Stage) -> None:
    stage.process("A", until_stopped(putting(stage.book, "A")))
    stage.process("B", until_stopped(putting(stage.book, "B", 2)))
    stage.process("C", until_stopped(getting(stage.book, "C", 2)))


def _clock_steps_back(stage: Stage) -> None:
    def stepping(space: spool.Space) -> None:
        stage.clock.wall_step = -86_400
        putting(stage.book, "K")(space)

    stage.process("A", putting(stage.book, "A", 2))
    stage.process("K", stepping)
    stage.process("C", getting(stage.book, "C", 3))


SCENARIOS = (
    *COMPACTIONS,
    Scenario("commits beside takes", _commits_and_takes, ("m0",), model="puts-at-once"),
    Scenario("commits beside looks", _commits_and_looks, ("m0",), model="puts-at-once"),
    Scenario("a ring that is overrun", _ring_overrun, ("m0", "m1")),
    Scenario("a claim beside a removal", _claim_beside_removal, ("m0", "m1"), model="claim-beside-removal"),
    Scenario("prepare, commit by another, take", _prepare_and_commit, ("m0", "m1"), model="vote-beside-claim"),
    Scenario("prepare, take, commit by another", _prepare_take_and_commit, ("m0", "m1"), model="vote-beside-claim"),
    Scenario("an opener beside a new number", _open_beside_a_number, ("m0",), model="opener-beside-commit"),
    Scenario("prepare, rollback by another, take", _prepare_and_roll_back, ("m0", "m1"), model="vote-beside-claim"),
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
    Scenario("reply, rollback and put", _mixed, ("m0", "m1")),
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
    *READERS,
    *ROUNDS,
    *SUBSCRIPTIONS,
    *LOSSY,
)
