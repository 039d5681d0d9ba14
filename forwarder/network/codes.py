"""The values that client and server exchange as msgpack."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from spool.engine.tasks import Vote
from spool.errors import InvalidArgument
from spool.model.xid import Xid

VERSION = 1
MSGPACK = "application/msgpack"
MOST_BYTES = 16 << 20
"""The most bytes of a request. The votes of 200,000 tasks fit into one request."""


def encode(values: Mapping[str, Any]) -> bytes:
    encoded: bytes = msgpack.packb({"version": VERSION, **values})
    return encoded


def decode(data: bytes, **expected: type | tuple[type, ...]) -> dict[str, Any]:
    """Decode the values of a request.

    Args:
        expected: the types of each value, with ``type(None)`` if the value may be missing.

    Raises:
        InvalidArgument: the values are not the values of the request.
    """
    if len(data) > MOST_BYTES:
        raise InvalidArgument(f"a request has at most {MOST_BYTES >> 20} MiB, not {len(data):,} bytes")
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise InvalidArgument("the request is no msgpack: the client has another version, or is no xaspool") from None
    version = found.pop("version", None) if isinstance(found, dict) else None
    if version != VERSION:
        raise InvalidArgument(f"the request has the version {version!r}, and not {VERSION}: install the same xaspool")
    for name, kind in expected.items():
        if not isinstance(found.setdefault(name, None), kind):
            raise InvalidArgument(f"the value {name!r} of the request has the type {type(found[name]).__name__}")
    unknown = found.keys() - expected.keys()
    if unknown:
        raise InvalidArgument(f"the request has unknown values: {', '.join(sorted(map(str, unknown)))[:100]}")
    return dict(found)


def packed_vote(vote: Vote | None) -> list[Any] | None:
    return None if vote is None else [list(vote.xid), vote.size, vote.checksum]


def vote_of(values: Sequence[Any] | None) -> Vote | None:
    """Return the vote in an answer of the server."""
    return None if values is None else Vote(Xid.checked(*values[0]), values[1], values[2])
