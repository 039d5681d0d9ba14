"""X05: batch reads, batch writes, stream reads and stream writes of a space that only its server sees."""

from base64 import b64decode
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spool
from forwarder.network.server_calls import act, read, write
from forwarder.web import spark, writes
from forwarder.web.tokens import Tokens
from spool.client.connection import HttpConnection
from spool.errors import InvalidArgument, TransactionRolledBack
from tests.forwarder.network.conftest import Serve
from tests.shown import bodies, left_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def frame_of(spark: "SparkSession", where: str, **options: str) -> "DataFrame":
    return spark.read.format("spool").options(**options).load(where)


def test_x05_a_remote_read_has_the_rows_of_a_local_one(spark: "SparkSession", space: spool.Space, address: str) -> None:
    space.put_many("orders", [f"order {n}" for n in range(1000)], headers={"tenant": "acme"})
    for n in range(20):
        space.put("replies", n, priority=n + 1, correlation_id=str(n))
    with space.transaction() as transaction:
        transaction.get("orders")
    here, there = frame_of(spark, space.path), frame_of(spark, address)
    assert there.schema == here.schema
    rows = [sorted(frame.collect(), key=lambda row: (row.number, row.ordinal)) for frame in (here, there)]
    assert len(rows[0]) == 1019
    assert rows[0] == rows[1]
    chosen = frame_of(spark, address, queue="replies", body="false", partitionBytes="1k")
    assert sorted(row.priority for row in chosen.collect()) == list(range(1, 21))


def test_x05_several_spaces_are_one_dataframe(spark: "SparkSession", space: spool.Space, address: str, tmp_path: Path):
    """One on this machine, and one of a server."""
    with spool.create(tmp_path / "second") as second:
        second.create_queue("orders")
        second.put_many("orders", ["c", "d", "e"])
    space.put_many("orders", ["a", "b"])
    places = {address: [b"a", b"b"], str(tmp_path / "second"): [b"c", b"d", b"e"]}
    frame = spark.read.format("spool").options(queue="orders", spaces=", ".join(places), token="any").load()
    assert frame.columns[0] == "space"
    rows = frame.select("body", "space").collect()
    assert {place: sorted(row.body for row in rows if row.space == place) for place in places} == places
    for options, path in (({"spaces": f"{address},{address}"}, None), ({"spaces": address}, address)):
        with pytest.raises(Exception, match="the option spaces"):
            spark.read.format("spool").options(**options).load(path)


def test_x05_a_remote_write_is_one_commit(spark: "SparkSession", space: spool.Space, address: str) -> None:
    columns = "cast(id as string) as body", "timestamp_seconds(id + 2000000000) as expires_at"
    frame = spark.range(0, 1000, 1, 4).selectExpr(*columns)
    frame.write.format("spool").option("queue", "orders").mode("append").save(address)
    assert sorted(bodies(space), key=int) == [str(n) for n in range(1000)]
    assert len({message.position.number for message in space.browse("orders")}) == 1
    assert {message.expires_at - int(message.body) for message in space.browse("orders")} == {2_000_000_000}
    assert left_over(space.path) == []


def test_x05_a_batch_that_was_written_is_not_repeated(spark: "SparkSession", space: spool.Space, address: str) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body")
    for _ in range(2):
        options = {"queue": "orders", "applicationId": "import", "batchId": "7"}
        frame.write.format("spool").options(**options).mode("append").save(address)
    assert len(bodies(space)) == 10


@pytest.mark.slow
def test_x05_a_remote_stream_goes_on_where_it_ended(
    spark: "SparkSession", space: spool.Space, serve: Serve, tmp_path: Path
) -> None:
    """From one space into another queue; the server starts anew between two runs of the query."""

    def run(where: str) -> None:
        frame = spark.readStream.format("spool").options(queue="orders", maxMessagesPerTrigger="3").load(where)
        sink = frame.select("body").writeStream.format("spool").option("queue", "replies")
        query: Any = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start(where).awaitTermination()

    space.put_many("orders", ["a", "b"])
    space.put_many("orders", ["c", "d"])
    first = serve()
    run(first.address("shop"))
    assert sorted(bodies(space, "replies")) == [b"a", b"b", b"c", b"d"]
    port = first.port
    first.close()
    space.put("orders", "e")
    serve(port=port)
    run(f"http://127.0.0.1:{port}/shop")
    assert sorted(bodies(space, "replies")) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.slow
def test_x05_a_remote_subscription_keeps_messages_that_others_take(
    spark: "SparkSession", space: spool.Space, address: str, tmp_path: Path
) -> None:
    def run() -> None:
        frame = spark.readStream.format("spool").options(queue="orders", subscription="audit").load(address)
        sink = frame.select("body").writeStream.format("spool").option("queue", "replies")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        sink.start(address).awaitTermination()

    run()
    space.put("orders", "taken")
    assert space.get("orders").body == "taken"
    run()
    assert bodies(space, "replies") == [b"taken"]


def test_a_wrong_row_is_named_and_nothing_is_written(spark: "SparkSession", space: spool.Space, address: str) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id = 70, null, cast(id as string)) as body")
    with pytest.raises(Exception, match="row 20 of partition 1") as refused:
        frame.write.format("spool").option("queue", "orders").mode("append").save(address)
    assert "has no body" in str(refused.value)
    assert bodies(space) == []
    assert left_over(space.path) == []


def test_a_write_ends_with_its_lease(space: spool.Space, serve: Serve) -> None:
    """The client does not come back, so its branch is rolled back, and a late commit is refused."""
    client = HttpConnection.of(serve(lease_seconds=2).address("shop"))
    session = begin(client)
    vote = send(client, session, ["a"])["vote"]
    act(client, session, "commit", votes=[vote], rows=1)
    assert bodies(space) == [b"a"]
    session = begin(client)
    vote = send(client, session, ["b"])["vote"]
    while left_over(space.path):
        pass
    with pytest.raises(TransactionRolledBack, match="write has ended"):
        act(client, session, "commit", votes=[vote], rows=1)
    assert bodies(space) == [b"a"]


def test_a_repeated_commit_gets_the_same_answer(space: spool.Space, address: str) -> None:
    client = HttpConnection.of(address)
    session = begin(client)
    vote = send(client, session, ["a"])["vote"]
    answers = [act(client, session, "commit", votes=[vote], rows=1) for _ in range(2)]
    assert answers[0] == answers[1]
    assert bodies(space) == [b"a"]


def test_two_calls_that_commit_one_write_get_the_same_answer(
    space: spool.Space, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call comes while the first one commits."""
    client, adopted = HttpConnection.of(address), list[int]()
    session = begin(client)
    vote = send(client, session, ["a"])["vote"]
    with ThreadPoolExecutor(2) as pool:
        second = list[Future[Any]]()

        def slow(*given: Any) -> bool:
            adopted.append(1)
            second.append(pool.submit(commit))
            while len(joined) < 2:
                pass
            return adopt(*given)

        def commit() -> Any:
            return act(client, session, "commit", votes=[vote], rows=1)

        async def shield(task: Any) -> Any:
            joined.append(1)
            return await task

        joined, adopt = list[int](), spark.adopt
        monkeypatch.setattr(spark, "adopt", slow)
        monkeypatch.setattr(writes.asyncio, "shield", shield)
        assert commit() == second[0].result(60) == {"written": True}
    assert (adopted, bodies(space)) == ([1], [b"a"])


def test_a_ticket_is_valid_after_a_restart_with_the_same_tokens(space: spool.Space, serve: Serve) -> None:
    space.put("orders", b"one")
    token = "t" * 32
    asked = {"options": {"queue": "orders", "body": "false"}, "columns": ["id"]}
    first = serve(Tokens([token]))
    client = HttpConnection.of(first.address("shop"), token, None, None)
    [ticket] = plan(client, **asked)
    port = first.port
    first.close()
    serve(Tokens([token]), port=port)
    assert [batch.num_rows for batch in read(client, ticket)] == [1]


def test_an_address_that_is_wrong_is_refused_before_anything_is_asked(spark: "SparkSession") -> None:
    for wrong in (
        "http://host:0/shop", "http://host:1/..", "spool+http://host:1/shop", "http://host:1/a/b",
        "http://user@host:1/shop", "http://host:1", "ftp://host:1/shop",
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="is not the address"):
            HttpConnection.of(wrong)


def newest(client: HttpConnection) -> int:
    """Return the newest commit, as a sign that the server works."""
    asked = {"options": {}, "columns": ["body"]}
    found: int = act(client, "stream", call="reportLatestOffset", **asked)["offset"]["number"]
    return found


def plan(client: HttpConnection, **asked: Any) -> list[bytes]:
    return [b64decode(ticket) for ticket in act(client, "plan", **asked)["tickets"]]


def begin(client: Any, **options: str) -> str:
    session: str = act(client, "begin", **options, queue="orders")["session"]
    return session


def rows(*bodies: bytes) -> Any:
    return pa.record_batch([pa.array(bodies, pa.binary())], ["body"])


def send(client: Any, session: str, texts: list[str], attempt: int = 0, partition: int = 0) -> dict[str, Any]:
    batch = rows(*map(str.encode, texts))
    return write(client, [batch], batch.schema, session, task=partition, attempt=attempt, queue="orders")
