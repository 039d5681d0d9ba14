"""Tickets. A ticket has the places of the messages that one task reads, and is signed by the server.

A ticket has everything that the server needs, so a ticket is still valid after a restart of the server. The signature
proves that the places come from a plan of the server. The rights of the client are checked when the ticket is used.
"""

import hashlib
import hmac
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from spool.engine.remote import BodyPlace, Compacted, FileRef, Item, Missing, SectionEntry, StoredRun
from spool.errors import InvalidArgument
from spool.model.xid import Xid

_SIGNATURE_BYTES = 32
_MOST_BYTES = 64 << 20


class ReadTicket(NamedTuple):
    """The messages that a task reads.

    queues: the queues to which the client needs a right; none for all queues. columns: the names of the columns.
    """

    space: str
    queues: Sequence[str]
    columns: Sequence[str]
    missing: Missing
    items: Sequence[Item]


def seal(key: bytes, ticket: ReadTicket) -> bytes:
    items = list(map(_packed, ticket.items))
    encoded = zlib.compress(msgpack.packb((*ticket[:3], ticket.missing.value, items)), 1)
    return _signature(key, encoded) + encoded


def unseal(key: bytes, data: bytes) -> ReadTicket:
    """Return the ticket. InvalidArgument if the server with this key has not sealed it."""
    signature, encoded = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(key, encoded)):
        raise InvalidArgument("the ticket is not of this server, or its tokens have changed: plan the read again")
    raw = zlib.decompressobj().decompress(encoded, _MOST_BYTES)
    space, queues, columns, missing, items = msgpack.unpackb(raw, strict_map_key=False)
    return ReadTicket(space, queues, columns, Missing(missing), list(map(_unpacked, items)))


def _signature(key: bytes, encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, key=key, digest_size=_SIGNATURE_BYTES, person=b"xaspool ticket").digest()


def _packed(item: Item) -> tuple[Any, ...]:
    if isinstance(item, StoredRun):
        return isinstance(item.bodies, BodyPlace), *item
    return (None, *item)


def _unpacked(values: Sequence[Any]) -> Item:
    is_place, (number, adoption, xid, checksum), place, *rest = values
    file = FileRef(number, adoption, None if xid is None else Xid(*xid), checksum)
    if is_place is None:
        return Compacted(file, SectionEntry(*place), *rest)
    return StoredRun(file, (BodyPlace if is_place else SectionEntry)(*place), *rest)
