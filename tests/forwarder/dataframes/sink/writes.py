"""Writes of rows, without Spark: tasks and commit in this process, as Spark calls them in processes of its own."""

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

import spool
from forwarder.dataframes import sink
from forwarder.dataframes.sink import BatchWriter, Job, Written

BODIES = pa.schema([("body", pa.string())])


def job(space: spool.Space, columns: str = "body string", **options: object) -> Job:
    given = {"path": space.path, "queue": "orders", **{name: str(value) for name, value in options.items()}}
    return Job.of({name: value for name, value in given.items() if value != "None"}, schema(columns), overwrite=False)


TYPES: dict[str, DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "double": types.DoubleType(),
    "decimal(9,1)": types.DecimalType(9, 1),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
    "struct<a:int>": types.StructType([StructField("a", types.IntegerType())]),
}


def schema(columns: str) -> StructType:
    named = (column.split(" ") for column in columns.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


class Attempts:
    """Attempts of tasks: each has its own number, as Spark gives it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self.partition = 0, 0
        monkeypatch.setattr(sink.TaskContext, "get", lambda: self)

    def partitionId(self) -> int:
        return self.partition

    def taskAttemptId(self) -> int:
        return self.number

    def write(self, writer: BatchWriter, partition: int, *batches: pa.RecordBatch) -> Written:
        self.number += 1
        self.partition = partition
        return writer.write(iter(batches))


def texts(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(bodies, pa.string())], schema=BODIES)
