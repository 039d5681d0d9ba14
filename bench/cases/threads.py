"""Eight threads of one process put one message per commit."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.cases.base import Case, Result, compare, drain
from bench.figures import Figure, in_turns
from bench.peers.base import Line, Peer
from bench.setting import Bench
from bench.table import Chart, Row

_THREADS = 8
_ROW = Row("threads", f"put, {_THREADS} threads, 1 a commit", "≥ 1.5 × the best durable peer (Redis, PostgreSQL)")


def _measure(bench: Bench) -> Iterator[Result]:
    figures = measured_threads(bench, "threads", lambda peer: peer.concurrent, lambda line: line.put(1))
    yield Chart("threads", "put by eight threads, 1 a commit: messages a second", list(figures.values()))
    ours = figures.pop("xaspool", None)
    if ours:
        best = bench.best_durable({name: 1 / figure.median for name, figure in figures.items()})
        needed = {"Redis", "PostgreSQL"} - set(figures)
        note = f"without {' and '.join(sorted(needed))}, which are not here" if needed else ""
        yield compare(_ROW, ours, list(figures.values()), best, 1.5, note)


def measured_threads(
    bench: Bench, queue: str, takes_part: Callable[[Peer], bool], put: Callable[[Line], None]
) -> dict[str, Figure]:
    """Return the messages per second of eight threads, for each contender that takes part."""
    commits = bench.sizes.thread_commits
    lines: dict[str, list[Line]] = {}
    for name, peer in bench.peers.items():
        if takes_part(peer):
            count = 1 if peer.shared else _THREADS
            lines[name] = ([peer.line(queue) for _ in range(count)] * _THREADS)[:_THREADS]
    with ThreadPoolExecutor(_THREADS) as pool:
        steps = {name: partial(_slice, pool, callers, commits, put) for name, callers in lines.items()}
        in_turns(steps, 2)
        rates = in_turns(steps, bench.sizes.slices)
    for callers in lines.values():
        for line in set(callers):
            line.close()
    return {name: Figure(name, found, "messages/s", bench.peers[name].durable) for name, found in rates.items()}


def _slice(pool: ThreadPoolExecutor, lines: list[Line], commits: int, put: Callable[[Line], None]) -> float:
    """Return the messages per second of one slice. The queues are drained afterwards."""
    together = threading.Barrier(len(lines) + 1)

    def puts(line: Line) -> None:
        together.wait()
        for _ in range(commits):
            put(line)

    callers = [pool.submit(puts, line) for line in lines]
    together.wait()
    begun = time.perf_counter()
    for caller in callers:
        caller.result()
    rate = commits * len(lines) / (time.perf_counter() - begun)
    drain(lines[0], commits * len(lines))
    return rate


CASES = (Case("threads", (_ROW,), _measure),)
