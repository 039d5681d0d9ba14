"""Reads for tests: planned and read in this process, as Spark does it in others."""

from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

import spool
from forwarder.dataframes.columns import ReadOptions, columns
from forwarder.dataframes.read_plan import BatchReader
from forwarder.dataframes.stream import StreamReader


def reader(space: spool.Space, chosen: dict[str, DataType] | None = None, **options: str) -> BatchReader:
    parsed = ReadOptions.of({"path": space.path, **{name.rstrip("_"): value for name, value in options.items()}})
    fields = [StructField(name, of) for name, of in (chosen or {}).items()]
    return BatchReader(parsed, StructType(fields) if chosen else columns(parsed.body))


def read(planned: BatchReader | StreamReader, partitions: Any = None) -> list[dict[str, Any]]:
    """The rows, in the order of their positions."""
    if partitions is None:
        assert isinstance(planned, BatchReader)
        partitions = planned.partitions()
    batches = [batch for part in partitions for batch in planned.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    return sorted(rows, key=lambda row: (row["number"], row["ordinal"]) if "ordinal" in row else ())


def bodies_of(planned: BatchReader | StreamReader, partitions: Any = None) -> list[bytes]:
    return [row["body"] for row in read(planned, partitions)]


def bodies(space: spool.Space, **options: str) -> list[bytes]:
    return bodies_of(reader(space, **options))
