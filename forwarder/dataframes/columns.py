"""The columns of a row with a message, and the checked options of the data source."""

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
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

from forwarder.message_columns import BODY, COLUMN_KINDS, ColumnKind
from spool.errors import InvalidArgument
from spool.model.checks import SHORT_TEXT, ValueCheck, check, require, whole
from spool.model.layout import MAX_NUMBER
from spool.model.message import PUT_OPTIONS
from spool.model.paths import local_path
from spool.model.settings import check_queue_name
from spool.model.text import did_you_mean, shortened

# -- columns ----------------------------------------------------------------------------------------------------------

_TYPES: Mapping[ColumnKind, DataType] = {
    ColumnKind.TEXT: StringType(), ColumnKind.BYTES: BinaryType(), ColumnKind.INT: IntegerType(),
    ColumnKind.LONG: LongType(), ColumnKind.TIME: TimestampType(),
    ColumnKind.HEADERS: MapType(StringType(), StringType(), valueContainsNull=False),
}  # fmt: skip
COLUMNS: Mapping[str, tuple[DataType, bool]] = {
    name: (_TYPES[kind], nullable) for name, (kind, nullable) in COLUMN_KINDS.items()
}
"""The type of each column, and whether the column may be null."""


def columns(body: bool) -> StructType:
    """Return the columns of a read. ``body``: whether to include the column of bodies."""
    return StructType([StructField(name, *of) for name, of in COLUMNS.items() if body or name != BODY])


def _which(name: str, what: str, there: Collection[str]) -> str:
    """Return the end of an error text about an unknown name."""
    meant = did_you_mean(name, there)
    return f"{meant} The {what} are {', '.join(there)}" if meant else f": the {what} are {', '.join(there)}"


def check_columns(schema: StructType) -> StructType:
    """Return the columns that a program chose.

    InvalidArgument if a column does not exist, is of another type, or occurs twice.
    """
    for name, times in Counter(schema.names).items():
        if times > 1:
            raise InvalidArgument(f"the column {name} occurs {times} times: name it once")
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
    """Return the value of each given option, by the option's name.

    Args:
        given: the options from Spark, with names in any case, and values as text.
        known: the options that the action takes, besides ``path``.
        doing: the action that takes the options, e.g. ``reading``.

    Raises:
        InvalidArgument: an option is unknown or has a wrong value, or the path is missing.
    """
    names = {name.lower(): name for name in ("path", *known)}
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if key.lower() == "paths":  # from Spark, for .load([…])
            raise _several(value)
        if name is None:
            raise InvalidArgument(f"{doing} has no option {key!r}{_which(key, 'options', names.values())}")
        found[name] = _directory(value) if name == "path" else check(f"the option {name}", value, known[name])
    if "path" not in found:
        raise InvalidArgument(f"{doing} takes the path of a space: name its directory, e.g. .load('/var/spool/orders')")
    return found


def _directory(path: str) -> str:
    """Return the absolute path of a space. InvalidArgument for a URL of another scheme, a list, or a pattern."""
    directory = os.path.abspath(local_path(path))
    if re.search(r"[,*?\[{]", directory) and not os.path.isdir(directory):
        raise _several(path)
    return directory


def _several(path: str) -> InvalidArgument:
    return InvalidArgument(
        f"{shortened(path)} is a list or a pattern: name one space a load, and use union, or name the spaces by "
        ".option('spaces', '/a,/b')"
    )


def number_option(expected: str, least: int = 1, most: int = MAX_NUMBER) -> ValueCheck:
    """Return a check for an option whose value is a whole number."""
    return ValueCheck(expected, lambda value: whole(int(value), most, least))


def _amount(value: str, units: Mapping[str, int]) -> int:
    """Convert an amount with a unit, e.g. 16m or 30 s, into the smallest of the units. Refuse the amount 0."""
    found = re.fullmatch(r"(\d+) ?([a-z]?)", value.strip().lower())
    if found is None or not int(found[1]) or found[2] not in units:
        raise ValueError
    return int(found[1]) * units[found[2]]


def _headers(value: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(value)
    require(isinstance(found, dict))
    PUT_OPTIONS["headers"].check.convert(found)
    return found


LATEST = 0
_NUMBER = number_option("the number of a commit, from 1")
_BEGINNINGS = {"earliest": 1, "latest": LATEST}
_BEGINNING = ValueCheck(
    "earliest, latest or the number of a commit, from 1",
    lambda value: _BEGINNINGS[value.lower()] if value.lower() in _BEGINNINGS else _NUMBER.convert(value),
)
_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BYTES = ValueCheck("a number of bytes, e.g. 16m", lambda value: _amount(value, _BYTE_UNITS))
_SECOND_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = ValueCheck(
    "a number of seconds, minutes, hours or days, e.g. 90s, 30m, 12h, 7d", lambda value: _amount(value, _SECOND_UNITS)
)
_MOST_EXPIRY = 366 * 86_400
_EXPIRY = ValueCheck(
    f"{_DURATION.expected}, at most 366d", lambda value: whole(_DURATION.convert(value), _MOST_EXPIRY, 1)
)
_QUEUES = ValueCheck(
    "a queue's name, or several with commas between them",
    lambda value: tuple(dict.fromkeys(check_queue_name(name.strip()) for name in value.split(","))),
)
_HEADERS = ValueCheck("""a JSON object of texts, e.g. {"tenant": "acme"}""", _headers)
_TRUTH = ValueCheck("true or false", lambda value: bool(("false", "true").index(value.lower())))


def _option(name: str, value_check: ValueCheck, **default: Any) -> Any:
    """Return a dataclass field for an option that Spark's programs set."""
    return field(**default, metadata={"option": name, "check": value_check})


@dataclass(frozen=True)
class ReadOptions:
    """The options of a batch read: the messages to read, and the size of a task.

    path: the directory of the space.
    queues: the names of the queues to read. Without names, all queues are read.
    first, last: the first and the last commit whose messages are read. By default, the last commit is the newest.
    headers: the headers that a message must have to be read. The message may have further headers.
    body: whether a column has the bodies. A program that chooses its columns overrides this option.
    partition_bytes: the approximate bytes for one task. By default, the size of a task depends on the number of
        processors and the total size.
    """

    path: str
    queues: tuple[str, ...] = _option("queue", _QUEUES, default=())
    first: int = _option("from", _NUMBER, default=1)
    last: int | None = _option("to", _NUMBER, default=None)
    headers: Mapping[str, str] = _option("headers", _HEADERS, default_factory=dict)
    body: bool = _option("body", _TRUTH, default=True)
    partition_bytes: int | None = _option("partitionBytes", _BYTES, default=None)

    @classmethod
    def of(cls, given: Options) -> Self:
        """Return the checked options of a batch read. InvalidArgument if an option is wrong."""
        found = cls._parsed(given, "reading a space")
        if found.last is not None and found.last < found.first:
            raise InvalidArgument(f"the option from, {found.first}, is after the option to, {found.last}: swap them")
        return found

    @classmethod
    def _parsed(cls, given: Options, doing: str) -> Self:
        found = parse_options(given, cls.checks(), doing)
        names = {each.metadata.get("option", each.name): each.name for each in fields(cls)}
        return cls(**{names[option]: value for option, value in found.items()})

    @classmethod
    def checks(cls) -> dict[str, ValueCheck]:
        """Return a check for each option, by the option's name in Spark's programs."""
        return {each.metadata["option"]: each.metadata["check"] for each in fields(cls) if each.metadata}


GO_ON = "to continue with the readable messages, start the query with .option('failOnDataLoss', 'false')"
"""The advice after a loss of messages that were kept for a subscription."""


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    """The messages to read as a stream.

    first: the commit with which a new query begins. LATEST stands for the first commit after the start of the query.
    max_messages, max_bytes: the approximate limits of a batch. None means no limit.
    subscription: the name of the subscription. Without a name, the space keeps no unread messages for the query.
    expiry: the seconds after which the subscription ends unless the query renews it.
    fail_on_loss: whether the query fails if messages of its subscription were lost. Otherwise the query continues.
    """

    first: int = _option("from", _BEGINNING, default=1)
    last: None = None  # a stream has no last commit
    max_messages: int | None = _option(
        "maxMessagesPerTrigger", number_option("a number of messages, from 1", most=2**31 - 1), default=None
    )
    max_bytes: int | None = _option("maxBytesPerTrigger", _BYTES, default=None)
    subscription: str = _option("subscription", SHORT_TEXT, default="")
    expiry: float = _option("subscriptionExpiry", _EXPIRY, default=7 * 86_400.0)
    fail_on_loss: bool = _option("failOnDataLoss", _TRUTH, default=True)

    @classmethod
    def of(cls, given: Options) -> Self:
        """Return the checked options of a stream read. InvalidArgument if an option is wrong."""
        found = cls._parsed(given, "reading a space as a stream")
        names = {name.lower() for name in given}
        for name in ("subscriptionExpiry", "failOnDataLoss"):
            if name.lower() in names and not found.subscription:
                raise InvalidArgument(f"the option {name} is about a subscription: name it by the option subscription")
        return found


def chosen_columns(given: Options) -> StructType:
    """Return the columns of a read with these options. Spark has not yet chosen between a batch and a stream.

    Raises InvalidArgument for an option that neither a batch nor a stream takes.
    """
    known = {**ReadOptions.checks(), **StreamOptions.checks()}
    return columns(parse_options(given, known, "reading a space").get("body", True))
