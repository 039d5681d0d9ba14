"""``forwarder.decode`` returns bodies of any codec as text."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import forwarder
import spool
from forwarder.dataframes.decoding import text_of
from spool.model import codecs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_reads_the_values_of_bodies(spark: "SparkSession", space: spool.Space) -> None:
    bodies: list[Any] = [{"item": "tea", "count": 2}, "a text", b"bytes", [1, "two", None]]
    for body in bodies:
        space.put("orders", body)
    space.put("orders", {"item": "milk", "count": 1}, content_type="application/json")
    orders = spark.read.format("spool").option("queue", "orders").load(space.path)
    orders = orders.withColumn("text", forwarder.decode()).withColumn(
        "again", forwarder.decode(orders.body, orders.codec)
    )
    rows = orders.selectExpr("number", "text", "get_json_object(again, '$.count') as count").collect()
    found = sorted(rows, key=lambda row: row.number)
    assert [row.text for row in found] == [
        '{"item": "tea", "count": 2}', "a text", None, '[1, "two", null]', '{"item": "milk", "count": 1}'
    ]  # fmt: skip
    assert [row["count"] for row in found] == ["2", None, None, None, "1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '{"at": "2026-01-02T00:00:00+00:00"}'),
        ({"raw": b"\xff"}, '{"raw": "/w=="}'),
        ({1: "a", (1, 2): [{b"k": "ü"}]}, '{"1": "a", "(1, 2)": [{"aw==": "ü"}]}'),
        ("ü", "ü"),
        (b"x", None),
    ],
)
def test_each_value_has_a_text(value: object, text: str | None) -> None:
    raw, name, _ = codecs.encode(value)
    assert text_of(raw, name) == text


def test_a_program_decodes_bodies_that_it_reads_itself() -> None:
    raw, name, _ = codecs.encode({"item": "tea"})
    assert spool.decode(raw, name) == {"item": "tea"}
    with pytest.raises(spool.UnknownCodec):
        spool.decode(b"", "another")
