"""Forwarders whose processes are killed at random: nothing is lost, nothing is twice.

Two forwarders take from one queue, and a third program compacts and reclaims the space beside them. Messages come all
the time, some of them with a delay. Their driver, its Java, the Java of its executors, their Python daemons and workers
are killed, and the third program is, each while messages are claimed.

Into a queue of the same space or of another and into PostgreSQL each message comes exactly once; into a web service at
least once, always with the same key.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import spool
from tests.forwarder.kills.destinations import Destination, destination
from tests.forwarder.kills.programs import Sweeper, victim
from tests.forwarder.processes import PATIENT_SECONDS, RunningForwarder, wait_until_left
from tests.shown import left_over
from tests.spaces import space_with

LATEST_KILL = 0.8  # of the messages: the rest is forwarded in peace
DRAINING_SECONDS = 3600.0
SOON = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # Java starts in half of the processor's time


@dataclass(frozen=True)
class Size:
    """How much is done: the messages, the kills by kind (also of the sweeper), and the options of two forwarders.

    backlog: of so many messages that wait, no more are put; a put has at most a tenth of it.
    """

    messages: int
    backlog: int
    kills: dict[str, int]
    forwarders: tuple[Sequence[str], Sequence[str]]


SMALL = Size(100, 20, {"driver": 1, "sweeper": 1}, (["--no-spark"], ["--no-spark"]))
LARGE = Size(
    100_000,
    1000,
    {"driver": 4, "java": 3, "executor": 8, "daemon": 8, "worker": 77, "sweeper": 10},
    (["--master", "local-cluster[2,1,1024]"], ["--master", "local[2]"]),
)


@dataclass
class Run:
    """One run: ``ids`` of the messages put, by number, and the counts of kills."""

    space: spool.Space
    forwarders: list[RunningForwarder]
    sweeper: Sweeper
    chance: random.Random
    size: Size
    ids: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def feed(self) -> None:
        """Put a few messages, unless enough wait. One commit of five is not due at once.

        More come than the size says where a kill finds none claimed when all were put.
        """
        first, stats = len(self.ids), self.space.stats("work")
        last = first + self.chance.randint(1, self.size.backlog // 10)
        numbers = range(first, last if first >= self.size.messages else min(last, self.size.messages))
        if stats.ready + stats.delayed >= self.size.backlog:
            time.sleep(0.02)
            return
        delay = self.chance.uniform(0.1, 3.0) if self.chance.random() < 0.2 else 0.0
        self.ids += self.space.put_many("work", map(str, numbers), delay=delay)

    def kill(self, left: Counter[str]) -> None:
        """Kill a process of one of the kinds that are left, at a random moment while messages are claimed."""
        end = time.monotonic() + PATIENT_SECONDS
        while time.monotonic() < end:
            kind, program, pid = victim([*self.forwarders, self.sweeper], left, self.chance, self.feed)
            time.sleep(self.chance.uniform(0.0, 0.1))
            stats = self.space.stats("work")
            # Each may have one at a time only, and perhaps none is ready yet.
            if stats.claimed < max(1, sum(one.is_ready() for one in self.forwarders)):
                if not stats.ready:
                    self.feed()
                continue
            try:
                program.kill(pid, kind)
            except ProcessLookupError:  # it has ended meanwhile
                continue
            left[kind] -= 1
            self.killed[kind] += 1
            seconds = time.monotonic() - self.began
            print(f"{seconds:.0f} s: {kind}; {stats.dequeued} forwarded, {stats.claimed} claimed", flush=True)
            return
        raise AssertionError("no message is claimed")

    def drain(self) -> None:
        """Wait until every message has left the queue."""
        end = time.monotonic() + DRAINING_SECONDS
        while self.left():
            assert time.monotonic() < end, f"{self.space.stats('work')}: {[one.said() for one in self.forwarders]}"
            for program in self.forwarders:
                program.is_ready()
            time.sleep(0.2)

    def left(self) -> int:
        stats = self.space.stats("work")
        return stats.ready + stats.delayed + stats.claimed + stats.in_doubt


def forward_and_kill(run: Run) -> None:
    """Put all messages, kill processes at random moments meanwhile, and let the forwarders finish."""
    left = Counter(run.size.kills)
    for moment in sorted(run.chance.sample(range(int(run.size.messages * LATEST_KILL)), left.total())):
        while len(run.ids) < moment:
            run.feed()
        run.kill(left)
    while len(run.ids) < run.size.messages:
        run.feed()
    run.drain()
    for program in run.forwarders:
        while not program.is_ready():
            time.sleep(0.05)
        assert program.stop() == 0, program.said()
    run.sweeper.stop()


space = space_with(work={"retry_delay": 0.0, "retry_delay_max": None})


LONG = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(10_000)]


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param("web", SMALL, id="web-small"),
        pytest.param("queue", LARGE, marks=LONG, id="queue"),
        pytest.param("other space", LARGE, marks=LONG, id="other space"),
        pytest.param("PostgreSQL", LARGE, marks=LONG, id="PostgreSQL"),
        pytest.param("web", LARGE, marks=LONG, id="web"),
    ],
)
def test_x05_q12_each_message_arrives_when_any_process_is_killed(
    kind: str, size: Size, space: spool.Space, chance: random.Random, tmp_path: Path
) -> None:
    with destination(kind, space, tmp_path) as there:
        environment = {**there.environment, "SPARK_WORKER_DIR": str(tmp_path / "executors"), **SOON}
        with ExitStack() as stack:
            forwarders = [
                stack.enter_context(
                    RunningForwarder(space.path, there.service, options, tmp_path / f"forwarder {place}", environment)
                )
                for place, options in enumerate(size.forwarders)
            ]
            sweeper = stack.enter_context(Sweeper(space.path, tmp_path))
            run = Run(space, forwarders, sweeper, chance, size)
            forward_and_kill(run)
        wait_until_left(Path(space.path))
        written, removed = sweeper.counts()
        print(f"{kind}: {dict(run.killed)}, {there.counts()}, {written} files compacted, {removed} reclaimed")
        assert run.killed == size.kills
        assert written
        assert removed
        judge(run, there)
    judge_space(space)


def judge(run: Run, there: Destination) -> None:
    """Expect each message once, or at least once, at the destination, with its id of this space."""
    arrivals = there.arrivals()
    keeps_ids = any(id_ is not None for id_, _ in arrivals)
    assert set(arrivals) == {(id_ if keeps_ids else None, number) for number, id_ in enumerate(run.ids)}
    assert not there.exactly_once or max(arrivals.values()) == 1


def judge_space(space: spool.Space) -> None:
    """Expect no remains of killed processes after the first opener has opened the space, and no damage."""
    space.close()
    with spool.open(space.path) as alone:
        assert alone.recovery.alone
        assert alone.recovery.in_doubt == []
        assert [finding for finding in alone.check() if finding.kind == "damaged"] == []
    assert left_over(space.path) == []
