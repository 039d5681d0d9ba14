"""The columns of a message as a row, and the options of the data source as checked values."""

import json
import os
import re
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

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
from spool.model.checks import ValueCheck, check, text
from spool.model.layout import MAX_NUMBER
from spool.model.message import PUT_OPTIONS
from spool.model.settings import check_queue_name
from spool.model.text import did_you_mean

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
"""The type of each column, and whether the column may be null.

Names and meanings are those of ``spool.Message``, with five exceptions. ``number`` and ``ordinal`` are the position of
the message. ``body`` is the body as stored, and ``body_bytes`` its size. ``codec`` names the encoding of the body; null
means bytes.
"""


def columns(body: bool) -> StructType:
    """Return the columns of a read. ``body``: whether the bodies of the messages are a column."""
    return StructType([StructField(name, *of) for name, of in COLUMNS.items() if body or name != BODY])


def _which(name: str, what: str, there: Collection[str]) -> str:
    """Return the last part of the text of an error about an unknown name."""
    meant = did_you_mean(name, there)
    return f"{meant} The {what} are {', '.join(there)}" if meant else f": the {what} are {', '.join(there)}"


def check_columns(schema: StructType) -> StructType:
    """Return the columns that a program chose. InvalidArgument if a column does not exist, or is of another type."""
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
        given: the options as Spark passes them, with names in any case and values as text.
        known: the options that the action takes, besides ``path``.
        doing: the action that takes the options, e.g. ``reading``.

    Raises:
        InvalidArgument: an option is unknown or has a wrong value, or the path is missing.
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


def _queues(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    return tuple(map(check_queue_name, names))


LATEST = 0


def _beginning(value: str) -> int:
    named = {"earliest": 1, "latest": LATEST}
    return named[value.lower()] if value.lower() in named else number_option("").convert(value)


def _headers(value: str) -> Mapping[str, str]:
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError
    PUT_OPTIONS["headers"].check.convert(found)
    return found


NAME = ValueCheck("a text of 1 to 255 characters", lambda value: text(value, most=255))
BYTES = ValueCheck("a number of bytes, e.g. 16m", _bytes)


def truth(value: str) -> bool:
    """Return the value of ``true`` or ``false``; ValueError for anything else."""
    if value.lower() not in ("true", "false"):
        raise ValueError
    return value.lower() == "true"


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _duration(value: str) -> float:
    found = re.fullmatch(r"(\d+) ?([smhd])", value.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise ValueError
    return int(found[1]) * _SECONDS[found[2].lower()]


_QUEUE = ValueCheck("a queue's name, or several with commas between them", _queues)
_HEADERS = ValueCheck("""a JSON object of texts, e.g. {"tenant": "acme"}""", _headers)
_BODY = ValueCheck("true or false", truth)

READING: Mapping[str, ValueCheck] = {
    "queue": _QUEUE,
    "from": number_option("the number of a commit, from 1"),
    "to": number_option("the number of a commit, from 1"),
    "headers": _HEADERS,
    "body": _BODY,
    "partitionBytes": BYTES,
}
"""The options of a batch read."""

STREAMING: Mapping[str, ValueCheck] = {
    "queue": _QUEUE,
    "from": ValueCheck("earliest, latest or the number of a commit, from 1", _beginning),
    "headers": _HEADERS,
    "body": _BODY,
    "partitionBytes": BYTES,
    "maxMessagesPerTrigger": number_option("a number of messages, from 1", most=2**31 - 1),
    "maxBytesPerTrigger": BYTES,
    "subscription": NAME,
    "subscriptionExpiry": ValueCheck("a number of seconds, minutes, hours or days, e.g. 90s, 30m, 12h, 7d", _duration),
    "failOnDataLoss": _BODY,
}
"""The options of a stream read."""


def chosen_columns(given: Options) -> StructType:
    """Return the columns of a read with these options. Spark has not yet said whether the read is a batch or a stream.

    Raises InvalidArgument for an option that neither a batch nor a stream takes.
    """
    return columns(parse_options(given, {**READING, **STREAMING}, "reading a space").get("body", True))


@dataclass(frozen=True)
class ReadOptions:
    """The messages to read, and their division among tasks.

    path: the directory of the space.
    queues: the names of the queues to read. Without names, all queues are read.
    first, last: the first and the last commit whose messages are read. By default, the last commit is the newest.
    headers: only messages with these headers are read; a message may have further headers.
    body: whether the bodies are a column. A program that chooses its columns overrides this option.
    partition_bytes: the approximate bytes for one task. By default, the number suits the processors and the total size.
    """

    path: str
    queues: tuple[str, ...] = ()
    first: int = 1
    last: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bool = True
    partition_bytes: int | None = None

    @classmethod
    def of(cls, given: Options) -> "ReadOptions":
        """Return the checked options of a batch read. InvalidArgument if an option is wrong."""
        found = cls(**_arguments(parse_options(given, READING, "reading a space")))
        if found.last is not None and found.last < found.first:
            raise InvalidArgument(f"the option from, {found.first}, is after the option to, {found.last}: swap them")
        return found


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    """The messages to read as a stream.

    first: a new query begins with the messages of this commit. LATEST stands for the first commit after its start.
    max_messages, max_bytes: the approximate limits of a batch. None means no limit.
    subscription: the name of the subscription. Without a name, the space keeps no unread messages for the query.
    expiry: the seconds after which the subscription ends unless the query renews it.
    fail_on_loss: whether the query fails if kept messages were lost. Otherwise the query continues.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    subscription: str = ""
    expiry: float = 7 * 86_400.0
    fail_on_loss: bool = True

    @classmethod
    def of(cls, given: Options) -> "StreamOptions":
        """Return the checked options of a stream read. InvalidArgument if an option is wrong."""
        found = parse_options(given, STREAMING, "reading a space as a stream")
        for name in ("subscriptionExpiry", "failOnDataLoss"):
            if name in found and "subscription" not in found:
                raise InvalidArgument(f"the option {name} is about a subscription: name it by the option subscription")
        return cls(**_arguments(found))


_ARGUMENTS = {
    "queue": "queues",
    "from": "first",
    "to": "last",
    "partitionBytes": "partition_bytes",
    "maxMessagesPerTrigger": "max_messages",
    "maxBytesPerTrigger": "max_bytes",
    "subscriptionExpiry": "expiry",
    "failOnDataLoss": "fail_on_loss",
}


def _arguments(found: Mapping[str, Any]) -> dict[str, Any]:
    return {_ARGUMENTS.get(name, name): value for name, value in found.items()}
