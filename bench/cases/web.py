"""Messages forwarded to a web service that answers in 20 ms."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import spool
from bench.cases.base import Case, Result
from bench.figures import Figure
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict, unmeasured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST = 2_000
_ROW = Row(
    "forward-web", "forward to a web service that answers in 20 ms, two cores", f"≥ {_LEAST:,} messages a second"
)
_A_COMMIT = 100
_BODY_BYTES = 1024


def _measure(bench: Bench) -> Iterator[Result]:
    try:
        import httpx  # noqa: F401

        from forwarder import SparkUnavailable, session
    except ImportError as error:
        yield unmeasured(_ROW, f"it takes the extras [spark] and [http]: {error}")
        return
    try:
        spark = session.start("local[2]", "xaspool-bench")
    except SparkUnavailable as error:
        yield unmeasured(_ROW, str(error))
        return
    try:
        session.warm_up(spark)
        with _slow_web() as url, bench.scratch("web") as directory:
            rates = [_rate(bench, spark, url, f"{directory}/{run}") for run in range(bench.sizes.forwards)]
    finally:
        session.stop(spark)
    ours = Figure("xaspool", rates, "messages/s")
    note = f"{bench.sizes.forwarded:,} messages; the service is on the same two cores"
    yield Outcome(_ROW, f"{ours.median:,.0f} messages/s", Verdict.of(ours.median >= _LEAST), ours, note=note)


def _rate(bench: Bench, spark: "SparkSession", url: str, path: str) -> float:
    """Forward all messages of a new space; return how many a second, from the first claim to the last commit."""
    from forwarder import Forwarder

    count = bench.sizes.forwarded
    with spool.create(path) as space:
        space.create_queue("queue")
        for begin in range(0, count, _A_COMMIT):
            space.put_many("queue", [b"x" * _BODY_BYTES] * min(_A_COMMIT, count - begin))
    begun = time.perf_counter()
    summary = Forwarder(path, {"queue": url}, spark).run(once=True)
    seconds = time.perf_counter() - begun
    if summary.effects != {"queue": {"delivered": count}}:
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
