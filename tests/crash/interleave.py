"""Run a scenario of several processes under many schedules, and hold what is found against what they did."""

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
from spool.remote import branch as remote_branch
from tests.at_once import AT_ONCE
from tests.crash.book import Book, Sight, Unexplained, look, text
from tests.crash.kinds import kinds_of
from tests.crash.mirrors import MIRROR, mirrors_last, new_space, restored
from tests.crash.schedule import (
    Actor,
    Choice,
    Cut,
    Kill,
    Livelock,
    Schedule,
    ScheduledClock,
    ScheduledDisk,
    Stop,
    Switch,
    scheduled_locks,
)  # fmt: skip
from tests.machine import NO_FILES, Image, Machine
from tests.simdisk import ROOT, SimulatedDisk, few_slots, repeatable
from tests.survivors import Rules, survivors

SEED = 7
QUEUES = ("a", "b")


class Stage:
    """What a scenario's actors share in one run."""

    def __init__(self, machine: Machine, schedule: Schedule, book: Book, disk: type[ScheduledDisk]) -> None:
        self.machine = machine
        self.schedule = schedule
        self.book = book
        self.clock = ScheduledClock(machine, schedule)
        self.disk = disk
        self.spaces: list[spool.Space] = []

    def process(self, name: str, program: Callable[[spool.Space], None], *more: Callable[[spool.Space], None]) -> None:
        """A process that has opened the space before the schedule begins; ``more``: what its other threads do."""
        disk = self.disk(self.machine, self.schedule)
        with scheduled_locks(self.schedule) if more else nullcontext():
            space = spool.open(ROOT, disk=disk, clock=self.clock)
        self.spaces.append(space)
        for place, run in enumerate((program, *more)):
            self._actor(f"{name}{place or ''}", disk, run, space)

    def newcomer(self, name: str, program: Callable[["Stage", SimulatedDisk], None]) -> None:
        """A process that opens the space, if at all, in its program."""
        disk = self.disk(self.machine, self.schedule)
        self._actor(name, disk, program, self, disk)

    def open(self, disk: SimulatedDisk) -> spool.Space:
        space = spool.open(ROOT, disk=disk, clock=self.clock)
        self.spaces.append(space)
        return space

    @contextmanager
    def remote_branches(self) -> Iterator[None]:
        """Meanwhile, a branch that is made without a space is that of the process that makes it."""
        with (
            mock.patch.object(remote_branch, "Disk", side_effect=lambda _: self.schedule.running().disk),
            mock.patch.object(remote_branch, "Clock", return_value=self.clock),
        ):
            yield

    def _actor(self, name: str, disk: SimulatedDisk, run: Callable[..., None], *args: object) -> None:
        context = contextvars.Context()
        self.schedule.actors.append(Actor(name, disk, lambda: context.run(run, *args)))

    def others_are_done(self) -> bool:
        """For a process that comes after all others."""
        return all(actor.done or actor.disk.dead for actor in self.schedule.actors[:-1])


@dataclass(frozen=True)
class Scenario:
    """``there``: bodies in queue a when the actors begin. ``setup``: what else happens before; ``cast``: puts the
    actors on the stage. ``model``: the scenario of tests/protocol that this is with the real code. ``afterwards``:
    what the first process that opens the space again does before it looks. ``mirrored``: the space has a mirror."""

    name: str
    cast: Callable[[Stage], None]
    there: tuple[str, ...] = ()
    setup: Callable[[spool.Space, Book], None] | None = None
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
    random ones), evenly spread where there are more."""

    def __init__(
        self,
        scenario: Scenario,
        rules: Rules,
        *,
        limit: int,
        per_cut: int = 3,
        recovery_disk: type[SimulatedDisk] = SimulatedDisk,
        seed: int = SEED,
    ) -> None:
        self.scenario = scenario
        self.rules = rules
        self.limit = limit
        self.per_cut = per_cut
        self.recovery_disk = recovery_disk
        self.numbers = random.Random(seed)
        self.count = Count()
        self._seen: set[tuple[Image, str]] = set()
        self._ends: set[tuple[Hashable, str]] = set()
        self._start = Book([("a", body) for body in scenario.there])
        with repeatable(SEED), few_slots():
            self.base = self._set_up()

    def _set_up(self) -> Image:
        self._empty = new_space(Machine(NO_FILES, boot=1, **self.rules.told), QUEUES)
        machine = Machine(NO_FILES, boot=1, **self.rules.told)
        options = {"mirror": MIRROR} if self.scenario.mirrored else {}
        with spool.create(ROOT, disk=SimulatedDisk(machine), clock=machine.clock, defaults=AT_ONCE, **options) as space:
            for queue in QUEUES:
                space.create_queue(queue)
            for body in self.scenario.there:
                space.put("a", body)
            if self.scenario.setup is not None:
                self.scenario.setup(space, self._start)
        return machine.image()

    # -- trying -------------------------------------------------------------------------------------------------------

    def explore(self) -> Count:
        """Raises at the first sight that nothing explains; the text says how to see it again."""
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
        """What others made of a dead process's work must survive, too."""
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
        """One run by that plan, and by random switches if there is a ``seed``; looked at afterwards."""
        machine = Machine(self.base, boot=2, **self.rules.told)
        numbers = None if seed is None else random.Random(seed)
        schedule = Schedule(machine, numbers=numbers)
        book = copy.deepcopy(self._start)
        stage = Stage(machine, schedule, book, self.scenario.disk)
        try:
            with repeatable(SEED + 1), few_slots(), mirrors_last(), stage.remote_branches():
                self.scenario.cast(stage)
                schedule.follow([_of(choice, len(schedule.actors)) for choice in plan])
                schedule.run()
                self._judge(stage)
        except Exception as error:
            told = ", ".join(map(str, plan)) or "no choice"
            raise Unexplained(
                f"{self.scenario.name} ({self.rules.value}): {type(error).__name__}: {error}\n"
                f"see it again with: play(({told}), seed={seed}), {schedule.steps} steps\n{book}"
            ) from error
        finally:
            for space in stage.spaces:
                space._store.guard.closed = True
        self.count.schedules += 1
        self.count.kills += len(schedule.kills)
        self.count.cuts += schedule.was_cut
        return schedule

    # -- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, stage: Stage) -> None:
        machine, book = stage.machine, stage.book
        if not stage.schedule.was_cut:
            for disk in {handle.process for handle in machine.handles.values()}:
                machine.kill(disk)
            end = machine.seen_by_processes(), str(book)
            if end not in self._ends:  # many schedules come to the same end
                self._look_at_mirror(machine.image(), book)
                self._open_again(machine, self._open_and_look(machine, book, after_cut=False))
                self._ends.add(end)
            return
        for survivor in survivors(machine, self.rules, limit=self.per_cut, seed=self.numbers.randrange(1 << 30)):
            key = survivor.image, str(book)
            if key in self._seen:
                continue
            self._seen.add(key)
            self.count.survivors += 1
            self.count.kinds.update(kinds_of(machine.image(), survivor.image))
            try:
                again = Machine(survivor.image, boot=3, **self.rules.told)
                self._look_at_mirror(survivor.image, book)
                sight = self._open_and_look(again, book, after_cut=True)
                self._open_again(again, sight)
            except Exception as error:
                raise Unexplained(f"{error}\n  {survivor.story}") from error

    def _open_and_look(self, machine: Machine, book: Book, *, after_cut: bool) -> Sight:
        disk = self.recovery_disk(machine)
        space = spool.open(ROOT, disk=disk, clock=machine.clock)
        if self.scenario.afterwards is not None:
            self.scenario.afterwards(space)
        sight = look(space)
        book.explain(sight, after_cut=after_cut)
        for reader in book.readers:
            reader.judge(space, book)
        damage = [finding for finding in space.check() if finding.kind is Kind.DAMAGED]
        if damage:
            raise Unexplained(f"damage: {damage}")
        if (number := space._store.view.index.applied) < book.offset:
            raise Unexplained(f"a stream has read up to commit {book.offset}, and the newest is {number}")
        machine.kill(disk)
        space._store.guard.closed = True
        if self._look_at_mirror(machine.image(), book) not in (None, sight):
            raise Unexplained(f"the space showed {sight}, and its mirror shows something else")
        return sight

    def _look_at_mirror(self, image: Image, book: Book) -> Sight | None:
        """What is there if the space's disk is lost."""
        if image.beside is None:
            return None
        machine = Machine(restored(self._empty, image.beside), boot=4, **self.rules.told)
        with spool.open(ROOT, disk=self.recovery_disk(machine), clock=machine.clock) as space:
            sight = look(space)
        try:
            book.explain(sight)
        except Unexplained as error:
            raise Unexplained(f"of the mirror alone: {error}") from error
        return sight

    def _open_again(self, machine: Machine, sight: Sight) -> None:
        """The second look sees the same; each message comes once."""
        with spool.open(ROOT, disk=self.recovery_disk(machine), clock=machine.clock) as space:
            if look(space) != sight:
                raise Unexplained(f"the second open found {look(space)}, the first {sight}")
            machine.clock.time += 3600
            for queue, bodies in sight.queues:
                taken = tuple(text(m) for m in space.get_many(queue, 1000)) if bodies else ()
                if taken != bodies:
                    raise Unexplained(f"queue {queue} showed {bodies} and gave {taken}")


def _of(choice: Choice, actors: int) -> Choice:
    """A choice drawn before the number of actors was known."""
    return choice if isinstance(choice, Cut | Stop) else choice._replace(actor=choice.actor % actors)


__all__ = ["Count", "Interleaver", "Livelock", "Scenario", "Stage"]
