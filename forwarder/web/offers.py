"""The requests for the messages of a forwarder's round, from workers that do not see the space.

The server runs in the forwarder's process. For each task of such a worker, the server reads the bodies, gets the
outcomes, writes the branch of the task, and votes. So the round commits the branches of all workers in the same way.
"""

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

from starlette.responses import Response

from forwarder.network.arrow import batches, pieces
from forwarder.network.offers import BODIES, OUTCOMES, Offer, values
from forwarder.network.outcome_codec import unpacked
from forwarder.network.server_calls import packed_vote
from forwarder.network.space_directory import Place
from forwarder.task import Chunk
from forwarder.web.endpoint import Endpoint
from forwarder.web.server import WebServer
from forwarder.web.sockets import in_url, listening
from forwarder.web.tokens import Tokens
from forwarder.web.transfers import Rows, Transfers, attempt_of, problem
from forwarder.web.web_call import WebCall, json_answer, stream
from spool.client.connection import HttpConnection
from spool.client.fields import ARROW
from spool.engine.remote import DamagedMessage, EndedCall, ReadMessage, RemoteBranch, origin_of, without_body
from spool.errors import CorruptedFile, InvalidArgument, TransactionRolledBack
from spool.model.checks import MOST_SECONDS, seconds
from spool.model.xid import FORMAT_ROUND, Xid
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Passed

_NAME = "round"
_MOST_BYTES = 16 << 30  # that one task may send
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class OfferServer(WebServer):
    """Offers chunks to tasks until ``close``. Only tasks of this forwarder have the server's token.

    connection: a connection to the server, for workers.

    Raises:
        InvalidArgument: the certificate or its key cannot be read.
        OSError: the server cannot listen.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        token = secrets.token_hex(32)
        self._keys = count(1)
        self.transfers = RoundTransfers(_MOST_BYTES)
        certificate, key = endpoint.certificate, endpoint.key
        listeners = listening(endpoint.host, endpoint.port)
        super().__init__(listeners, {}, Tokens([token]), certificate=certificate, key=key, transfers=self.transfers)
        # (A certificate file may also contain the private key, which must not be sent to workers.)
        read = b"" if certificate is None else Path(certificate).read_bytes()
        scheme = "http" if certificate is None else "https"
        address = f"{scheme}://{in_url(endpoint.host)}:{listeners[0].getsockname()[1]}"
        self.connection = HttpConnection(address, _NAME, token, b"\n".join(_CERTIFICATE.findall(read)))

    @contextmanager
    def offering(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Offer chunks during the block. Yields the chunks with their offers."""
        offered, offers = {next(self._keys): chunk for chunk in chunks}, self.transfers.offers
        offers |= offered
        try:
            places = {key: Place.of(chunk.path) for key, chunk in offered.items()}
            yield [replace(each, offer=Offer(self.connection, key, places[key])) for key, each in offered.items()]
        finally:
            for key in offered:
                del offers[key]


class RoundTransfers(Transfers):
    """Answers the calls of a round's tasks. ``offers``: the offered chunks by their numbers."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self.offers: dict[int, Chunk] = {}

    def _asked(self, values: Mapping[str, Any]) -> tuple[Chunk, Xid]:
        """Return the chunk that a task asks for, and the xid of the task's branch."""
        task, attempt = attempt_of(values)
        chunk = self.offers.get(int(values["key"]))
        if chunk is None:
            raise TransactionRolledBack("the round of this task has ended")
        return chunk, Xid(FORMAT_ROUND, chunk.round_id, f"{task}.{attempt}".encode())

    async def now(self, call: WebCall) -> Response:
        """Answer with the time of this machine."""
        await call.json_body()
        return json_answer(200, {"now": time.time()})

    async def read(self, call: WebCall) -> Response:
        """Answer with the bodies of a chunk."""
        chunk, xid = self._asked(await call.json_body())
        found = _read(chunk, xid._replace(bqual=xid.bqual + b".read"))
        call.connection.wait_long()
        return stream(call, ARROW, pieces(BODIES, batches(BODIES, found), problem))

    async def write(self, call: WebCall) -> Response:
        """Write the outcomes of a chunk; answer with the vote and the effects."""
        asked = call.query
        chunk, xid = self._asked(asked)

        def work(rows: Rows) -> dict[str, Any]:
            if not rows.schema.equals(OUTCOMES):
                raise InvalidArgument(f"outcomes have the columns {OUTCOMES.names}, not {rows.schema.names}"[:1000])
            with closing(RemoteBranch(chunk.path, xid)) as branch:
                found = list(_outcomes(rows.batches(), len(chunk)))
                vote, effects = branch.conclude(chunk.policy, _ended(branch, chunk, found))
            return {"vote": packed_vote(vote), "effects": _counted(effects)}

        return json_answer(200, await self.received(call, work, lambda: self._asked(asked)))

    calls = {"now": now, "read": read, "write": write}


def _counted(effects: list[tuple[Effect, str]]) -> list[tuple[Effect, str, int]]:
    """Return the effects in order. Equal neighbouring effects become one item with a count."""
    return [(*one, len(list(same))) for one, same in groupby(effects)]


def _read(chunk: Chunk, xid: Xid) -> Iterator[tuple[bytes | None, str | None]]:
    """Yield each body of a chunk, or the reason why the body cannot be read, in the order of the messages."""
    with closing(RemoteBranch(chunk.path, xid)) as branch:
        for _, found in branch.bodies(chunk.runs):
            if isinstance(found, str):
                yield None, found
            else:
                yield from ((raw, None) for raw in found)


def _outcomes(rows: Iterator[Any], messages: int) -> Iterator[tuple[int, float, Outcome]]:
    """Yield the outcomes that a task sends. InvalidArgument unless they follow the order of the messages."""
    before = -1
    for batch in rows:
        places, times, outcomes = batch.columns
        for place, at, data in zip(places.to_pylist(), times.to_pylist(), values(outcomes), strict=True):
            if not before < place < messages:
                raise InvalidArgument(f"an outcome has the place {place} after {before}, of {messages} messages")
            yield place, seconds(at, MOST_SECONDS), unpacked(data or b"")
            before = place


def _ended(branch: RemoteBranch, chunk: Chunk, rows: list[tuple[int, float, Outcome]]) -> Iterator[EndedCall]:
    """Yield the calls with their messages. Read the bodies again only if an outcome is ``Passed``."""
    is_read = any(isinstance(outcome, Passed) for _, _, outcome in rows)
    messages = enumerate(branch.messages(chunk.runs) if is_read else _heads(chunk))
    for place, at, outcome in rows:
        message = next(one for index, one in messages if index == place)
        if isinstance(message, DamagedMessage):
            raise CorruptedFile(f"a message cannot be read: {message.reason}")
        yield EndedCall(place, message, outcome, at)


def _heads(chunk: Chunk) -> Iterator[ReadMessage]:
    for whole in chunk.runs:
        origin = origin_of(whole)
        for ordinal in range(whole.first, whole.first + whole.length):
            yield without_body(origin, ordinal)
