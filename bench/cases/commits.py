"""One thread puts and gets (with acknowledgement), alternating, in commits of 1, 100 and 1,000 messages of 1 KiB, or
of one message of 200 to 3,000 bytes.

Another case puts and gets a hundred messages in one transaction with a call for each message, as programs do in a loop.
Two further cases have one step: put into a queue that nobody reads; take a message, work, and put the result.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.cases.base import Case, Result, compare, drain
from bench.figures import Figure, ratio
from bench.peers.base import BODY, MIXED, Line, Peer
from bench.peers.raw import Raw
from bench.setting import Bench
from bench.table import Chart, Outcome, Row

# The number of commits that always wait in the queue, because SQLite would keep an empty queue in its cache.
_BACKLOG = 50
# The number of consecutive commits of one contender. With a single commit, each contender would find the processor's
# caches full of other contenders' data, which would slow down the contenders in Python most.
_AT_A_TURN = 10


@dataclass(frozen=True)
class Target:
    """A row, and its target: at least ``least`` times the speed of the contender ``against``."""

    row: Row
    against: str
    least: float
    with_journal: float | None = None  # the ratio on ext4 with a journal, if it differs

    def judged(self, bench: Bench, ours: Figure, others: list[Figure], note: str) -> Outcome:
        least = self.with_journal if self.with_journal is not None and bench.has_journal else self.least
        return compare(self.row, ours, others, self.against, least, note)


@dataclass(frozen=True)
class Way:
    """A way to commit: the number of messages, in one call or with a call for each message."""

    key: str
    size: int
    words: str
    takes_part: Callable[[Peer], bool]
    steps: Mapping[str, Callable[[Line, int], object]]
    targets: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    bodies: Sequence[bytes] = (BODY,)

    @property
    def takes_long(self) -> bool:
        return self.size >= 1000 or self.steps is _ONE_BY_ONE

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(target.row for targets in self.targets.values() for target in targets)


_TOGETHER = {"put": lambda line, size: line.put(size), "get": lambda line, size: line.get(size)}
_ONE_BY_ONE = {"put": lambda line, size: line.put_each(size), "get": lambda line, size: line.get_each(size)}

WAYS = (
    Way("1", 1, "1 a commit", lambda peer: True, _TOGETHER, {
        "put": (Target(
            Row("put-1", "put, 1 a commit, one thread", "≥ 0.5 × raw append; on ext4 with a journal ≥ 1.0 ×"),
            "raw append", 0.5, 1.0,
        ),),
        "get": (Target(
            Row("get-1", "get + acknowledge, 1 at a time", "≥ 0.4 × raw append; on ext4 with a journal ≥ 0.9 ×"),
            "raw append", 0.4, 0.9,
        ),),
    }),
    Way("mixed", 1, "1 of mixed sizes a commit", lambda peer: True, _TOGETHER, {
        "put": (Target(
            Row(
                "put-mixed", "put, 1 of 200 to 3,000 bytes a commit, one thread",
                "≥ 0.5 × raw append; on ext4 with a journal ≥ 1.0 ×",
            ),
            "raw append", 0.5, 1.0,
        ),),
        "get": (Target(
            Row(
                "get-mixed", "get + acknowledge, 1 of 200 to 3,000 bytes at a time",
                "≥ 0.4 × raw append; on ext4 with a journal ≥ 0.9 ×",
            ),
            "raw append", 0.4, 0.9,
        ),),
    }, MIXED),
    Way("each", 100, "100 a commit, with a call each", lambda peer: peer.transactions, _ONE_BY_ONE, {
        "put": (Target(
            Row("put-each", "put, 100 in one transaction, with a call each", "≥ 1.2 × SQLite"), "SQLite", 1.2
        ),),
        "get": (Target(
            Row("get-each", "get, 100 in one transaction, with a call each", "≥ 0.5 × SQLite"), "SQLite", 0.5
        ),),
    }),
    Way("100", 100, "100 a commit", lambda peer: peer.batches, _TOGETHER, {
        "put": (
            Target(Row("put-100", "put, 100 a commit", "≥ 2 × SQLite"), "SQLite", 2.0),
            Target(Row("put-100-raw", "put, 100 a commit", "≥ 0.8 × raw append of 100 KiB"), "raw append", 0.8),
        ),
        "get": (Target(Row("get-100", "get + acknowledge, 100 at a time", "≥ 1.5 × SQLite"), "SQLite", 1.5),),
    }),
    Way("1000", 1000, "1,000 a commit", lambda peer: peer.batches, _TOGETHER, {
        "put": (Target(
            Row("put-1000", "put, 1,000 a commit", "≥ 0.8 × raw append of 1 MiB"), "raw append", 0.8
        ),),
        "get": (),
    }),
)  # fmt: skip


def _measure(way: Way, bench: Bench) -> Iterator[Result]:
    lines = _lines(bench, f"commits-{way.key}", way.takes_part, way.size)
    _rounds(lines, way, bench.sizes.warm_up // (2 if way.takes_long else 1))
    seconds = _rounds(lines, way, bench.sizes.rounds // (3 if way.takes_long else 1))
    _end(lines, _BACKLOG * way.size)
    for what, targets in way.targets.items():
        figures = _figures(bench, seconds[what], way.size)
        yield Chart(f"{what}-{way.key}", f"{what}, {way.words}: messages a second", list(figures.values()))
        ours = figures.pop("xaspool", None)
        if ours is not None:
            others = list(figures.values())
            for target in targets:
                yield target.judged(bench, ours, others, _details(ours, others, seconds[what]))


def _lines(bench: Bench, queue: str, takes_part: Callable[[Peer], bool], size: int) -> dict[str, Line]:
    lines = bench.lines(queue, [name for name, peer in bench.peers.items() if takes_part(peer)])
    for line in lines.values():
        for _ in range(_BACKLOG):
            line.put(size)
    return lines


def _end(lines: dict[str, Line], waiting: int) -> None:
    """Check that each contender has as many messages as it must have."""
    for name, line in lines.items():
        if name != "raw append":
            drain(line, waiting)
        line.close()


def _figures(bench: Bench, seconds: Mapping[str, list[float]], size: int) -> dict[str, Figure]:
    return {
        name: Figure(name, [size / one for one in found], "messages/s", bench.peers[name].durable)
        for name, found in seconds.items()
    }


def _rounds(lines: dict[str, Line], way: Way, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each put and get. In each round, each contender puts a few commits, then gets as many."""
    found: dict[str, dict[str, list[float]]] = {what: {name: [] for name in lines} for what in way.steps}
    for turn in range(max(1, rounds // _AT_A_TURN)):
        for what, seconds in found.items():
            for name, line in lines.items():
                step = partial(way.steps[what], line, way.size)
                for place in range(turn * _AT_A_TURN, (turn + 1) * _AT_A_TURN):
                    line.body = way.bodies[place % len(way.bodies)]
                    seconds[name].append(_timed(step))
    return found


def _timed(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def _details(ours: Figure, others: list[Figure], seconds: dict[str, list[float]]) -> str:
    """Return further ratios for readers. Total times include occasional work such as checkpoints and reclaim."""
    parts = [f"{ratio(ours, other):.2f} × {other.who}" for other in others if other.who in ("SQLite", "PostgreSQL")]
    if "raw append" in seconds:
        parts.append(f"by total time {sum(seconds['raw append']) / sum(seconds['xaspool']):.2f} × raw append")
    return ", ".join(parts)


# -- one step in a loop: take, work and put; or put into a queue that nobody reads -------------------------------------

_MOVE = Target(
    Row(
        "move", "get, work, put in one transaction, in a loop",
        "≥ 0.5 × raw append; on ext4 with a journal ≥ 0.95 ×",
    ),
    "raw append", 0.5, 0.95,
)  # fmt: skip
_GROW = Target(
    Row(
        "grow", "put, 1 of 200 to 3,000 bytes a commit, into a queue that nobody reads",
        "≥ 0.3 × raw append; on ext4 with a journal ≥ 0.9 ×",
    ),
    "raw append", 0.3, 0.9,
)  # fmt: skip


def _work(body: bytes) -> bytes:
    return hashlib.sha256(body).digest() + body[32:]


def _move(bench: Bench) -> Iterator[Result]:
    lines = _lines(bench, "move", lambda peer: peer.transactions or isinstance(peer, Raw), 1)
    way = Way("move", 1, "", lambda peer: True, {"move": lambda line, _: line.move(_work)})
    _rounds(lines, way, bench.sizes.warm_up)
    seconds = _rounds(lines, way, bench.sizes.rounds)["move"]
    _end(lines, _BACKLOG)
    yield from _judged(bench, _MOVE, seconds)


def _grow(bench: Bench) -> Iterator[Result]:
    """No warm-up: each contender starts with few consumed files, as an application does whose consumer is away."""
    lines = _lines(bench, "grow", lambda peer: True, 1)
    way = Way("grow", 1, "", lambda peer: True, {"put": _TOGETHER["put"]}, bodies=MIXED)
    seconds = _rounds(lines, way, bench.sizes.rounds)["put"]
    _end(lines, _BACKLOG + max(map(len, seconds.values())))
    yield from _judged(bench, _GROW, seconds)


def _judged(bench: Bench, target: Target, seconds: dict[str, list[float]]) -> Iterator[Result]:
    figures = _figures(bench, seconds, 1)
    ours = figures.pop("xaspool", None)
    if ours is not None:
        others = list(figures.values())
        yield target.judged(bench, ours, others, _details(ours, others, seconds))


CASES = (
    *(Case(way.key, way.rows, partial(_measure, way)) for way in WAYS),
    Case("grow", (_GROW.row,), _grow), Case("move", (_MOVE.row,), _move),
)  # fmt: skip
