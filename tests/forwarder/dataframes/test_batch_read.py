"""Batch reads: the messages of queues as rows, with or without bodies, and messages that are moved or taken between
plan and read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType

import forwarder
import spool
from forwarder.dataframes import arrow_batches as batches
from forwarder.dataframes.columns import COLUMNS, ReadOptions
from forwarder.dataframes.read_plan import Partition, divided
from spool.model.codecs import decode
from spool.reading import message_reader as message_reader
from spool.reading.places import packed, unpacked
from tests import door
from tests.compaction import small_compactions
from tests.forwarder.dataframes.rows import bodies, read, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOME = (b"1", b"2", b"3")


TIMES = ("enqueued_at", "not_before", "expires_at", "failed_at")


def as_row(message: spool.Message) -> dict[str, Any]:
    """Return the fields of a message's row, except the body and its length and codec; times are in microseconds."""
    names = [name for name in COLUMNS if name not in ("number", "ordinal", "body", "body_bytes", "codec")]
    fields = {name: getattr(message, name) for name in names}
    fields |= {name: round(fields[name] * 1_000_000) for name in TIMES if fields[name] is not None}
    number, ordinal = message.position
    return {**fields, "headers": list(message.headers.items()), "number": number, "ordinal": ordinal}


def assert_rows_are_messages(space: spool.Space, rows: list[dict[str, Any]], queue: str) -> None:
    there = sorted(space.browse(queue), key=lambda message: message.position)
    assert [row["id"] for row in rows] == [message.id for message in there]
    for row, message in zip(rows, there, strict=True):
        body, length = row.pop("body"), row.pop("body_bytes")
        assert decode(body, row.pop("codec")) == message.body
        assert length == len(body)
        times = {name: round(row[name].timestamp() * 1_000_000) for name in TIMES if row[name] is not None}
        assert {**row, **times} == as_row(message)


def put_all_kinds(space: spool.Space) -> None:
    space.change_queue("orders", reply_queue="replies", error_queue="errors", retries=3)
    space.put_many("orders", [b"a", b"bb", b"", b"x" * 70_000])
    with space.transaction() as tx:
        tx.put("orders", "text", priority=70, headers={"tenant": "acme", "b": "c"}, correlation_id="one")
        tx.put("orders", {"a": [1]}, delay=3600, time_to_live=7200, user_code=-3, client_id="me")
        tx.put("replies", b"other", group="g", application_key="k", failure_queue="errors", content_type="a/b")
    space.put("orders", b"tried")
    with space.transaction() as tx:
        tx.get("orders", message_id=next(m.id for m in space.browse("orders") if m.body == b"tried"))
        tx.set_rollback_only("no")


# -- rows -------------------------------------------------------------------------------------------------------------


def test_x05_a_row_has_every_field_of_its_message(space: spool.Space) -> None:
    put_all_kinds(space)
    rows = read(reader(space, queue="orders"))
    assert len(rows) == 7
    assert {row["attempts"] for row in rows} == {0, 1}
    assert {row["reply_queue"] for row in rows} == {"replies"}
    assert_rows_are_messages(space, rows, "orders")
    assert_rows_are_messages(space, read(reader(space, queue="replies")), "replies")


def test_rows_of_small_batches_are_the_same(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_reader, "_BATCH_ROWS", 2)
    for tenant in ("a", "a", "b", "a"):
        space.put_many("orders", [b"1", b"2", b"3"], headers={"tenant": tenant}, correlation_id=tenant * 2)
        space.put("orders", b"plain")
    put_all_kinds(space)
    assert_rows_are_messages(space, read(reader(space, queue="orders")), "orders")


def test_compacted_messages_are_rows_like_others(space: spool.Space) -> None:
    with small_compactions():
        for place in range(40):
            space.put("orders", b"%d" % place, priority=1 + place, headers={"place": str(place)})
        door.compact(space)
        assert door.index(space).messages.segments
        space.get("orders", message_id=[*space.browse("orders")][30].id)
        assert_rows_are_messages(space, read(reader(space)), "orders")
        assert bodies(space, headers='{"place": "17"}') == [b"17"]
        assert bodies(space, from_="5", to="9") == [b"4", b"5", b"6", b"7", b"8"]


def test_bodies_that_are_not_wanted_are_not_read(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.put_many("orders", SOME)
    space.put("orders", b"alone")
    monkeypatch.setattr("spool.index.body_files.FileCache.bodies", None)
    rows = read(reader(space, body="false"))
    assert "body" not in rows[0]
    assert [row["body_bytes"] for row in rows] == [1, 1, 1, 5]
    assert read(reader(space, {"ordinal": IntegerType(), "number": LongType()}))[0] == {"ordinal": 0, "number": 1}


def test_held_and_delayed_messages_are_read_and_expired_messages_are_not(space: spool.Space) -> None:
    space.put("orders", b"held")
    space.put("orders", b"late", delay=3600)
    space.put("orders", b"gone", expires_at=1.0)
    with space.transaction() as tx:
        tx.get("orders")
        tx.put("orders", b"not yet")
        assert bodies(space) == [b"held", b"late"]


def test_queues_commits_and_headers_choose_the_messages(space: spool.Space) -> None:
    for place, queue in enumerate(("orders", "replies", "errors", "orders"), 1):
        space.put(queue, b"%d" % place, headers={"odd": str(place % 2)})
    assert bodies(space) == [b"1", b"2", b"3", b"4"]
    assert bodies(space, queue="orders") == [b"1", b"4"]
    assert bodies(space, queue="orders, errors") == [b"1", b"3", b"4"]
    assert bodies(space, from_="2", to="3") == [b"2", b"3"]
    assert bodies(space, headers='{"odd": "0"}', from_="3") == [b"4"]
    assert bodies(space, queue="replies", from_="3") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queu": "orders"}, r"reading a space has no option 'queu'; did you mean queue\? The options are path, queue"),
        ({"paths": "[]"}, "name one space a load"),
        ({"queue": "ordres"}, "there is no queue 'ordres' .*; did you mean orders?"),
        ({"queue": "a b"}, "the option queue is a queue's name, or several with commas between them, not 'a b'"),
        ({"from": "0"}, "the option from is the number of a commit, from 1, not '0'"),
        ({"to": "x"}, "the option to is the number of a commit, from 1, not 'x'"),
        ({"from": "3", "to": "2"}, "the option from, 3, is after the option to, 2"),
        ({"headers": "tenant"}, "the option headers is a JSON object of texts"),
        ({"headers": '{"tenant": 1}'}, "the option headers is a JSON object of texts, e.g."),
        ({"body": "maybe"}, "the option body is true or false, not 'maybe'"),
        ({"partitionBytes": "much"}, "the option partitionBytes is a number of bytes, e.g. 16m, not 'much'"),
        ({"partitionBytes": "0"}, "the option partitionBytes is a number of bytes"),
    ],
)
def test_a_wrong_option_is_refused_with_allowed_values(space: spool.Space, options: dict[str, str], said: str) -> None:
    with pytest.raises(spool.SpoolError, match=said):
        reader(space, **options).partitions()


def test_a_path_is_asked_for_and_taken_from_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(spool.InvalidArgument, match="takes the path of a space"):
        ReadOptions.of({})
    monkeypatch.chdir("/tmp")
    assert ReadOptions.of({"path": "space", "PartitionBytes": "2M"}).path == "/tmp/space"


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"bodi": BinaryType()}, r"there is no column 'bodi'; did you mean body\? The columns are id, queue"),
        ({"length": LongType()}, "there is no column 'length': the columns are id, queue"),
        ({"body": StringType()}, "the column body is of the type binary, not string"),
    ],
)
def test_a_wrong_column_is_refused(space: spool.Space, chosen: dict[str, DataType], said: str) -> None:
    with pytest.raises(spool.InvalidArgument, match=said):
        reader(space, chosen)


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_tasks_have_many_files_each_and_about_the_same_bytes(space: spool.Space) -> None:
    for place in range(60):
        space.put_many("orders", [b"x" * (20_000 if place < 10 else 1_000)] * 4)
    planned = reader(space, partitionBytes="200k")
    partitions = planned.partitions()
    sizes = [sum(batch.nbytes for batch in planned.read(part)) for part in partitions]
    assert 4 <= len(partitions) <= 7
    assert max(sizes) < 2.5 * min(sizes)
    assert max(len(part.items) for part in partitions if isinstance(part, Partition)) > 20
    assert len(read(planned, partitions)) == 240


@pytest.mark.parametrize(
    ("mebibytes", "processors", "tasks"), [(0, 8, 1), (2, 8, 1), (16, 8, 4), (64, 2, 4), (256, 4, 8), (1280, 2, 20)]
)
def test_tasks_suit_the_processors(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, mebibytes: int, processors: int, tasks: int
) -> None:
    space.put("orders", b"x")
    (one,) = reader(space).partitions()
    assert isinstance(one, Partition)
    monkeypatch.setattr("forwarder.dataframes.read_plan.cores", lambda: processors)
    found = [(one.items[0], 1 << 14)] * (64 * mebibytes or 1)  # each has a message, which counts for some bytes
    assert len([*divided(found, None, with_body=True)]) == tasks


def test_nothing_to_read_is_one_task(space: spool.Space) -> None:
    planned = reader(space)
    assert [part.items for part in planned.partitions() if isinstance(part, Partition)] == [[]]
    assert read(planned) == []
    assert [*divided([], 1, with_body=True)] == [[]]


def test_positions_are_carried_in_any_order() -> None:
    ranges = [(9, 4, 2), (2**38, 0, 1), (3, 7, 1), (9, 0, 1)]
    assert unpacked(packed(ranges)) == sorted(ranges)


def test_a_large_piece_is_several_batches(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_reader, "_BATCH_ROWS", 10)
    monkeypatch.setattr(message_reader, "_BATCH_BYTES", 5_000)
    space.put_many("orders", [b"%02d" % n for n in range(25)])
    space.put_many("orders", [b"x" * 3_000, b"y" * 9_000, b"z"])
    planned = reader(space)
    sizes = [batch.num_rows for part in planned.partitions() for batch in planned.read(part)]
    assert sum(sizes) == 28
    assert max(sizes) <= 20
    assert [row["body"][:2] for row in read(planned)] == [*[b"%02d" % n for n in range(25)], b"xx", b"yy", b"z"]


# -- between the plan and the read ------------------------------------------------------------------------------------


def compact_all(space: spool.Space) -> None:
    """Compact all files that can be compacted, and remove all files that are not needed."""
    door.compact(space)
    space.put("errors", b"newer")
    while door.reclaim(space):
        pass


def test_x05_messages_whose_files_were_compacted_after_the_plan_are_read_where_they_lie(space: spool.Space) -> None:
    with small_compactions():
        for place in range(40):
            space.put("orders", b"%d" % place)
        planned = reader(space, queue="orders")
        plans = [planned.partitions()]
        before = {path.name for path in Path(space.path, "committed").iterdir()}
        compact_all(space)
        assert len(before - {path.name for path in Path(space.path, "committed").iterdir()}) > 20
        plans.append(planned.partitions())  # of compacted files, which go as well
        for _ in range(30):
            space.get("orders")
        compact_all(space)
        left = sorted(message.body for message in space.browse("orders"))
        for partitions in plans:
            found = [row["body"] for row in read(planned, partitions)]
            assert sorted(found)[-len(left) :] == left or set(left) <= set(found)
            assert len(found) == len(set(found))


def test_a_body_larger_than_a_row_of_spark_fails_the_task_with_advice(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "LARGEST_BODY", 4)
    space.put("orders", b"four")
    space.put("orders", b"fiver")
    with pytest.raises(spool.InvalidArgument, match="a body of 5 bytes, more than a row of Spark takes, 4: read"):
        read(reader(space))
    assert len(read(reader(space, body="false"))) == 2


def test_a_task_that_cannot_open_the_space_reports_the_error_unchanged(space: spool.Space) -> None:
    space.put("orders", b"moved")
    planned = reader(space, queue="orders")
    partitions = planned.partitions()
    space.move(next(message.id for message in space.browse("orders")), "errors")
    Path(space.path, "committed", "0000000000000001.msgpack").unlink()
    Path(space.path, "space.toml").write_text("no settings")
    with pytest.raises(spool.InvalidArgument, match=r"take it from a backup$"):
        read(planned, partitions)


def test_x05_a_message_that_was_consumed_after_the_plan_is_left_out_once_its_file_is_gone(space: spool.Space) -> None:
    space.put("orders", b"consumed")
    space.put("orders", b"moved", priority=90)
    space.put_many("orders", SOME)
    planned = reader(space, queue="orders")
    partitions = planned.partitions()
    space.move(next(m.id for m in space.browse("orders") if m.body == b"moved"), "errors")
    space.get("orders")
    space.get("orders")
    assert [row["body"] for row in read(planned, partitions)] == [b"consumed", b"moved", *SOME]
    space.get_many("errors", 1)
    space.put("errors", b"newer")
    while door.reclaim(space):
        pass
    assert [row["body"] for row in read(planned, partitions)] == [*SOME]


def test_a_damaged_body_fails_the_task_with_the_command_that_repairs_it(space: spool.Space) -> None:
    space.put_many("orders", [b"one", b"damaged", b"three"])
    file = Path(space.path, "committed", "0000000000000001.msgpack")
    file.write_bytes(file.read_bytes().replace(b"damaged", b"demaged"))
    with pytest.raises(spool.CorruptedFile, match=r"messages of queue orders are damaged: .*admin check --repair"):
        read(reader(space))
    assert len(read(reader(space, body="false"))) == 3


def test_a_damaged_body_among_compacted_ones_fails_the_task_too(space: spool.Space) -> None:
    with small_compactions():
        for place in range(30):
            space.put("orders", b"body %d" % place)
        door.compact(space)
    (file,) = [path for path in Path(space.path, "committed").iterdir() if path.read_bytes().count(b"body ") > 10]
    file.write_bytes(file.read_bytes().replace(b"body 20", b"bodi 20"))
    with pytest.raises(spool.CorruptedFile, match="messages of queue orders are damaged"):
        read(reader(space))
    assert len(read(reader(space, headers="{}", to="20"))) == 20
    assert len(read(reader(space, body="false"))) == 30


# -- Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.spark
class TestSpark:
    def test_x05_a_queue_is_read_as_a_dataframe_of_a_format_that_spark_finds(
        self, spark: "SparkSession", space: spool.Space
    ) -> None:
        put_all_kinds(space)
        frame = spark.read.format("spool").option("queue", "orders").load(space.path)
        rows = frame.collect()
        assert len(rows) == 7
        expected = [(b"text", 70)]
        assert [(bytes(row.body), row.priority) for row in rows if row.headers.get("tenant") == "acme"] == expected
        late = [row for row in rows if row.not_before and row.not_before > row.enqueued_at]
        assert [(row.not_before - row.enqueued_at).total_seconds() for row in late] == [3600.0]
        assert space.stats("orders").claimed == 0
        chosen = spark.read.format("spool").schema("id string, body binary").load(space.path).toPandas()
        assert [*chosen.columns] == ["id", "body"]
        assert len(chosen) == 8

    @pytest.mark.slow
    def test_an_error_of_the_plan_is_told(self, spark: "SparkSession", space: spool.Space) -> None:
        forwarder.register(spark)
        with pytest.raises(Exception, match="did you mean queue"):
            spark.read.format("spool").option("queu", "orders").load(space.path)


# -- the path ---------------------------------------------------------------------------------------------------------


def test_x05_spark_takes_a_file_url_as_a_path(space: spool.Space, spark: "SparkSession", tmp_path: Path) -> None:
    forwarder.register(spark)
    url = f"file://{space.path}"
    row = spark.createDataFrame([("1",)], "body string")
    row.write.format("spool").mode("append").option("queue", "orders").save(url)
    assert spark.read.format("spool").load(url).count() == 1
    assert spark.read.format("spool").load([space.path]).count() == 1
    assert spark.read.format("spool").option("spaces", f"file:{space.path}").load().count() == 1
    stream = spark.readStream.format("spool").load(url).writeStream.format("memory").queryName("of_url")
    stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert spark.table("of_url").count() == 1


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["/a", "/b"], "name one space a load, and use union"),
        ("/var/spool/*", "name one space a load, and use union"),
        ("/a,/b", "name one space a load, and use union"),
        ("s3://bucket/a", "is a URL"),
        ("file://host/a", "is a URL"),
    ],
    ids=str,
)
def test_x05_spark_refuses_a_list_a_pattern_and_another_scheme(paths: Any, why: str, spark: "SparkSession") -> None:
    forwarder.register(spark)
    with pytest.raises(Exception, match=why) as error:
        spark.read.format("spool").load(paths)
    assert "spool-admin init" not in str(error.value)
