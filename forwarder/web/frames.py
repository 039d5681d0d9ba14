"""The calls for DataFrames: reads and writes for machines that do not see the space.

The server runs on the machine of its spaces, and does the work of a local Spark task for a client. It plans a read, and
sends the messages of a ticket. It writes the rows of a task into a branch and votes. It begins, commits and ends a
write. So each promise is kept by the same code.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

import spool
from forwarder.dataframes.columns import ReadOptions, StreamOptions
from forwarder.dataframes.rows import read
from forwarder.dataframes.scan import BatchReader, Partition
from forwarder.dataframes.sink import Job, adopt, write_branch
from forwarder.dataframes.stream import StreamReader
from forwarder.network.codes import decode
from forwarder.web import bounds
from forwarder.web.calls import Call, Server
from forwarder.web.sessions import Sessions
from forwarder.web.streams import Stream, Streams
from forwarder.web.tickets import ReadTicket, seal, unseal
from forwarder.web.tokens import Right
from forwarder.web.transfers import Answer, Rows, Transfers
from spool.engine.tasks import Vote, boot_id
from spool.errors import InvalidArgument

_LOOKS_A_LEASE = 6
_OFFSET = (dict, type(None))

log = logging.getLogger("spool.server")


class SpaceTransfers(Transfers):
    """Answers the calls of Spark for the spaces of a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.most_bytes)
        self._key = server.tokens.key
        self._sessions = Sessions(server.lease_seconds, server.prefix)
        self._streams = Streams()
        self._expiring = asyncio.get_running_loop().create_task(self._end_expired())

    async def end(self) -> None:
        """End all writes. Uncommitted writes are rolled back."""
        self._expiring.cancel()
        await asyncio.to_thread(self._sessions.end_all)
        await super().end()

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(self._sessions.lease_seconds / _LOOKS_A_LEASE)
            for id in await self.in_thread(self._sessions.end_expired):
                log.warning("the write %s has ended, because its client was away", id)

    # -- reading ------------------------------------------------------------------------------------------------------

    def plan(self, call: Call, data: bytes) -> Answer:
        """Plan a batch read, or one batch of a stream. Each task gets a ticket."""
        asked = decode(data, options=dict, schema=str, start=_OFFSET, end=_OFFSET)
        space, schema = _space(call), bounds.schema(asked["schema"])
        options: ReadOptions
        if asked["end"] is None:
            options = ReadOptions.of(_options(space, asked["options"]))
            _check_look(call, options.queues)
            parts = BatchReader(options, schema).partitions()
        else:
            options, (reader, turn) = self._stream_reader(call, space, asked, schema)
            with turn:
                parts = list(reader.partitions(bounds.offset(asked["start"]), bounds.offset(asked["end"])))
        tickets, columns = [], schema.json()
        for part in parts:
            assert isinstance(part, Partition)
            ticket = ReadTicket(call.space, options.queues, columns, part.missing, part.items)
            tickets.append(seal(self._key, ticket))
        return {"tickets": tickets}

    def read(self, call: Call, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        ticket = unseal(self._key, data)
        if ticket.space != call.space:
            raise InvalidArgument(f"the ticket is of the space {ticket.space}")
        _check_look(call, ticket.queues)
        schema = bounds.schema(ticket.schema)
        batches = read(_space(call).path, ticket.items, schema, boot_id(), ticket.missing)
        return to_arrow_schema(schema, timezone="UTC"), batches

    def _stream_reader(
        self, call: Call, space: spool.Space, asked: Mapping[str, Any], schema: StructType
    ) -> tuple[StreamOptions, Stream]:
        """Return the reader of a stream, and the lock for its calls.

        Each call of a stream with a subscription needs the right to this subscription.
        """
        options = StreamOptions.of(_options(space, bounds.options(asked["options"])))
        _check_look(call, options.queues)
        if options.subscription:
            call.caller.check(call.space, Right.SUBSCRIBE, options.subscription)
        return options, self._streams.reader(space, options, schema, call.caller.token)

    def stream(self, call: Call, data: bytes) -> Answer:
        """Make a call of a stream read: get the first or the latest offset, or report the offset that was read."""
        limits = {"limit": (list, type(None)), "target": (int, type(None))}
        asked = decode(data, options=dict, schema=str, call=str, start=_OFFSET, **limits)
        _, (reader, turn) = self._stream_reader(call, _space(call), asked, bounds.schema(asked["schema"]))
        step = _STREAM_CALLS.get(asked["call"])
        if step is None:
            raise InvalidArgument(f"a stream has no call {asked['call'][:100]!r}")
        start = {} if asked["start"] is None else bounds.offset(asked["start"])
        limit, target = bounds.limit(asked["limit"]), bounds.target(asked["target"])
        with turn:
            reader.target = target
            return {"offset": step(reader, start, limit)}

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self, call: Call, data: bytes) -> Answer:
        """Begin a write; the answer has its session."""
        asked = decode(data, options=dict, schema=str, key=(str, type(None)))
        space = _space(call)
        _job(call, space, asked).check_queue(space)
        return {"session": self._sessions.begin(call.space, space, asked["key"], call.caller.token).name}

    def renew(self, call: Call, data: bytes) -> Answer:
        """Renew the lease of a write's session. The client makes this call several times during a lease."""
        decode(data)
        with self._sessions.using(call.space, _session(call), call.caller.token):
            return {"seconds": self._sessions.lease_seconds}

    def admit(self, call: Call) -> Callable[[], object]:
        check = partial(self._sessions.check, call.space, _session(call), call.caller.token)
        check()
        return check

    def write(self, call: Call, rows: Rows) -> tuple[Vote | None, Answer]:
        asked = decode(rows.request, options=dict, schema=str, partition=int, attempt=int)
        name, id, space = call.space, _session(call), _space(call)
        job = _job(call, space, asked)
        if not rows.schema.equals(to_arrow_schema(bounds.schema(asked["schema"]), timezone="UTC")):
            raise InvalidArgument(f"the rows have other columns than the write: {rows.schema.names}"[:1000])
        with self._sessions.using(name, id, call.caller.token) as session:
            xid = session.xid(*bounds.task(asked["partition"], asked["attempt"]))
        sent = self._renewing(name, id, call.caller.token, rows)
        vote, count = write_branch(space.path, job.rows, xid, asked["partition"], sent)
        return vote, {"rows": count}

    def _renewing(self, name: str, id: str, owner: str, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Each batch renews the lease, so a call without rows does not keep the session."""
        for batch in rows.until(lambda: self._sessions.check(name, id, owner)):
            with self._sessions.using(name, id, owner):
                yield batch

    def commit(self, call: Call, data: bytes) -> Answer:
        """Commit the branches of a write; the answer says whether the batch was committed before."""
        asked = decode(data, votes=list, rows=int, batch=(list, type(None)))
        bounds.check_rows(asked["rows"])
        votes, batch, space = bounds.votes(asked["votes"]), bounds.batch(asked["batch"]), _space(call)
        return self._sessions.commit(
            call.space, _session(call), call.caller.token, votes, lambda xids: not xids or adopt(space, xids, batch)
        )

    def abort(self, call: Call, data: bytes) -> Answer:
        """End a write, named by its session or its stream. Uncommitted branches of the write are rolled back."""
        asked, owner = decode(data, key=(str, type(None))), call.caller.token
        self._sessions.end(call.space, _session(call), owner)
        if asked["key"] is not None:
            self._sessions.end_stream(call.space, asked["key"], owner)
        return {}

    actions = {"abort": abort, "begin": begin, "commit": commit, "plan": plan, "renew": renew, "stream": stream}


_STREAM_CALLS: dict[str, Callable[[StreamReader, dict[str, int], ReadLimit], Any]] = {
    "commit": lambda reader, start, _: reader.commit(start),
    "initialOffset": lambda reader, *_: reader.initialOffset(),
    "latestOffset": lambda reader, start, limit: reader.latestOffset(start, limit),
    "reportLatestOffset": lambda reader, *_: reader.reportLatestOffset(),
}


def _space(call: Call) -> spool.Space:
    return call.served().space.sync


def _session(call: Call) -> str:
    """Return the session in the address; "" if it has none."""
    found: str = call.request.path_params.get("receipt", "")
    return found


def _check_look(call: Call, queues: Iterable[str]) -> None:
    """Raise AccessDenied unless the client may look at the queues; without names, at all queues."""
    for queue in queues or (None,):
        call.caller.check(call.space, Right.LOOK, queue)


def _options(space: spool.Space, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a client for this space. The client's value of ``path`` is not used."""
    return {
        **{str(name): str(value) for name, value in given.items() if str(name).lower() != "path"},
        "path": space.path,
    }


def _job(call: Call, space: spool.Space, asked: Mapping[str, Any]) -> Job:
    """Return the write that a client asks for. The client needs the right to put into its queue, or into all queues if
    a column names the queues."""
    job = Job.of(_options(space, asked["options"]), bounds.schema(asked["schema"]), overwrite=False)
    call.served(Right.PUT, job.rows.queue)
    return job
