"""Columns and options of a write: the messages of the rows, and the errors before a task starts."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spool
from forwarder.dataframes.sink import BatchWriter, Job
from spool.model.message import Message
from tests.forwarder.dataframes.sink.writes import Attempts, job, schema
from tests.shown import bodies, left_over

LATER = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "arrow", "column", "value", "expected"),
    [
        ("int", pa.int32(), "priority", 70, 70),
        ("long", pa.int64(), "user_code", -7, -7),
        ("string", pa.string(), "correlation_id", "a 1", "a 1"),
        ("string", pa.string(), "client_id", "shop", "shop"),
        ("string", pa.string(), "application_key", "key", "key"),
        ("string", pa.string(), "group", "customer 1", "customer 1"),
        ("string", pa.string(), "reply_queue", "answers", "answers"),
        ("string", pa.string(), "failure_queue", "failures", "failures"),
        ("string", pa.string(), "content_type", "text/html", "text/html"),
        ("map<string,string>", pa.map_(pa.string(), pa.string()), "headers", [("k", "v")], {"k": "v"}),
        ("timestamp", pa.timestamp("us", "UTC"), "not_before", LATER, LATER.timestamp()),
        ("timestamp", pa.timestamp("us", "UTC"), "expires_at", LATER, LATER.timestamp()),
        ("double", pa.float64(), "not_before", LATER.timestamp(), LATER.timestamp()),
    ],
)
def test_a_column_is_the_option_of_put_of_its_name(
    space: spool.Space, attempts: Attempts, kind: str, arrow: Any, column: str, value: Any, expected: object
) -> None:
    """Null is as if it were left out."""
    writer = BatchWriter(job(space, f"body string, {column} {kind}"))
    rows = pa.schema([("body", pa.string()), (column, arrow)])
    writer.commit([attempts.write(writer, 0, pa.record_batch([["a", "b"], [value, None]], schema=rows))])
    without, with_it = sorted(space.browse("orders"), key=lambda message: message.body, reverse=True)
    space.put("orders", "b")
    default = max(space.browse("orders"), key=lambda message: message.position)
    assert getattr(with_it, column) == expected
    assert getattr(without, column) == getattr(default, column)


def message_of(
    space: spool.Space, attempts: Attempts, columns: str, arrays: dict[str, Any], **options: object
) -> Message:
    writer = BatchWriter(job(space, columns, **options))
    names = [field.name for field in schema(columns).fields]
    writer.commit([attempts.write(writer, 0, pa.record_batch([arrays[name] for name in names], names=names))])
    [message] = space.browse(str(options.get("queue") or "orders"))
    return message


def test_delays_are_seconds_from_the_commit(space: spool.Space, attempts: Attempts) -> None:
    columns = "body string, delay decimal(9,1), time_to_live int"
    message = message_of(
        space, attempts, columns, {"body": ["a"], "delay": pa.array([60], pa.decimal128(9, 1)), "time_to_live": [3600]}
    )
    assert message.not_before == message.enqueued_at + 60
    assert message.expires_at == message.enqueued_at + 3600


@pytest.mark.parametrize(
    ("kind", "body", "codec", "expected"),
    [
        ("binary", b"\xff", None, b"\xff"),
        ("string", "ä", None, "ä"),
        ("binary", b'{"a": 1}', "json", {"a": 1}),
        ("string", "[1]", "json", [1]),
        ("binary", b"\x93\x01\x02\x03", "msgpack", [1, 2, 3]),
    ],
)
def test_a_body_is_binary_or_text_and_codec_names_the_form_of_its_bytes(
    space: spool.Space, attempts: Attempts, kind: str, body: Any, codec: str | None, expected: object
) -> None:
    columns = {"body": [body], "codec": pa.array([codec], pa.string())}
    assert message_of(space, attempts, f"body {kind}, codec string", columns).body == expected


def test_rows_go_to_the_queues_that_they_name(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, "queue string, body string, top boolean", queue=None))
    rows = pa.record_batch(
        [["orders", "invoices", "orders", "invoices"], ["a", "b", "c", "d"], [None, False, None, True]],
        names=["queue", "body", "top"],
    )
    writer.commit([attempts.write(writer, 0, rows)])
    assert bodies(space) == ["a", "c"]
    assert bodies(space, "invoices") == ["d", "b"]


@pytest.mark.parametrize(
    ("columns", "rows", "error", "said"),
    [
        ("body string", [[None]], spool.InvalidArgument, "the row has no body"),
        ("body string, queue string", [["a", "b"], ["orders", None]], spool.InvalidArgument, "the row names no queue"),
        ("body string, queue string", [["a"], ["ordres"]], spool.QueueNotFound, "did you mean orders"),
        ("body string, correlation_id string", [["a"], [""]], spool.InvalidArgument, "correlation_id is a text of 1"),
        ("body string, top boolean", [["a"], [True]], spool.InvalidArgument, "does not allow top"),
        ("body string, codec string", [["{"], ["json"]], spool.InvalidArgument, "fix the body"),
        ("body string, codec string", [["{"], ["yaml"]], spool.UnknownCodec, "yaml"),
    ],
)
def test_a_row_that_is_no_message_is_named(
    space: spool.Space, attempts: Attempts, columns: str, rows: list[Any], error: type[Exception], said: str
) -> None:
    options = {"queue": None} if "queue" in columns else {}
    writer = BatchWriter(job(space, columns, **options))
    names = [field.name for field in schema(columns).fields]
    with pytest.raises(error, match=said):
        attempts.write(writer, 0, pa.record_batch([pa.array(one) for one in rows], names=names))
    writer.abort([None])
    assert left_over(space.path) == []


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("body string", ["a"], [None]),
        ("body string", ["a"], ["a" * 101]),
        ("body string, queue string", ["a", "orders"], ["a", None]),
        ("body string, codec string", ["{}", "json"], ["{", "json"]),
        ("body string, codec string", ["{}", "json"], ["{", "yaml"]),
        ("body string, priority int", ["a", 50], ["a", 500]),
        ("body string, priority int", ["a", 50], [None, 50]),
        ("body string, deduplication_key string", ["a", "same"], ["a", ""]),
    ],
)
def test_the_row_that_is_refused_is_named_among_neighbours_that_are_alike(
    tmp_path: Path, attempts: Attempts, kind: str, good: list[Any], bad: list[Any]
) -> None:
    with spool.create(tmp_path / "small", max_body_bytes=100) as space:
        space.create_queue("orders")
        writer = BatchWriter(job(space, kind, **({"queue": None} if "queue" in kind else {})))
        names = [field.name for field in schema(kind).fields]

        def batch(*rows: list[Any]) -> pa.RecordBatch:
            return pa.record_batch([list(column) for column in zip(*rows, strict=True)], names=names)

        with pytest.raises(spool.SpoolError) as refused:
            attempts.write(writer, 2, batch(good, good, good), batch(good, good, bad, good))
        writer.abort([None])
    assert refused.value.__notes__ == ["(row 5 of partition 2, counted from 0)"]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("value string", {}, r"no use for 'value', .* \.drop\('value'\) the rest; it has no column body"),
        ("body string, priorty int", {}, r"no use for 'priorty'; did you mean priority"),
        ("body struct<a:int>", {}, r"body is struct<a:int>, and has to be binary or string: .* to_json"),
        ("body string, headers map<string,int>", {}, r"headers is map<string,int>, and has to be map<string,string>"),
        ("body string, not_before timestamp_ntz", {}, r"not_before is timestamp_ntz"),
        ("body string, priority double", {}, r"priority is double, and has to be a whole number"),
        ("body string, BODY string", {}, r"two columns body"),
        ("body string", {"queue": None}, r"does not say into which queue"),
        ("body string, queue string", {}, r"both a column queue and the option queue"),
        ("body string", {"queue": "or/ders"}, r"the option queue is a queue's name, not 'or/ders'"),
        ("body string", {"queu": "orders"}, r"writing to a space has no option 'queu'; did you mean queue"),
        ("body string", {"batchId": 1}, r"applicationId, too"),
        ("body string", {"applicationId": "a", "batchId": -1}, r"batchId is a whole number from 0"),
        ("body string", {"path": None}, r"takes the path of a space"),
    ],
)
def test_wrong_columns_and_options_are_refused_before_a_task_starts(
    space: spool.Space, columns: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(spool.InvalidArgument, match=said):
        job(space, columns, **options)


def test_a_queue_is_never_overwritten(space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument, match=r"write with \.mode\('append'\)"):
        Job.of({"path": space.path, "queue": "orders"}, schema("body string"), overwrite=True)


def test_a_queue_or_a_space_that_is_not_there_is_told_before_a_task_starts(space: spool.Space, tmp_path: Path) -> None:
    with pytest.raises(spool.QueueNotFound, match="did you mean orders"):
        BatchWriter(job(space, queue="ordres"))
    with pytest.raises(spool.NotASpace, match="spool-admin init"):
        BatchWriter(Job.of({"path": str(tmp_path / "no"), "queue": "orders"}, schema("body string"), overwrite=False))
