"""Any client that knows Arrow puts, claims and looks at messages as rows, in the columns of Spark's reads."""

import io
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

import spool
from forwarder.message_rows import arrow_schema

ARROW, ORDERS = "application/vnd.apache.arrow.stream", "/queues/orders/messages"


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    server, _, space = address.rpartition("/")
    with httpx.Client(base_url=f"{server}/v1/{space}", headers={"Accept": ARROW}, timeout=60) as client:
        yield client


def stream_of(table: pa.Table, compression: Any = None, metadata: Any = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0], metadata)
    return sink.getvalue()


def put(client: httpx.Client, content: bytes) -> httpx.Response:
    return client.post(ORDERS, content=content, headers={"Content-Type": ARROW})


def test_rows_are_put_in_one_commit_and_come_back_as_rows(client: httpx.Client, space: spool.Space) -> None:
    columns = {"body": ["a", "b", "c"], "priority": [7, 7, None], "headers": [[("n", "1")], [("n", "1")], None]}
    schema = pa.schema({"body": pa.string_view(), "priority": pa.int32(), "headers": pa.map_(pa.string(), pa.string())})
    answer = put(client, stream_of(pa.table(columns, schema)))
    looked = pa.ipc.open_stream(client.get(ORDERS).content).read_all()
    assert (answer.status_code, looked.schema) == (201, arrow_schema())
    assert (looked["id"].to_pylist(), looked["body"].to_pylist()) == (answer.json()["ids"], [b"a", b"b", b"c"])
    assert (looked["priority"].to_pylist(), len(set(looked["number"].to_pylist()))) == ([7, 7, 50], 1)
    claimed = pa.ipc.open_stream(client.post("/queues/orders/claims?max=3").content).read_all()
    assert claimed.drop_columns("receipt") == looked
    first, *others = claimed["receipt"].to_pylist()
    assert client.post(f"/claims/{first}/commit", json={"receipts": others}).status_code == 200
    assert client.post("/queues/orders/claims").status_code == 204
    space.put("orders", b"late", expires_at=3e11)
    (late,) = pa.ipc.open_stream(client.get(ORDERS).content).read_all()["expires_at"].to_pylist()
    assert str(late) == "9999-12-31 00:00:00+00:00", "the last time that Python knows in any time zone"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no rows", "no stream of Arrow"),
        (stream_of(pa.table({"body": ["a"]}))[:-8], "breaks off"),
        (stream_of(pa.table({"body": ["a" * 10_000]}), "zstd", {"xaspool problem": "{}"}), "compressed"),
        (stream_of(pa.table({"body": ["a"], "colour": ["red"]})), "no use for 'colour'"),
        (stream_of(pa.table({"body": ["a"], "queue": ["replies"]})), "leave one of them out"),
        (stream_of(pa.table({"body": ["a", None]})), "row 1, counted from 0, has no body"),
        (stream_of(pa.table({"body": ["a"], "priority": [1000]})), "Priority"),
        (stream_of(pa.table({"body": ["x"] * 65_537})), "at most 65,536 messages"),
        (stream_of(pa.table({"body": pa.nulls(1 << 30)})), "at most 65,536 messages"),
    ],
)
def test_wrong_rows_put_nothing(client: httpx.Client, space: spool.Space, content: bytes, said: str) -> None:
    answer = put(client, content)
    assert (answer.status_code, said in answer.json()["detail"]) == (400, True), answer.text
    assert space.stats("orders").ready == 0


def test_a_server_without_pyarrow_says_so_and_claims_nothing(
    client: httpx.Client, space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", b"a")
    monkeypatch.setitem(sys.modules, "forwarder.web.rows", None)
    answers = [put(client, b""), client.get(ORDERS), client.post("/queues/orders/claims")]
    assert [answer.status_code for answer in answers] == [415, 406, 406]
    assert all("the extra [parquet]" in answer.json()["detail"] for answer in answers)
    assert space.stats("orders").ready == 1
