"""The cost of a put and a get of one message per commit as the backlog grows. Spaces of all sizes take turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import spool
from bench import spaces
from bench.cases.base import Case, Result
from bench.figures import Figure, in_turns
from bench.peers.base import BODY
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict

_ROWS = {
    what: Row(f"growth-{what}", f"cost of {what} as the backlog grows from 1,000 to 10,000,000", "flat within 1.5 ×")
    for what in ("put", "get")
}


def _measure(bench: Bench) -> Iterator[Result]:
    backlogs = bench.sizes.backlogs
    with ExitStack() as opened:
        steps: dict[str, Callable[[], float]] = {}
        for size in backlogs:
            space = opened.enter_context(spool.open(bench.spaces.get(size, 1000).path))
            steps[f"put {size}"] = partial(_timed, partial(space.put, spaces.QUEUE, BODY))
            steps[f"get {size}"] = partial(_timed, partial(space.get, spaces.QUEUE))
        in_turns(steps, bench.sizes.warm_up)
        seconds = in_turns(steps, bench.sizes.rounds)
    for what, row in _ROWS.items():
        figures = [
            Figure(f"{size:,} waiting", [1e6 * one for one in seconds[f"{what} {size}"]], "µs") for size in backlogs
        ]
        least, most = min(f.median for f in figures), max(f.median for f in figures)
        note = "" if backlogs[-1] >= 10_000_000 else f"up to {backlogs[-1]:,} only"
        verdict = Verdict.of(most <= 1.5 * least) if not note else Verdict.UNKNOWN
        yield Outcome(row, f"{most / least:.2f} ×", verdict, figures[-1], figures[:-1], note)


def _timed(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


CASES = (Case("growth", tuple(_ROWS.values()), _measure),)
