"""Messages as rows of Arrow: puts of rows, and answers with rows. Needs pyarrow.

The columns are those with which Spark reads and writes a space.
"""

from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from forwarder.message_puts import RowsAsPuts
from forwarder.message_rows import arrow_schema, row_of
from forwarder.network.arrow import Received, batches, pieces
from spool.errors import InvalidArgument
from spool.model.message import Message

_CLAIMED = arrow_schema().insert(0, pa.field("receipt", pa.string(), nullable=False))


def puts_of(content: bytes, queue: str, most: int) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield the options and the bodies of puts; neighbours with the same options are together.

    InvalidArgument if the content is no stream of Arrow, or has more than ``most`` rows, or a column is wrong.
    """
    received = Received(partial(next, iter([content]), b""))
    rows, count = RowsAsPuts.of(received.schema, queue), 0
    for batch in received.batches():
        if count + batch.num_rows > most:
            raise InvalidArgument(f"one call puts at most {most:,} messages: make several calls")
        for put in rows.puts(batch, count):
            if None in put.bodies:
                raise InvalidArgument(f"row {put.row + put.bodies.index(None)}, counted from 0, has no body")
            yield put.options, put.bodies
        count += batch.num_rows


def claimed(found: Iterable[tuple[str, Message]]) -> bytes:
    """Return the messages of a claim with their receipts."""
    return b"".join(pieces(_CLAIMED, batches(_CLAIMED, ((receipt, *row_of(message)) for receipt, message in found))))


def browsed(messages: Iterator[Message]) -> Generator[bytes]:
    """Return the parts of an answer with messages."""
    schema = arrow_schema()
    return pieces(schema, batches(schema, map(row_of, messages)))
