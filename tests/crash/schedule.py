"""Several processes of a simulated machine, one of which runs at a time; the running one changes at system calls only.

Each actor is a thread that stops before every call of its disk that others could notice, and there the schedule says
which goes on, which is killed, and whether the power fails. The same plan gives the same run, so a failure can be seen
again. A waiting actor sleeps in simulated time: it goes on when all others wait or are done.
"""

import _thread
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

from tests.clocks import SimulatedClock
from tests.machine import Machine, PowerCut
from tests.simdisk import SimulatedDisk

# The longest schedule takes some 800 steps, with a feed of six slots (``few_slots``). "A ring that is overrun" puts as
# many messages as the feed has slots, in 30 steps each: 2,048 slots are beyond this limit, and that is no livelock.
MAX_STEPS = 60_000
_LAST_STEPS = 1_000
_PRIVATE = frozenset(("close", "handle_identity", "truncate", "has_writer"))


class Switch(NamedTuple):
    """Before this step (counted from 1), that actor goes on instead of the running one."""

    step: int
    actor: int

    def __str__(self) -> str:
        return f"before step {self.step} switch to {self.actor}"


class Kill(NamedTuple):
    """Before this step, that actor's process is killed."""

    step: int
    actor: int

    def __str__(self) -> str:
        return f"before step {self.step} kill {self.actor}"


class Cut(NamedTuple):
    """Before this step the power fails."""

    step: int

    def __str__(self) -> str:
        return f"before step {self.step} cut the power"


class Stop(NamedTuple):
    """Before this step, the process that is running is stopped, and goes on when all others are done."""

    step: int

    def __str__(self) -> str:
        return f"before step {self.step} stop until all others are done"


Choice = Switch | Kill | Cut | Stop


class Livelock(AssertionError):
    """The actors take steps for ever, or wait for each other."""


@dataclass
class Actor:
    """``run`` is the program; ``error`` the exception that ended it. ``process``: the process of its last call; a
    program may also play a child of its process."""

    name: str
    disk: SimulatedDisk
    run: Callable[[], None]
    wake: float | None = None
    blocked: Callable[[], bool] | None = None
    done: bool = False
    process: SimulatedDisk | None = None
    error: BaseException | None = None
    polite: int = 0  # the turn in which it goes on, of those that let others come
    gate: Any = field(default_factory=_thread.allocate_lock)
    ident: int = 0

    @property
    def waits(self) -> bool:
        """Return whether the actor waits, or has ended."""
        return self.done or self.wake is not None or bool(self.blocked and self.blocked())


class Schedule:
    """One run of some actors by a plan. After the plan an actor runs until it waits or ends; then the first actor that
    can run goes on. ``numbers``: switch at random as well, with probability ``often`` at each step. ``trace``: (actor,
    call) of each step; ``told``: the same calls with their arguments, in words."""

    def __init__(self, machine: Machine, *, numbers: random.Random | None = None, often: float = 0.1) -> None:
        self.machine = machine
        self.clock = ScheduledClock(machine, self)
        self.actors: list[Actor] = []
        self.steps = 0
        self.trace: list[tuple[int, str]] = []
        self._calls: list[tuple[str, tuple[object, ...]]] = []
        self.kills: list[str] = []
        self.was_cut = False
        self._plan: dict[int, list[Choice]] = {}
        self._numbers = numbers
        self._often = often
        self._polite = 0
        self._by_ident: dict[int, Actor] = {}
        self._over = _thread.allocate_lock()

    def follow(self, plan: Sequence[Choice]) -> None:
        for choice in plan:
            self._plan.setdefault(choice.step, []).append(choice)

    @property
    def told(self) -> list[str]:
        return [" ".join((call, *map(str, args))) for call, args in self._calls]

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all actors to their ends. Raises the error of an actor, unless the schedule ended that actor."""
        self._over.acquire()
        for actor in self.actors:
            actor.gate.acquire()
            threading.Thread(target=self._live, args=(actor,), daemon=True).start()
        self._pick(self.actors).gate.release()
        self._over.acquire()
        for actor in self.actors:
            if actor.error is not None and not isinstance(actor.error, PowerCut):
                raise actor.error

    def _live(self, actor: Actor) -> None:
        actor.ident = _thread.get_ident()
        self._by_ident[actor.ident] = actor
        actor.gate.acquire()
        try:
            if actor.disk.dead:
                raise PowerCut("killed before its first step")
            actor.run()
        except BaseException as error:
            actor.error = error
        actor.done = True
        left = [one for one in self.actors if not one.done]
        try:
            (self._pick(left).gate if left else self._over).release()
        except Livelock as error:
            actor.error = error
            self._over.release()

    # -- at a step ----------------------------------------------------------------------------------------------------

    def reached(self, disk: SimulatedDisk, call: str, args: tuple[object, ...] = ()) -> None:
        """An actor is about to make a call."""
        actor = self._by_ident.get(_thread.get_ident())
        if actor is None or call in _PRIVATE or disk.dead:
            return
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Livelock(f"no end after {self.steps} steps; of the last {_LAST_STEPS}: {self._last_steps()}")
        actor.process = disk
        self.trace.append((self.actors.index(actor), call))
        self._calls.append((call, args))
        following = actor
        for choice in self._plan.get(self.steps, ()):
            if isinstance(choice, Cut):
                self.cut()
            elif isinstance(choice, Stop):
                following = self.stop(actor)
            elif isinstance(choice, Kill):
                following = self.kill(self.actors[choice.actor]) or following
            elif not self.actors[choice.actor].done:
                following = self.actors[choice.actor]
        if self._numbers is not None and self._numbers.random() < self._often:
            following = self._numbers.choice([one for one in self.actors if not one.done])
        if following is not actor:
            self._hand_over(actor, following)

    def _last_steps(self) -> str:
        """The actors of the last steps, and the steps: actors that come on make other calls than those that wait."""
        last = Counter((self.actors[actor].name, call) for actor, call in self.trace[-_LAST_STEPS:])
        return ", ".join(f"{actor} {call} {count}" for (actor, call), count in last.most_common(8))

    def kill(self, victim: Actor) -> Actor | None:
        """Kill the victim's process with all its actors, which still unwind."""
        if victim.done or victim.disk.dead:
            return None
        self.kills.append(self.trace[-1][1] if self.actors[self.trace[-1][0]] is victim else "while it waited")
        self.machine.kill(victim.disk)
        for actor in self.actors:
            if actor.disk is victim.disk:
                actor.wake = actor.blocked = None
        return victim

    def stop(self, actor: Actor) -> Actor:
        """Return the actor that goes on instead."""
        others = [one for one in self.actors if one is not actor]
        actor.blocked = lambda: any(not one.done for one in others)
        return self._pick([one for one in self.actors if not one.done])

    def cut(self) -> None:
        self.was_cut = True
        for disk in {handle.process for handle in self.machine.handles.values()}:
            self.machine.kill(disk)
        for actor in self.actors:
            self.machine.kill(actor.disk)
            actor.wake = actor.blocked = None

    def sleeping(self, seconds: float) -> None:
        actor = self._by_ident.get(_thread.get_ident())
        if actor is None or (actor.process or actor.disk).dead:
            self.machine.clock.time += seconds
            return
        actor.wake = self.machine.clock.time + seconds
        self._hand_over(actor, self._pick([one for one in self.actors if not one.done]))

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition in memory, as threads of one process do."""
        actor = self._by_ident[_thread.get_ident()]
        while not ready():
            actor.blocked = lambda: not ready()
            self._hand_over(actor, self._pick([one for one in self.actors if not one.done]))
            actor.blocked = None

    def let_siblings_come(self) -> None:
        """The actor goes on when all others of its process wait for something, or have ended."""
        self._let_come(lambda one, actor: one.disk is actor.disk)

    def let_others_come(self) -> None:
        """The actor goes on when all actors of other processes wait for something, or have ended."""
        self._let_come(lambda one, actor: one.disk is not actor.disk)

    def _let_come(self, comes: Callable[[Actor, Actor], bool]) -> None:
        actor = self._by_ident.get(_thread.get_ident())
        if actor is None or actor.disk.dead:
            return
        siblings = [one for one in self.actors if comes(one, actor) and one is not actor]
        self._polite += 1
        mine = actor.polite = self._polite
        self.wait_until(lambda: all(one.polite > mine if one.polite else one.waits for one in siblings))
        actor.polite = 0

    # -- handing over -------------------------------------------------------------------------------------------------

    def _pick(self, actors: Sequence[Actor]) -> Actor:
        """The first that is not waiting; else the one that wakes first."""
        for actor in actors:
            if actor.wake is None and not (actor.blocked and actor.blocked()):
                return actor
        sleepers = [actor for actor in actors if actor.wake is not None]
        if not sleepers:
            raise Livelock("all wait for each other: " + ", ".join(actor.name for actor in actors))
        return min(sleepers, key=lambda actor: actor.wake or 0.0)

    def _hand_over(self, actor: Actor, following: Actor) -> None:
        if following.wake is not None:
            self.machine.clock.time = max(self.machine.clock.time, following.wake)
            following.wake = None
        if following is not actor:
            following.gate.release()
            actor.gate.acquire()
        if actor.wake is not None:  # (a plan woke it early: its sleep is over)
            actor.wake = None
        if (actor.process or actor.disk).dead:
            raise PowerCut("killed")

    def running(self) -> Actor:
        """Return the actor whose program makes this call."""
        return self._by_ident[_thread.get_ident()]

    def involved(self) -> bool:
        """Return whether the caller is one of the actors."""
        return _thread.get_ident() in self._by_ident


class ScheduledDisk(SimulatedDisk):
    """A process whose calls are steps of a schedule."""

    def __init__(self, machine: Machine, schedule: Schedule) -> None:
        super().__init__(machine)
        self.clock = schedule.clock
        self.schedule = schedule

    def _on(self, machine: Machine) -> SimulatedDisk:
        return type(self)(machine, self.schedule)

    def _step(self, call: str, *args: object) -> None:
        self.schedule.reached(self, call, args)
        super()._step(call, *args)


class ScheduledClock(SimulatedClock):
    """The machine's time, which passes while all wait. ``wall_step``: seconds that the wall clock was put."""

    def __init__(self, machine: Machine, schedule: Schedule) -> None:
        self._machine = machine
        self._schedule = schedule
        self.wall_step = 0.0

    def now(self) -> float:
        return self._machine.clock.time + self.wall_step

    def monotonic(self) -> float:
        return self._machine.clock.time

    def sleep(self, seconds: float) -> None:
        self._schedule.sleeping(seconds)


class _ScheduledLock:
    """``threading.Lock`` or ``RLock`` between the threads of a simulated process."""

    def __init__(self, schedule: Schedule, *, reentrant: bool) -> None:
        self._schedule = schedule
        self._reentrant = reentrant
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _thread.get_ident()
        if self._owner == me and self._reentrant:
            self._count += 1
            return True
        if self._owner is not None:
            if not blocking:
                return False
            if not self._schedule.involved():
                raise Livelock("a lock is held by an actor that has ended")
            self._schedule.wait_until(lambda: self._owner is None)
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def scheduled_locks(schedule: Schedule) -> Iterator[None]:
    """While a space is opened: its mutexes become part of the schedule."""
    with (
        mock.patch("threading.Lock", partial(_ScheduledLock, schedule, reentrant=False)),
        mock.patch("threading.RLock", partial(_ScheduledLock, schedule, reentrant=True)),
    ):
        yield
