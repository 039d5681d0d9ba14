"""One thread, commits of 1, 100 and 1,000 messages: put, and get with acknowledgement, alternately."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from bench.cases.base import Case, Result, compare
from bench.figures import Figure, ratio
from bench.peers.base import Line
from bench.setting import Bench
from bench.table import Chart, Row

# Commits that wait in the queue all the time: a queue that is always empty stays in SQLite's cache.
_BACKLOG = 50
# Commits in a row of one contender: with one, each would find the processor's caches full of all the others, which
# costs the contenders most that do their work in Python.
_AT_A_TURN = 10

_PUT = {
    1: (Row("put-1", "put, 1 a commit, one thread", "≥ 0.9 × raw append"),),
    100: (
        Row("put-100", "put, 100 a commit", "≥ 2 × SQLite"),
        Row("put-100-raw", "put, 100 a commit", "≥ 0.8 × raw append of 100 KiB"),
    ),
    1000: (Row("put-1000", "put, 1,000 a commit", "≥ 0.8 × raw append of 1 MiB"),),
}
_GET = {
    1: (Row("get-1", "get + acknowledge, 1 at a time", "≥ 0.9 × raw append"),),
    100: (Row("get-100", "get + acknowledge, 100 at a time", "≥ 2 × the best durable peer"),),
    1000: (),
}
_LEAST = {
    "put-1": ("raw append", 0.9), "put-100": ("SQLite", 2.0), "put-100-raw": ("raw append", 0.8),
    "put-1000": ("raw append", 0.8), "get-1": ("raw append", 0.9), "get-100": (None, 2.0),
}  # fmt: skip


def _measure(size: int, bench: Bench) -> Iterator[Result]:
    names = [name for name, peer in bench.peers.items() if size == 1 or peer.batches]
    lines = bench.lines(f"commits-{size}", names)
    for line in lines.values():
        for _ in range(_BACKLOG):
            line.put(size)
    rounds = bench.sizes.rounds if size < 1000 else max(1, bench.sizes.rounds // 3)
    warm_up = bench.sizes.warm_up if size < 1000 else max(1, bench.sizes.warm_up // 2)
    _rounds(lines, size, warm_up)
    seconds = _rounds(lines, size, rounds)
    for line in lines.values():
        line.close()
    for what, rows in (("put", _PUT[size]), ("get", _GET[size])):
        figures = {
            name: Figure(name, [size / one for one in seconds[what][name]], "messages/s", bench.peers[name].durable)
            for name in lines
        }
        yield Chart(f"{what}-{size}", f"{what}, {size:,} a commit: messages a second", list(figures.values()))
        ours = figures.pop("xaspool", None)
        if ours is None:
            continue
        for row in rows:
            against, least = _LEAST[row.key]
            medians = {name: 1 / figure.median for name, figure in figures.items()}
            others = list(figures.values())
            yield compare(
                row, ours, others, against or bench.best_durable(medians), least, _details(ours, others, seconds[what])
            )


def _rounds(lines: dict[str, Line], size: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each put and of each get: in turns, each contender puts a few commits, then each gets as many."""
    found: dict[str, dict[str, list[float]]] = {what: {name: [] for name in lines} for what in ("put", "get")}
    for _ in range(max(1, rounds // _AT_A_TURN)):
        for what, seconds in found.items():
            for name, line in lines.items():
                step = getattr(line, what)
                seconds[name] += [_timed(step, size) for _ in range(_AT_A_TURN)]
    return found


def _timed(step: Callable[[int], object], size: int) -> float:
    begun = time.perf_counter()
    step(size)
    return time.perf_counter() - begun


def _details(ours: Figure, others: list[Figure], seconds: dict[str, list[float]]) -> str:
    """The other ratios that a reader asks for. Totals contain what is done now and then: checkpoints, reclaim."""
    parts = [f"{ratio(ours, other):.2f} × SQLite" for other in others if other.who == "SQLite"]
    if "raw append" in seconds:
        parts.append(f"by total time {sum(seconds['raw append']) / sum(seconds['xaspool']):.2f} × raw append")
    return ", ".join(parts)


CASES = tuple(Case(str(size), _PUT[size] + _GET[size], partial(_measure, size)) for size in (1, 100, 1000))
