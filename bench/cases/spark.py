"""Spark counts messages, and calls a function with them, compared with a data source that only sends such rows."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.cases.base import Case, Result
from bench.figures import Figure, in_turns, ratio
from bench.peers.base import BODY
from bench.sessions import session_on
from bench.setting import Bench
from bench.spaces import fill
from bench.table import Outcome, Row, Verdict, unmeasured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LEAST = 0.8
_TARGET = f"≥ {_LEAST} × a minimal Arrow data source"
_COUNT = Row("spark-count", "Spark: 1,000,000 messages of 1 KiB, all columns, to a count", _TARGET)
_BODIES = Row("spark-bodies", "Spark: 1,000,000 messages of 1 KiB, bodies alone, to a count", _TARGET)
_FUNCTION = Row("spark-function", "Spark: 1,000,000 messages of 1 KiB, bodies alone, to a Python function", _TARGET)
_ROWS = (_COUNT, _BODIES, _FUNCTION)

_A_COMMIT = 1_000
_BODY_BYTES = len(BODY)

Action = Callable[["DataFrame"], int]


def _measure(bench: Bench) -> Iterator[Result]:
    try:
        from bench.arrow_source import ArrowSource
        from forwarder import SparkUnavailable
    except ImportError as error:
        yield from (unmeasured(row, f"it takes the extra [spark]: {error}") for row in _ROWS)
        return
    with bench.scratch("spark") as directory:
        fill(f"{directory}/space", bench.sizes.spark_messages, _A_COMMIT)
        try:
            with session_on("local[2]") as spark:
                spark.dataSource.register(ArrowSource)
                for row, columns, action in (
                    (_COUNT, None, _counted), (_BODIES, "body binary", _counted), (_FUNCTION, "body binary", _summed),
                ):  # fmt: skip
                    yield _compared(row, bench, spark, f"{directory}/space", columns, action)
        except SparkUnavailable as error:
            yield from (unmeasured(row, str(error)) for row in _ROWS)


def _compared(row: Row, bench: Bench, spark: "SparkSession", path: str, columns: str | None, action: Action) -> Outcome:
    count = bench.sizes.spark_messages

    def frame(kind: str, where: tuple[str, ...], **options: int) -> "DataFrame":
        reader = spark.read.format(kind).options(**options)
        return (reader if columns is None else reader.schema(columns)).load(*where)

    tasks = frame("spool", (path,)).rdd.getNumPartitions()  # the other source gets the same number
    steps = {
        "xaspool": partial(_rate, count, lambda: action(frame("spool", (path,)))),
        "Arrow": partial(_rate, count, lambda: action(frame("arrow_source", (), rows=count, tasks=tasks))),
    }
    in_turns(steps, 1)  # warm up: Spark compiles code, and the workers import modules
    rates = in_turns(steps, bench.sizes.spark_reads)
    ours, minimal = (Figure(who, rates[who], "messages/s") for who in steps)
    reached = ratio(ours, minimal)
    note = f"{count:,} messages in {tasks} tasks each, on two cores"
    text = f"{reached:.2f} × the Arrow source"
    return Outcome(row, text, Verdict.of(reached >= _LEAST), ours, [minimal], note, against=minimal)


def _rate(count: int, read: Callable[[], int]) -> float:
    begun = time.perf_counter()
    found = read()
    seconds = time.perf_counter() - begun
    if found != count:
        raise RuntimeError(f"{found:,} messages were read where {count:,} are there")
    return count / seconds


def _counted(frame: "DataFrame") -> int:
    return frame.count()


def _summed(frame: "DataFrame") -> int:
    """Call a Python function with the bodies; return the number of bodies of the right length."""

    def look(batches: Any) -> Any:
        import pyarrow as pa

        seen = 0
        for batch in batches:
            seen += sum(len(body.as_buffer()) == _BODY_BYTES for body in batch.column("body"))
        yield pa.RecordBatch.from_pydict({"seen": [seen]})

    return sum(row.seen for row in frame.mapInArrow(look, "seen long").collect())


CASES = (Case("spark", _ROWS, _measure),)
