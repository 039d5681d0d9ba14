"""Writes by Spark: each row exactly once despite any failure, and no branches or files of failed attempts remain."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf

import forwarder
import spool
from tests.forwarder.dataframes.dying import DyingSource
from tests.shown import bodies, left_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

ROWS = 100


def numbered(spark: "SparkSession", rows: int = ROWS) -> "DataFrame":
    return spark.range(0, rows, 1, 4).selectExpr("cast(id as string) as body")


def write(frame: "DataFrame", space: spool.Space, **options: object) -> None:
    to = {name: str(value) for name, value in {"queue": "orders", **options}.items()}
    frame.write.format(to.pop("format", "spool")).options(**to).mode("append").save(space.path)


def assert_nothing_is_left(space: spool.Space) -> None:
    """Expect no branch and no process that has the space open: the next opener is the first opener."""
    assert left_over(space.path) == []
    space.close()
    with spool.open(space.path) as alone:
        assert alone.recovery.alone


def failing(attempts: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` that fails in the first attempts of two tasks, behind their first rows."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        yield from batches
        if context is not None and context.partitionId() in (1, 2) and context.attemptNumber() < attempts:
            raise ValueError("this attempt fails")

    return fail


def test_x05_every_row_is_written_once_though_tasks_fail_and_are_tried_again(spark: "SparkSession", space: spool.Space):
    forwarder.register(spark)
    write(numbered(spark).mapInArrow(failing(1), "body string"), space)
    found = list(space.browse("orders"))
    assert [message.body for message in found] == list(map(str, range(ROWS)))
    assert len({message.position.number for message in found}) == 1
    assert_nothing_is_left(space)


@pytest.mark.slow
def test_x05_of_a_job_that_fails_nothing_is_written(spark: "SparkSession", space: spool.Space) -> None:
    forwarder.register(spark)
    with pytest.raises(PySparkException, match="this attempt fails"):
        write(numbered(spark).mapInArrow(failing(4), "body string"), space)
    assert bodies(space) == []
    assert_nothing_is_left(space)


def test_x05_a_job_whose_commit_was_lost_repeats_without_a_double(spark: "SparkSession", space: spool.Space) -> None:
    """The process dies behind the commit: Spark aborts, and the job fails."""
    spark.dataSource.register(DyingSource)
    with pytest.raises((PySparkException, Py4JJavaError)):
        write(numbered(spark), space, format="dying", applicationId="import", batchId=7)
    assert len(bodies(space)) == ROWS
    write(numbered(spark), space, format="dying", applicationId="import", batchId=7)
    forwarder.register(spark)
    for rows, batch in ((0, 9), (ROWS, 8)):  # (a batch without rows is a batch, too)
        write(numbered(spark, rows), space, applicationId="import", batchId=batch)
    assert bodies(space) == list(map(str, range(ROWS)))
    assert_nothing_is_left(space)


@pytest.mark.slow
def test_the_error_of_a_wrong_write_names_the_mistake(spark: "SparkSession", space: spool.Space) -> None:
    forwarder.register(spark)
    for frame, options, said in (
        (numbered(spark).withColumnRenamed("body", "value"), {}, r"withColumnRenamed\('value', 'body'\)"),
        (numbered(spark).selectExpr("body", "if(body = '60', 500, 50) as priority"), {}, r"\(row 10 of partition 2, "),
    ):
        with pytest.raises(PySparkException, match=said):
            write(frame, space, **options)
    for how, queue, said in (("overwrite", "orders", r"mode\('append'\)"), ("append", "ordres", "did you mean orders")):
        with pytest.raises(PySparkException, match=said):
            numbered(spark).write.format("spool").option("queue", queue).mode(how).save(space.path)
    write(numbered(spark, 0), space)
    assert bodies(space) == []
    assert_nothing_is_left(space)


def test_x05_messages_are_copied_from_queue_to_queue_by_reading_and_writing(spark: "SparkSession", space: spool.Space):
    forwarder.register(spark)
    space.put_many("orders", [b"a", "b", {"c": [1]}], headers={"k": "v"}, priority=70, correlation_id="1")
    read = spark.read.format("spool").option("queue", "orders").load(space.path)
    chosen = read.select("body", "codec", "content_type", "headers", "priority", "correlation_id", "not_before")
    write(chosen, space, queue="replies")
    fields = [(m.body, m.codec, m.content_type, dict(m.headers), m.priority) for m in space.browse("orders")]
    assert [(m.body, m.codec, m.content_type, dict(m.headers), m.priority) for m in space.browse("replies")] == fields


# -- streams -----------------------------------------------------------------------------------------------------------


def run(frame: "DataFrame", space: spool.Space, checkpoint: Path, **options: object) -> "StreamingQuery":
    """Run a stream until it has written all that there is, or failed."""
    to = {name: str(value) for name, value in {"queue": "orders", **options}.items()}
    writer = frame.writeStream.format(to.pop("format", "spool")).options(**to)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(space.path)
    try:
        query.awaitTermination(120)
    finally:
        query.stop()
    return query


@pytest.fixture
def lines(spark: "SparkSession", tmp_path: Path) -> "DataFrame":
    """A stream of the lines of two files, in two micro-batches; ``body`` is each of them."""
    source = tmp_path / "lines"
    source.mkdir()
    for name in range(2):
        file = source / f"{name}.txt"
        file.write_text("".join(f"{name}.{line}\n" for line in range(50)))
        os.utime(file, (1e9 + name, 1e9 + name))  # Spark begins with the older one
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
    return stream.withColumnRenamed("value", "body").repartition(2)


EXPECTED = Counter(f"{name}.{line}" for name in range(2) for line in range(50))


@pytest.mark.parametrize("options", [{}, pytest.param({"applicationId": "lines"}, marks=pytest.mark.slow)])
def test_x05_each_micro_batch_is_one_commit_and_is_not_written_twice_if_it_is_not_in_the_checkpoint(
    spark: "SparkSession", space: spool.Space, lines: "DataFrame", tmp_path: Path, options: dict[str, object]
) -> None:
    """The last entry of the checkpoint is deleted, as if the driver had died between the commit and that entry."""
    forwarder.register(spark)
    checkpoint = tmp_path / "checkpoint"
    run(lines, space, checkpoint, **options)
    found = list(space.browse("orders"))
    assert Counter(message.body for message in found) == EXPECTED
    assert [*Counter(message.position.number for message in found).values()] == [50, 50]
    entries = checkpoint / "commits"
    for entry in (entries / "1", entries / ".1.crc"):
        entry.unlink()
    (tmp_path / "lines" / "2.txt").write_text("2.0\n")
    run(lines, space, checkpoint, **options)
    assert (entries / "1").exists()
    assert Counter(bodies(space)) == EXPECTED + Counter(["2.0"])
    assert_nothing_is_left(space)


@pytest.mark.slow
def test_x05_a_stream_whose_commit_was_lost_goes_on_without_a_double(
    spark: "SparkSession", space: spool.Space, lines: "DataFrame", tmp_path: Path
) -> None:
    spark.dataSource.register(DyingSource)
    with pytest.raises(PySparkException):
        run(lines, space, tmp_path / "checkpoint", format="dying")
    assert len(bodies(space)) == 50
    run(lines, space, tmp_path / "checkpoint", format="dying")
    assert Counter(bodies(space)) == EXPECTED
    assert_nothing_is_left(space)


@pytest.mark.slow
def test_x05_a_stream_whose_tasks_fail_leaves_nothing_and_goes_on(
    spark: "SparkSession", space: spool.Space, lines: "DataFrame", tmp_path: Path
) -> None:
    forwarder.register(spark)
    mark = tmp_path / "mended"

    @udf("string")
    def checked(body):  # (with types, Spark looks for types of arrays)
        if body == "1.49" and not mark.exists():
            raise ValueError("this row fails")
        return body

    frame = lines.select(checked("body").alias("body"))
    with pytest.raises(PySparkException, match="this row fails"):
        run(frame, space, tmp_path / "checkpoint")
    assert sorted({body[0] for body in bodies(space)}) == ["0"]
    mark.touch()
    run(frame, space, tmp_path / "checkpoint")
    assert Counter(bodies(space)) == EXPECTED
    assert_nothing_is_left(space)


@pytest.mark.slow
def test_a_stream_with_a_new_checkpoint_under_an_old_name_is_refused(
    spark: "SparkSession", space: spool.Space, lines: "DataFrame", tmp_path: Path
) -> None:
    """The batches 0 and 1 of the new checkpoint differ from the batches that were written under the old name."""
    forwarder.register(spark)
    run(lines, space, tmp_path / "checkpoint", applicationId="lines")
    with pytest.raises(PySparkException, match="give this program another application id"):
        run(lines, space, tmp_path / "other", applicationId="lines")
    with pytest.raises(PySparkException, match="has committed batch 1 of the stream"):
        write(numbered(spark), space, applicationId="lines")
    assert Counter(bodies(space)) == EXPECTED
    assert_nothing_is_left(space)


@pytest.mark.slow
def test_an_aggregate_that_replaces_its_result_is_refused(
    spark: "SparkSession", space: spool.Space, lines: "DataFrame", tmp_path: Path
) -> None:
    forwarder.register(spark)
    counts = lines.groupBy("body").count().select("body")
    writer = counts.writeStream.format("spool").option("queue", "orders").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(space.path)
    with pytest.raises(PySparkException, match="outputMode"):
        query.awaitTermination(120)
    assert_nothing_is_left(space)
