"""The class of a case, and functions that several cases use."""

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
_LOST_SECONDS = 10  # a server may deliver a confirmed message a little later


@dataclass(frozen=True)
class Case:
    """Rows that are measured together."""

    key: str
    rows: tuple[Row, ...]
    measure: Callable[[Bench], Iterator[Result]]


def compare(row: Row, ours: Figure, others: list[Figure], against: str | None, least: float, note: str = "") -> Outcome:
    """Judge whether our figure reaches ``least`` times the figure of ``against``, if that contender was measured."""
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
    """Take all messages of a queue. RuntimeError unless there are ``expected`` messages."""
    found, last = 0, time.monotonic()
    while found < expected and time.monotonic() < last + _LOST_SECONDS:
        if taken := line.get(1000):
            found, last = found + taken, time.monotonic()
    found += line.get(1000)
    if found != expected:
        raise RuntimeError(f"{found:,} messages are left where {expected:,} must be: some were lost, or came twice")


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a new process without this process's imports; return its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
