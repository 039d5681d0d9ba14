"""Starts the workers, kills them, starts them again, and reads the space at the end."""

import json
import random
import selectors
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import spool
from tests.at_once import AT_ONCE
from tests.torture import worker
from tests.torture.aftermath import Aftermath, look, records_of
from tests.torture.nursery import Child, Nursery
from tests.torture.windows import WINDOWS

TEAM = (
    "putter", "transaction-putter", "xa-putter", "dropper",
    "getter", "batch-getter", "mover", "xa-mover",
)  # fmt: skip
ANYWHERE = "anywhere"
EVERYBODY = "everybody at once"

_FAIR_ODDS = 0.02
_STOPS_A_SECOND = 2.0
_STOP_SECONDS = (0.01, 0.1, 0.3, 1.5)  # far below the longest wait of the others
_END_SECONDS = 60.0


@dataclass
class Plan:
    """How much is enough: at least ``least_seconds`` and all these kills, but never more than ``most_seconds``."""

    seed: int
    kills_per_window: int = 3
    kills_anywhere: int = 20
    kills_of_everybody: int = 2
    least_seconds: float = 15.0
    most_seconds: float = 150.0  # a slow machine comes late into some windows
    stops: int = 5


@dataclass(eq=False)
class Process:
    """A worker's life from one death to the next."""

    kind: str
    incarnation: int
    child: Child
    held_in: str | None = None
    due: float | None = None
    stopped_until: float | None = None


@dataclass
class Result:
    """The outcome. ``killed`` and ``stopped``: numbers by window."""

    killed: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    aftermath: Aftermath = field(default_factory=Aftermath)


class Arena:
    """One run in one directory."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.plan = plan
        self.space = str(directory / "space")
        self.logs = directory / "logs"
        self.result = Result()
        self._rng = random.Random(plan.seed)
        self._selector = selectors.DefaultSelector()
        self._nursery = Nursery()
        self._team: dict[str, Process] = {}
        self._random_kill_at = time.monotonic() + 1.0
        self._random_stop_at = time.monotonic() + 1.0
        self._started_at = time.monotonic()

    def run(self) -> Result:
        self.logs.mkdir()
        with spool.create(self.space, sync_method=self._rng.choice(("ordered", "strict")), defaults=AT_ONCE) as space:
            worker.make_queues(space)
        try:
            for kind in TEAM:
                self._start(kind, 0)
            while not self._enough():
                self._kill_now_and_then()
                self._stop_now_and_then()
                self._listen()
            self._end()
        finally:
            for process in list(self._team.values()):
                process.child.kill()
                self._bury(process)
            self._nursery.close()
            self._selector.close()
        self._look()
        return self.result

    # -- workers ----------------------------------------------------------------------------------------------------

    def _log(self, kind: str) -> str:
        return str(self.logs / f"{kind}.log")

    def _start(self, kind: str, incarnation: int) -> None:
        odds = {window: 0.5 if self._is_missing(window) else _FAIR_ODDS for window in WINDOWS}
        arguments = [self.space, self._log(kind), kind, kind, str(incarnation), str(self.plan.seed), json.dumps(odds)]
        child = self._nursery.bear(arguments, str(self.logs / f"{kind}.stderr"))
        self._team[kind] = Process(kind, incarnation, child)
        self._selector.register(child.stdout, selectors.EVENT_READ, kind)

    def _kill(self, process: Process, window: str) -> None:
        process.child.kill()
        self.result.killed[window] += 1
        self._bury(process)

    def _bury(self, process: Process) -> None:
        self._selector.unregister(process.child.stdout)
        process.child.close()
        del self._team[process.kind]

    def _is_missing(self, window: str) -> bool:
        return self.result.killed[window] < self.plan.kills_per_window

    # -- the run ----------------------------------------------------------------------------------------------------

    def _enough(self) -> bool:
        killed, plan, seconds = self.result.killed, self.plan, time.monotonic() - self._started_at
        reached = (
            seconds >= plan.least_seconds
            and not any(map(self._is_missing, WINDOWS))
            and killed[ANYWHERE] >= plan.kills_anywhere
            and killed[EVERYBODY] >= plan.kills_of_everybody
            and sum(self.result.stopped.values()) >= plan.stops
        )
        return reached or seconds > plan.most_seconds

    def _listen(self) -> None:
        """The lines of the workers, until an action is due."""
        due = [at for process in self._team.values() for at in (process.due, process.stopped_until) if at is not None]
        wait = max(0.0, min([*due, self._random_kill_at, self._random_stop_at]) - time.monotonic())
        for key, _ in self._selector.select(wait):
            process = self._team[key.data]
            line = process.child.stdout.readline()
            if line.startswith("window "):
                process.held_in = line.removeprefix("window ").strip()
                process.due = time.monotonic() + self._rng.choice((0.0, 0.01, 0.05))
            elif line in ("", "bye\n"):
                raise AssertionError(f"{process.kind} ended by itself:\n{self._stderr(process.kind)}")

    def _stderr(self, kind: str) -> str:
        return (self.logs / f"{kind}.stderr").read_text()[-4000:]

    def _kill_now_and_then(self) -> None:
        now = time.monotonic()
        for process in list(self._team.values()):
            if process.due is not None and process.due <= now:
                self._decide(process)
        if now >= self._random_kill_at:
            is_late = now > self._started_at + self.plan.least_seconds + 30  # the rare windows need longer lives
            self._random_kill_at = now + self._rng.expovariate(0.5 if is_late else 4.0)
            if self._rng.random() < 0.1:
                self._kill_all()
            else:
                process = self._rng.choice(list(self._team.values()))
                self._kill(process, process.held_in or ANYWHERE)
                self._start(process.kind, process.incarnation + 1)

    def _stop_now_and_then(self) -> None:
        """A stopped process is neither dead nor alive: no process may take its messages, or wait for it for ever."""
        now = time.monotonic()
        for process in self._team.values():
            if process.stopped_until is not None and process.stopped_until <= now:
                process.stopped_until = None
                process.child.go_on()
        if now >= self._random_stop_at:
            self._random_stop_at = now + self._rng.expovariate(_STOPS_A_SECOND)
            process = self._rng.choice(list(self._team.values()))
            process.child.stop()
            process.stopped_until = now + self._rng.choice(_STOP_SECONDS)
            self.result.stopped[process.held_in or ANYWHERE] += 1

    def _decide(self, process: Process) -> None:
        """Kill a worker that is held in a window, or let it go on."""
        assert process.held_in is not None
        if self._is_missing(process.held_in) or self._rng.random() < 0.5:
            self._kill(process, process.held_in)
            self._start(process.kind, process.incarnation + 1)
            return
        process.held_in = process.due = None
        process.child.stdin.write("go on\n")
        process.child.stdin.flush()

    def _kill_all(self) -> None:
        self.result.killed[EVERYBODY] += 1
        everybody = list(self._team.values())
        for process in everybody:
            process.child.kill()
        for process in everybody:
            self._bury(process)
        for process in everybody:
            self._start(process.kind, process.incarnation + 1)

    def _end(self) -> None:
        for process in self._team.values():
            process.child.go_on()
            process.child.stdin.close()
        for process in self._team.values():
            assert process.child.wait(_END_SECONDS), f"{process.kind} does not end:\n{self._stderr(process.kind)}"
            said = process.child.stdout.read()
            assert said.endswith("bye\n"), f"{process.kind} failed:\n{self._stderr(process.kind)}"

    # -- afterwards -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Decide branches in doubt, take the remaining messages, and check."""
        self.result.aftermath = look(self.space, self.logs, self._rng)
        self.result.operations = Counter(record["event"] for record in records_of(self.logs))
