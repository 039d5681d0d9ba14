"""Streaming queries for tests: a stream read of the queue orders into a sink that records the bodies."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forwarder
import spool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from forwarder.dataframes.stream import StreamReader

Query = Callable[..., "StreamReader"]
"""Creates the source of a query from options."""


class Heard:
    """A sink that notes the bodies of each batch, and can fail."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.batches: list[tuple[int, list[bytes]]] = []
        self.fail_at = fail_at

    def __call__(self, frame: "DataFrame", number: int) -> None:
        rows = sorted(frame.collect(), key=lambda row: (row.number, row.ordinal))
        found = [bytes(row.body) for row in rows]
        self.batches.append((number, found))
        if number == self.fail_at:
            raise RuntimeError("the sink fails")


def start_query(
    spark: "SparkSession", space: spool.Space, heard: Heard, checkpoint: Path, **options: str
) -> "StreamingQuery":
    """Start a query that ends as soon as it has read the messages that exist at its start."""
    forwarder.register(spark)
    frame = spark.readStream.format("spool").option("queue", "orders").options(**options).load(space.path)
    sink: Any = frame.writeStream.foreachBatch(heard).option("checkpointLocation", str(checkpoint))
    query: StreamingQuery = sink.trigger(availableNow=True).start()
    return query
