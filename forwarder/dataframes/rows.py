"""Turn the messages of a plan into Arrow batches, which a read task sends to Spark."""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

import spool
from forwarder.dataframes.columns import BODY, COLUMNS, GO_ON
from spool.engine.tasks import Item, MessageReader, Missing, ReadMessages, Stretch
from spool.errors import CorruptedFile, InvalidArgument
from spool.model.message import Message, message_id
from spool.model.position import Position

_MICROSECONDS = 1_000_000
_LARGEST_BODY = 2**31 - 1  # the bytes of the largest body that a row of Spark can hold


def read(
    path: str, items: Sequence[Item], schema: StructType, boot_id: str, missing: Missing = Missing.RELOCATE
) -> Iterator[pa.RecordBatch]:
    """Return the messages of a plan as batches with these columns.

    Args:
        boot_id: the boot id of the machine that created the plan.
        missing: the action for a message that is no longer at its planned place.

    Raises:
        CorruptedFile: a body is damaged.
        InvalidArgument: a body is too large for a row of Spark.
        DiskFailure: a file cannot be read.
        UnsafeFileSystem: this process runs on another machine.
    """
    columns = _Columns(schema)
    reader = MessageReader(
        path, lambda: spool.open(path), with_body=BODY in schema.names, missing=missing, largest_body=_LARGEST_BODY
    )
    with closing(reader):
        reader.check_machine(boot_id)
        try:
            for some in reader.batches(items):
                yield columns.batch(some)
        except InvalidArgument as error:
            if error.name != "largest_body":  # e.g. an invalid space.toml
                raise
            said = error.told({"largest_body": "a row of Spark takes"})
            raise InvalidArgument(f"{said}: read without bodies, .option('body', 'false')") from None
        except CorruptedFile as error:
            if missing is not Missing.FAIL:
                raise
            raise CorruptedFile(f"{error}; {GO_ON}") from error


class _Columns:
    """Creates batches with the columns of a schema.

    In most columns, neighbouring messages have the same value. So such a column is created with one value for each
    piece of neighbours, and the value is then repeated. A column with one value for the whole batch is kept and used
    again, because the next batch mostly has the same column.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._kept: dict[str, tuple[Any, pa.Array[Any]]] = {}

    def batch(self, pieces: Sequence[ReadMessages]) -> pa.RecordBatch:
        messages = [_described(piece.stretch) for piece in pieces]
        counts = [piece.stretch.length for piece in pieces]
        rows, repeats = sum(counts), None
        arrays = []
        for field in self._schema:
            by_row = _BY_ROW.get(field.name)
            if by_row is not None:
                arrays.append(by_row(pieces, field.type))
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


def _described(part: Stretch) -> Message:
    """Return the first message of a stretch, without the body.

    All messages of a stretch have the same control fields.
    """
    id_ = message_id(part.branch, part.in_branch)
    return Message(id_, part.queue, None, part.committed_at, Position(part.number, part.first), part.attributes)


def _value(message: Message, name: str) -> Any:
    if name == "number":
        return message.position.number
    value = getattr(message, name)
    if isinstance(COLUMNS[name][0], TimestampType):
        return None if value is None else round(value * _MICROSECONDS)
    return list(value.items()) if isinstance(value, Mapping) else value


def _ids(pieces: Sequence[ReadMessages], of: pa.DataType) -> "pa.Array[Any]":
    """Return the ids as one column. Neighbouring ids differ only in an ordinal, so all ordinals are written at once."""
    joined, count = "", 0
    for stretch in (piece.stretch for piece in pieces):
        ordinals = array("I", range(stretch.in_branch, stretch.in_branch + stretch.length))
        if sys.byteorder == "little":
            ordinals.byteswap()
        branch = stretch.branch.hex()
        joined += branch + ordinals.tobytes().hex("-", ordinals.itemsize).replace("-", branch)
        count += stretch.length
    ends = array("i", range(0, len(joined) + 1, len(joined) // count))
    return pa.Array.from_buffers(of, count, [None, pa.py_buffer(ends), pa.py_buffer(joined.encode())])


def _ordinals(pieces: Sequence[ReadMessages], of: pa.DataType) -> "pa.Array[Any]":
    ranges = (range(p.stretch.first, p.stretch.first + p.stretch.length) for p in pieces)
    return pa.array(array("I", chain.from_iterable(ranges)), of)


def _lengths(pieces: Sequence[ReadMessages]) -> "array[int]":
    return array("I", chain.from_iterable(piece.lengths for piece in pieces))


def _bodies(pieces: Sequence[ReadMessages], of: pa.DataType) -> "pa.Array[Any]":
    """Return the bodies as one column. All bodies are joined at once, so no body is copied separately."""
    ends = array("i", accumulate(_lengths(pieces), initial=0))
    joined = b"".join(chain.from_iterable(piece.bodies for piece in pieces))
    return pa.Array.from_buffers(of, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(joined)])


_BY_ROW: Mapping[str, Callable[[Sequence[ReadMessages], pa.DataType], "pa.Array[Any]"]] = {
    "id": _ids,
    "ordinal": _ordinals,
    BODY: _bodies,
    "body_bytes": lambda pieces, of: pa.array(_lengths(pieces), of),
}
"""The columns in which neighbouring messages differ."""
