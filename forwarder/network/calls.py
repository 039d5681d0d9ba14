"""The calls of Spark's processes to a server of spaces, and of a cluster's workers to their forwarder."""

from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

import httpcore
import msgpack
import pyarrow as pa

from forwarder.network.arrow import Received, pieces
from forwarder.network.codes import MSGPACK, encode
from spool.client.connection import Connection
from spool.client.fields import ARROW

_READ_AT_ONCE = 512 << 10  # httpcore reads 64 KiB at once, and needs as long for them as for more


def act(connection: Connection, call: str, /, **values: Any) -> dict[str, Any]:
    """Make a call with one answer, and return the answer's values. Raises as ``Connection.call`` does.

    ``session``: the session of the call's write, if it has one.
    """
    path = _path(call, values)
    response = connection.call("POST", *path, content=encode(values), headers={"Content-Type": MSGPACK})
    found: dict[str, Any] = msgpack.unpackb(response.content)
    return found


def read(connection: Connection, request: bytes) -> Generator[pa.RecordBatch]:
    """Yield the batches that the request names, e.g. those of a ticket."""
    given = {"content": request, "headers": {"Content-Type": MSGPACK, "Accept": ARROW}}
    httpcore.HTTP11Connection.READ_NUM_BYTES = _READ_AT_ONCE
    with connection.calling("POST", "spark", "read", **given) as response:  # (the call ends if the caller stops early)
        raw = response.iter_raw()
        yield from Received(partial(next, raw, b"")).batches()


def write(
    connection: Connection, batches: Iterable[pa.RecordBatch], columns: pa.Schema, /, **values: Any
) -> dict[str, Any]:
    """Send rows, and return the values of the server's answer. The server has voted when this method returns."""
    path = _path("write", values)
    sent = pieces(columns, batches, encode(values))
    response = connection.call("POST", *path, content=sent, headers={"Content-Type": ARROW})
    found: dict[str, Any] = msgpack.unpackb(response.content)
    return found


def _path(call: str, values: dict[str, Any]) -> list[str]:
    """Return the address of a call, and remove the session from the values: the address has it, for the server."""
    session = values.pop("session", None)
    return ["spark", call] if session is None else ["spark", session, call]
