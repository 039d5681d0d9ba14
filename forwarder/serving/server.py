"""The server: reads and writes of DataFrames for machines that do not see the space.

The server runs on the machine of its spaces, and does the work of a local Spark task for a client. It plans a read
(``get_flight_info``), and sends the messages of a ticket (``do_get``). It writes the rows of a task into a branch and
votes (``do_put``). It begins, commits and ends a write (``do_action``). So each promise is kept by the same code.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

import spool
from forwarder.dataframes.columns import ReadOptions, StreamOptions
from forwarder.dataframes.rows import read
from forwarder.dataframes.scan import BatchReader, Partition
from forwarder.dataframes.sink import Job, adopt, write_branch
from forwarder.dataframes.stream import StreamReader
from forwarder.flight.codes import as_flight, decode, encode
from forwarder.flight.tickets import ReadTicket, seal, unseal
from forwarder.serving import bounds
from forwarder.serving.access import ACCESS, Access, Right, Tokens
from forwarder.serving.base import Server, answered, log, voting
from forwarder.serving.reads import Reads
from forwarder.serving.sessions import LEASE_SECONDS, Sessions
from forwarder.serving.streams import Stream, Streams
from spool.engine.tasks import Vote, boot_id
from spool.errors import InvalidArgument, ProtocolError

MOST_BYTES_OF_TASK = 16 << 30
_LOOKS_A_LEASE = 6

Answer = Mapping[str, Any]


class SpaceServer(Server):
    """Serves spaces until ``close``.

    Args:
        host, port: the address to listen at. Port 0 takes a free port.
        spaces: the directories of the spaces, by the names that clients use.
        certificate, key: the certificate chain and the private key of the server, as PEM; None without TLS.
        lease_seconds: a write ends if its client sends nothing for this time.
        most_bytes: the most bytes that one task of a write may send.

    Raises:
        SpoolError: a space cannot be opened.
        OSError: the server cannot listen.
    """

    def __init__(
        self,
        host: str,
        port: int,
        spaces: Mapping[str, str],
        tokens: Tokens | None = None,
        *,
        certificate: bytes | None = None,
        key: bytes | None = None,
        lease_seconds: float = LEASE_SECONDS,
        most_bytes: int = MOST_BYTES_OF_TASK,
    ) -> None:
        tokens = tokens or Tokens()
        self._spaces: dict[str, spool.Space] = {}
        self._opened = ExitStack()
        for name, path in spaces.items():
            self._spaces[name] = self._opened.enter_context(spool.open(path))
        self._key = tokens.key
        for name in sorted(tokens.spaces - spaces.keys()):
            log.warning("a token has a right to the space %s, and the server serves only %s", name, ", ".join(spaces))
        self._sessions = Sessions(lease_seconds)
        self._most_bytes = most_bytes
        self._streams = Streams()
        self._reads = Reads()
        self._ending = threading.Event()
        try:
            super().__init__(host, port, tokens, certificate=certificate, key=key)
        except (InvalidArgument, OSError):
            self._opened.close()
            raise
        threading.Thread(target=self._end_expired, name="xaspool leases", daemon=True).start()

    def close(self, seconds: float = 10.0) -> bool:
        """End the server and all writes, and close the spaces. Uncommitted writes are rolled back."""
        self._ending.set()
        has_ended = super().close(seconds)
        self._sessions.end_all()
        self._opened.close()
        return has_ended

    def _end_expired(self) -> None:
        while not self._ending.wait(self._sessions.lease_seconds / _LOOKS_A_LEASE):
            for id in self._sessions.end_expired():
                log.warning("the write %s has ended, because its client was away", id.hex())

    def _opened_space(self, context: Any, name: str, right: Right) -> spool.Space:
        context.get_middleware(ACCESS).check(name, right)
        space = self._spaces.get(name)
        if space is None:
            raise InvalidArgument(f"the server has no space {name!r}: it serves {', '.join(self._spaces)}"[:1000])
        return space

    # -- Flight's calls -----------------------------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        self.accept(context, descriptor.command or b"")
        info: flight.FlightInfo = answered(context, self._plan, context, descriptor)
        return info

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        body = action.body.to_pybytes()
        self.accept(context, body)
        call = _ACTIONS.get(action.type)
        if call is None:
            raise as_flight(ProtocolError(f"the server has no action {action.type[:100]!r}"))
        return [encode(answered(context, call, self, context, body))]

    def list_actions(self, context: Any) -> Any:
        self.accept(context, b"")
        return [(name, str(call.__doc__)) for name, call in _ACTIONS.items()]

    # -- reading ------------------------------------------------------------------------------------------------------

    def _plan(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        """Plan a batch read, or one batch of a stream. The returned endpoints have the tickets of the tasks."""
        asked = decode(
            descriptor.command or b"", space=str, options=dict, schema=str,
            start=(dict, type(None)), end=(dict, type(None)),
        )  # fmt: skip
        name = asked["space"]
        space, schema = self._opened_space(context, name, Right.READ), bounds.schema(asked["schema"])
        if asked["end"] is None:
            parts = BatchReader(ReadOptions.of(_options(space, asked["options"])), schema).partitions()
        else:
            reader, turn = self._stream_reader(context, name, asked["options"], schema)
            with turn:
                parts = list(reader.partitions(bounds.offset(asked["start"]), bounds.offset(asked["end"])))
        endpoints, columns = [], schema.json()
        for part in parts:
            assert isinstance(part, Partition)
            ticket = seal(self._key, ReadTicket(name, columns, part.missing, part.items))
            endpoints.append(flight.FlightEndpoint(ticket, []))
        return flight.FlightInfo(to_arrow_schema(schema, timezone="UTC"), descriptor, endpoints, -1, -1)

    def read(self, context: Any, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        ticket = unseal(self._key, data)
        space, schema = self._opened_space(context, ticket.space, Right.READ), bounds.schema(ticket.schema)
        batches = read(space.path, ticket.items, schema, boot_id(), ticket.missing)
        return to_arrow_schema(schema, timezone="UTC"), self._counted(context.get_middleware(ACCESS), batches)

    def _counted(self, access: Access, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a read. InvalidArgument if a token that may only read has too many reads."""
        with nullcontext() if access.is_writer else self._reads.one(access.token):
            yield from batches

    def _stream_reader(self, context: Any, name: str, given: Mapping[str, str], schema: StructType) -> Stream:
        """Return the reader of a stream, and the lock for its calls.

        Each call of a stream with a subscription needs the right to this subscription.
        """
        space, access = self._opened_space(context, name, Right.READ), context.get_middleware(ACCESS)
        options = StreamOptions.of(_options(space, bounds.options(given)))
        if options.subscription:
            access.check_subscription(name, options.subscription)
        return self._streams.reader(space, options, schema, access.token)

    def stream(self, context: Any, data: bytes) -> Answer:
        """Make a call of a stream read: get the first or the latest offset, or report the offset that was read."""
        asked = decode(
            data, space=str, options=dict, schema=str, call=str, start=(dict, type(None)), limit=(list, type(None)),
            target=(int, type(None)),
        )  # fmt: skip
        reader, turn = self._stream_reader(context, asked["space"], asked["options"], bounds.schema(asked["schema"]))
        call = _STREAM_CALLS.get(asked["call"])
        if call is None:
            raise ProtocolError(f"a stream has no call {asked['call'][:100]!r}")
        start = {} if asked["start"] is None else bounds.offset(asked["start"])
        limit, target = bounds.limit(asked["limit"]), bounds.target(asked["target"])
        with turn:
            reader.target = target
            return {"offset": call(reader, start, limit)}

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self, context: Any, data: bytes) -> Answer:
        """Begin a write; the answer has its session."""
        asked = decode(data, space=str, options=dict, schema=str, key=(str, type(None)))
        space = self._opened_space(context, asked["space"], Right.WRITE)
        _job(space, asked).check_queue(space)
        owner = context.get_middleware(ACCESS).token
        return {"session": self._sessions.begin(asked["space"], space, asked["key"], owner).id}

    def renew(self, context: Any, data: bytes) -> Answer:
        """Renew the lease of a write's session. The client makes this call several times during a lease."""
        asked = decode(data, space=str, session=bytes)
        self._opened_space(context, asked["space"], Right.WRITE)
        with self._sessions.using(asked["space"], asked["session"]):
            return {"seconds": self._sessions.lease_seconds}

    def write(self, context: Any, data: bytes, reader: Any) -> tuple[Vote | None, dict[str, Any]]:
        asked = decode(data, space=str, session=bytes, options=dict, schema=str, partition=int, attempt=int)
        space = self._opened_space(context, asked["space"], Right.WRITE)
        job, schema = _job(space, asked), bounds.schema(asked["schema"])
        if not reader.schema.equals(to_arrow_schema(schema, timezone="UTC")):
            raise InvalidArgument(f"the rows have other columns than the write: {reader.schema.names}")
        with self._sessions.using(asked["space"], asked["session"]) as session:
            xid = session.xid(*bounds.task(asked["partition"], asked["attempt"]))
            rows = self._rows(reader)
            with voting(asked["attempt"]):
                vote, count = write_branch(space.path, job.rows, xid, asked["partition"], rows)
        return vote, {"rows": count}

    def _rows(self, reader: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. InvalidArgument if the task sends more bytes than it may."""
        size = 0
        for chunk in reader:
            size += chunk.data.nbytes
            if size > self._most_bytes:
                raise InvalidArgument(
                    f"a task of a write sends at most {self._most_bytes:,} bytes: divide the rows among more tasks "
                    "(repartition), or start spool-serve with a larger --max-write"
                )
            yield chunk.data

    def commit(self, context: Any, data: bytes) -> Answer:
        """Commit the branches of a write; the answer says whether the batch was committed before."""
        asked = decode(data, space=str, session=bytes, votes=list, rows=int, batch=(list, type(None)))
        space = self._opened_space(context, asked["space"], Right.WRITE)
        bounds.check_rows(asked["rows"])
        votes, batch = bounds.votes(asked["votes"]), bounds.batch(asked["batch"])
        return self._sessions.commit(
            asked["space"], asked["session"], votes, lambda xids: not xids or adopt(space, xids, batch)
        )

    def abort(self, context: Any, data: bytes) -> Answer:
        """End a write, named by its session or its stream. Uncommitted branches of the write are rolled back."""
        asked = decode(data, space=str, session=(bytes, type(None)), key=(str, type(None)))
        self._opened_space(context, asked["space"], Right.WRITE)
        if asked["session"] is not None:
            self._sessions.end(asked["space"], asked["session"])
        if asked["key"] is not None:
            self._sessions.end_stream(asked["space"], asked["key"], context.get_middleware(ACCESS).token)
        return {}

    def health(self, context: Any, data: bytes) -> Answer:
        """Return the newest commit that a read can see. A program can call this to check that the server works."""
        asked = decode(data, space=str)
        return {"number": self._opened_space(context, asked["space"], Right.READ).engine.durable_number()}


_ACTIONS: dict[str, Callable[[SpaceServer, Any, bytes], Answer]] = {
    "abort": SpaceServer.abort,
    "begin": SpaceServer.begin,
    "commit": SpaceServer.commit,
    "health": SpaceServer.health,
    "renew": SpaceServer.renew,
    "stream": SpaceServer.stream,
}


_STREAM_CALLS: dict[str, Callable[[StreamReader, dict[str, int], ReadLimit], Any]] = {
    "commit": lambda reader, start, _: reader.commit(start),
    "initialOffset": lambda reader, *_: reader.initialOffset(),
    "latestOffset": lambda reader, start, limit: reader.latestOffset(start, limit),
    "reportLatestOffset": lambda reader, *_: reader.reportLatestOffset(),
}


def _options(space: spool.Space, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a client for this space. The client's value of ``path`` is not used."""
    return {
        **{str(name): str(value) for name, value in given.items() if str(name).lower() != "path"},
        "path": space.path,
    }


def _job(space: spool.Space, asked: Mapping[str, Any]) -> Job:
    return Job.of(_options(space, asked["options"]), bounds.schema(asked["schema"]), overwrite=False)
