"""The calls for DataFrames: reads and writes for machines that do not see the space.

The server runs on the machine of its spaces, and does the work of a local Spark task for a client. It plans a read, and
sends the messages of a ticket. It writes the rows of a task into a branch and votes. It begins, commits and ends a
write. So each promise is kept by the same code.

A client may be any program with a token. So the server checks every value, although xaspool's own clients never send a
value that is refused.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructField, StructType
from starlette.responses import Response

import spool
from forwarder.dataframes.arrow_batches import read
from forwarder.dataframes.columns import COLUMNS, ReadOptions, StreamOptions
from forwarder.dataframes.read_plan import BatchReader, Partition
from forwarder.dataframes.sink import adopt, check_count, write_branch
from forwarder.dataframes.stream import StreamReader
from forwarder.message_puts import RowsAsPuts
from forwarder.network.arrow import pieces
from forwarder.network.server_calls import packed_vote, vote_of
from forwarder.subscriber import NUMBER, SINCE, Offset
from forwarder.web.tickets import ReadTicket, seal, unseal
from forwarder.web.tokens import Right
from forwarder.web.transfers import MOST_COUNTED, Rows, Transfers, attempt_of, problem
from forwarder.web.web_call import Server, WebCall, json_answer, stream
from forwarder.web.writes import OpenWrite, Writes
from spool.client.fields import ARROW
from spool.engine.remote import BatchOf, boot_id
from spool.errors import InvalidArgument
from spool.model.checks import SHORT_TEXT, whole
from spool.model.layout import MAX_NUMBER
from spool.model.settings import check_queue_name
from spool.model.text import no_queue
from spool.model.xid import Xid

_MOST_TICKET = 16 << 20
_MOST_VOTES = 32 << 20
"""The most bytes of a commit's request. The votes of 200,000 tasks fit."""
_MOST_SOURCE = 4096


class SpaceTransfers(Transfers):
    """Answers the calls of Spark for the spaces of a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.most_bytes)
        self._tokens_key = server.tokens.key
        self.writes = Writes(server)

    async def end(self) -> None:
        """End all writes. Uncommitted writes are rolled back."""
        await self.writes.close()
        await super().end()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def plan(self, call: WebCall) -> Response:
        """Plan a batch read, or one batch of a stream. Each task gets a ticket."""
        given = await call.json_body()
        return json_answer(200, {"tickets": await call.server.in_thread(self._tickets, call, given)})

    def _tickets(self, call: WebCall, given: Mapping[str, Any]) -> list[str]:
        options: ReadOptions
        if given.get("end") is None:
            options = ReadOptions.of(_options(call, given))
            _check_look(call, options.queues)
            parts = BatchReader(options, _columns(given)).partitions()
        else:
            options, reader = _stream_reader(call, given)
            parts = list(reader.partitions(_offset(given.get("start")), _offset(given["end"])))
        tickets = []
        for part in parts:
            assert isinstance(part, Partition)
            ticket = ReadTicket(call.space, options.queues, given["columns"], part.missing, part.items)
            tickets.append(b64encode(seal(self._key(call), ticket)).decode())
        return tickets

    def _key(self, call: WebCall) -> bytes:
        """Return the key that seals tickets. The id of the space is in it, because a client may know all tokens."""
        return self._tokens_key + bytes.fromhex(_space(call).id)

    async def read(self, call: WebCall) -> Response:
        """Answer with the messages of a ticket, as a stream of Arrow."""
        with call.server.room() as room:
            sealed = await call.body(room, _MOST_TICKET)
            ticket: ReadTicket = await call.server.in_thread(unseal, self._key(call), sealed)
        if ticket.space != call.space:
            raise InvalidArgument(f"the ticket is of the space {ticket.space}")
        _check_look(call, ticket.queues)
        schema = _columns({"columns": ticket.columns})
        batches = read(_space(call).path, ticket.items, schema, boot_id(), ticket.missing)
        call.connection.wait_long()
        return stream(call, ARROW, pieces(to_arrow_schema(schema, timezone="UTC"), batches, problem))

    async def stream(self, call: WebCall) -> Response:
        """Make a call of a stream read: get the first or the latest offset, or report the offset that was read."""
        given = await call.json_body()
        return json_answer(200, {"offset": await call.server.in_thread(_step, call, given)})

    # -- writing ------------------------------------------------------------------------------------------------------

    async def begin(self, call: WebCall) -> Response:
        """Begin a write; the answer has its session."""
        given = await call.json_body()
        queue, key, space = _queue(call, given.get("queue")), given.get("key"), _space(call)
        if not isinstance(key, str | None):
            raise InvalidArgument("the value 'key' is a text")
        if queue is not None and queue not in (queues := await call.server.in_thread(space.queues)):
            raise no_queue(queue, queues)
        write = await self.writes.begin(space, call, key)
        return json_answer(200, {"session": write.name[2]})

    async def renew(self, call: WebCall) -> Response:
        """Renew the lease of a write. The client makes this call several times during a lease."""
        await call.json_body()
        with self.writes.find(call).renewed():
            return json_answer(200, {"seconds": self.writes.lease_seconds})

    async def write(self, call: WebCall) -> Response:
        """Write the rows of a task into a branch, and vote."""
        write, given = self.writes.find(call), call.query
        queue, (task, attempt), path = _queue(call, given.get("queue")), attempt_of(given), _space(call).path

        def work(rows: Rows) -> dict[str, Any]:
            made = RowsAsPuts.of(rows.schema, queue)
            if {"reply_queue", "failure_queue"} & {*made.names}:  # (they may name any queue)
                _queue(call, None)
            vote, count = write_branch(path, made, write.xid(task, attempt), task, write.renewed_by(rows.batches()))
            return {"vote": packed_vote(vote), "rows": count}

        return json_answer(200, await self.received(call, work, write.check))

    async def commit(self, call: WebCall) -> Response:
        """Commit the branches of a write; the answer says whether the batch was committed before."""
        given, space = await call.json_body(_MOST_VOTES), _space(call)
        check_count(whole(given["rows"], MOST_COUNTED))
        batch = _batch(given.get("batch"))

        def commit(write: OpenWrite) -> bool:
            return adopt(space, _xids(write, given["votes"]), batch)

        return json_answer(200, {"written": await self.writes.commit(call, commit)})

    async def abort(self, call: WebCall) -> Response:
        """End a write, named by its session or its stream. Uncommitted branches of the write are rolled back."""
        given = await call.json_body()
        call.served()
        await self.writes.end(call)
        await self.writes.end_stream(call, given.get("key"))
        return json_answer(200, {})

    calls = {
        "abort": abort, "begin": begin, "commit": commit, "plan": plan, "read": read, "renew": renew,
        "stream": stream, "write": write,
    }  # fmt: skip


_STEPS: Mapping[str, Callable[[StreamReader, Offset, ReadLimit], Any]] = {
    "commit": lambda reader, start, _: reader.commit(start),
    "initialOffset": lambda reader, *_: reader.initialOffset(),
    "latestOffset": lambda reader, start, limit: reader.latestOffset(start, limit),
    "reportLatestOffset": lambda reader, *_: reader.reportLatestOffset(),
}
"""The calls of a stream. A reader is made for each call, because it remembers only what it can read again."""


def _step(call: WebCall, given: Mapping[str, Any]) -> Any:
    _, reader = _stream_reader(call, given)
    step = _STEPS.get(given["call"])
    if step is None:
        raise InvalidArgument(f"a stream has no call {given['call']!r:.100}")
    start = {} if given.get("start") is None else _offset(given["start"])
    reader.target = None if given.get("target") is None else whole(given["target"], MAX_NUMBER)
    return step(reader, start, _limit(given.get("limit")))


def _stream_reader(call: WebCall, given: Mapping[str, Any]) -> tuple[StreamOptions, StreamReader]:
    """Return the reader of a stream. Each call of a stream with a subscription needs the right to it."""
    options = StreamOptions.of(_options(call, given))
    _check_look(call, options.queues)
    if options.subscription:
        call.client.check(call.space, Right.SUBSCRIBE, options.subscription)
    return options, StreamReader(options, _columns(given), _space(call))


def _space(call: WebCall) -> spool.Space:
    return call.served().space.sync


def _check_look(call: WebCall, queues: Iterable[str]) -> None:
    """Raise AccessDenied unless the client may look at the queues; without names, at all queues."""
    for queue in queues or (None,):
        call.client.check(call.space, Right.LOOK, queue)


def _queue(call: WebCall, queue: Any) -> str | None:
    """Return the queue of a write, into which the client may put; None if a column names the queues."""
    found = check_queue_name(queue) if queue else None
    call.served(Right.PUT, found)
    return found


def _options(call: WebCall, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a client for this space. The client's value of ``path`` is not used."""
    options = {str(name): str(value) for name, value in dict(given["options"]).items() if str(name).lower() != "path"}
    return {**options, "path": _space(call).path}


def _columns(given: Mapping[str, Any]) -> StructType:
    return StructType([StructField(name, *COLUMNS[name]) for name in given["columns"]])


def _offset(values: Any) -> Offset:
    """Return the offset of a stream: the number of a commit, and for a subscription the number of its registration."""
    if not isinstance(values, dict) or NUMBER not in values or not values.keys() <= {NUMBER, SINCE}:
        raise InvalidArgument(f"{values!r:.100} is no offset of a stream")
    return {name: whole(value, MAX_NUMBER) for name, value in values.items()}


def _limit(values: Any) -> ReadLimit:
    """Return the limit of a batch: a kind and a number, or None for all messages."""
    if values is None:
        return ReadAllAvailable()
    kind, number = values
    return {"rows": ReadMaxRows, "bytes": ReadMaxBytes}[kind](whole(number, MOST_COUNTED, 1))


def _xids(write: OpenWrite, values: Iterable[Any]) -> list[Xid]:
    """Return the branches of votes. InvalidArgument if a branch belongs to another write or is named twice."""
    xids = [vote.xid for each in values if (vote := vote_of(each)) is not None]
    if any(xid.gtrid != write.id for xid in xids):
        raise InvalidArgument("a branch is not of this write")
    if len(set(xids)) < len(xids):
        raise InvalidArgument("a branch is named twice")
    return xids


def _batch(values: Any) -> BatchOf | None:
    """Return the name of a write: the application, the number of the batch, and the source of the batch numbers."""
    if values is None:
        return None
    application, number, source = values
    if not isinstance(source, str) or len(source) > _MOST_SOURCE:
        raise ValueError(f"{source!r:.100} is no source of batches")
    return BatchOf(SHORT_TEXT.convert(application), whole(number, MOST_COUNTED), source)
