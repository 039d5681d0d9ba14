"""Messages as rows: the columns, and the Arrow batches with these columns. Needs pyarrow, and no Spark."""

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from forwarder.message_columns import BODY, COLUMN_KINDS, ColumnKind
from spool.engine.remote import ReadMessages, StoredRun
from spool.model.message import Message, message_id
from spool.model.position import Position

_MICROSECONDS, _LAST_TIME = 1_000_000, 253_402_214_400_000_000  # (the last day of 9999, as Python has no later year)
LARGEST_BODY = 2**31 - 1
"""The bytes of the largest body that a row can hold."""

_TYPES: Mapping[ColumnKind, pa.DataType] = {
    ColumnKind.TEXT: pa.string(), ColumnKind.BYTES: pa.binary(), ColumnKind.INT: pa.int32(),
    ColumnKind.LONG: pa.int64(), ColumnKind.TIME: pa.timestamp("us", "UTC"),
    ColumnKind.HEADERS: pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),  # type: ignore[call-overload]
}  # fmt: skip


def arrow_schema() -> pa.Schema:
    """Return all columns, in the types in which Spark also reads them."""
    return pa.schema([pa.field(name, _TYPES[kind], nullable) for name, (kind, nullable) in COLUMN_KINDS.items()])


class MessageRows:
    """Creates batches with the columns of a schema.

    In most columns, neighbouring messages have the same value. So such a column is created with one value for each
    run of neighbours, and the value is then repeated. A column with one value for the whole batch is kept and used
    again, because the next batch mostly has the same column.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._kept: dict[str, tuple[Any, pa.Array[Any]]] = {}

    def batch(self, parts: Sequence[ReadMessages]) -> pa.RecordBatch:
        messages = [_described(part.run) for part in parts]
        counts = [part.run.length for part in parts]
        rows, repeats = sum(counts), None
        arrays = []
        for field in self._schema:
            by_row = _BY_ROW.get(field.name)
            if by_row is not None:
                arrays.append(by_row(parts, field.type))
                continue
            values = [_value(message, field.name) for message in messages]
            if values.count(values[0]) == len(values):
                arrays.append(self._filled(field, values[0], rows))
                continue
            if repeats is None:
                repeats = pa.array([at for at, count in enumerate(counts) for _ in range(count)])
            arrays.append(pa.array(values, field.type).take(repeats))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _filled(self, field: "pa.Field[Any]", value: Any, count: int) -> "pa.Array[Any]":
        kept, array = self._kept.get(field.name, (None, None))
        if array is None or kept != value or len(array) < count:
            array = pa.array([value] * count, field.type)
            self._kept[field.name] = value, array
        return array.slice(0, count)


def _described(part: StoredRun) -> Message:
    """Return the first message of a run, without the body.

    All messages of a run have the same control fields.
    """
    id_ = message_id(part.branch, part.in_branch)
    return Message(id_, part.queue, None, part.committed_at, Position(part.number, part.first), part.attributes)


def _value(message: Message, name: str) -> Any:
    if name == "number":
        return message.position.number
    value = getattr(message, name)
    if COLUMN_KINDS[name][0] is ColumnKind.TIME:
        return None if value is None else min(round(value * _MICROSECONDS), _LAST_TIME)
    return list(value.items()) if isinstance(value, Mapping) else value


def row_of(message: Message) -> tuple[Any, ...]:
    """Return the values of a message, whose body is the stored bytes, in the order of the columns."""
    own = {"ordinal": message.position.ordinal, "body_bytes": len(message.body)}
    return tuple(own[name] if name in own else _value(message, name) for name in COLUMN_KINDS)


def _ids(parts: Sequence[ReadMessages], of: pa.DataType) -> "pa.Array[Any]":
    """Return the ids as one column. Neighbouring ids differ only in an ordinal, so all ordinals are written at once."""
    joined, count = "", 0
    for run in (part.run for part in parts):
        ordinals = array("I", range(run.in_branch, run.in_branch + run.length))
        if sys.byteorder == "little":
            ordinals.byteswap()
        branch = run.branch.hex()
        joined += branch + ordinals.tobytes().hex("-", ordinals.itemsize).replace("-", branch)
        count += run.length
    ends = array("i", range(0, len(joined) + 1, len(joined) // count))
    return pa.Array.from_buffers(of, count, [None, pa.py_buffer(ends), pa.py_buffer(joined.encode())])


def _ordinals(parts: Sequence[ReadMessages], of: pa.DataType) -> "pa.Array[Any]":
    ranges = (range(p.run.first, p.run.first + p.run.length) for p in parts)
    return pa.array(array("I", chain.from_iterable(ranges)), of)


def _lengths(parts: Sequence[ReadMessages]) -> "array[int]":
    return array("I", chain.from_iterable(part.lengths for part in parts))


def _bodies(parts: Sequence[ReadMessages], of: pa.DataType) -> "pa.Array[Any]":
    """Return the bodies as one column. All bodies are joined at once, so no body is copied separately."""
    ends = array("i", accumulate(_lengths(parts), initial=0))
    joined = b"".join(chain.from_iterable(part.bodies for part in parts))
    return pa.Array.from_buffers(of, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(joined)])


_BY_ROW: Mapping[str, Callable[[Sequence[ReadMessages], pa.DataType], "pa.Array[Any]"]] = {
    "id": _ids,
    "ordinal": _ordinals,
    BODY: _bodies,
    "body_bytes": lambda parts, of: pa.array(_lengths(parts), of),
}
"""The columns in which neighbouring messages differ."""
