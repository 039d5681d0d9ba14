"""Record batches as Arrow's IPC stream, in pieces that HTTP transports, and back.

An error in the middle of a stream cannot change the status of the answer. So the sender ends the stream with a batch
without rows, whose metadata describe the error. A stream without its end mark is refused.
"""

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa

from spool.client.problems import error_of
from spool.errors import InvalidArgument, SpoolError

_PIECE, _MOST_BATCH = 256 << 10, 8 << 20
_BATCH_ROWS, _BATCH_BYTES = 4096, 1 << 20
_MOST_AT_ONCE = (2 << 30) + (1 << 20)  # an array of Arrow has at most 2 GiB
_END = b"\xff\xff\xff\xff\0\0\0\0"
_PROBLEM = b"xaspool problem"


def pieces(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], problem: Callable[[Exception], bytes] | None = None
) -> Generator[bytes]:
    """Yield the bytes of a stream.

    ``problem``: returns the body of an error's answer, which is sent before the error is raised.
    """
    waiting: list[Any] = [schema.serialize()]
    size = 0
    try:
        for part in chain.from_iterable(map(_parts, batches)):
            waiting.append(part.serialize())
            size += len(waiting[-1])
            if size >= _PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
        waiting.append(_END)
    except Exception as error:
        if problem is not None:
            yield b"".join([*waiting, _problem_batch(schema, problem(error))])
        raise
    yield b"".join(waiting)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a large batch, because the receiver has a whole batch in memory."""
    rows = max(1, batch.num_rows * _MOST_BATCH // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _problem_batch(schema: pa.Schema, problem: bytes) -> bytes:
    sink, none = pa.BufferOutputStream(), pa.record_batch([pa.array([], each.type) for each in schema], schema=schema)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(none, custom_metadata={_PROBLEM: problem})
    return sink.getvalue().to_pybytes()[len(schema.serialize()) : -len(_END)]


def batches(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of a limited size."""
    some, size = list[tuple[Any, ...]](), 0
    for row in rows:
        some.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if len(some) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _batch(schema, some)
            some, size = [], 0
    if some:
        yield _batch(schema, some)


def _batch(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    return pa.record_batch([pa.array(list(values), field.type) for values, field in columns], schema=schema)


class Received:
    """A received stream. ``schema``: its columns. ``next_piece``: returns the next piece, or b"" at the end.

    Raises InvalidArgument if the pieces are no stream of Arrow.
    """

    closed = False

    def __init__(self, next_piece: Callable[[], bytes], *, of_server: bool = False) -> None:
        self._next_piece, self._waiting, self._of_server = next_piece, memoryview(b""), of_server
        self._is_whole = False  # whether the last read got bytes: otherwise the stream has no end mark
        file: Any = self
        with _refusing():
            self._messages = pa.ipc.MessageReader.open_stream(file)
            self.schema = pa.ipc.read_schema(self._next_message())

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the batches. Raises the error that ends the stream; InvalidArgument if the stream has no end."""
        while True:
            with _refusing():
                message = self._next_message()
                if message is None:
                    return
                metadata = message.metadata.to_pybytes()
                if self._of_server and _PROBLEM in metadata:
                    raise self._told(message)
                if _is_compressed(metadata):
                    raise InvalidArgument("the rows are compressed, so their size is unknown: send them uncompressed")
                batch = pa.ipc.read_record_batch(message, self.schema)
                batch.validate(full=True)
            yield batch

    def _told(self, message: Any) -> SpoolError:
        whole = self.schema.serialize().to_pybytes() + message.serialize().to_pybytes()
        metadata: Any = pa.ipc.open_stream(whole).read_next_batch_with_custom_metadata()[1]
        return error_of(500, metadata[_PROBLEM])

    def _next_message(self) -> Any:
        try:
            return self._messages.read_next_message()
        except StopIteration:
            if not self._is_whole:
                raise InvalidArgument("the stream of rows breaks off: it has no end mark") from None
            return None

    def read(self, size: int) -> bytes:
        """Return bytes of the pieces. (Arrow reads this object as a file.)"""
        if size > _MOST_AT_ONCE:
            raise InvalidArgument(f"a batch of rows has {size:,} bytes, more than {_MOST_AT_ONCE:,}")
        parts, missing = list[memoryview](), size
        while missing > 0 and (self._waiting or (piece := self._next_piece())):
            self._waiting = self._waiting or memoryview(piece)
            parts.append(self._waiting[:missing])
            self._waiting = self._waiting[missing:]
            missing -= len(parts[-1])
        self._is_whole = bool(parts)
        return b"".join(parts)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    seekable = writable

    def close(self) -> None:
        """Do nothing: the call ends with its block."""


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the metadata of a message, a table of FlatBuffers, describe compressed buffers.

    Source: Arrow's Message.fbs. Field 2 of a Message is its header; field 3 of the header of a batch its compression.
    """

    def field(table: int, index: int) -> int:
        entries = table - int(struct.unpack_from("<i", metadata, table)[0])
        place = 4 + 2 * index
        size = int(struct.unpack_from("<H", metadata, entries)[0])
        return int(struct.unpack_from("<H", metadata, entries + place)[0]) if place < size else 0

    message = int(struct.unpack_from("<I", metadata)[0])
    header = message + field(message, 2)
    return field(header + int(struct.unpack_from("<I", metadata, header)[0]), 3) != 0


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise InvalidArgument for bytes that are no stream of Arrow."""
    try:
        yield
    except SpoolError:
        raise
    except (pa.ArrowException, OSError, struct.error, TypeError) as error:
        raise InvalidArgument(f"the rows are no stream of Arrow: {error}"[:500]) from None
