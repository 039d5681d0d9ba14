"""Celery on xaspool and on Redis: tasks without work, acknowledged after their end.

Redis flushes its log before each answer (``appendfsync always``). Both brokers have their files on the same disk.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import spool
from bench.cases.base import Case, Result, compare
from bench.celery_tasks import BROKER, HOLDS, LOG, START
from bench.figures import Figure, in_turns, ratio
from bench.peers.base import Missing, need
from bench.peers.redis import Redis
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict, unmeasured

_ROOT = Path(__file__).parents[2]
_PATH = (str(_ROOT), str(_ROOT / "scripts"))
_SECONDS = 300
_CHILDREN = (2, 4)
_RESERVED = 50  # tasks of the killed worker that its pool has not begun
_PAUSE_SECONDS = 0.02
_SETTLED_SECONDS = 0.5  # Redis may have delivered a task of an ended worker again

_DRAIN = {n: Row(f"celery-drain-{n}", f"Celery, a backlog, worker with -c {n}", "≥ 1.5 × Redis") for n in _CHILDREN}
_PUBLISH = {
    n: Row(f"celery-publish-{n}", f"Celery, delay until the last task ran, worker with -c {n}", "≥ 1.0 × Redis")
    for n in _CHILDREN
}
_LATENCY = Row("celery-latency", "Celery, delay to start, idle worker", "p50 and p95 ≤ 1.2 × Redis")
_KILLED = Row("celery-killed", f"Celery, a worker killed with {_RESERVED} tasks reserved", "all start in ≤ 0.3 s")
_ROWS = (*_DRAIN.values(), *_PUBLISH.values(), _LATENCY, _KILLED)


@dataclass
class Broker:
    """A broker, and a file in which its tasks note their starts. ``path``: where its processes find modules."""

    name: str
    url: str
    log: Path
    path: tuple[str, ...] = _PATH
    workers: int = field(default=0)

    def environment(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join(self.path)
        return {**os.environ, "PYTHONPATH": path, BROKER: self.url, LOG: str(self.log), "C_FORCE_ROOT": "1", **more}

    def starts(self) -> list[float]:
        """Return the starts since the last ``clear``, in seconds."""
        return [start for (start,) in START.iter_unpack(self.log.read_bytes())]

    def clear(self) -> None:
        os.truncate(self.log, 0)

    def wait_for(self, count: int) -> list[float]:
        """Return the starts when there are ``count``."""
        until = time.monotonic() + _SECONDS
        while os.stat(self.log).st_size < count * START.size:
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name}: {len(self.starts()):,} of {count:,} tasks ran in {_SECONDS} s")
            time.sleep(0.002)
        return self.starts()

    @contextmanager
    def worker(self, children: int, *options: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a worker; yield when it is ready."""
        self.workers += 1
        name, log = f"bench{self.workers}@here", self.log.with_suffix(f".worker{self.workers}")
        command = [sys.executable, "-m", "celery", "-A", "bench.celery_tasks", "worker", "-n", name, "-l", "INFO"]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*command, "-c", str(children), *options], cwd=self.path[0], env=self.environment(**environment),
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            until = time.monotonic() + _SECONDS
            while f"{name} ready".encode() not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{self.name}: the worker is not ready: {log.read_text()[-2000:]}")
                time.sleep(0.02)
            yield process
            process.terminate()
            process.wait(_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @contextmanager
    def publisher(self) -> Iterator["Publisher"]:
        """Run a process that publishes tasks."""
        command = [sys.executable, "-c", _PUBLISHER]
        with subprocess.Popen(
            command, cwd=self.path[0], env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield Publisher(process)


_PUBLISHER = """
import sys, time
from bench.celery_tasks import start
start.delay  # the import is over
for line in sys.stdin:
    begun = time.monotonic()
    for _ in range(int(line)):
        start.delay()
    print(begun, flush=True)
"""


@dataclass
class Publisher:
    process: "subprocess.Popen[str]"

    def publish(self, count: int) -> float:
        """Publish tasks, and return the time before the first, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


Door = tuple[Broker, Publisher]


def _drain(broker: Broker, publisher: Publisher, children: int, count: int) -> float:
    """Return the tasks a second of a worker that finds a backlog."""
    broker.clear()
    publisher.publish(count)
    with broker.worker(children):
        starts = sorted(broker.wait_for(count))
    return (count - 1) / (starts[-1] - starts[0])


def _publish(broker: Broker, publisher: Publisher, children: int, count: int) -> float:
    """Return the tasks a second from the first ``delay`` until the last task ran, with a ready worker."""
    with broker.worker(children):
        publisher.publish(20)
        broker.wait_for(20)
        broker.clear()
        begun = publisher.publish(count)
        return count / (max(broker.wait_for(count)) - begun)


def _latencies(broker: Broker, publisher: Publisher, count: int) -> list[float]:
    """Return the milliseconds from ``delay`` to the start of the task. An idle pause precedes each task."""
    found = []
    with broker.worker(2):
        publisher.publish(20)
        broker.wait_for(20)
        time.sleep(_SETTLED_SECONDS)
        for _ in range(count):
            time.sleep(_PAUSE_SECONDS)
            broker.clear()
            begun = publisher.publish(1)
            found.append(1000 * (broker.wait_for(1)[0] - begun))
    return found


def _kill(broker: Broker, publisher: Publisher) -> float:
    """Kill a worker, its pool too, whose tasks never end. Return the seconds until another worker began them all."""
    path = broker.url.removeprefix("xaspool://")
    with (
        spool.open(path) as space,
        broker.worker(2, "--prefetch-multiplier", str((_RESERVED + 2) // 2), **{HOLDS: "1"}) as first,
    ):
        broker.clear()
        publisher.publish(_RESERVED + 2)
        while space.stats("celery").claimed < _RESERVED + 2:
            time.sleep(0.01)
        with broker.worker(2):
            killed = time.monotonic()
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            starts = broker.wait_for(_RESERVED + 2)
    return max(starts) - killed


def _measure(bench: Bench) -> Iterator[Result]:
    there = bench.on_journal
    try:
        need("celery", "celery")
        if isinstance(there, Missing):
            raise there
        if "Redis" not in there.peers:
            raise Missing("it needs the peer Redis")
    except Missing as missing:
        yield from (unmeasured(row, str(missing)) for row in _ROWS)
        return
    redis = there.peers["Redis"]
    assert isinstance(redis, Redis)
    with there.scratch("celery") as directory, ExitStack() as ending:
        brokers = (
            Broker("xaspool", f"xaspool://{directory}/space", Path(directory, "ours")),
            Broker("Redis", f"redis+socket://{redis.socket}", Path(directory, "redis")),
        )
        for broker in brokers:
            broker.log.touch()
        doors = [(broker, ending.enter_context(broker.publisher())) for broker in brokers]
        yield from _throughput(bench, doors)
        yield _latency(bench, doors)
        seconds = [_kill(*doors[0]) for _ in range(bench.sizes.slices)]
        figure = Figure("xaspool", seconds, "s", durable=True)
        good = Verdict.of(figure.median <= 0.3)
        yield Outcome(_KILLED, f"{figure.median:.2f} s", good, figure, note="on Redis after its visibility timeout")


def _throughput(bench: Bench, doors: list[Door]) -> Iterator[Result]:
    count = bench.sizes.tasks
    for step, rows, least in ((_drain, _DRAIN, 1.5), (_publish, _PUBLISH, 1.0)):
        for children, row in rows.items():
            steps = {broker.name: partial(step, broker, publisher, children, count) for broker, publisher in doors}
            rates = in_turns(steps, bench.sizes.forwards)
            ours, other = (Figure(name, rates[name], "tasks/s", durable=True) for name in steps)
            yield compare(row, ours, [other], "Redis", least, note=f"{count:,} tasks")


def _latency(bench: Bench, doors: list[Door]) -> Outcome:
    """Compare the times from ``delay`` to start, in turns of one worker each."""
    found: dict[str, list[float]] = {broker.name: [] for broker, _ in doors}
    for _ in range(bench.sizes.forwards):
        for broker, publisher in doors:
            found[broker.name] += _latencies(broker, publisher, bench.sizes.latencies // bench.sizes.forwards)
    ours, other = (Figure(name, samples, "ms", durable=True) for name, samples in found.items())
    p50, p95 = ratio(ours, other), _p95(ours) / _p95(other)
    good = Verdict.of(p50 <= 1.2 and p95 <= 1.2)
    note = f"p95 {_p95(ours):.1f} ms, Redis {_p95(other):.1f} ms"
    return Outcome(_LATENCY, f"p50 {p50:.2f} ×, p95 {p95:.2f} × Redis", good, ours, [other], note, against=other)


def _p95(figure: Figure) -> float:
    return statistics.quantiles(figure.samples, n=20)[18]


CASES = (Case("celery", _ROWS, _measure),)
