"""Forward messages to a web service that answers in 20 ms."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.cases.base import Case, Result
from bench.figures import Figure
from bench.sessions import session_on
from bench.setting import Bench
from bench.spaces import QUEUE, fill
from bench.table import Outcome, Row, Verdict, unmeasured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST = 2_000
_ROW = Row(
    "forward-web", "forward to a web service that answers in 20 ms, two cores", f"≥ {_LEAST:,} messages a second"
)
_A_COMMIT = 100


def _measure(bench: Bench) -> Iterator[Result]:
    try:
        import httpx  # noqa: F401

        from forwarder import SparkUnavailable
    except ImportError as error:
        yield unmeasured(_ROW, f"it takes the extras [spark] and [http]: {error}")
        return
    try:
        with session_on("local[2]") as spark, _slow_web() as url, bench.scratch("web") as directory:
            rates = [_rate(bench, spark, url, f"{directory}/{run}") for run in range(bench.sizes.forwards)]
    except SparkUnavailable as error:
        yield unmeasured(_ROW, str(error))
        return
    ours = Figure("xaspool", rates, "messages/s")
    note = f"{bench.sizes.forwarded:,} messages; the service is on the same two cores"
    yield Outcome(_ROW, f"{ours.median:,.0f} messages/s", Verdict.of(ours.median >= _LEAST), ours, note=note)


def _rate(bench: Bench, spark: "SparkSession", url: str, path: str) -> float:
    """Forward all messages of a new space; return the messages per second from the first claim to the last commit."""
    from forwarder import Forwarder

    count = bench.sizes.forwarded
    fill(path, count, _A_COMMIT)
    begun = time.perf_counter()
    summary = Forwarder(path, {QUEUE: url}, spark).run(once=True)
    seconds = time.perf_counter() - begun
    if summary.effects != {QUEUE: {"delivered": count}}:
        raise RuntimeError(f"of {count:,} messages were {summary.effects}: {summary.down}")
    return count / seconds


@contextmanager
def _slow_web() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-m", "bench.slow_web"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.kill()


CASES = (Case("web", (_ROW,), _measure),)
