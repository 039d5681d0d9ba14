"""A write of rows, without Spark: tasks and commit in this process, as Spark calls them in processes of its own."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import DataType, StructField, StructType

import spool
from forwarder.dataframes import sink
from forwarder.dataframes.sink import BatchWriter, Job, Written
from spool.coordination.locks import LockFile, coordinator_byte
from spool.format.batch import CommitBatch
from spool.log.commit import commit_batch
from spool.maintenance.reclaim import reclaim
from spool.model.message import Message
from spool.policies.applications import BatchOf
from spool.remote import adoption
from spool.remote.branch import RemoteBranch
from spool.transactions.resolution import resolve_orphans
from tests.at_once import AT_ONCE

BODIES = pa.schema([("body", pa.string())])


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[spool.Space]:
    monkeypatch.setattr(os, "getppid", os.getpid)  # (what started pytest may end before it)
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        space.create_queue("invoices", order=("priority", "fifo"), out_of_order=("top",))
        yield space


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


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(monkeypatch)


def texts(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(bodies, pa.string())], schema=BODIES)


def bodies(space: spool.Space, queue: str = "orders") -> list[Any]:
    return [message.body for message in space.browse(queue)]


def left_over(space: spool.Space) -> list[str]:
    root = Path(space.path)
    return [file.name for stage in ("active", "prepared") for file in (root / stage).iterdir()]


# -- all or none -------------------------------------------------------------------------------------------------------


def test_x05_all_rows_of_all_tasks_are_one_commit_in_the_order_of_the_partitions(
    space: spool.Space, attempts: Attempts
) -> None:
    writer = BatchWriter(job(space))
    second = attempts.write(writer, 1, texts("c"), texts("d"))
    first = attempts.write(writer, 0, texts("a", "b"))
    empty = attempts.write(writer, 2)
    assert empty.vote is None
    assert bodies(space) == [], "nothing is visible before the commit"
    writer.commit([first, second, empty])
    found = list(space.browse("orders"))
    assert [message.body for message in found] == ["a", "b", "c", "d"]
    assert len({message.position.number for message in found}) == 1
    assert left_over(space) == []


def test_x05_of_several_attempts_of_a_task_the_chosen_one_counts(space: spool.Space, attempts: Attempts) -> None:
    """A speculative duplicate has prepared, too; another one comes when all is over."""
    writer = BatchWriter(job(space))
    attempts.write(writer, 0, texts("a"))
    chosen = attempts.write(writer, 0, texts("a"))
    writer.commit([chosen])
    assert bodies(space) == ["a"]
    assert left_over(space) == []
    with pytest.raises(spool.TransactionRolledBack):
        attempts.write(writer, 0, texts("a"))
    assert left_over(space) == []


def test_x05_an_attempt_that_fails_in_the_middle_leaves_nothing(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, "body string, priority int"))
    rows = pa.schema([("body", pa.string()), ("priority", pa.int32())])
    with pytest.raises(spool.InvalidArgument, match="priority") as failed:
        attempts.write(
            writer,
            3,
            pa.record_batch([["a", "b"], [1, 2]], schema=rows),
            pa.record_batch([["c", "d"], [3, 500]], schema=rows),
        )
    assert failed.value.__notes__ == ["(row 3 of partition 3, counted from 0)"]
    assert left_over(space) == []
    writer.abort([None])
    assert bodies(space) == []


def test_x05_a_write_that_is_aborted_leaves_nothing(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space))
    done = attempts.write(writer, 0, texts("a"))
    writer.abort([done, None])
    assert bodies(space) == []
    assert left_over(space) == []
    with pytest.raises(spool.TransactionRolledBack, match="write the DataFrame again"):
        writer.commit([done])


def test_x05_an_abort_behind_a_commit_that_was_made_undoes_nothing(space: spool.Space, attempts: Attempts) -> None:
    """Spark aborts when it lost the process that committed."""
    writer = BatchWriter(job(space))
    done = attempts.write(writer, 0, texts("a"))
    writer.commit([done])
    writer.abort([done])
    assert bodies(space) == ["a"]


def test_x05_a_write_whose_driver_dies_is_rolled_back_by_the_next_consumer(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfd_open = os.pidfd_open
    with subprocess.Popen(["sleep", "1000"]) as process:
        monkeypatch.setattr(os, "pidfd_open", lambda _: pidfd_open(process.pid))
        writer = BatchWriter(job(space))
        attempts.write(writer, 0, texts("a"))
        process.send_signal(signal.SIGKILL)
    store = space._store
    byte = coordinator_byte(writer.coordinator.id)
    store.shared.xids.lock(byte, store.deadline(), "the coordinator")
    store.shared.xids.unlock(byte)
    assert left_over(space) != []
    with pytest.raises(spool.Empty):
        space.get("orders")
    assert left_over(space) == []


def test_x05_a_commit_whose_coordinator_was_killed_writes_nothing(space: spool.Space, attempts: Attempts) -> None:
    """Its branches may be rolled back by any process from then on, so the commit finds all of them, or raises."""
    writer = BatchWriter(job(space))
    done = [attempts.write(writer, 0, texts("a")), attempts.write(writer, 1, texts("b"))]
    writer.coordinator.end()
    with space._store.guard:
        assert len(resolve_orphans(space._store, space._store.deadline())) == 2
    with pytest.raises(spool.TransactionRolledBack, match="write the DataFrame again"):
        writer.commit(done)
    assert bodies(space) == []


def test_a_write_that_does_not_fit_writes_nothing(space: spool.Space, attempts: Attempts) -> None:
    space.change_queue("orders", max_messages=3)
    writer = BatchWriter(job(space))
    done = [attempts.write(writer, 0, texts("a", "b")), attempts.write(writer, 1, texts("c", "d"))]
    with pytest.raises(spool.Full, match="nothing was put"):
        writer.commit(done)
    writer.abort(done)
    assert bodies(space) == []
    assert left_over(space) == []


def test_a_large_partition_goes_to_the_disk_while_it_is_written(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0
    put = RemoteBranch.put

    def watched(self: RemoteBranch, *args: Any, **options: Any) -> None:
        nonlocal largest
        put(self, *args, **options)
        largest = max(largest, self.batch.size)

    monkeypatch.setattr(RemoteBranch, "put", watched)
    writer = BatchWriter(job(space))
    megabyte = "x" * (1 << 20)
    done = attempts.write(writer, 0, *(texts(megabyte, f"{place}") for place in range(40)))
    writer.commit([done])
    assert largest < 17 << 20, "more than a section stayed in memory"
    assert bodies(space)[1::2] == [str(place) for place in range(40)]


def test_a_write_of_more_rows_than_a_commit_has_is_refused(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MAX_ORDINAL", 2)
    writer = BatchWriter(job(space))
    with pytest.raises(spool.InvalidArgument, match="in parts"):
        attempts.write(writer, 0, texts("a", "b"), texts("c", "d"))
    done = [attempts.write(writer, 0, texts("a", "b")), attempts.write(writer, 1, texts("c", "d"))]
    with pytest.raises(spool.InvalidArgument, match="at most 3 rows"):
        writer.commit(done)
    writer.abort(done)
    assert bodies(space) == []


# -- a write with a name -----------------------------------------------------------------------------------------------


def test_x05_a_write_with_a_name_is_committed_once(space: spool.Space, attempts: Attempts) -> None:
    for expected in (["a"], ["a"]):
        writer = BatchWriter(job(space, applicationId="import", batchId=1))
        writer.commit([attempts.write(writer, 0, texts("a"))])
        assert bodies(space) == expected
        assert left_over(space) == []
    for batch, expected in ((0, ["a"]), (2, ["a", "b"]), (1, ["a", "b"])):
        writer = BatchWriter(job(space, applicationId="import", batchId=batch))
        writer.commit([attempts.write(writer, 0, texts("b"))])
        assert bodies(space) == expected


def test_x05_of_two_drivers_that_write_the_same_batch_at_once_one_does(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one commits between the first one's look and its commit."""
    first, second = (BatchWriter(job(space, applicationId="import")) for _ in range(2))
    done = attempts.write(first, 0, texts("a"))
    also = attempts.write(second, 0, texts("a"))
    commit = adoption.CoordinatedTransaction.commit

    def meanwhile(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        second.commit([also])
        commit(*args, **options)

    monkeypatch.setattr(adoption.CoordinatedTransaction, "commit", meanwhile)
    first.commit([done])
    assert bodies(space) == ["a"]
    assert left_over(space) == []


def test_the_name_of_a_write_is_remembered_by_a_space_that_was_opened_again(tmp_path: Path, attempts: Attempts) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        writer = BatchWriter(job(space, applicationId="import"))
        writer.commit([attempts.write(writer, 0, texts("a"))])
        assert space.get("orders").body == "a"
    for name in (tmp_path / "space" / "run").iterdir():
        name.unlink()
    with spool.open(tmp_path / "space") as space:
        writer = BatchWriter(job(space, applicationId="import"))
        writer.commit([attempts.write(writer, 0, texts("a"))])
        assert bodies(space) == []


def test_the_name_of_a_write_does_not_keep_the_files_of_its_messages(space: spool.Space, attempts: Attempts) -> None:
    for number in range(2):
        writer = BatchWriter(job(space, applicationId="import", batchId=number))
        writer.commit([attempts.write(writer, 0, texts("a", "b"))])
        assert [message.body for message in space.get_many("orders", 2)] == ["a", "b"]
    space.put("orders", "c")
    with space._store.guard:
        reclaim(space._store)
    assert [file for file in (Path(space.path) / "committed").iterdir() if "-" in file.name] == []
    writer = BatchWriter(job(space, applicationId="import", batchId=1))
    writer.commit([attempts.write(writer, 0, texts("a", "b"))])
    assert bodies(space) == ["c"]


def test_the_record_of_a_later_batch_stays_the_newest(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later batch is committed between the commit of one and its second record."""
    first, second = (BatchWriter(job(space, applicationId="import", batchId=number)) for number in (1, 2))
    done, also = attempts.write(first, 0, texts("a")), attempts.write(second, 0, texts("b"))
    record_apart = BatchOf.record_apart

    def meanwhile(*args: Any) -> None:
        monkeypatch.undo()
        second.commit([also])
        record_apart(*args)

    monkeypatch.setattr(BatchOf, "record_apart", meanwhile)
    first.commit([done])
    assert bodies(space) == ["a", "b"]
    writer = BatchWriter(job(space, applicationId="import", batchId=2))
    writer.commit([attempts.write(writer, 0, texts("b"))])
    assert bodies(space) == ["a", "b"]


# -- deduplication -----------------------------------------------------------------------------------------------------

KEYED = "body string, deduplication_key string"


def keyed(*rows: tuple[str, str | None]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(2)]
    return pa.record_batch(columns, names=["body", "deduplication_key"])


def test_x08_a_key_is_put_once_whichever_task_has_it(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, KEYED))
    done = [
        attempts.write(writer, 0, keyed(("a", "1"), ("b", None), ("c", "1")), keyed(("d", "1"), ("e", "2"))),
        attempts.write(writer, 1, keyed(("f", "3"), ("g", "2"), ("h", None))),
        attempts.write(writer, 2, keyed(("i", "4"))),
    ]
    attempts.write(writer, 2, keyed(("i", "4")))  # a duplicate attempt, which is not chosen
    writer.commit(done)
    assert bodies(space) == ["a", "b", "e", "f", "h", "i"]
    assert left_over(space) == []
    known = {message.body: message.id for message in space.browse("orders")}
    for key, body in (("1", "a"), ("2", "e"), ("3", "f"), ("4", "i")):
        assert space.put("orders", "again", deduplication_key=key) == known[body]


def test_x08_a_key_that_was_put_before_is_left_out_and_the_order_stays(space: spool.Space, attempts: Attempts) -> None:
    space.put("orders", "first", deduplication_key="1")
    space.put("invoices", "elsewhere", deduplication_key="2")
    for expected in (["first", "b", "c", "d", "e"], ["first", "b", "c", "d", "e", "b", "e"]):  # (without keys: again)
        writer = BatchWriter(job(space, KEYED))
        done = [
            attempts.write(writer, 0, keyed(("b", None), ("c", "2"))),
            attempts.write(writer, 1, keyed(("a", "1"), ("d", "3"))),
            attempts.write(writer, 2, keyed(("e", None))),
        ]
        writer.commit(done)
        assert bodies(space) == expected
        assert left_over(space) == []


def test_x08_a_write_of_nothing_new_writes_nothing(space: spool.Space, attempts: Attempts) -> None:
    space.put("orders", "first", deduplication_key="1")
    for number in range(2):
        writer = BatchWriter(job(space, KEYED, applicationId="import", batchId=number))
        writer.commit([attempts.write(writer, 0, keyed(("a", "1")))])
        assert bodies(space) == ["first"]
        assert left_over(space) == []


def test_x08_many_messages_are_copied_without_the_ones_that_were_put_before(
    space: spool.Space, attempts: Attempts
) -> None:
    """Beyond one section of the file, and one piece of the copy."""
    space.put("orders", "first", deduplication_key="last")
    large = "x" * (9 << 20)
    writer = BatchWriter(job(space, KEYED))
    rows = [(f"{place}", None) for place in range(3000)]
    done = attempts.write(
        writer, 0, keyed((large, "a"), *rows), keyed((large, "b"), ("left out", "last"), (large, "c"), ("end", "d"))
    )
    writer.commit([done])
    assert bodies(space) == ["first", large, *(f"{place}" for place in range(3000)), large, large, "end"]
    last = list(space.browse("orders"))[-1]
    assert space.put("orders", "again", deduplication_key="d") == last.id


def test_x08_a_put_of_a_key_that_is_being_written_is_told_to_wait(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, KEYED))
    done = attempts.write(writer, 0, keyed(("a", "1")))
    with pytest.raises(spool.MessageInUse, match="in doubt"):
        space.put("orders", "b", deduplication_key="1")
    writer.commit([done])
    space.put("orders", "b", deduplication_key="1")
    assert bodies(space) == ["a"]


def test_x08_a_transaction_that_put_the_key_before_it_was_prepared_is_waited_for(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not seen the branch, and would put the key again behind it."""
    waiting = threading.Event()
    pauses = LockFile.pauses

    def told(self: LockFile, *args: Any) -> Any:
        waiting.set()
        return pauses(self, *args)

    with spool.open(space.path) as other:
        transaction = other.transaction()
        transaction.put("orders", "first", deduplication_key="1")
        writer = BatchWriter(job(space, KEYED))
        done = attempts.write(writer, 0, keyed(("a", "1"), ("b", "2")))
        committing = threading.Thread(target=writer.commit, args=([done],))
        monkeypatch.setattr(LockFile, "pauses", told)
        committing.start()
        while committing.is_alive() and not waiting.wait(0.01):
            pass
        transaction.commit()
        committing.join()
    assert bodies(space) == ["first", "b"]


def test_x08_of_two_writes_of_a_key_at_once_one_does(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one to commit finds the other one in doubt; the second one finds the key in the commit."""
    first, second = (BatchWriter(job(space, KEYED)) for _ in range(2))
    done = attempts.write(first, 0, keyed(("a", "1"), ("b", "2")))
    also = attempts.write(second, 0, keyed(("c", "1"), ("d", "3")))
    with pytest.raises(spool.MessageInUse, match="'1' is in doubt"):
        first.commit([done])
    first.abort([done])
    second.commit([also])
    assert bodies(space) == ["c", "d"]


def test_x08_a_branch_that_came_into_doubt_during_the_commit_is_seen(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (BatchWriter(job(space, KEYED)) for _ in range(2))
    done = attempts.write(first, 0, keyed(("a", "1")))
    wait_for_puts = adoption._wait_for_puts

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(adoption, "_wait_for_puts", wait_for_puts)
        attempts.write(second, 0, keyed(("b", "1")))
        wait_for_puts(*args)

    monkeypatch.setattr(adoption, "_wait_for_puts", meanwhile)
    with pytest.raises(spool.MessageInUse, match="'1' is in doubt"):
        first.commit([done])
    first.abort([done])
    second.abort([None])
    assert bodies(space) == []


def test_x08_a_commit_that_comes_behind_the_look_is_looked_at(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BatchWriter(job(space, KEYED))
    done = attempts.write(writer, 0, keyed(("a", "1"), ("b", "2")))
    commit = adoption.CoordinatedTransaction.commit

    def meanwhile(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        batch = CommitBatch()
        batch.fact("deduplication:orders:1", "0" * 32, 4e9)
        with space._store.guard:
            commit_batch(space._store, batch, space._store.deadline(), flush=True)
        commit(*args, **options)

    monkeypatch.setattr(adoption.CoordinatedTransaction, "commit", meanwhile)
    writer.commit([done])
    assert bodies(space) == ["b"]


# -- columns and options -----------------------------------------------------------------------------------------------

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
)  # fmt: skip
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
def test_a_body_is_binary_or_text_and_codec_says_what_its_bytes_are(
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
        ("body string", [[None]], spool.InvalidArgument, "row 0 has no body"),
        ("body string, queue string", [["a", "b"], ["orders", None]], spool.InvalidArgument, "row 1 names no queue"),
        ("body string, queue string", [["a"], ["ordres"]], spool.QueueNotFound, "did you mean orders"),
        ("body string, correlation_id string", [["a"], [""]], spool.InvalidArgument, "correlation_id is a text of 1"),
        ("body string, top boolean", [["a"], [True]], spool.InvalidArgument, "does not allow top"),
        ("body string, codec string", [["{"], ["json"]], spool.InvalidArgument, "mend the body"),
        ("body string, codec string", [["{"], ["yaml"]], spool.UnknownCodec, "yaml"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_message_is_named(
    space: spool.Space, attempts: Attempts, columns: str, rows: list[Any], error: type[Exception], said: str
) -> None:
    options = {"queue": None} if "queue" in columns else {}
    writer = BatchWriter(job(space, columns, **options))
    names = [field.name for field in schema(columns).fields]
    with pytest.raises(error, match=said):
        attempts.write(writer, 0, pa.record_batch([pa.array(one) for one in rows], names=names))
    writer.abort([None])
    assert left_over(space) == []


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
def test_what_cannot_be_written_is_told_before_a_task_starts(
    space: spool.Space, columns: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(spool.InvalidArgument, match=said):
        job(space, columns, **options)


def test_all_that_is_wrong_with_the_columns_is_one_error(space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument) as refused:
        job(space, "id long, value string, headers string")
    assert str(refused.value) == (
        "this DataFrame cannot be written to a space: it has no use for 'id', 'value', the columns are body, queue, "
        "codec, content_type, priority, not_before, delay, expires_at, time_to_live, correlation_id, reply_queue, "
        "failure_queue, user_code, client_id, application_key, headers, group, top, deduplication_key: .drop('id', "
        "'value') the rest; it has no column body: name the one that is the message, e.g. "
        ".withColumnRenamed('value', 'body'); its column headers is string, and has to be map<string,string>: "
        "convert it"
    )


def test_a_queue_is_never_overwritten(space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument, match=r"write with \.mode\('append'\)"):
        Job.of({"path": space.path, "queue": "orders"}, schema("body string"), overwrite=True)


def test_a_queue_or_a_space_that_is_not_there_is_told_before_a_task_starts(space: spool.Space, tmp_path: Path) -> None:
    with pytest.raises(spool.QueueNotFound, match="did you mean orders"):
        BatchWriter(job(space, queue="ordres"))
    with pytest.raises(spool.NotASpace, match="spool-admin init"):
        BatchWriter(Job.of({"path": str(tmp_path / "no"), "queue": "orders"}, schema("body string"), overwrite=False))
