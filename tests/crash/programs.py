"""Programs of simulated processes. Each program notes its operations in the log."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec

import spool
from spool.errors import CommitUnknown, DiskFailure, SpaceStopped
from spool.log.adoption import UnknownBranch
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from spool.transactions import two_phase
from spool.transactions.transaction import Transaction
from tests import door
from tests.crash.interleave import Simulation
from tests.crash.operations import DONE, DOUBT, NOTHING, Operation, OperationLog, text
from tests.simdisk import SimulatedDisk

XID = Xid(4711, b"foreign", b"1")
ROUND = Xid(FORMAT_ROUND, b"round-of-tests", b"1")

Program = Callable[[spool.Space], None]
Begin = Callable[[spool.Space], Transaction]
P = ParamSpec("P")


def putting(log: OperationLog, letter: str, count: int = 1, group: int = 1) -> Program:
    def run(space: spool.Space) -> None:
        for turn in range(count):
            log.put(space, f"{letter} puts", "a", *(f"{letter}{turn}{place}" for place in range(group)))

    return run


def getting(log: OperationLog, name: str, count: int = 1, queue: str = "a") -> Program:
    def run(space: spool.Space) -> None:
        for _ in range(count):
            log.get(space, f"{name} gets", queue)

    return run


def looking(log: OperationLog, count: int = 1) -> Program:
    """Messages that a browser shows are durable."""

    def run(space: spool.Space) -> None:
        for _ in range(count):
            for message in space.browse("a"):
                log.saw("a", text(message))

    return run


def _nothing(space: spool.Space) -> None:
    pass


def replying(
    log: OperationLog, letter: str, before: Program = _nothing, begin: Begin = spool.Space.transaction
) -> Program:
    """Take from a, put into b, in one commit. ``before`` runs right before the commit."""
    return _in_one_commit(log, f"{letter} replies", partial(_take_and_reply, letter=letter), before, begin)


def unjournaled(space: spool.Space) -> Transaction:
    """A transaction whose claims are in no journal, like the claims of a round: no process counts its death as an
    attempt."""
    return Transaction(door.core(space), counted=False)


def acknowledging(log: OperationLog, name: str, before: Program = _nothing) -> Program:
    """Take one message from queue a, in one commit."""
    return _in_one_commit(log, f"{name} acknowledges", _take, before)


def _in_one_commit(
    log: OperationLog,
    name: str,
    work: Callable[[OperationLog, Operation, Transaction], object],
    before: Program,
    begin: Begin = spool.Space.transaction,
) -> Program:
    def run(space: spool.Space) -> None:
        operation = log.begin(name, from_queue="a")
        tx = begin(space)
        try:
            work(log, operation, tx)
        except spool.Empty:
            tx.rollback()
            operation.ended, operation.from_queue = True, None
            return
        before(space)
        with log.ending(operation):
            tx.commit()

    return run


def claiming(log: OperationLog, name: str, count: int = 1) -> Program:
    """Claim messages of queue a outside of any transaction, and acknowledge each."""

    def run(space: spool.Space) -> None:
        with space.claims() as claims:
            for _ in range(count):
                operation = log.begin(f"{name} claims", from_queue="a")
                taken = claims.take("a")
                operation.from_queue = None
                if not taken:
                    operation.ended = True
                    return
                body = text(taken[0])
                log.saw("a", body)
                operation.takes = [("a", body)]
                claims.begin(taken[0])
                with log.ending(operation), door.without_commit_thread(space):
                    future = claims.remove(taken)
                    door.lead(space)  # (in this thread, because the schedule has no other)
                    future.result(0)

    return run


def rolling_back(log: OperationLog, name: str) -> Program:
    """Take from a and give it back."""

    def run(space: spool.Space) -> None:
        operation = log.begin(f"{name} rolls back", from_queue="a")
        tx = space.transaction()
        with suppress(spool.Empty):
            log.saw("a", text(tx.get("a")))
        tx.rollback()
        operation.ended, operation.from_queue = True, None

    return run


def _take(log: OperationLog, operation: Operation, tx: Transaction) -> str:
    body = text(tx.get("a"))
    log.saw("a", body)
    operation.takes, operation.from_queue = [("a", body)], None
    return body


def _take_and_reply(log: OperationLog, operation: Operation, tx: Transaction, letter: str) -> None:
    body = _take(log, operation, tx)
    operation.puts = [("b", f"{letter}{body}")]
    tx.put("b", f"{letter}{body}")


def preparing(log: OperationLog, xid: Xid = XID) -> Program:
    def run(space: spool.Space) -> None:
        prepare(log, space, xid)

    return run


def prepare(log: OperationLog, space: spool.Space, xid: Xid = XID) -> None:
    """A branch that takes the first message and replies."""
    operation = log.begin(f"branch {xid.gtrid.decode()}", from_queue="a")
    operation.xid = str(xid)
    tx = door.branch(space, xid=xid, timeout=None)
    try:
        _take_and_reply(log, operation, tx, "r")
    except spool.Empty:
        tx.rollback()
        operation.ended, operation.from_queue = True, None
        return
    operation.outcomes |= {DOUBT}
    tx.prepare()
    if (
        operation.outcomes == {NOTHING, DOUBT} and not operation.may_return
    ):  # else another process is deciding it already
        operation.may(DOUBT)


def deciding(log: OperationLog, outcome: str, *, told: bool = False, patience: int = 0) -> Program:
    """Commit or roll back the branch, as a coordinator that comes later; it waits a while for it."""

    def run(space: spool.Space) -> None:
        store = door.store(space)
        for _ in range(patience):
            if two_phase.is_prepared(store, XID):
                break
            store.clock.sleep(0.01)
        operation = next((operation for operation in log.operations if operation.xid == str(XID)), None)
        if operation is None:
            return
        target = DONE if outcome == "commit" else NOTHING
        if not (decided := operation.ended):
            operation.outcomes |= {target}
        operation.may_return |= target is NOTHING  # from its first step on: the removal is not flushed
        try:
            if outcome == "commit":
                two_phase.commit_prepared(door.core(space), XID, vote_known=told)
            else:
                two_phase.rollback_prepared(store, XID, store.deadline())
        except UnknownBranch:
            if operation.outcomes == {DOUBT, target} and not decided:  # no other process decides, and none could
                operation.outcomes = frozenset([DOUBT, NOTHING, DONE])
            return
        assert operation.outcomes != {NOTHING if target is DONE else DONE}, f"{outcome} after the opposite was done"
        operation.may(target)
        operation.ended = True

    return run


def reclaiming(space: spool.Space) -> None:
    door.reclaim(space)


def one_after_the_other(*programs: Program) -> Program:
    def run(space: spool.Space) -> None:
        for program in programs:
            program(space)

    return run


def until_stopped(program: Callable[P, None]) -> Callable[P, None]:
    """Let the program end early, because the space may stop before."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with suppress(CommitUnknown, SpaceStopped, DiskFailure):
            program(*args, **kwargs)

    return run


def delete(disk: SimulatedDisk, *names: str) -> None:
    """Delete files of ``run/``, as a user does that takes them for useless."""
    for name in names:
        disk.unlink(f"{layout.RUN}/{name}")


def opening(program: Program) -> Callable[[Simulation, SimulatedDisk], None]:
    def run(simulation: Simulation, disk: SimulatedDisk) -> None:
        program(simulation.open(disk))

    return run
