"""Workers, ``celery beat`` and publishing programs that are killed at random, and the log of their tasks."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import spool
from tests.celery.tasks import LOG, SPACE, application, write_line
from tests.celery.workers import ROOT, until

CELERY = (sys.executable, "-m", "celery", "-A", "tests.celery.tasks")
WORKER = (*CELERY, "worker", "-c", "2", "-l", "INFO", "--without-mingle", "--without-gossip")
PREFETCHED = 8  # the tasks that such a worker reserves
_TASK_SECONDS = 0.003
_MOST_WAITING = 300  # tasks, before the next program publishes
_A_PROGRAM = 100  # tasks of a program that publishes
_LONGEST_STOP_SECONDS = 3.0


class Run(NamedTuple):
    """One run of a task, in a process of a worker. ``begun``, ``ended``: numbers of lines; None: did not end.

    redelivered: whether an earlier attempt was counted.
    """

    child: int
    worker: int
    redelivered: bool
    begun: int
    ended: int | None


@dataclass
class Journal:
    """The lines of the log. ``killed``: the line that announces the death of a process."""

    names: dict[str, str] = field(default_factory=dict)  # of the tasks that a program has begun to publish
    published: set[str] = field(default_factory=set)
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    killed: dict[int, int] = field(default_factory=dict)
    accepted: set[tuple[str, int]] = field(default_factory=set)  # tasks, with the processes that accepted them
    chords: dict[str, int] = field(default_factory=dict)  # the expected total by the id of the body
    totals: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lost: set[str] = field(default_factory=set)  # the bodies of failed chords
    lines: int = 0

    def add(self, line: str) -> None:
        self.lines += 1
        event, *words = line.split()
        if event == "publishing":
            self.names[words[0]] = words[1]
        elif event == "published":
            self.published.add(words[0])
        elif event == "chord":
            self.chords[words[0]] = int(words[1])
        elif event == "kill":
            self.killed[int(words[0])] = self.lines
        elif event == "total":
            self.totals[words[0]].add(int(words[1]))
        elif event == "lost":
            self.lost.add(words[0])
        elif event == "accepted":
            self.accepted.add((words[0], int(words[1])))
        elif event == "begin":
            self.runs[words[0]].append(Run(int(words[1]), int(words[2]), words[3] == "1", self.lines, None))
        else:
            runs, child = self.runs[words[0]], int(words[1])
            [at] = [at for at, run in enumerate(runs) if run.child == child and run.ended is None]
            runs[at] = runs[at]._replace(ended=self.lines)

    @property
    def begun(self) -> int:
        return sum(map(len, self.runs.values()))

    def unfinished(self) -> list[str]:
        """Return the published tasks with late acks that never ran to their end."""
        return [
            task
            for task in self.published
            if self.names[task] == "logged" and not any(run.ended for run in self.runs.get(task, []))
        ]

    def without_body(self) -> list[str]:
        """Return the chords whose body did not run, and whose callers were not notified of a failure."""
        return [body for body in self.chords if body not in self.totals and body not in self.lost]

    def counted_too_early(self) -> list[str]:
        """Return the tasks with a counted attempt before any process had accepted them."""
        return [
            task
            for task, (first, *_) in self.runs.items()
            if first.redelivered and not any(id == task and pid != first.child for id, pid in self.accepted)
        ]

    def unexcused(self) -> list[tuple[str, list[Run]]]:
        """Return the tasks that ran again although no kill is the reason."""
        ends, begins = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for run in (run for runs in self.runs.values() for run in runs):
            begins[run.worker].append(run.begun)
            if run.ended is not None:
                ends[run.worker].append(run.ended)

        def is_excused(run: Run, again: Run, *, late: bool) -> bool:
            if self.killed.get(run.worker, again.begun) < again.begun:
                # The ack of an ended run was on its way: few runs of this worker began or ended later.
                if not late:
                    return sum(begun > run.begun for begun in begins[run.worker]) < 2 * PREFETCHED
                return run.ended is None or sum(end > run.ended for end in ends[run.worker]) < 2 * PREFETCHED
            return late and self.killed.get(run.child, again.begun) < again.begun

        return [
            (task, runs)
            for task, runs in self.runs.items()
            if not all(is_excused(run, again, late=self.names[task] != "logged_early") for run, again in pairwise(runs))
        ]


class Storm:
    """Real programs on one space, some of which are always killed and started again."""

    def __init__(self, place: Path, space: spool.Space, seed: int, *, kinds: tuple[str, ...], every: int) -> None:
        """``kinds``: the kinds of victims. ``every``: the most runs from one kill to the next."""
        self.place, self.space, self.journal = place, space, Journal()
        self.kills = Counter[str]()
        self._stopped: list[int] = []
        self._resume_at = 0.0
        self._app = application(space.path)
        self._log = place / "tasks.log"
        self._log.touch()
        self._read = 0
        self._random, self._kinds, self._every = Random(seed), kinds, every
        self._next_kill = 0
        self._environment = {**os.environ, SPACE: space.path, LOG: str(self._log), "C_FORCE_ROOT": "1"}
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, tasks: int) -> None:
        """Kill programs until that many tasks are published; then let all tasks run."""
        while len(self.journal.published) < tasks:
            self._keep_alive(publishes=self.space.stats("celery").ready < _MOST_WAITING)
            self._follow()
            if self.journal.begun >= self._next_kill:
                self._next_kill = self.journal.begun + self._random.randrange(1, self._every)
                self._kill_one()
            until(self._moved)
        self._resume()
        for name in ("beat", "publisher"):
            self._end(name, signal.SIGKILL)
        self._keep_alive(publishes=False)
        until(lambda: self._is_idle() and self._are_ready())
        for name in [*self._programs]:
            self._end(name, signal.SIGTERM)
        self._follow()

    def output(self) -> str:
        """Return the output of all programs."""
        return "\n".join(path.read_text() for path in self.place.glob("*.out"))

    def close(self) -> None:
        for name in [*self._programs]:
            self._end(name, signal.SIGKILL)
        self._app.close()

    def _keep_alive(self, *, publishes: bool) -> None:
        beat = (*CELERY, "beat", "-s", str(self.place / "beat"), "--pidfile=", "-l", "INFO")
        commands = {
            "worker-one": (*WORKER, "-n", f"one{self.journal.lines}@test"),
            "worker-two": (*WORKER, "-n", f"two{self.journal.lines}@test"),
        }
        if publishes:
            commands["beat"] = beat
            commands["publisher"] = (
                sys.executable, "-m", "tests.celery.publisher", str(_A_PROGRAM), str(_TASK_SECONDS)
            )  # fmt: skip
        for name, command in commands.items():
            if name not in self._programs or self._programs[name].poll() is not None:
                with open(self.place / f"{name}.out", "ab") as out:
                    self._programs[name] = subprocess.Popen(
                        command, cwd=ROOT, env=self._environment, stdout=out, stderr=out, start_new_session=True
                    )

    def _moved(self) -> bool:
        """Return whether a line was written, or a program has ended. Resume stopped processes after their time."""
        if time.monotonic() >= self._resume_at:
            self._resume()
        size = self._log.stat().st_size
        return size > self._read or any(one.poll() is not None for one in self._programs.values())

    def _follow(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            self.journal.add(line)

    def _is_idle(self) -> bool:
        self._follow()
        stats = self.space.stats("celery")
        return not (stats.ready or stats.claimed or stats.delayed or self.journal.unfinished())

    def _are_ready(self) -> bool:
        """Return whether all workers have started; before that, SIGTERM is no shutdown."""
        output = self.output()
        return all(f"{one.args[-1]} ready" in output for one in self._programs.values())  # type: ignore[index]

    def _kill_one(self) -> None:
        kind = self._random.choice(self._kinds)
        if kind == "results":
            self.kills[kind] += 1
            self.space.purge("celery.results")
            return
        is_worker = kind in ("worker", "child", "stop worker", "stop child")
        name = self._random.choice(["worker-one", "worker-two"]) if is_worker else kind
        victims = [self._programs[name].pid] if name in self._programs else []
        if kind.endswith("child"):
            victims = [*_children(victims[0])]
            victims = self._random.sample(victims, min(1, len(victims)))
        if kind.startswith("stop"):
            self._stopped += victims
            self._resume_at = time.monotonic() + self._random.uniform(0, _LONGEST_STOP_SECONDS)
        else:
            for pid in victims:
                write_line(self._log, "kill", pid)
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
        self.kills[kind] += bool(victims)

    def _resume(self) -> None:
        while self._stopped:
            with suppress(ProcessLookupError):
                os.kill(self._stopped.pop(), signal.SIGCONT)

    def _end(self, name: str, how: signal.Signals) -> None:
        program = self._programs.pop(name, None)
        if program is not None and program.poll() is None:
            if how is signal.SIGKILL:
                os.killpg(program.pid, how)
                program.wait()
                return
            program.send_signal(how)
            # (a program that has just started has no handler of the signal yet)
            assert program.wait(60) in (0, -how), f"{name} ended with {program.returncode}: {self.output()}"


def _children(pid: int) -> Iterator[int]:
    try:
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except FileNotFoundError:
        return


@contextmanager
def storm(place: Path, space: spool.Space, seed: int, *, kinds: tuple[str, ...], every: int) -> Iterator[Storm]:
    one = Storm(place, space, seed, kinds=kinds, every=every)
    try:
        yield one
    finally:
        one.close()
