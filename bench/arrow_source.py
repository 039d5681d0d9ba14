"""A data source with the least possible work in Python: each task sends the same Arrow batch again and again.

A read of messages is compared with a read of this source. The difference is the cost of the messages; the rest is the
cost of Spark.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from forwarder.dataframes.columns import columns

_BATCH_ROWS = 4096
_BODY = b"x" * 1024


class ArrowSource(DataSource):
    """The format ``arrow_source``, with the columns of a message. Options: the numbers ``rows`` and ``tasks``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrow_source"

    def schema(self) -> StructType:
        """Return the columns of a message."""
        return columns(True)

    def reader(self, schema: StructType) -> "Reader":
        """Return the reader of the rows."""
        return Reader(schema, int(self.options["rows"]), int(self.options["tasks"]))


class Reader(DataSourceReader):
    """Sends rows that are all alike."""

    def __init__(self, schema: StructType, rows: int, tasks: int) -> None:
        self._schema = schema
        self._rows, self._tasks = rows, tasks

    def partitions(self) -> list[InputPartition]:  # (Spark accepts only a list)
        """Return the tasks. All tasks have the same number of rows, but the first task also has the remainder."""
        share, left = divmod(self._rows, self._tasks)
        return [InputPartition(share + (left if task == 0 else 0)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        arrow, left = to_arrow_schema(self._schema, timezone="UTC"), partition.value
        batch = pa.RecordBatch.from_arrays(
            [pa.array([_some(field)] * min(_BATCH_ROWS, left), field.type) for field in arrow], schema=arrow
        )
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def _some(field: "pa.Field[Any]") -> Any:
    """Return a possible value of a message for the column."""
    if pa.types.is_binary(field.type):
        return _BODY
    if pa.types.is_string(field.type):
        return None if field.nullable else "0123456789abcdef0123456789abcdef" if field.name == "id" else "queue"
    if pa.types.is_map(field.type):
        return []
    return None if field.nullable else 50
