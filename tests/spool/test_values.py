"""The values that a body may have come back as they were; the refusal of another value names one to put instead."""

import dataclasses
import enum
import functools
import json
import math
import sys
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pandas
import pytest
from msgpack import Timestamp

import spool

NOON = datetime(2030, 1, 31, 12, 0, 0, 250, tzinfo=timezone(timedelta(hours=2)))
NAIVE = datetime(2030, 1, 31, 12)
EAST, WEST = (timezone(timedelta(hours=hours)) for hours in (1, -1))
ENDS = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]


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
    for body, advice in ((NOON, r"timestamp\(\)"), ([b"x"], "base64"), (math.inf, "JSON")):
        with pytest.raises(spool.InvalidArgument, match=advice):
            space.put("orders", body, content_type="application/json")


@pytest.mark.parametrize("time", [ENDS[0].replace(tzinfo=EAST), {ENDS[1].replace(tzinfo=WEST): 1}, Timestamp(2**40)])
def test_a_time_that_no_consumer_can_get_is_refused(space: spool.Space, time: object) -> None:
    with pytest.raises(spool.InvalidArgument, match="out of range"):
        space.put("orders", {"valid_from": [time]})
    space.put("orders", [*ENDS, -1, b"\xff"])
    assert space.get("orders").body == [*ENDS, -1, b"\xff"]


def test_a_body_is_decoded_although_the_stack_of_its_consumer_is_deep(space: spool.Space) -> None:
    """Only a body that is nested too deeply for an empty stack is damaged."""
    body = functools.reduce(lambda inner, _: [inner], range(sys.getrecursionlimit() - 250), "")
    space.put("orders", body, content_type="application/json")

    def get(calls: int) -> spool.Message:
        return get(calls - 1) if calls else space.get("orders")

    assert json.dumps(get(150).body) == json.dumps(body)


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
    with pytest.raises(spool.InvalidArgument, match="priority is a whole number"):
        space.change(id, priority=None)  # type: ignore[arg-type]
    assert space.check() == []
