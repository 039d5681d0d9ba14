"""Two-phase commits of one put by a coordinator, in one thread and in eight threads."""

import time
from collections.abc import Iterator
from functools import partial

from bench.cases.base import Case, Result, compare, drain
from bench.cases.threads import measured_threads
from bench.figures import Figure, in_turns, ratio
from bench.peers.base import Line, Peer
from bench.peers.raw import Raw
from bench.setting import Bench
from bench.table import Row

_AT_A_TURN = 10
_ONE = Row("two-phase", "two-phase commit of one put, one thread", "≥ 0.5 × raw append")
_EIGHT = Row("two-phase-threads", "two-phase commit of one put, 8 threads", "≥ 1.0 × PostgreSQL's")


def _takes_part(peer: Peer) -> bool:
    return peer.two_phase or isinstance(peer, Raw)


def _one(bench: Bench) -> Iterator[Result]:
    lines = bench.lines("two-phase", [name for name, peer in bench.peers.items() if _takes_part(peer)])
    found: dict[str, list[float]] = {name: [] for name in lines}

    def turn(name: str, line: Line) -> float:
        for _ in range(_AT_A_TURN):
            begun = time.perf_counter()
            line.put_in_two_phases()
            found[name].append(1 / (time.perf_counter() - begun))
        if name != "raw append":
            drain(line, _AT_A_TURN)
        return 0.0

    steps = {name: partial(turn, name, line) for name, line in lines.items()}
    in_turns(steps, max(1, bench.sizes.warm_up // _AT_A_TURN // 2))
    for rates in found.values():
        rates.clear()
    in_turns(steps, max(1, bench.sizes.rounds // _AT_A_TURN // 2))
    for line in lines.values():
        line.close()
    figures = {name: Figure(name, rates, "messages/s", bench.peers[name].durable) for name, rates in found.items()}
    ours = figures.pop("xaspool", None)
    if ours is not None:
        others = list(figures.values())
        beside = ", ".join(f"{ratio(ours, other):.2f} × {other.who}" for other in others if other.who == "PostgreSQL")
        yield compare(_ONE, ours, others, "raw append", 0.5, beside)


def _eight(bench: Bench) -> Iterator[Result]:
    figures = measured_threads(
        bench, "two-phase-threads", lambda peer: peer.two_phase, lambda line: line.put_in_two_phases()
    )
    ours = figures.pop("xaspool", None)
    if ours is not None:
        yield compare(_EIGHT, ours, list(figures.values()), "PostgreSQL", 1.0)


CASES = (Case("two-phase", (_ONE,), _one), Case("two-phase-threads", (_EIGHT,), _eight))
