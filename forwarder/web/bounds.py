"""Check that the values of clients' requests are within their bounds. A value beyond its bounds raises ValueError,
which the client gets as an InvalidArgument.

A client may be any program with a token. So the server checks every value, although xaspool's own clients never send a
value that is refused.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from forwarder.dataframes.sink import check_count
from forwarder.subscriber import NUMBER, SINCE, Offset
from spool.engine.tasks import BatchOf, Vote
from spool.model.checks import SHORT_TEXT, whole
from spool.model.layout import MAX_NUMBER
from spool.model.xid import Xid

_MOST_TASKS, _MOST_COUNTED = 2**31 - 1, 2**63 - 1  # the largest Java int and Java long
_MOST_SOURCE = 4096
_DEEPEST_TYPE = 8
_LONGEST_SCHEMA, _MOST_FIELDS = 1 << 20, 1000
_LONGEST_OPTIONS = 1 << 20
_PARTS = {"array": ("elementType",), "map": ("keyType", "valueType")}


def schema(text: str) -> StructType:
    """Return the columns that a client names, without their metadata. ValueError unless each column has a plain type.

    For a user-defined type ("udt"), Spark would import a module that the client chose.
    """
    if len(text) > _LONGEST_SCHEMA:
        raise ValueError(f"the columns have {len(text):,} characters, more than {_LONGEST_SCHEMA:,}")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("the columns are nested too deeply") from None
    _check_struct(found, _DEEPEST_TYPE)
    return StructType.fromJson(found)


def _check_struct(found: Any, depth: int) -> None:
    if not isinstance(found, dict) or found.get("type") != "struct" or not isinstance(found.get("fields"), list):
        raise ValueError(f"{found!r:.100} are no columns")
    if len(found["fields"]) > _MOST_FIELDS:
        raise ValueError(f"a row has {len(found['fields']):,} fields, more than {_MOST_FIELDS:,}")
    for field in found["fields"]:
        if not isinstance(field, dict) or not field.keys() <= {"name", "type", "nullable", "metadata"}:
            raise ValueError(f"{field!r:.100} is no column")
        name, nullable, metadata = field.get("name"), field.get("nullable", True), field.get("metadata") or {}
        if not isinstance(name, str) or not isinstance(nullable, bool) or not isinstance(metadata, dict):
            raise ValueError(f"{field!r:.100} is no column")
        _check_type(field.get("type"), depth)
        field["metadata"] = {}  # (the server does not use metadata)


def _check_type(found: Any, depth: int) -> None:
    if isinstance(found, str):
        return  # (Spark converts the names of plain types, and refuses other names)
    kind = found.get("type") if isinstance(found, dict) else None
    if depth and kind == "struct":
        _check_struct(found, depth - 1)
    elif depth and kind in _PARTS:
        for part in _PARTS[kind]:
            _check_type(found.get(part), depth - 1)
    else:
        raise ValueError(f"{found!r:.100} is no plain type of a column")


def options(given: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the options of a stream. The server keeps the options for the stream's next call."""
    if sum(len(str(name)) + len(str(value)) for name, value in given.items()) > _LONGEST_OPTIONS:
        raise ValueError(f"the options have more than {_LONGEST_OPTIONS:,} characters")
    return given


def offset(values: Any) -> Offset:
    """Return the offset of a stream: the number of a commit, and for a subscription the number of its registration."""
    if not isinstance(values, dict) or NUMBER not in values or not values.keys() <= {NUMBER, SINCE}:
        raise ValueError(f"{values!r:.100} is no offset of a stream")
    return {name: whole(value, MAX_NUMBER) for name, value in values.items()}


def limit(values: Any) -> ReadLimit:
    """Return the limit of a batch: a kind and a number, or None for all messages."""
    if values is None:
        return ReadAllAvailable()
    kind, number = values
    return {"rows": ReadMaxRows, "bytes": ReadMaxBytes}[kind](whole(number, _MOST_COUNTED, 1))


def target(value: Any) -> int | None:
    """Return the number of the last commit that a stream reads, or None for an endless stream."""
    return None if value is None else whole(value, MAX_NUMBER)


def task(partition: Any, attempt: Any) -> tuple[int, int]:
    return whole(partition, _MOST_TASKS), whole(attempt, _MOST_COUNTED)


def check_rows(rows: Any) -> None:
    """Raise InvalidArgument if one commit cannot have this number of rows."""
    check_count(whole(rows, _MOST_COUNTED))


def votes(values: Sequence[Any]) -> list[Vote]:
    return [
        Vote(Xid.checked(*xid), whole(size, _MOST_COUNTED), whole(checksum, 2**32 - 1))
        for xid, size, checksum in values
    ]


def batch(values: Any) -> BatchOf | None:
    """Return the name of a write: the application, the number of the batch, and the source of the batch numbers."""
    if values is None:
        return None
    application, number, source = values
    if not isinstance(source, str) or len(source) > _MOST_SOURCE:
        raise ValueError(f"{source!r:.100} is no source of batches")
    return BatchOf(SHORT_TEXT.convert(application), whole(number, _MOST_COUNTED), source)
