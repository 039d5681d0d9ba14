"""The calls of Spark's processes to a server of spaces, and of a cluster's workers to their forwarder."""

import json
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Any

import httpcore
import pyarrow as pa

from forwarder.network.arrow import Received, pieces
from spool.client.connection import HttpConnection
from spool.client.fields import ARROW
from spool.engine.remote import Vote
from spool.model.checks import whole
from spool.model.xid import FORMAT_ROUND, Xid

_READ_AT_ONCE = 512 << 10  # httpcore reads 64 KiB at once, and needs as long for them as for more


def act(connection: HttpConnection, *path: str, **values: Any) -> dict[str, Any]:
    """Make a call with one answer, and return the answer's values. Raises as ``HttpConnection.call`` does.

    ``path``: the name of the call, behind the session of its write if it has one.
    """
    found: dict[str, Any] = connection.call("POST", "spark", *path, content=json.dumps(values).encode()).json()
    return found


def read(connection: HttpConnection, request: bytes) -> Generator[pa.RecordBatch]:
    """Yield the batches that the request names, e.g. those of a ticket."""
    httpcore.HTTP11Connection.READ_NUM_BYTES = _READ_AT_ONCE
    with connection.calling("POST", "spark", "read", content=request) as response:
        raw = response.iter_raw()
        yield from Received(partial(next, raw, b""), of_server=True).batches()


def write(
    connection: HttpConnection, batches: Iterable[pa.RecordBatch], columns: pa.Schema, *path: str, **values: Any
) -> dict[str, Any]:
    """Send rows, and return the values of the server's answer. The server has voted when this method returns."""
    sent = {"params": values, "headers": {"Content-Type": ARROW}, "content": pieces(columns, batches)}
    found: dict[str, Any] = connection.call("POST", "spark", *path, "write", **sent).json()
    return found


def packed_vote(vote: Vote | None) -> list[Any] | None:
    """Return a vote as JSON has it."""
    return None if vote is None else [vote.xid.gtrid.hex(), vote.xid.bqual.decode("ascii"), vote.size, vote.checksum]


def vote_of(values: Sequence[Any] | None) -> Vote | None:
    """Return the vote of ``packed_vote``. ValueError or TypeError if the values are none."""
    if values is None:
        return None
    gtrid, bqual, size, checksum = values
    xid = Xid.checked(FORMAT_ROUND, bytes.fromhex(gtrid), bqual.encode("ascii"))
    return Vote(xid, whole(size, 2**63 - 1), whole(checksum, 2**32 - 1))
