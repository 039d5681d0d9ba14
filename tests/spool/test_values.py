"""The values that a body may have come back as they were; the refusal of another value names one to put instead."""

import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pandas
import pytest

import spool

NOON = datetime(2030, 1, 31, 12, 0, 0, 250, tzinfo=timezone(timedelta(hours=2)))
NAIVE = datetime(2030, 1, 31, 12)


class Pair(NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class Order:
    item: str


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("put", "found"),
    [
        (b"x", b"x"), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), ("x", "x"), (None, None), (True, True),
        (-(2**63), -(2**63)), (2**64 - 1, 2**64 - 1), (1.5, 1.5),
        ([1, ["a"]], [1, ["a"]]), ({1: {"a": b"b"}}, {1: {"a": b"b"}}),
        ((1, 2), [1, 2]), (Pair(1, 2), [1, 2]), ({(1, 2): (3,)}, {(1, 2): [3]}), (NOON, NOON),
    ],
)  # fmt: skip
def test_a_value_comes_back_as_the_table_says(space: spool.Space, put: object, found: object) -> None:
    space.put("orders", put)
    got = space.get("orders").body
    assert (got, type(got)) == (found, type(found))
    assert not isinstance(got, datetime) or got.tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (NAIVE, r"value\.astimezone\(\)"),
        (date(2030, 1, 31), r"value\.isoformat\(\)"),
        (Decimal("1.50"), r"type Decimal: put str\(value\)"),
        (uuid.uuid4(), r"type UUID: put str\(value\)"),
        (Path("a"), r"put str\(value\)"),
        (Colour.RED, r"value\.value"),
        ({1, 2}, r"list\(value\)"),
        (Order("tea"), r"the dataclass Order: put dataclasses\.asdict\(value\)"),
        (object(), "put a plain value"),
        (numpy.int64(1), r"type int64: put value\.item\(\)"),
        (pandas.Series([1]), r"type Series: put value\.tolist\(\)"),
    ],
)
@pytest.mark.parametrize("content_type", [None, "application/json"])
def test_the_error_of_a_refused_value_names_a_value_to_put_instead(
    space: spool.Space, value: object, advice: str, content_type: str | None
) -> None:
    if value is NAIVE and content_type:
        advice = r"value\.isoformat\(\)"
    for body in (value, {"deep": [value]}):
        with pytest.raises(spool.InvalidArgument, match=f"{advice}.*register_codec"):
            space.put("orders", body, content_type=content_type)
    assert space.stats("orders").enqueued == 0


def test_an_integer_beyond_64_bits_is_named(space: spool.Space) -> None:
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(spool.InvalidArgument, match=rf"the integer {value}, which needs more than 64 bits"):
            space.put("orders", {"deep": [value]})


def test_a_time_of_pandas_with_a_time_zone_is_a_time(space: spool.Space) -> None:
    space.put("orders", [pandas.Timestamp(NOON).tz_convert("Europe/Berlin")])
    assert space.get("orders").body == [NOON]
    with pytest.raises(spool.InvalidArgument, match="without a time zone"):
        space.put("orders", pandas.Timestamp(NAIVE))


def test_json_takes_the_values_that_json_has(space: spool.Space) -> None:
    space.put("orders", {1: 2**70}, content_type="application/json")
    assert space.get("orders").body == {"1": 2**70}
    for body, advice in ((NOON, r"timestamp\(\)"), ([b"x"], "base64")):
        with pytest.raises(spool.InvalidArgument, match=advice):
            space.put("orders", body, content_type="application/json")


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["not_before", "expires_at"])
def test_a_time_may_be_a_datetime_with_a_time_zone(space: spool.Space, option: Any) -> None:
    id = space.put("orders", "x", **{option: NOON})
    assert getattr(space.show(id), option) == NOON.timestamp()
    assert getattr(space.change(id, **{option: NOON + timedelta(days=1)}), option) == NOON.timestamp() + 86400
    for call in (lambda: space.put("orders", "x", **{option: NAIVE}), lambda: space.change(id, **{option: NAIVE})):
        with pytest.raises(spool.InvalidArgument, match=rf"{option} is .*datetime with a time zone.*astimezone\(\)"):
            call()
    with pytest.raises(spool.InvalidArgument, match=option):
        space.put("orders", "x", **{option: datetime(1960, 1, 1, tzinfo=UTC)})
    assert space.change(id, priority=50).priority == 50
