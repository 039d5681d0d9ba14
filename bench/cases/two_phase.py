"""Two-phase commits of one put by a coordinator, in one thread and in eight threads."""

import time
from collections.abc import Iterator
from functools import partial

from bench.cases.base import Case, Result, compare, drain
from bench.cases.threads import measured_threads
from bench.figures import Figure, in_turns
from bench.peers.base import Line
from bench.setting import Bench
from bench.table import Row

_AT_A_TURN = 10
_AGAINST = "PostgreSQL"
_ONE = Row("two-phase", "two-phase commit of one put, one thread", "≥ 1.3 × PostgreSQL's")
_EIGHT = Row("two-phase-threads", "two-phase commit of one put, 8 threads", "≥ 2 × PostgreSQL's")


def _one(bench: Bench) -> Iterator[Result]:
    lines = bench.lines("two-phase", [name for name, peer in bench.peers.items() if peer.two_phase])
    found: dict[str, list[float]] = {name: [] for name in lines}

    def turn(name: str, line: Line) -> float:
        for _ in range(_AT_A_TURN):
            begun = time.perf_counter()
            line.put_in_two_phases()
            found[name].append(1 / (time.perf_counter() - begun))
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
        yield compare(_ONE, ours, list(figures.values()), _AGAINST, 1.3)


def _eight(bench: Bench) -> Iterator[Result]:
    figures = measured_threads(
        bench, "two-phase-threads", lambda peer: peer.two_phase, lambda line: line.put_in_two_phases()
    )
    ours = figures.pop("xaspool", None)
    if ours is not None:
        yield compare(_EIGHT, ours, list(figures.values()), _AGAINST, 2.0)


CASES = (Case("two-phase", (_ONE,), _one), Case("two-phase-threads", (_EIGHT,), _eight))
