"""What a case is, and what several of them use."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.figures import Figure, ratio
from bench.peers.base import Line
from bench.setting import Bench
from bench.table import Chart, Outcome, Row, Verdict, unmeasured

Result = Outcome | Chart
_LOST_SECONDS = 10  # a server may hand over a little later what it has confirmed


@dataclass(frozen=True)
class Case:
    """Rows that are measured together."""

    key: str
    rows: tuple[Row, ...]
    measure: Callable[[Bench], Iterator[Result]]


def compare(row: Row, ours: Figure, others: list[Figure], against: str | None, least: float, note: str = "") -> Outcome:
    """Whether ours reaches so many times the one that the target names; None: that one is not here."""
    other = next((figure for figure in others if figure.who == against), None)
    if other is None:
        return Outcome(row, "–", Verdict.UNKNOWN, ours, others, _joined("the peer to compare with is not here", note))
    reached = ratio(ours, other)
    text = f"{reached:.2f} × {other.who}"
    return Outcome(row, text, Verdict.of(reached >= least), ours, others, note, against=other)


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def with_spark(rows: tuple[Row, ...], measure: Callable[[], Iterator[Result]]) -> Iterator[Result]:
    """Measure rows that need Spark; without Spark, they are unmeasured."""
    try:
        from forwarder import SparkUnavailable
    except ImportError as error:
        yield from (unmeasured(row, f"it takes the extra [spark]: {error}") for row in rows)
        return
    try:
        yield from measure()
    except SparkUnavailable as error:
        yield from (unmeasured(row, str(error)) for row in rows)


def drain(line: Line, expected: int) -> None:
    """Take all that is there: RuntimeError unless it is as many messages as there must be."""
    found, last = 0, time.monotonic()
    while found < expected and time.monotonic() < last + _LOST_SECONDS:
        if taken := line.get(1000):
            found, last = found + taken, time.monotonic()
    found += line.get(1000)
    if found != expected:
        raise RuntimeError(f"{found:,} messages are left where {expected:,} must be: some were lost, or came twice")


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns there; a process that has imported nothing of what this one uses."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
