"""A reader with a subscription, beside processes that put, take, reclaim, and end expired subscriptions."""

from dataclasses import dataclass, field

import spool
from spool.policies import subscriptions
from spool.store.store import Store
from tests import door
from tests.crash.interleave import Scenario, Simulation
from tests.crash.operations import DONE, OperationLog, Unexplained
from tests.crash.programs import Program, getting, one_after_the_other, putting, reclaiming
from tests.simdisk import SimulatedDisk

_NAME, _QUEUE, _SECONDS = "s", "a", 3600.0


@dataclass
class Subscriber:
    """The checkpoint of a reader, which outlives its process.

    since: the commit that registered the subscription; 0: none is known. offset: the last commit that was read.
    operations: their number when the subscription was registered. expires: the promised end of the subscription.
    lapsed: the reader was told that the subscription has ended. simulation: its clock may be ahead of a later one.
    """

    since: int = 0
    offset: int = 0
    operations: int = 0
    expires: float = 0.0
    lapsed: bool = False
    simulation: Simulation | None = None
    read: dict[int, list[str]] = field(default_factory=dict)

    def reads(self, log: OperationLog, batches: int) -> Program:
        """Register, if it was not, and read batch after batch."""

        def run(space: spool.Space) -> None:
            store = door.store(space)
            if not self.since:
                expires = store.clock.now() + _SECONDS
                since = subscriptions.register(store, _NAME, (_QUEUE,), _SECONDS, False, "")
                self.since, self.offset, self.operations, self.expires = since, since, len(log.operations), expires
            for _ in range(0 if self.lapsed else batches):
                if (found := self._behind(store)) is None:
                    return
                self.offset, self.read = max([self.offset, *found]), {**self.read, **found}
                expires = store.clock.now() + _SECONDS
                if not subscriptions.advance(store, _NAME, self.since, self.offset, _SECONDS, ""):
                    self._told_that_it_has_ended(store)
                    return
                self.expires = expires

        return run

    def judge(self, space: spool.Space, log: OperationLog) -> None:
        """Expect that each message put since the registration was read once, or can still be read."""
        if not self.since or self.lapsed:
            return
        if (found := self._behind(door.store(space))) is None:
            return
        bodies = [body for some in {**self.read, **found}.values() for body in some]
        if len(bodies) != len(set(bodies)):
            raise Unexplained(f"a message was read twice: {bodies}\n{log}")
        for operation in log.operations[self.operations :]:
            for queue, body in operation.puts:
                if queue == _QUEUE and operation.outcomes == {DONE} and body not in bodies:
                    raise Unexplained(f"{body} is kept for the subscription, and it has read {bodies}\n{log}")

    def _behind(self, store: Store) -> dict[int, list[str]] | None:
        """The messages after the offset, by commit; None if the subscription has ended."""
        if subscriptions.progress(store, _NAME, self.since) is None:
            return self._told_that_it_has_ended(store)
        with store.view.mutex:
            behind = {n: state for n, state in store.view.index.files.items() if n > self.offset and n > self.since}
            numbers = [number for number, state in behind.items() if _QUEUE in state.tally and state.span is None]
        put = {number: subscriptions.put_by(store, number) for number in numbers}
        if subscriptions.progress(store, _NAME, self.since) is None:
            return self._told_that_it_has_ended(store)
        found: dict[int, list[str]] = {}
        for number, alone in put.items():
            if alone is None:
                raise Unexplained(f"commit {number} is kept for the subscription, and it is not there")
            runs = [run for run in alone.messages.runs[number] if run.queue.name == _QUEUE]
            bodies = [body for run in runs for body in store.files.cache.bodies(run, run.first, run.live, bytes)]
            found[number] = [bytes(body).decode() for body in bodies]
        return found

    def _told_that_it_has_ended(self, store: Store) -> None:
        clocks = [store.clock, *([] if self.simulation is None else [self.simulation.clock])]
        if max(clock.now() for clock in clocks) < self.expires:
            raise Unexplained(f"the subscription has ended, which was renewed until {self.expires}")
        self.lapsed = True

    def __str__(self) -> str:
        return f"read up to {self.offset} since {self.since}: {self.read}{', lapsed' if self.lapsed else ''}"


def _subscriber(simulation: Simulation) -> Subscriber:
    reader = Subscriber(simulation=simulation)
    simulation.log.readers.append(reader)
    return reader


def _subscription_beside_reclaim(simulation: Simulation) -> None:
    """Messages that are put and taken after the registration are reclaimed once the reader has read them. A second
    process of the reader continues where the first one ended."""
    log, reader = simulation.log, _subscriber(simulation)
    simulation.process("S", reader.reads(log, 2))
    steps = putting(log, "P", group=2), getting(log, "P", 3), reclaiming, reclaiming
    simulation.process("P", one_after_the_other(*steps))

    def second(simulation: Simulation, disk: SimulatedDisk) -> None:
        while not simulation.others_are_done():
            simulation.clock.sleep(0.01)
        reader.reads(log, 1)(simulation.open(disk))

    simulation.newcomer("Z", second)


def _subscription_that_expires(simulation: Simulation) -> None:
    """The subscription expires while its reader reads: it is renewed, or the reader gets an error."""
    log, (reader,) = simulation.log, simulation.log.readers
    assert isinstance(reader, Subscriber)
    reader.simulation = simulation

    def late(space: spool.Space) -> None:
        simulation.clock.wall_step = 2 * _SECONDS
        subscriptions.end_expired(door.store(space))

    simulation.process("S", reader.reads(log, 2))
    simulation.process("P", one_after_the_other(putting(log, "P"), getting(log, "P", 2), reclaiming))
    simulation.process("E", one_after_the_other(late, reclaiming))


def _registered(space: spool.Space, log: OperationLog) -> None:
    reader = Subscriber()
    reader.reads(log, 0)(space)
    log.readers.append(reader)


SUBSCRIPTIONS = (
    Scenario(
        "a subscription beside reclaim",
        _subscription_beside_reclaim,
        ("m0",),
        model="subscription",
        afterwards=reclaiming,
    ),
    Scenario("a subscription that expires", _subscription_that_expires, ("m0",), _registered, afterwards=reclaiming),
)
