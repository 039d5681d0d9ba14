"""Run a scenario of several processes under many schedules, and check the space against their operations."""

import contextvars
import copy
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

import spool
from spool.admin.findings import Kind
from spool.remote import remote_branch as remote_branch
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.kinds import kinds_of
from tests.crash.mirrors import MIRROR, mirrors_last, new_space, restored
from tests.crash.operations import Observation, OperationLog, Unexplained, look, text
from tests.crash.schedule import (
    Actor,
    Choice,
    Cut,
    Kill,
    Livelock,
    Schedule,
    ScheduledDisk,
    Stop,
    Switch,
    scheduled_locks,
)
from tests.machine import NO_FILES, Image, Machine
from tests.simdisk import SimulatedDisk, few_slots, repeatable
from tests.survivors import Rules, survivors

SEED = 7
QUEUES = ("a", "b")


class Simulation:
    """The machine, the schedule and the log of operations in one run of a scenario."""

    def __init__(self, machine: Machine, schedule: Schedule, log: OperationLog, disk: type[ScheduledDisk]) -> None:
        self.machine = machine
        self.schedule = schedule
        self.log = log
        self.clock = schedule.clock
        self.disk = disk
        self.spaces: list[spool.Space] = []

    def process(self, name: str, program: Callable[[spool.Space], None], *more: Callable[[spool.Space], None]) -> None:
        """A process that opens the space before the schedule begins. ``more``: the programs of its other threads."""
        disk = self.disk(self.machine, self.schedule)
        with scheduled_locks(self.schedule) if more else nullcontext():
            space = spool.open(disk)
        self.spaces.append(space)
        for place, run in enumerate((program, *more)):
            self._actor(f"{name}{place or ''}", disk, run, space)

    def newcomer(self, name: str, program: Callable[["Simulation", SimulatedDisk], None]) -> None:
        """A process whose program opens the space itself, or does not open it."""
        disk = self.disk(self.machine, self.schedule)
        self._actor(name, disk, program, self, disk)

    def open(self, disk: SimulatedDisk) -> spool.Space:
        space = spool.open(disk)
        self.spaces.append(space)
        return space

    @contextmanager
    def remote_branches(self) -> Iterator[None]:
        """Meanwhile, a branch that is made without a space is that of the process that makes it."""
        with mock.patch.object(remote_branch, "Disk", side_effect=lambda _: self.schedule.running().disk):
            yield

    def _actor(self, name: str, disk: SimulatedDisk, run: Callable[..., None], *args: object) -> None:
        context = contextvars.Context()
        self.schedule.actors.append(Actor(name, disk, lambda: context.run(run, *args)))

    def others_are_done(self) -> bool:
        """Return whether every process but the last has ended."""
        return all(actor.done or actor.disk.dead for actor in self.schedule.actors[:-1])


@dataclass(frozen=True)
class Scenario:
    """Processes that use one space at the same time.

    ``add_processes`` adds them to the simulation. ``initial``: bodies in queue a before they begin. ``setup``: further
    calls before. ``model``: the scenario of tests/protocol with the same processes. ``afterwards`` runs in the first
    space that is opened after the end, before it is read. ``mirrored``: the space has a mirror.
    """

    name: str
    add_processes: Callable[[Simulation], None]
    initial: tuple[str, ...] = ()
    setup: Callable[[spool.Space, OperationLog], None] | None = None
    model: str = ""
    disk: type[ScheduledDisk] = ScheduledDisk
    afterwards: Callable[[spool.Space], None] | None = None
    mirrored: bool = False


@dataclass
class Count:
    """How much was looked at."""

    schedules: int = 0
    kills: int = 0
    cuts: int = 0
    survivors: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


class Interleaver:
    """All that is tried of one scenario. ``limit``: schedules of each sort (switches; switch and kill; switch and cut;
    random ones), evenly spread where there are more. ``every``: a walk along the steps of an actor tries
    every so-manieth step, and others: see ``strides.some``."""

    def __init__(
        self,
        scenario: Scenario,
        rules: Rules,
        *,
        limit: int,
        per_cut: int = 3,
        every: int = 1,
        recovery_disk: type[SimulatedDisk] = SimulatedDisk,
        seed: int = SEED,
    ) -> None:
        self.scenario = scenario
        self.rules = rules
        self.limit = limit
        self.per_cut = per_cut
        self.every = every
        self.recovery_disk = recovery_disk
        self.numbers = random.Random(seed)
        self.count = Count()
        self._seen: set[tuple[Image, str]] = set()
        self._ends: set[tuple[Hashable, str]] = set()
        self._start = OperationLog([("a", body) for body in scenario.initial])
        with repeatable(SEED), few_slots():
            self.base = self._set_up()

    def _set_up(self) -> Image:
        self._empty = new_space(Machine(NO_FILES, boot=1, **self.rules.told), QUEUES)
        machine = Machine(NO_FILES, boot=1, **self.rules.told)
        options = {"mirror": MIRROR} if self.scenario.mirrored else {}
        with spool.create(SimulatedDisk(machine), defaults=AT_ONCE, **options) as space:
            for queue in QUEUES:
                space.create_queue(queue)
            for body in self.scenario.initial:
                space.put("a", body)
            if self.scenario.setup is not None:
                self.scenario.setup(space, self._start)
        return machine.image()

    # -- trying -------------------------------------------------------------------------------------------------------

    def explore(self) -> Count:
        """Try all schedules, and raise at the first observation that nothing explains. The text tells how to repeat
        it."""
        schedule = self.play(())
        steps, actors = schedule.steps, range(len(schedule.actors))
        for actor in actors:
            self.play((Switch(1, actor),))
        switches = [(Switch(step, actor),) for step in range(2, steps + 1) for actor in actors]
        for plan in self._some(switches):
            self.play(plan)
        for plan in self._some([(Kill(step, actor),) for step in range(1, steps + 1) for actor in actors]):
            self.play(self._perhaps_switching(self._perhaps_cut_later(plan, steps)))
        for plan in self._some([(Cut(step),) for step in range(1, steps + 1)]):
            self.play(self._perhaps_switching(plan))
        for _ in range(self.limit):
            self.play(self._random_plan(steps), seed=self.numbers.randrange(1 << 30))
        return self.count

    def _some(self, plans: Sequence[tuple[Choice, ...]]) -> Iterator[tuple[Choice, ...]]:
        if len(plans) <= self.limit:
            yield from plans
        else:
            yield from self.numbers.sample(plans, self.limit)

    def _perhaps_cut_later(self, plan: tuple[Choice, ...], steps: int) -> tuple[Choice, ...]:
        """A power cut may follow, because the work that others finish for a dead process must survive as well."""
        if self.numbers.random() < 0.5:
            return plan
        return (*plan, Cut(self.numbers.randint(plan[0].step + 1, steps + 20)))

    def _perhaps_switching(self, plan: tuple[Choice, ...]) -> tuple[Choice, ...]:
        if self.numbers.random() < 0.4:
            return plan
        actor = self.numbers.randrange(8)
        return (Switch(1, actor), Switch(self.numbers.randint(1, plan[0].step), self.numbers.randrange(8)), *plan)

    def _random_plan(self, steps: int) -> tuple[Choice, ...]:
        what = self.numbers.random()
        if what < 0.3:
            return ()
        kill = Kill(self.numbers.randint(1, steps + 10), self.numbers.randrange(8))
        if what < 0.6:
            return (kill,)
        if what < 0.8:
            return (kill, Cut(self.numbers.randint(kill.step, steps + 30)))
        return (kill, Kill(self.numbers.randint(1, steps + 10), self.numbers.randrange(8)))

    def play(self, plan: tuple[Choice, ...], *, seed: int | None = None) -> Schedule:
        """Run the scenario by a plan, with random switches if a ``seed`` is given, and check the space afterwards."""
        machine = Machine(self.base, boot=2, **self.rules.told)
        numbers = None if seed is None else random.Random(seed)
        schedule = Schedule(machine, numbers=numbers)
        log = copy.deepcopy(self._start)
        simulation = Simulation(machine, schedule, log, self.scenario.disk)
        try:
            with repeatable(SEED + 1), few_slots(), mirrors_last(), simulation.remote_branches():
                self.scenario.add_processes(simulation)
                schedule.follow([_of(choice, len(schedule.actors)) for choice in plan])
                schedule.run()
                self._judge(simulation)
        except Exception as error:
            told = ", ".join(map(str, plan)) or "no choice"
            raise Unexplained(
                f"{self.scenario.name} ({self.rules.value}): {type(error).__name__}: {error}\n"
                f"see it again with: play(({told}), seed={seed}), {schedule.steps} steps\n{log}"
            ) from error
        finally:
            for space in simulation.spaces:
                door.store(space).guard.closed = True
        self.count.schedules += 1
        self.count.kills += len(schedule.kills)
        self.count.cuts += schedule.was_cut
        return schedule

    # -- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, simulation: Simulation) -> None:
        machine, log = simulation.machine, simulation.log
        if not simulation.schedule.was_cut:
            for disk in {handle.process for handle in machine.handles.values()}:
                machine.kill(disk)
            end = machine.seen_by_processes(), str(log)
            if end not in self._ends:  # many schedules come to the same end
                self._look_at_mirror(machine.image(), log)
                self._open_again(machine, self._open_and_look(machine, log, after_cut=False))
                self._ends.add(end)
            return
        for survivor in survivors(machine, self.rules, limit=self.per_cut, seed=self.numbers.randrange(1 << 30)):
            key = survivor.image, str(log)
            if key in self._seen:
                continue
            self._seen.add(key)
            self.count.survivors += 1
            self.count.kinds.update(kinds_of(machine.image(), survivor.image))
            try:
                again = Machine(survivor.image, boot=3, **self.rules.told)
                self._look_at_mirror(survivor.image, log)
                observation = self._open_and_look(again, log, after_cut=True)
                self._open_again(again, observation)
            except Exception as error:
                raise Unexplained(f"{error}\n  {survivor.story}") from error

    def _open_and_look(self, machine: Machine, log: OperationLog, *, after_cut: bool) -> Observation:
        disk = self.recovery_disk(machine)
        space = spool.open(disk)
        if self.scenario.afterwards is not None:
            self.scenario.afterwards(space)
        observation = look(space)
        log.explain(observation, after_cut=after_cut)
        for reader in log.readers:
            reader.judge(space, log)
        damage = [finding for finding in space.check() if finding.kind is Kind.DAMAGED]
        if damage:
            raise Unexplained(f"damage: {damage}")
        if (number := door.index(space).applied) < log.offset:
            raise Unexplained(f"a stream has read up to commit {log.offset}, and the newest is {number}")
        machine.kill(disk)
        door.store(space).guard.closed = True
        if self._look_at_mirror(machine.image(), log) not in (None, observation):
            raise Unexplained(f"the space showed {observation}, and its mirror shows something else")
        return observation

    def _look_at_mirror(self, image: Image, log: OperationLog) -> Observation | None:
        """The contents of a space that is restored from the mirror alone."""
        if image.beside is None:
            return None
        machine = Machine(restored(self._empty, image.beside), boot=4, **self.rules.told)
        with spool.open(self.recovery_disk(machine)) as space:
            observation = look(space)
        try:
            log.explain(observation)
        except Unexplained as error:
            raise Unexplained(f"of the mirror alone: {error}") from error
        return observation

    def _open_again(self, machine: Machine, observation: Observation) -> None:
        """Open the space again: the contents are the same, and each message is delivered once."""
        with spool.open(self.recovery_disk(machine)) as space:
            if look(space) != observation:
                raise Unexplained(f"the second open found {look(space)}, the first {observation}")
            machine.clock.time += 3600
            for queue, bodies in observation.queues:
                taken = tuple(text(m) for m in space.get_many(queue, 1000)) if bodies else ()
                if taken != bodies:
                    raise Unexplained(f"queue {queue} showed {bodies} and gave {taken}")


def _of(choice: Choice, actors: int) -> Choice:
    """A choice drawn before the number of actors was known."""
    return choice if isinstance(choice, Cut | Stop) else choice._replace(actor=choice.actor % actors)


__all__ = ["Count", "Interleaver", "Livelock", "Scenario", "Simulation"]
