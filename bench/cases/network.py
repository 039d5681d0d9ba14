"""Spark without sight of the space, over loopback: reads, writes and forwarding, compared with the same from files.

The tasks run on this machine, but assume that the space is on another machine.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import spool
from bench import capacity_run
from bench.cases.base import Case, Result, compare, with_spark
from bench.figures import Figure, in_turns, ratio
from bench.sessions import elsewhere, session_on
from bench.setting import Bench
from bench.spaces import QUEUE, fill
from bench.table import Outcome, Row, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forwarder import Endpoint

_LEAST, _LEAST_FORWARDED, _LEAST_WORKERS = 0.6, 40_000, 1.8
_READ = Row("http-read", "Spark reads 1,000,000 messages of 1 KiB to a count, by HTTP", f"≥ {_LEAST} × from files")
_WRITE = Row("http-write", "Spark writes 200,000 messages of 1 KiB, by HTTP", f"≥ {_LEAST} × into files")
_FORWARD = Row(
    "http-forward", "forward 200,000 messages of 1 KiB to a Python function that does nothing, by HTTP",
    f"≥ {_LEAST_FORWARDED:,}/s",
)  # fmt: skip
_WORKERS = Row(
    "http-workers", "forward by HTTP to a service of 20 ms, two workers instead of one", f"≥ {_LEAST_WORKERS} ×"
)
_ROWS = (_READ, _WRITE, _FORWARD, _WORKERS)
_NO_OP = "python:bench.capacity_run:nothing"
_A_COMMIT = 1_000
_BODY_BYTES = 1_024
_SHARE = 25  # a run with the service of 20 ms has fewer messages by this factor


def _measure(bench: Bench) -> Iterator[Result]:
    return with_spark(_ROWS, partial(_measured, bench))


def _measured(bench: Bench) -> Iterator[Result]:
    import forwarder

    endpoint = forwarder.Endpoint("127.0.0.1")
    with session_on("local[2]") as spark, bench.scratch("network") as directory:
        forwarder.register(spark)
        yield _read(bench, spark, f"{directory}/read")
        yield _written(bench, spark, f"{directory}/written")
        yield _forwarded(bench, spark, f"{directory}/forwarded", endpoint)
    yield _by_workers(bench, endpoint)


@contextmanager
def _served(path: str) -> Iterator[str]:
    """Serve a space in another process; yield the address."""
    words = ["-m", "xaspool_scripts.serve", f"bench={path}", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.send_signal(signal.SIGTERM)


def _read(bench: Bench, spark: "SparkSession", path: str) -> Outcome:
    count = bench.sizes.spark_messages
    fill(path, count, _A_COMMIT)
    with _served(path) as address:

        def rate(where: str) -> float:
            begun = time.perf_counter()
            found = spark.read.format("spool").load(where).count()
            seconds = time.perf_counter() - begun
            if found != count:
                raise RuntimeError(f"{found:,} messages were read where {count:,} are there")
            return count / seconds

        steps = {"by HTTP": partial(rate, address), "from files": partial(rate, path)}
        in_turns(steps, 1)
        return _compared(_READ, in_turns(steps, bench.sizes.spark_reads), f"{count:,} messages")


def _written(bench: Bench, spark: "SparkSession", path: str) -> Outcome:
    count = bench.sizes.spark_messages // 5
    with spool.create(path) as space:
        space.create_queue(QUEUE)
    with _served(path) as address:
        rows = spark.range(0, count, 1, 2).selectExpr(f"cast(repeat('x', {_BODY_BYTES}) as binary) as body")

        def rate(where: str) -> float:
            begun = time.perf_counter()
            rows.write.format("spool").option("queue", QUEUE).mode("append").save(where)
            return count / (time.perf_counter() - begun)

        steps = {"by HTTP": partial(rate, address), "from files": partial(rate, path)}
        in_turns(steps, 1)
        rates = in_turns(steps, bench.sizes.forwards)
    with spool.open(path) as space:
        there, expected = space.stats(QUEUE).ready, count * 2 * (bench.sizes.forwards + 1)
        if there != expected:
            raise RuntimeError(f"{there:,} messages are there where {expected:,} were written")
    return _compared(_WRITE, rates, f"{count:,} messages in two tasks")


def _compared(row: Row, rates: dict[str, list[float]], note: str) -> Outcome:
    http, files = (Figure(who, rates[who], "messages/s") for who in ("by HTTP", "from files"))
    return compare(row, http, [files], files.who, _LEAST, f"{note}, on two cores with the server")


def _forwarded(bench: Bench, spark: "SparkSession", directory: str, endpoint: "Endpoint") -> Outcome:
    from forwarder import Forwarder

    count = bench.sizes.spark_messages // 5
    runs = iter(range(1_000))

    def rate(endpoint: "Endpoint | None") -> float:
        path = f"{directory}-{next(runs)}"
        fill(path, count, _A_COMMIT)
        begun = time.perf_counter()
        with elsewhere():
            summary = Forwarder(path, {QUEUE: _NO_OP}, spark, endpoint=endpoint).run(once=True)
        seconds = time.perf_counter() - begun
        if summary.effects != {QUEUE: {"delivered": count}}:
            raise RuntimeError(f"of {count:,} messages were {summary.effects}: {summary.errors} {summary.down}")
        return count / seconds

    rates = in_turns({"by HTTP": partial(rate, endpoint), "from files": partial(rate, None)}, bench.sizes.forwards)
    http, files = (Figure(who, found, "messages/s") for who, found in rates.items())
    text = f"{http.median:,.0f}/s, {ratio(http, files):.2f} × from files"
    good = http.median >= _LEAST_FORWARDED
    note = f"{count:,} messages; all processes on two cores"
    return Outcome(_FORWARD, text, Verdict.of(good), http, [files], note, against=files)


def _by_workers(bench: Bench, endpoint: "Endpoint") -> Outcome:
    count = max(2, bench.sizes.forwarded // _SHARE)
    names = {1: "one worker", 2: "two workers"}
    rates: dict[int, list[float]] = {workers: [] for workers in names}
    for workers, found in rates.items():
        cluster = session_on(f"local-cluster[{workers},1,1024]")
        with bench.scratch("workers") as directory, cluster as spark, elsewhere():
            capacity_run.forward(spark, f"{directory}/warm", "nothing", count, endpoint)
            for run in range(bench.sizes.forwards):
                samples = capacity_run.forward(spark, f"{directory}/{run}", "nap", count, endpoint)
                found.append(count / sum(sample.seconds for sample in samples))
    one, two = (Figure(name, rates[workers], "messages/s") for workers, name in names.items())
    reached = ratio(two, one)
    note = f"{count:,} messages; each worker is a Java of its own with one core"
    return Outcome(_WORKERS, f"{reached:.2f} ×", Verdict.of(reached >= _LEAST_WORKERS), two, [one], note, against=one)


CASES = (Case("network", _ROWS, _measure),)
