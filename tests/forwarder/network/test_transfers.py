"""Rows by HTTP: errors in the middle, streams that break off, rights to one queue, and several processes."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import spool
from forwarder.network.arrow import Received, pieces
from forwarder.network.server_calls import act, read, write
from forwarder.web import spark
from forwarder.web.tokens import Tokens
from spool.client.connection import HttpConnection
from spool.errors import AccessDenied, CorruptedFile, InvalidArgument, SystemFailure, TransactionRolledBack
from tests.forwarder.network.conftest import Serve
from tests.forwarder.network.test_four_ways import begin, plan, rows, send
from tests.forwarder.network.test_hostile_clients import assert_serves, reading
from tests.scripts.conftest import start
from tests.shown import bodies, left_over


@pytest.fixture
def client(address: str) -> HttpConnection:
    return HttpConnection.of(address)


def received(data: bytes) -> list[pa.RecordBatch]:
    given = iter([data[at : at + 1000] for at in range(0, len(data), 1000)])
    return list(Received(lambda: next(given, b"")).batches())


def test_rows_are_the_same_after_their_way_and_a_large_batch_is_divided() -> None:
    batches = [rows(b"a", b"b"), rows(*[bytes(1 << 20)] * 20), rows(bytes(9 << 20)), rows(b"c")]
    found = received(b"".join(pieces(batches[0].schema, batches)))
    assert pa.Table.from_batches(found) == pa.Table.from_batches(batches)
    assert [batch.num_rows for batch in found] == [2, 7, 7, 6, 1, 1]


def test_rows_without_the_end_mark_are_refused() -> None:
    whole = b"".join(pieces(rows().schema, [rows(b"a")]))
    for cut in (whole[:-8], whole[:-4], whole[:-100], whole[:20], b""):
        with pytest.raises(InvalidArgument):
            received(cut)
    with pytest.raises(InvalidArgument, match="no stream of Arrow"):
        received(b"\xff" * 1000)


def test_a_write_that_breaks_off_does_not_vote(client: HttpConnection, space: spool.Space) -> None:
    session, batch = begin(client), rows(b"a" * 1000)
    asked, cut = {"task": 0, "attempt": 0, "queue": "orders"}, b"".join(pieces(batch.schema, [batch]))[:-8]
    with pytest.raises(InvalidArgument, match="breaks off"):
        client.call("POST", "spark", session, "write", params=asked, content=cut)
    assert left_over(space.path) == []
    assert_serves(client, space)


def test_a_late_write_of_many_rows_learns_that_its_write_has_ended(client: HttpConnection, space: spool.Space) -> None:
    session, batch = begin(client), rows(bytes(1 << 20))
    act(client, session, "abort")
    for count in (1, 50, 1000):
        with pytest.raises(TransactionRolledBack, match="write has ended"):
            write(client, [batch] * count, batch.schema, session, task=0, attempt=0, queue="orders")


@pytest.mark.parametrize(
    ("error", "kind"), [(CorruptedFile("a body is damaged"), CorruptedFile), (ValueError("a bug"), SystemFailure)]
)
def test_an_error_in_the_middle_of_a_read_reaches_the_client(
    client: HttpConnection, space: spool.Space, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: Any
) -> None:
    def broken(*given: Any) -> Iterator[pa.RecordBatch]:
        for batch in whole(*given):
            yield from [batch] * 10
            raise error

    space.put_many("orders", [bytes(100_000)] * 20)
    whole = spark.read
    [ticket] = plan(client, **reading(queue="orders"))
    monkeypatch.setattr(spark, "read", broken)
    found = read(client, ticket)
    assert next(found).num_rows > 0
    with pytest.raises(kind, match=str(error)):
        list(found)
    monkeypatch.undo()
    assert_serves(client, space)


def test_a_token_for_one_queue_reads_and_writes_this_queue_only(serve: Serve, space: spool.Space) -> None:
    token = "t" * 32
    server = serve(Tokens([f"{token} shop:look=replies shop:put=orders"]))
    client = HttpConnection.of(server.address("shop"), token)
    session = begin(client)
    act(client, session, "commit", votes=[send(client, session, ["a"])["vote"]], rows=1)
    assert_serves(client, space)
    session = begin(client)
    for other in ("replies", None):
        with pytest.raises(AccessDenied, match="right shop:put"):
            act(client, "begin", queue=other)
        with pytest.raises(AccessDenied, match="right shop:put"):
            write(client, [rows(b"a")], rows().schema, session, task=0, attempt=0, queue=other)
    answered = pa.record_batch([pa.array([b"a"]), pa.array(["replies"])], ["body", "reply_queue"])
    with pytest.raises(AccessDenied, match="right shop:put"):
        write(client, [answered], answered.schema, session, task=0, attempt=0, queue="orders")
    for queues in ({"queue": "orders"}, {"queue": "replies,orders"}, {}):
        with pytest.raises(AccessDenied, match="right shop:look"):
            plan(client, **reading(**queues))
        with pytest.raises(AccessDenied, match="right shop:look"):
            act(client, "stream", call="initialOffset", **reading(**queues))
    assert bodies(space) == [b"a"]


def test_a_ticket_needs_the_right_to_its_queues(serve: Serve, space: spool.Space) -> None:
    one, other = "o" * 32, "t" * 32
    server = serve(Tokens([f"{one} shop:look", f"{other} shop:look=replies"]))
    space.put("orders", b"a")
    [ticket] = plan(HttpConnection.of(server.address("shop"), one), **reading(queue="orders"))
    with pytest.raises(AccessDenied, match="right shop:look=orders"):
        list(read(HttpConnection.of(server.address("shop"), other), ticket))


def test_a_server_without_spark_names_the_extra(client: HttpConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "forwarder.web.spark", None)
    with pytest.raises(SystemFailure, match=r"the extra \[spark\]"):
        begin(client)


def test_each_process_of_a_server_reaches_each_write(space: spool.Space) -> None:
    """The sessions are in the processes that began them."""
    words = [f"shop={space.path}", "--listen", "127.0.0.1:0", "--processes", "2", "--json"]
    with start("spool-serve", *words) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            for number in range(8):  # (each token has connections of its own)
                one, two, three = (HttpConnection.of(address, f"{step}-{number}" * 8) for step in range(3))
                session = begin(one)
                vote = send(two, session, [str(number)])["vote"]
                act(three, session, "renew")
                act(three, session, "commit", votes=[vote], rows=1)
        finally:
            process.kill()
    assert sorted(bodies(space), key=int) == [b"%d" % number for number in range(8)]
