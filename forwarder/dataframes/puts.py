"""Rows as puts: the columns of a DataFrame, and their values as options of ``put``.

The columns are checked before the first task starts. In the tasks, ``put`` checks the values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from spool.errors import InvalidArgument
from spool.model.codecs import Encoded
from spool.model.text import did_you_mean

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

BODY, QUEUE, CODEC, KEY = "body", "queue", "codec", "deduplication_key"
_MICROSECONDS = 1_000_000


class Kind(NamedTuple):
    """The kind of a column's values. ``name``: the name for errors. ``accepts``: tests whether a Spark type fits."""

    name: str
    accepts: Callable[[DataType], bool]


def _of(name: str, *types: type[DataType]) -> Kind:
    return Kind(name, lambda found: isinstance(found, types))


_TEXT = _of("string", StringType)
_WHOLE = _of("a whole number", IntegralType)
_SECONDS = _of("a number of seconds", NumericType)
_TIME = _of("a timestamp, or a number of seconds since 1970", TimestampType, NumericType)
_HEADERS = Kind(
    "map<string,string>",
    lambda found: (
        isinstance(found, MapType)
        and isinstance(found.keyType, StringType)
        and isinstance(found.valueType, StringType | NullType)
    ),
)

COLUMNS: Mapping[str, Kind] = {
    BODY: _of("binary or string", BinaryType, StringType),
    QUEUE: _TEXT,
    CODEC: _TEXT,
    "content_type": _TEXT,
    "priority": _WHOLE,
    "not_before": _TIME,
    "delay": _SECONDS,
    "expires_at": _TIME,
    "time_to_live": _SECONDS,
    "correlation_id": _TEXT,
    "reply_queue": _TEXT,
    "failure_queue": _TEXT,
    "user_code": _WHOLE,
    "client_id": _TEXT,
    "application_key": _TEXT,
    "headers": _HEADERS,
    "group": _TEXT,
    "top": _of("boolean", BooleanType),
    KEY: _TEXT,
}
"""The columns of a DataFrame that is written: ``body``, ``queue``, ``codec``, and the options of ``put``.

``codec`` names the encoding of a body's bytes, as in a DataFrame that was read.
"""


class Put(NamedTuple):
    """The arguments of one ``put``: messages with the same options.

    row: the number of the first message's row in the partition, counted from 0.
    queue: the queue of the messages; None if the rows name no queue.
    bodies: the bodies of the messages; None for a row without a body.
    """

    row: int
    queue: str | None
    bodies: list[Any]
    options: dict[str, Any]

    def of_each_row(self) -> Iterator[Self]:
        return (self._replace(row=row, bodies=[body]) for row, body in enumerate(self.bodies, self.row))


@dataclass(frozen=True)
class RowsAsPuts:
    """Turns the rows of one write into puts.

    names: the names of the columns, in order.
    queue: the queue for all rows; None if a column names the queues.
    """

    names: tuple[str, ...]
    queue: str | None

    @classmethod
    def of(cls, schema: StructType, queue: str | None) -> Self:
        """Check the columns of a DataFrame, and return their ``RowsAsPuts``. InvalidArgument lists every mistake."""
        names = tuple(field.name.lower() for field in schema.fields)
        wrong = list(_wrong_columns(schema, names, queue))
        if wrong:
            raise InvalidArgument(f"this DataFrame cannot be written to a space: {'; '.join(wrong)}")
        return cls(names, queue)

    def puts(self, batch: "RecordBatch", first: int) -> Iterator[Put]:
        """Return the puts for the rows of a batch, in order. Neighbouring rows with the same options become one put.

        A row with a deduplication key is always a separate put, even next to a row with the same key. ``first``: the
        number of the batch's first row in the partition.
        """
        columns = {name: _values(column) for name, column in zip(self.names, batch.columns, strict=True)}
        bodies = columns.pop(BODY)
        if CODEC in columns:
            bodies = list(map(_encoded, bodies, columns.pop(CODEC)))
        if not columns:
            if bodies:
                yield Put(first, self.queue, bodies, {})
            return
        own = (None if key is None else row for row, key in enumerate(columns.get(KEY, [None] * len(bodies))))
        start = 0
        for (values, _), same in groupby(zip(zip(*columns.values(), strict=True), own, strict=True)):
            stop = start + sum(1 for _ in same)
            options = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
            queue = options.pop(QUEUE, self.queue)
            yield Put(first + start, queue, bodies[start:stop], options)
            start = stop


def _wrong_columns(schema: StructType, names: tuple[str, ...], queue: str | None) -> Iterable[str]:
    unknown = [field.name for field in schema.fields if field.name.lower() not in COLUMNS]
    if unknown:
        meant = did_you_mean(unknown[0].lower(), COLUMNS) if len(unknown) == 1 else None
        quoted = ", ".join(repr(name) for name in unknown)
        yield f"it has no use for {quoted}{meant or ','} the columns are {', '.join(COLUMNS)}: .drop({quoted}) the rest"
    if BODY not in names:
        yield "it has no column body: name the one that is the message, e.g. .withColumnRenamed('value', 'body')"
    if queue is None and QUEUE not in names:
        yield "it does not say into which queue: set .option('queue', …), or add a column queue"
    if queue is not None and QUEUE in names:
        yield "it has both a column queue and the option queue: leave one of them out"
    yield from (f"it has two columns {name}" for name in sorted({name for name in names if names.count(name) > 1}))
    for field in schema.fields:
        kind = COLUMNS.get(field.name.lower())
        if kind is not None and not isinstance(field.dataType, NullType) and not kind.accepts(field.dataType):
            found = field.dataType.simpleString()
            hint = ", e.g. with to_json" if field.name.lower() == BODY else ""
            yield f"its column {field.name} is {found}, and has to be {kind.name}: convert it{hint}"


def _values(column: "Array[Any]") -> list[Any]:
    """Return the values of a column in the types that ``put`` takes."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_timestamp(kind):
        micros = column.cast(pyarrow.timestamp("us", kind.tz)).cast(pyarrow.int64())
        return [None if value is None else value / _MICROSECONDS for value in micros.to_pylist()]
    values: list[Any] = column.to_pylist()
    if pyarrow.types.is_map(kind):
        return [None if pairs is None else dict(pairs) for pairs in values]
    if pyarrow.types.is_decimal(kind):
        return [None if value is None else float(value) for value in values]
    return values


def _encoded(body: bytes | str | None, codec: str | None) -> Any:
    if body is None or codec is None:
        return body
    return Encoded(body.encode() if isinstance(body, str) else body, codec)
