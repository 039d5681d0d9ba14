"""A program that writes numbers into a space until it has written enough, and goes on where a killed one ended.

``python -m tests.forwarder.dataframes.writing batch|stream DIRECTORY BATCHES``; the space is ``DIRECTORY/space``. It
ends with exit code 0 when all is written, and with another one when its Java is gone.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import forwarder
from forwarder import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 40


def is_alive(spark: "SparkSession") -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # the bridge to Java raises errors of many kinds
        return False


def write_batches(spark: "SparkSession", directory: Path, batches: int) -> None:
    """Write batch after batch, each as often as it takes until Spark says that it is done."""
    progress = directory / "progress"
    while (batch := int(progress.read_text()) if progress.exists() else 0) < batches:
        rows = spark.range(batch * ROWS, (batch + 1) * ROWS, 1, 4).selectExpr("cast(id as string) as body")
        named = rows.write.format("spool").options(queue="orders", applicationId="numbers", batchId=str(batch))
        try:
            named.mode("append").save(str(directory / "space"))
        except Exception as error:
            if not is_alive(spark):
                raise SystemExit(1) from error
            print(f"batch {batch}: {str(error)[:200]}", flush=True)
            continue
        new = progress.with_suffix(".new")
        new.write_text(str(batch + 1))
        new.replace(progress)


def write_stream(spark: "SparkSession", directory: Path, batches: int) -> None:
    """Run the query, again and again, until its checkpoint has so many batches."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    frame = source.selectExpr("cast(value as string) as body").repartition(3)
    checkpoint = directory / "checkpoint"
    while not any((checkpoint / "commits" / str(batch)).exists() for batch in range(batches - 1, batches + 50)):
        writer = frame.writeStream.format("spool").option("queue", "orders")
        try:
            query = writer.option("checkpointLocation", str(checkpoint)).start(str(directory / "space"))
            while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < batches):
                query.awaitTermination(0.05)
            query.stop()
            query.awaitTermination()
        except Exception as error:
            if not is_alive(spark):
                raise SystemExit(1) from error
            print(f"the query ended: {str(error)[:200]}", flush=True)


def main() -> None:
    kind, directory, batches = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    spark = session.start("local[2,4]")
    forwarder.register(spark)
    print("started", flush=True)
    (write_batches if kind == "batch" else write_stream)(spark, directory, batches)
    session.stop(spark)


if __name__ == "__main__":
    main()
