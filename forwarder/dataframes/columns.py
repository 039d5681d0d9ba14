"""The columns of a message as a row, and the options of the data source as checked values."""

import json
import os
import re
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Self

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spool.errors import InvalidArgument
from spool.model.checks import ValueCheck, check
from spool.model.layout import MAX_NUMBER
from spool.model.message import attributes_of
from spool.model.settings import check_queue_name
from spool.text import did_you_mean

# -- columns ----------------------------------------------------------------------------------------------------------

_TEXT, _TIME = StringType(), TimestampType()
BODY = "body"
COLUMNS: Mapping[str, tuple[DataType, bool]] = {
    "id": (_TEXT, False),
    "queue": (_TEXT, False),
    "number": (LongType(), False),
    "ordinal": (IntegerType(), False),
    BODY: (BinaryType(), False),
    "body_bytes": (LongType(), False),
    "codec": (_TEXT, True),
    "content_type": (_TEXT, False),
    "priority": (IntegerType(), False),
    "enqueued_at": (_TIME, False),
    "not_before": (_TIME, True),
    "expires_at": (_TIME, True),
    "correlation_id": (_TEXT, True),
    "reply_queue": (_TEXT, True),
    "failure_queue": (_TEXT, True),
    "user_code": (LongType(), False),
    "client_id": (_TEXT, True),
    "application_key": (_TEXT, True),
    "headers": (MapType(_TEXT, _TEXT, valueContainsNull=False), False),
    "group": (_TEXT, True),
    "attempts": (IntegerType(), False),
    "origin_queue": (_TEXT, True),
    "origin_attempts": (IntegerType(), False),
    "failure_reason": (_TEXT, True),
}
"""The type of each column, and whether it may be null. Names and meanings are those of ``spool.Message``, but for
``number`` and ``ordinal``, which are its position; ``body``, which is its bytes as they are stored; ``body_bytes``, how
many those are; and ``codec``, which tells what they are (null: bytes)."""


def columns(body: bool) -> StructType:
    """Return the columns of a read. ``body``: with the messages' bodies."""
    return StructType([StructField(name, *of) for name, of in COLUMNS.items() if body or name != BODY])


def _which(name: str, what: str, there: Collection[str]) -> str:
    """Return the end of an error about a name that is not there."""
    meant = did_you_mean(name, there)
    return f"{meant} The {what} are {', '.join(there)}" if meant else f": the {what} are {', '.join(there)}"


def check_columns(schema: StructType) -> StructType:
    """Return the columns that a program chose. InvalidArgument if there is none of a name, or its type is another."""
    for chosen in schema.fields:
        known = COLUMNS.get(chosen.name)
        if known is None:
            raise InvalidArgument(f"there is no column {chosen.name!r}{_which(chosen.name, 'columns', COLUMNS)}")
        if chosen.dataType.simpleString() != known[0].simpleString():
            right, wrong = known[0].simpleString(), chosen.dataType.simpleString()
            raise InvalidArgument(
                f"the column {chosen.name} is of the type {right}, not {wrong}: cast it after the load"
            )
    return schema


# -- options ----------------------------------------------------------------------------------------------------------

Options = MutableMapping[str, str]


def parse_options(given: Options, known: Mapping[str, ValueCheck], doing: str) -> dict[str, Any]:
    """Return the values of the options that are given, by name.

    Args:
        given: as Spark has them: their names in any case, their values as text.
        known: what there is; ``path`` is among the options always.
        doing: what the options are of, e.g. ``reading``.

    Raises:
        InvalidArgument: an option is not known, or has a value that it does not take; or the path is missing.
    """
    names = {name.lower(): name for name in ("path", *known)}
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            raise InvalidArgument(f"{doing} has no option {key!r}{_which(key, 'options', names.values())}")
        found[name] = os.path.abspath(value) if name == "path" else check(f"the option {name}", value, known[name])
    if "path" not in found:
        raise InvalidArgument(f"{doing} takes the path of a space: name its directory, e.g. .load('/var/spool/orders')")
    return found


def number_option(expected: str, least: int = 1, most: int = MAX_NUMBER) -> ValueCheck:
    """Return the check of an option that is a whole number."""

    def convert(value: str) -> int:
        number = int(value)
        if not least <= number <= most:
            raise ValueError
        return number

    return ValueCheck(expected, convert)


_BYTES = re.compile(r"(\d+) ?(b|k|m|g)?", re.IGNORECASE)


def _bytes(value: str) -> int:
    found = _BYTES.fullmatch(value.strip())
    if found is None or not int(found[1]):
        raise ValueError
    return int(found[1]) << {"b": 0, "k": 10, "m": 20, "g": 30}[(found[2] or "b").lower()]


def _truth(value: str) -> bool:
    return {"true": True, "false": False}[value.lower()]


def _queues(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    return tuple(map(check_queue_name, names))


def _headers(value: str) -> Mapping[str, str]:
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError
    attributes_of(headers=found)
    return found


BYTES = ValueCheck("a number of bytes, e.g. 16m", _bytes)


def checked_truth(value: str) -> bool:
    """Return what ``true`` or ``false`` says; ValueError for anything else."""
    try:
        return _truth(value)
    except KeyError:
        raise ValueError from None


READING: Mapping[str, ValueCheck] = {
    "queue": ValueCheck("a queue's name, or several with commas between them", _queues),
    "from": number_option("the number of a commit, from 1"),
    "to": number_option("the number of a commit, from 1"),
    "headers": ValueCheck("""a JSON object of texts, e.g. {"tenant": "acme"}""", _headers),
    "body": ValueCheck("true or false", checked_truth),
    "partitionBytes": BYTES,
}
"""The options of a batch read."""


@dataclass(frozen=True)
class ReadOptions:
    """What to read, and how it is divided.

    path: the directory of the space.
    queues: their names; none: all queues.
    first, last: the commits whose messages are read, both included; ``last`` None: as many as there are.
    headers: at least these.
    body: whether the schema has the bodies, unless the program chooses its columns.
    partition_bytes: how much one task reads.
    """

    path: str
    queues: tuple[str, ...] = ()
    first: int = 1
    last: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bool = True
    partition_bytes: int = 16 << 20

    @classmethod
    def of(cls, given: Options) -> Self:
        """Make it of the options of a batch read; InvalidArgument."""
        return cls._of(parse_options(given, READING, "reading a space"))

    @classmethod
    def _of(cls, found: dict[str, Any]) -> Self:
        if found.get("to", MAX_NUMBER) < found.get("from", 1):
            raise InvalidArgument(
                f"the option from, {found['from']}, is behind the option to, {found['to']}: swap them"
            )
        return cls(**{_NAMES.get(name, name): value for name, value in found.items()})


_NAMES = {"queue": "queues", "from": "first", "to": "last", "partitionBytes": "partition_bytes"}
