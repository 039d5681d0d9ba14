"""Rounds of the forwarder and writes of DataFrames: drivers and tasks, each a process that may die, beside others.

Tasks run in workers of Spark: a task does not open the space; it reads and writes files itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import spool
from forwarder.dataframes.sink import adopt
from forwarder.round import Route, TaskDied
from forwarder.services import Request
from forwarder.task import Chunk, TaskResult, deliver
from spool.errors import MessageInUse, TransactionRolledBack
from spool.model.xid import FORMAT_ROUND, Xid
from spool.policies.applications import BatchOf
from spool.remote.remote_branch import RemoteBranch, Vote
from spool.transactions.coordinated import lock_coordinator
from spool.transactions.two_phase import resolve_orphans
from spool.workers.outcome import Outcome, Replied
from tests import door
from tests.crash.compactions import COMPACTED, compacting
from tests.crash.interleave import Scenario, Simulation
from tests.crash.operations import DONE, NOTHING, Operation, OperationLog, Unexplained
from tests.crash.programs import Program, getting, one_after_the_other, putting, reclaiming
from tests.forwarder.rounds import Scripted, answers, run_round
from tests.machine import PowerCut
from tests.simdisk import ROOT, SimulatedDisk

_REST_SECONDS = 0.01
_TWO = 2  # processes for tasks, and attempts at a write's tasks


class Workers:
    """The processes in which the tasks of some drivers run. A driver is an actor's place in the simulation."""

    def __init__(self, simulation: Simulation, *drivers: int) -> None:
        self._simulation = simulation
        self._drivers = drivers
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._running: dict[int, SimulatedDisk] = {}
        self._results: dict[int, object] = {}
        self._numbers = count()
        self.attempts = count()  # at tasks of all drivers: each has a service with a name of its own
        self._alive: list[SimulatedDisk] = []
        self.replies: dict[tuple[int, str], str] = {}  # by operation and producer of the answered messages
        for place in range(_TWO):
            simulation.newcomer(f"W{place}", self._work)
            self._alive.append(simulation.schedule.actors[-1].disk)

    def run(self, tasks: Sequence[Callable[[], object]]) -> list[object]:
        """Return the results of the tasks. TaskDied if the process of a task dies, or no process is left."""
        wanted = dict(zip(self._numbers, tasks))  # noqa: B905 (there are always more numbers)
        self._waiting += wanted.items()

        def died() -> bool:
            lost = any(disk.dead for number, disk in self._running.items() if number in wanted)
            return lost or all(disk.dead for disk in self._alive)

        self._simulation.schedule.wait_until(lambda: self._results.keys() >= wanted.keys() or died() or self.are_left())
        if self.are_left():
            raise PowerCut("the driver was killed")
        if self._results.keys() >= wanted.keys():
            return [self._results[number] for number in wanted]
        self._waiting = [one for one in self._waiting if one[0] not in wanted]
        raise TaskDied("its process was killed")

    def _work(self, simulation: Simulation, disk: SimulatedDisk) -> None:
        while True:
            simulation.schedule.wait_until(lambda: bool(self._waiting) or self.are_left())
            if self.are_left():
                return
            number, task = self._waiting.pop(0)
            self._running[number] = disk
            simulation.clock.sleep(_REST_SECONDS)
            self._results[number] = task()

    def are_left(self) -> bool:
        """Return whether the drivers of the workers have ended."""
        drivers = [self._simulation.schedule.actors[place] for place in self._drivers]
        return all(driver.done or driver.disk.dead for driver in drivers)


# -- a round ----------------------------------------------------------------------------------------------------------


def _forwarding(simulation: Simulation, workers: Workers, rounds: int = 1) -> Program:
    """Rounds that put a reply to each message into queue b. As long as the driver lives, each body can be read."""

    def reply(operation: Operation, body: str) -> str:
        """The first letter tells the producer, of which the order is kept: the round, and that of the message."""
        place = len(workers.replies) + ord("α")
        return workers.replies.setdefault((id(operation), body[0]), chr(place)) + body

    def run(space: spool.Space) -> None:
        for _ in range(rounds):
            operation = simulation.log.begin("round", from_queue="a")
            route = Route("a", Scripted(""))
            run_round(space, route, partial(job, operation), limit=3, tasks=1, timeout=0, calling=math.inf)
            operation.from_queue, operation.ended = None, True
            operation.may(DONE if operation.takes else NOTHING)

    def job(operation: Operation, chunks: list[Chunk]) -> list[TaskResult]:
        blocks = []
        answer = partial(reply, operation)
        tasks = [partial(_deliver, answer, chunk, place, next(workers.attempts)) for place, chunk in enumerate(chunks)]
        for result in workers.run(tasks):
            assert isinstance(result, tuple), "its driver is alive"
            block, bodies = result
            if block.damaged:
                raise Unexplained(f"a task could not read what its driver holds: {block.damaged}")
            operation.takes += [("a", body) for body in bodies]
            operation.puts += [("b", answer(body)) for body in bodies]
            blocks.append(block)
        operation.from_queue = None
        operation.may(NOTHING, DONE)
        return blocks

    return run


def _deliver(
    reply: Callable[[str], str], chunk: Chunk, place: int, attempt: int
) -> tuple[TaskResult, list[str]] | None:
    """The block, and the bodies that the service was called with; None if the driver has ended."""
    bodies = []

    def answer(request: Request) -> Outcome:
        bodies.append(request.raw.decode())
        return Replied(reply(bodies[-1]).encode(), "text/plain; charset=utf-8", "text")

    service = Scripted(f"task {attempt}")
    answers[service.name] = answer
    try:
        return deliver(replace(chunk, service=service), place, attempt), bodies
    except TransactionRolledBack:
        return None


def _replies_to_b(space: spool.Space, log: OperationLog) -> None:
    space.change_queue("a", reply_queue="b")


def _round_beside_a_sweep(simulation: Simulation) -> None:
    """Compactions do not move the messages of a task, because its driver holds claims on them."""
    workers = Workers(simulation, 2)
    simulation.process("D", _forwarding(simulation, workers))
    simulation.process("S", one_after_the_other(getting(simulation.log, "S"), compacting))
    simulation.process(
        "A", one_after_the_other(putting(simulation.log, "A", 2), getting(simulation.log, "A"), reclaiming)
    )


def _two_rounds(simulation: Simulation) -> None:
    """The rounds of two drivers, whose tasks run in the same workers."""
    workers = Workers(simulation, 2, 3)
    simulation.process("D", _forwarding(simulation, workers, 2))
    simulation.process("E", _forwarding(simulation, workers))
    simulation.process("Z", one_after_the_other(getting(simulation.log, "Z"), reclaiming))


# -- a write ----------------------------------------------------------------------------------------------------------

_KEY = "k"
_ROWS = ((("w00", None), ("w01", None)), (("w10", _KEY), ("w11", None)))  # of two partitions: body, deduplication key
_BATCH = BatchOf("stream of tests", 1, "its checkpoint")


class Write:
    """A micro-batch, and the replay of it by another driver. Each has a coordinator, held by a process of its own."""

    def __init__(self, simulation: Simulation, workers: Workers) -> None:
        self.simulation = simulation
        self._workers = workers
        rows = [("a", body) for part in _ROWS for body, _ in part]
        self.operation = simulation.log.begin("write", *rows)
        simulation.log.alike = frozenset([("a", "w10"), ("a", "p0")])
        self.holders: list[SimulatedDisk] = []

    def program(self, name: str, after: int | None = None) -> Program:
        """``after``: the driver that has to be done or dead before."""
        simulation, operation, attempts = self.simulation, self.operation, count()
        simulation.newcomer(f"H{name}", self._hold)
        holder = simulation.schedule.actors[-1].disk

        def run(space: spool.Space) -> None:
            if after is not None:
                first = simulation.schedule.actors[after]
                simulation.schedule.wait_until(lambda: first.done or first.disk.dead)
                for one in self.holders:  # the next batch of a stream ends the coordinator of the one before
                    simulation.machine.kill(one)
            self.holders.append(holder)
            gtrid = f"write {name}".encode()
            if not holder.dead:
                lock_coordinator(holder, gtrid)
            for _ in range(_TWO):
                tasks = [partial(_write, Xid(FORMAT_ROUND, gtrid, b"%d" % next(attempts)), part) for part in _ROWS]
                try:
                    votes = self._workers.run(tasks)
                    break
                except TaskDied:
                    continue
            else:
                votes = []
            xids = [vote.xid for vote in votes if isinstance(vote, Vote)]
            if len(xids) == len(_ROWS):
                self._commit(space, xids)
            simulation.machine.kill(holder)
            resolve_orphans(door.store(space), door.deadline(space))
            operation.ended = True

        return run

    def _commit(self, space: spool.Space, xids: list[Xid]) -> None:
        before = self.operation.outcomes
        self.operation.may(NOTHING, DONE)
        try:
            adopt(space, xids, _BATCH)
        except (TransactionRolledBack, MessageInUse):
            self.operation.outcomes = before
            return
        self.operation.may(DONE)

    def _hold(self, simulation: Simulation, disk: SimulatedDisk) -> None:
        """The process that holds the locks; it is killed to end it."""
        simulation.schedule.wait_until(lambda: disk.dead or self._workers.are_left())


def _write(xid: Xid, rows: Sequence[tuple[str, str | None]]) -> Vote | None:
    """A task; None if the coordinator has ended."""
    try:
        branch = RemoteBranch(ROOT, xid)
    except TransactionRolledBack:
        return None
    try:
        for body, key in rows:
            branch.put("a", [body], **({} if key is None else {"deduplication_key": key}))
        return branch.prepare()
    except TransactionRolledBack:
        return None
    finally:
        branch.close()


def _putting_the_key(log: OperationLog) -> Program:
    def run(space: spool.Space) -> None:
        operation = log.begin("P puts", ("a", "p0"))
        try:
            with log.ending(operation):
                space.put("a", "p0", deduplication_key=_KEY, transaction=None)
        except MessageInUse:
            pass

    return run


def _write_and_replay(simulation: Simulation) -> None:
    driver, replaying = 4, 5
    write = Write(simulation, Workers(simulation, driver, replaying))
    first, second = write.program("1"), write.program("2", after=driver)
    simulation.process("C", first)
    simulation.process("R", second)
    simulation.process(
        "P", one_after_the_other(_putting_the_key(simulation.log), getting(simulation.log, "P"), reclaiming)
    )


ROUNDS = (
    Scenario("a round beside a sweep", _round_beside_a_sweep, COMPACTED, _replies_to_b),
    Scenario("two rounds in the same workers", _two_rounds, COMPACTED, _replies_to_b),
    Scenario("a write and its replay", _write_and_replay, ("m0",)),
)
