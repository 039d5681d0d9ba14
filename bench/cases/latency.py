"""On an idle system, the time from a put to the end of a get in another process; the cost of a waiting process."""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import spool
from bench.cases.base import Case, Result, in_new_process
from bench.figures import Figure
from bench.peers.base import BODY
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict

_PAUSE_SECONDS = 0.02
_LATENCY = Row("latency", "put in one process to get returning in another, idle system", "p50 ≤ 3 ms, p99 ≤ 10 ms")
_IDLE = Row("idle", "an idle waiting process", "< 1 % of a core")


def _measure(bench: Bench) -> Iterator[Result]:
    with bench.scratch("latency") as directory, spool.create(f"{directory}/space") as space:
        space.create_queue("queue")
        ours = Figure("xaspool", _latencies(space, bench.sizes.latencies), "ms")
        p99 = statistics.quantiles(ours.samples, n=100)[98]
        good = ours.median <= 3 and p99 <= 10
        yield Outcome(_LATENCY, f"p50 {ours.median:.2f} ms, p99 {p99:.2f} ms", Verdict.of(good), ours)
        shares = [in_new_process(_idle, space.path, bench.sizes.idle_seconds) for _ in range(3)]
        idle = Figure("xaspool", [100 * share for share in shares], "% of a core")
        yield Outcome(_IDLE, f"{idle.median:.2f} %", Verdict.of(idle.median < 1), idle)


def _latencies(space: spool.Space, count: int) -> list[float]:
    """Return the milliseconds of each message. An idle pause precedes each message."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    other = spawn.Process(target=_take, args=(space.path, there), daemon=True)
    other.start()
    assert here.recv() == "ready"
    found = []
    for place in range(count + 10):
        time.sleep(_PAUSE_SECONDS)
        begun = time.monotonic()
        space.put("queue", BODY)
        taken = here.recv()
        if place >= 10:
            found.append(1000 * (taken - begun))
    other.terminate()
    other.join()
    return found


def _take(path: str, back: Connection) -> None:
    with spool.open(path) as space:
        back.send("ready")
        while True:
            space.get("queue", timeout=None)
            back.send(time.monotonic())


def _idle(path: str, seconds: float) -> float:
    """Return the share of a core that a waiting get uses while no message arrives."""
    with spool.open(path) as space:
        begun, used = time.monotonic(), time.process_time()
        try:
            space.get("queue", timeout=seconds)
        except spool.Empty:
            pass
        return (time.process_time() - used) / (time.monotonic() - begun)


CASES = (Case("latency", (_LATENCY, _IDLE), _measure),)
