"""The bytes of requests that a process posts for another process, and of the answer: ``coordination.requests``."""

from collections.abc import Sequence

import msgpack

from spool.coordination.requests import ANSWER_BYTES, BODY_BYTES, RemovedSpan
from spool.format.header import UNREADABLE
from spool.log.standing import span_of
from spool.log.write_set import WriteSet

# The place of a request's messages in a commit: the branch's id, and the ordinal of the first message. For an adopted
# branch: an empty id, and the place of the branch. None: the owner commits the request itself.
Place = tuple[bytes, int] | None
_MOST_TOGETHER = ANSWER_BYTES // 32  # the most requests of one slot: an answer has less than 32 bytes for each


def encode(requests: Sequence[WriteSet]) -> tuple[bytes, RemovedSpan] | None:
    """Encode requests for a slot. Return the bytes, and the span of the messages that the requests remove or change.

    None if another process cannot commit the requests, or they do not fit. The bytes begin with the messages that the
    requests remove or change (see ``standing.addressed_in``).
    """
    if len(requests) > _MOST_TOGETHER or sum(request.size for request in requests) > BODY_BYTES:
        return None
    packed = [request.shared() for request in requests]
    if None in packed:
        return None
    addressed = [one for request in requests for one in request.addressed]
    encoded: bytes = msgpack.packb((addressed, packed))
    return (encoded, span_of(addressed)) if len(encoded) <= BODY_BYTES else None


def decode(encoded: bytes | None) -> list[WriteSet]:
    """Decode the requests of a slot; return [] if the bytes are damaged."""
    if encoded is None:
        return []
    try:
        _, packed = msgpack.unpackb(encoded, strict_map_key=False)
        return list(map(WriteSet.of_another, packed))
    except UNREADABLE:
        return []


def encode_answer(places: Sequence[Place]) -> bytes:
    return bytes(msgpack.packb(places))


def decode_answer(encoded: bytes, count: int) -> list[Place]:
    """Decode the answer to ``count`` requests. An empty answer leaves all requests to their owner."""
    return [place and tuple(place) for place in msgpack.unpackb(encoded)] or [None] * count
