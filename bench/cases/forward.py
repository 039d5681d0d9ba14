"""Spark forwards many messages to a function that does nothing; an idle forwarder forwards one message at a time."""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import spool
from bench.cases.base import Case, Result, with_spark
from bench.figures import Figure, ratio
from bench.peers.base import BODY
from bench.sessions import session_on
from bench.setting import Bench
from bench.spaces import QUEUE, fill
from bench.table import Outcome, Row, Verdict
from spool.disk import Disk
from spool.format.reader import open_file, read_contents
from spool.index.body_files import read_bodies
from spool.model import layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST, _PLAIN, _SHARE = 60_000, 200_000, 0.3
_NOTHING = Row(
    "forward-nothing", "forward 1,000,000 messages of 1 KiB to a Python function that does nothing, local[2]",
    f"≥ {_SHARE} × two Python processes that only read them; ≥ {_LEAST:,}/s where those read {_PLAIN:,}/s",
)  # fmt: skip
_IDLE = Row(
    "forward-idle", "one message through an idle forwarder, from its put until its reply is there",
    "p50 ≤ 60 ms, p99 ≤ 200 ms",
)  # fmt: skip
_ROWS = (_NOTHING, _IDLE)
_A_COMMIT = 1_000
_PAUSE_SECONDS = 0.05
_NO_OP, _REPLYING = "python:bench.capacity_run:nothing", "python:bench.cases.forward:reply"


def _measure(bench: Bench) -> Iterator[Result]:
    return with_spark(_ROWS, partial(_measured, bench))


def _measured(bench: Bench) -> Iterator[Result]:
    with session_on("local[2]") as spark, bench.scratch("forward") as directory:
        yield _through_nothing(bench, spark, directory)
        yield _through_idle(bench, spark, f"{directory}/idle")


# -- many --------------------------------------------------------------------------------------------------------------


def _through_nothing(bench: Bench, spark: "SparkSession", directory: str) -> Outcome:
    count = bench.sizes.spark_messages
    rates: list[float] = []
    plain: list[float] = []
    for run in range(bench.sizes.forwards):
        path = f"{directory}/{run}"
        fill(path, count, _A_COMMIT)
        plain.append(count / _seconds_to_read(path, count))
        rates.append(count / _seconds_to_forward(spark, path, count))
    ours, read = Figure("xaspool", rates, "messages/s"), Figure("two processes that read", plain, "messages/s")
    reached = ratio(ours, read)
    good = reached >= _SHARE and (ours.median >= _LEAST or read.median < _PLAIN)
    text = f"{reached:.2f} × two processes that read, {ours.median:,.0f}/s"
    return Outcome(_NOTHING, text, Verdict.of(good), ours, [read], note=f"{count:,} messages", against=read)


def _seconds_to_forward(spark: "SparkSession", path: str, count: int) -> float:
    from forwarder import Forwarder

    begun = time.perf_counter()
    summary = Forwarder(path, {QUEUE: _NO_OP}, spark).run(once=True)
    seconds = time.perf_counter() - begun
    if summary.effects != {QUEUE: {"delivered": count}}:
        raise RuntimeError(f"of {count:,} messages were {summary.effects}: {summary.down}")
    return seconds


def _seconds_to_read(path: str, count: int) -> float:
    """Return the seconds in which two processes read half of the files each, verify bodies, and call the function."""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(2)]
    readers = [spawn.Process(target=_read, args=(path, part, there)) for part, (_, there) in enumerate(pipes)]
    for reader, (here, _) in zip(readers, pipes, strict=True):
        reader.start()
        here.recv()  # the reader is ready
    begun = time.perf_counter()
    for here, _ in pipes:
        here.send("begin")
    found = sum(here.recv() for here, _ in pipes)
    seconds = time.perf_counter() - begun
    for reader in readers:
        reader.join()
    if found != count:
        raise RuntimeError(f"{found:,} messages were read where {count:,} are there")
    return seconds


def _nothing(body: bytes) -> None:
    """A service that costs nothing."""


def _read(path: str, part: int, back: Connection) -> None:
    back.send("ready")
    back.recv()
    disk, found = Disk(path), 0
    numbers = sorted(parsed.number for name in disk.names(layout.COMMITTED) if (parsed := layout.parse_committed(name)))
    for number in numbers[part::2]:
        handle = open_file(disk, layout.committed(number))
        contents = read_contents(disk, handle)
        for entry, table in zip(contents.header.sections, contents.tables, strict=True):
            for body in read_bodies(disk, handle, table.ends(entry), table.lengths, table.checksums, bytes):
                _nothing(body)
                found += 1
        disk.close(handle)
    back.send(found)


# -- one at a time -----------------------------------------------------------------------------------------------------


def _through_idle(bench: Bench, spark: "SparkSession", path: str) -> Outcome:
    from forwarder import Forwarder

    count = max(4, bench.sizes.latencies // 4)
    with spool.create(path) as space:
        space.create_queue("replies")
        space.create_queue(QUEUE, reply_queue="replies")
        forwarder = Forwarder(path, {QUEUE: _REPLYING}, spark)
        running = threading.Thread(target=forwarder.run)
        running.start()
        try:
            found = [_milliseconds(space) for _ in range(count + 10)][10:]
        finally:
            forwarder.stop()
            running.join()
    ours = Figure("xaspool", found, "ms")
    p99 = statistics.quantiles(found, n=100)[98]
    good = ours.median <= 60 and p99 <= 200
    return Outcome(_IDLE, f"p50 {ours.median:.0f} ms, p99 {p99:.0f} ms", Verdict.of(good), ours, note=f"{count} times")


def reply(message: spool.Message) -> bytes:
    """A service that costs nothing, and replies."""
    return b"done"


def _milliseconds(space: spool.Space) -> float:
    time.sleep(_PAUSE_SECONDS)
    begun = time.monotonic()
    space.put(QUEUE, BODY)
    space.get("replies", timeout=60.0)
    return 1000 * (time.monotonic() - begun)


CASES = (Case("forward", _ROWS, _measure),)
