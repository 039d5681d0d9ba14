"""Rows as puts: the columns of Arrow's record batches, and their values as options of ``put``. Needs pyarrow, and no
Spark.

The columns are checked before the first row is read. ``put`` checks the values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyarrow import types

from spool.errors import InvalidArgument
from spool.model.codecs import Encoded
from spool.model.text import did_you_mean

BODY, QUEUE, CODEC, KEY = "body", "queue", "codec", "deduplication_key"
_MICROSECONDS = 1_000_000


class ColumnType(NamedTuple):
    """The kind of a column's values. ``name``: the name for errors. ``accepts``: tests whether a type fits."""

    name: str
    accepts: Callable[[Any], bool]


def _is_text(found: Any) -> bool:
    return types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)


def _is_body(found: Any) -> bool:
    return any(test(found) for test in (_is_text, types.is_binary, types.is_large_binary, types.is_binary_view))


def _is_map_of_texts(found: Any) -> bool:
    return types.is_map(found) and _is_text(found.key_type) and (_is_text(it := found.item_type) or types.is_null(it))


def _is_number(found: Any) -> bool:
    return types.is_integer(found) or types.is_floating(found) or types.is_decimal(found)


_TEXT = ColumnType("string", _is_text)
_WHOLE = ColumnType("a whole number", types.is_integer)
_SECONDS = ColumnType("a number of seconds", _is_number)
_TIME = ColumnType(
    "a timestamp, or a number of seconds since 1970",
    lambda found: _is_number(found) or (types.is_timestamp(found) and found.tz is not None),
)

COLUMNS: Mapping[str, ColumnType] = {
    BODY: ColumnType("binary or string", _is_body),
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
    "headers": ColumnType("map<string,string>", _is_map_of_texts),
    "group": _TEXT,
    "top": ColumnType("boolean", types.is_boolean),
    KEY: _TEXT,
}
"""The columns of rows that are put: ``body``, ``queue``, ``codec``, and the options of ``put``.

``codec`` names the encoding of a body's bytes, as in rows that were read.
"""


class PutOfRows(NamedTuple):
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
    def of(cls, schema: pa.Schema, queue: str | None, told: Mapping[str, str] | None = None) -> Self:
        """Check the columns of rows, and return their ``RowsAsPuts``. InvalidArgument lists every mistake.

        ``told``: the program's names for the types of columns, for the error.
        """
        names = tuple(name.lower() for name in schema.names)
        wrong = list(_wrong_columns(schema, names, queue, told or {}))
        if wrong:
            raise InvalidArgument(f"this table cannot be written to a space: {'; '.join(wrong)}"[:4000])
        return cls(names, queue)

    def puts(self, batch: pa.RecordBatch, first: int) -> Iterator[PutOfRows]:
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
                yield PutOfRows(first, self.queue, bodies, {})
            return
        own = (None if key is None else row for row, key in enumerate(columns.get(KEY, [None] * len(bodies))))
        start = 0
        for (values, _), same in groupby(zip(zip(*columns.values(), strict=True), own, strict=True)):
            stop = start + sum(1 for _ in same)
            options = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
            queue = options.pop(QUEUE, self.queue)
            yield PutOfRows(first + start, queue, bodies[start:stop], options)
            start = stop


def _wrong_columns(
    schema: pa.Schema, names: tuple[str, ...], queue: str | None, told: Mapping[str, str]
) -> Iterable[str]:
    unknown = [name for name in schema.names if name.lower() not in COLUMNS]
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
    for field in schema:
        kind = COLUMNS.get(field.name.lower())
        if kind is not None and not types.is_null(field.type) and not kind.accepts(field.type):
            hint = ", e.g. with to_json" if field.name.lower() == BODY else ""
            found = told.get(field.name, str(field.type))
            yield f"its column {field.name} is {found}, and has to be {kind.name}: convert it{hint}"


def _values(column: "pa.Array[Any]") -> list[Any]:
    """Return the values of a column in the types that ``put`` takes."""
    kind: Any = column.type
    if types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        return [None if value is None else value / _MICROSECONDS for value in micros.to_pylist()]
    values: list[Any] = column.to_pylist()
    if types.is_map(kind):
        return [None if pairs is None else dict(pairs) for pairs in values]
    if types.is_decimal(kind):
        return [None if value is None else float(value) for value in values]
    return values


def _encoded(body: bytes | str | None, codec: str | None) -> Any:
    if body is None or codec is None:
        return body
    return Encoded(body.encode() if isinstance(body, str) else body, codec)
