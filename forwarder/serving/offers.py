"""The endpoint of a forwarder: it offers the messages of a round to workers that do not see the space.

The endpoint runs in the forwarder's process. For each task of such a worker, the endpoint reads the bodies, gets the
outcomes, writes the branch of the task, and votes. So the round commits the branches of all workers in the same way.
"""

import re
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count, groupby
from typing import Any

import pyarrow as pa

from forwarder.flight.address import Address
from forwarder.flight.client import Client
from forwarder.flight.codes import as_flight, decode, encode
from forwarder.flight.endpoint import Endpoint, in_url
from forwarder.flight.offers import BODIES, OUTCOMES, Offer, batches, values
from forwarder.flight.outcomes import unpacked
from forwarder.flight.place import Place
from forwarder.serving.access import Tokens
from forwarder.serving.base import Server, voting
from forwarder.task import Chunk
from spool.engine.tasks import DamagedMessage, EndedCall, ReadMessage, RemoteBranch, Vote, origin_of, without_body
from spool.errors import CorruptedFile, ProtocolError, TransactionRolledBack
from spool.model.xid import FORMAT_ROUND, Xid
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Passed

_NAME = "round"
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class OfferServer(Server):
    """Offers chunks to tasks until ``close``. Only tasks of this forwarder have the server's token.

    Raises:
        InvalidArgument: the certificate or its key cannot be read.
        OSError: the server cannot listen.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        certificate, key = endpoint.pem()
        token = secrets.token_hex(32)
        self._offers: dict[int, Chunk] = {}
        self._keys = count(1)
        self._mutex = threading.Lock()
        super().__init__(endpoint.host, endpoint.port, Tokens([token]), certificate=certificate, key=key)
        scheme = "spool+grpc" if certificate is None else "spool+grpc+tls"
        address = Address.parse(f"{scheme}://{in_url(endpoint.host)}:{self.port}/{_NAME}")
        # (A certificate file may also contain the private key, which must not be sent to workers.)
        self.client = Client(address, token, b"\n".join(_CERTIFICATE.findall(certificate or b"")))

    @contextmanager
    def offering(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Offer chunks during the block. Yields the chunks with their offers."""
        with self._mutex:
            offered = {next(self._keys): chunk for chunk in chunks}
            self._offers |= offered
        try:
            yield [
                replace(chunk, offer=Offer(self.client, key, Place.of(chunk.path))) for key, chunk in offered.items()
            ]
        finally:
            with self._mutex:
                for key in offered:
                    del self._offers[key]

    def _chunk(self, key: int) -> Chunk:
        with self._mutex:
            chunk = self._offers.get(key)
        if chunk is None:
            raise TransactionRolledBack("the round of this task has ended")
        return chunk

    # -- Flight's calls -----------------------------------------------------------------------------------------------

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Answer with the time of this machine. The only action is ``health``."""
        self.accept(context, b"")
        if action.type != "health":
            raise as_flight(ProtocolError(f"the endpoint has no action {action.type[:100]!r}"))
        return [encode({"now": time.time()})]

    def read(self, context: Any, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the bodies of a chunk."""
        asked = decode(data, key=int, place=int, attempt=int)
        chunk = self._chunk(asked["key"])
        xid = _xid(chunk, asked["place"], f"{asked['attempt']}.read")
        return BODIES, batches(BODIES, _read(chunk, xid))

    def write(self, context: Any, data: bytes, reader: Any) -> tuple[Vote | None, dict[str, Any]]:
        """Write the outcomes of a chunk; return the vote and the effects."""
        asked = decode(data, space=str, key=int, place=int, attempt=int)
        chunk = self._chunk(asked["key"])
        if not reader.schema.equals(OUTCOMES):
            raise ProtocolError(f"outcomes have the columns {OUTCOMES.names}, not {reader.schema.names}"[:1000])
        xid = _xid(chunk, asked["place"], str(asked["attempt"]))
        with voting(asked["attempt"]), closing(RemoteBranch(chunk.path, xid)) as branch:
            calls = list(_ended(branch, chunk, list(_rows(reader, len(chunk)))))
            vote, effects = branch.conclude(chunk.policy, calls)
        return vote, {"effects": _counted(effects)}


def _counted(effects: list[tuple[Effect, str]]) -> list[tuple[Effect, str, int]]:
    """Return the effects in order. Equal neighbouring effects become one item with a count."""
    return [(*one, len(list(same))) for one, same in groupby(effects)]


def _xid(chunk: Chunk, place: int, attempt: str) -> Xid:
    return Xid(FORMAT_ROUND, chunk.round_id, f"{place}.{attempt}".encode())


def _read(chunk: Chunk, xid: Xid) -> Iterator[tuple[bytes | None, str | None]]:
    """Yield each body of a chunk, or the reason why the body cannot be read, in the order of the messages."""
    with closing(RemoteBranch(chunk.path, xid)) as branch:
        for _, found in branch.bodies(chunk.stretches):
            if isinstance(found, str):
                yield None, found
            else:
                yield from ((raw, None) for raw in found)


def _rows(reader: Any, messages: int) -> Iterator[tuple[int, float, Outcome]]:
    """Yield the outcomes that a task sends. ProtocolError unless they follow the order of the messages."""
    before = -1
    for chunk in reader:
        places, times, outcomes = chunk.data.columns
        for place, at, data in zip(places.to_pylist(), times.to_pylist(), values(outcomes), strict=True):
            if not before < place < messages:
                raise ProtocolError(f"an outcome has the place {place} after {before}, of {messages} messages")
            yield place, at, unpacked(data or b"")
            before = place


def _ended(branch: RemoteBranch, chunk: Chunk, rows: list[tuple[int, float, Outcome]]) -> Iterator[EndedCall]:
    """Yield the calls with their messages. Read the bodies again only if an outcome is ``Passed``."""
    found = branch.messages(chunk.stretches) if any(isinstance(row[2], Passed) for row in rows) else _heads(chunk)
    messages = enumerate(found)
    for place, at, outcome in rows:
        message = next(one for index, one in messages if index == place)
        if isinstance(message, DamagedMessage):
            raise CorruptedFile(f"a message cannot be read: {message.reason}")
        yield EndedCall(place, message, outcome, at)


def _heads(chunk: Chunk) -> Iterator[ReadMessage]:
    for whole in chunk.stretches:
        origin = origin_of(whole)
        for ordinal in range(whole.first, whole.first + whole.length):
            yield without_body(origin, ordinal)
