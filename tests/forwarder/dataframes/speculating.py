"""A program that writes with speculation on a cluster of two machines.

That is a master and two workers with addresses of their own, because Spark runs no second attempt on the machine of the
first. ``python -m tests.forwarder.dataframes.speculating DIRECTORY``; the space is ``DIRECTORY/space``. In
``DIRECTORY/attempts`` is a file for each attempt of a task that was begun: ``<partition>.<attempt>``.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

import forwarder
from forwarder import session
from tests.forwarder.cluster import HERE, SPECULATION, Cluster

PARTITIONS, ROWS = 4, 400


def slow_at_first(attempts: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: the first attempt of a task goes on only once there is a second one."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (attempts / f"{partition}.{attempt}").touch()
        yield from batches
        while partition == 1 and attempt == 0 and not (attempts / "1.1").exists():
            time.sleep(0.05)

    return pass_on


def main() -> None:
    directory = Path(sys.argv[1])
    attempts = directory / "attempts"
    attempts.mkdir()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with ExitStack() as stack:
        spark = session.start(Cluster(directory, stack).url, conf={**SPECULATION, **HERE})
        stack.callback(session.stop, spark)
        forwarder.register(spark)
        rows = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) as body")
        written = rows.mapInArrow(slow_at_first(attempts), "body string").write.format("spool")
        written.option("queue", "orders").mode("append").save(str(directory / "space"))


if __name__ == "__main__":
    main()
