"""Record batches as Arrow's IPC stream, in pieces that HTTP transports, and back.

An error in the middle of a stream cannot change the status of the answer. So the sender ends the stream with a batch
without rows, whose metadata describe the error, and breaks off. A stream without its end mark is refused.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from spool.client.problems import error_of
from spool.errors import InvalidArgument

_LEAST_PIECE, _MOST_PIECE = 256 << 10, 1 << 20
_MOST_BATCH = 8 << 20
_MOST_AT_ONCE = (2 << 30) + (1 << 20)  # an array of Arrow has at most 2 GiB
_END = b"\xff\xff\xff\xff\0\0\0\0"
_PROBLEM, _REQUEST = b"xaspool problem", b"xaspool request"


def pieces(schema: pa.Schema, batches: Iterable[pa.RecordBatch], request: bytes = b"") -> Generator[bytes | memoryview]:
    """Yield the bytes of a stream. ``request``: a request that the stream's head carries."""
    head = schema.with_metadata({_REQUEST: request}) if request else schema
    waiting: list[pa.Buffer | bytes] = [head.serialize()]
    size = len(waiting[0])
    for batch in batches:
        for part in _parts(batch):
            data = part.serialize()
            if size + len(data) > _MOST_PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
            if len(data) >= _LEAST_PIECE:
                if waiting:
                    yield b"".join(waiting)
                waiting, size, view = [], 0, memoryview(data)
                yield from (view[at : at + _MOST_PIECE] for at in range(0, len(view), _MOST_PIECE))
            else:
                waiting.append(data)
                size += len(data)
    yield b"".join([*waiting, _END])


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a large batch, because the receiver has a whole batch in memory."""
    rows = max(1, batch.num_rows * _MOST_BATCH // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def problem_piece(schema: pa.Schema, problem: bytes) -> bytes:
    """Return the last piece of a stream that an error ends. ``problem``: the body of the error's answer."""
    sink = pa.BufferOutputStream()
    none = pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(none, custom_metadata={_PROBLEM: problem})
    return sink.getvalue().to_pybytes()[len(schema.serialize()) : -len(_END)]


class Source:
    """A file of received pieces, for Arrow. ``next_piece``: returns the next piece, or b"" at the end."""

    closed = False

    def __init__(self, next_piece: Callable[[], bytes]) -> None:
        self._next, self._waiting = next_piece, memoryview(b"")
        self.is_whole = False  # whether the last read got bytes: otherwise the stream has no end mark

    def read(self, size: int) -> bytes:
        if size > _MOST_AT_ONCE:
            raise InvalidArgument(f"a batch of rows has {size:,} bytes, more than {_MOST_AT_ONCE:,}")
        parts, missing = list[memoryview](), size
        while missing > 0 and (self._waiting or (piece := self._next())):
            self._waiting = self._waiting or memoryview(piece)
            parts.append(self._waiting[:missing])
            self._waiting = self._waiting[missing:]
            missing -= len(parts[-1])
        self.is_whole = bool(parts)
        return b"".join(parts)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: the call ends with its block."""


class Received:
    """A received stream. ``schema``: its columns. ``request``: the request in its head.

    Raises InvalidArgument if the pieces are no stream of Arrow.
    """

    def __init__(self, next_piece: Callable[[], bytes]) -> None:
        self._source = Source(next_piece)
        source: Any = self._source
        self._reader = _checked(lambda: pa.ipc.open_stream(source))
        metadata: Mapping[bytes, bytes] = self._reader.schema.metadata or {}
        self.request = metadata.get(_REQUEST, b"")
        self.schema = self._reader.schema.remove_metadata()

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the batches. Raises the error that ends the stream; InvalidArgument if the stream has no end."""
        while (found := _checked(self._next)) is not None:
            batch, metadata = found
            if metadata is not None and _PROBLEM in metadata:
                raise error_of(500, metadata[_PROBLEM])
            yield batch

    def _next(self) -> tuple[pa.RecordBatch, Mapping[bytes, bytes] | None] | None:
        try:
            batch, metadata = self._reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            if not self._source.is_whole:
                raise InvalidArgument("the stream of rows breaks off: it has no end mark") from None
            return None
        batch.validate(full=True)
        return batch, metadata


_Found = TypeVar("_Found")


def _checked(step: Callable[[], _Found]) -> _Found:
    try:
        return step()
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the rows are no stream of Arrow: {error}"[:500]) from None
