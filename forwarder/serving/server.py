"""The requests for spaces: reads and writes of DataFrames for machines that do not see the space.

The server runs on the machine of its spaces, and does the work of a local Spark task for a client. It plans a read, and
sends the messages of a ticket. It writes the rows of a task into a branch and votes. It begins, commits and ends a
write. So each promise is kept by the same code.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
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
from forwarder.flight.codes import decode
from forwarder.flight.tickets import ReadTicket, seal, unseal
from forwarder.serving import bounds
from forwarder.serving.access import Access, Right, Tokens
from forwarder.serving.base import Answer, Server, log
from forwarder.serving.sessions import LEASE_SECONDS, Sessions
from forwarder.serving.streams import Stream, Streams
from spool.engine.tasks import Vote, boot_id
from spool.errors import InvalidArgument, ProtocolError

_LOOKS_A_LEASE = 6
_OFFSET = (dict, type(None))


class SpaceServer(Server):
    """Serves spaces until ``close``.

    Args:
        host, port: the address to listen at. Port 0 takes a free port.
        spaces: the directories of the spaces, by the names that clients use.
        lease_seconds: a write ends if its client sends nothing for this time.
        options: the options of ``Server``.

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
        lease_seconds: float = LEASE_SECONDS,
        **options: Any,
    ) -> None:
        tokens = tokens or Tokens()
        self._key = tokens.key
        for name in sorted(tokens.spaces - spaces.keys()):
            log.warning("a token has a right to the space %s, and the server serves only %s", name, ", ".join(spaces))
        self._sessions = Sessions(lease_seconds)
        self._streams = Streams()
        self._ending = threading.Event()
        with ExitStack() as opened:
            self._spaces = {name: opened.enter_context(spool.open(path)) for name, path in spaces.items()}
            super().__init__(host, port, tokens, **options)
            self._opened = opened.pop_all()
        threading.Thread(target=self._end_expired, name="xaspool leases", daemon=True).start()

    @property
    def spaces(self) -> list[spool.Space]:
        """The open spaces."""
        return [*self._spaces.values()]

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

    def _asked(self, access: Access, data: bytes, right: Right, **expected: Any) -> tuple[spool.Space, dict[str, Any]]:
        """Return the space and the values of a request. The client needs the right to the space."""
        asked = decode(data, space=str, **expected)
        return self._space(access, asked["space"], right), asked

    def _space(self, access: Access, name: str, right: Right) -> spool.Space:
        access.check(name, right)
        space = self._spaces.get(name)
        if space is None:
            raise InvalidArgument(f"the server has no space {name!r}: it serves {', '.join(self._spaces)}"[:1000])
        return space

    # -- reading ------------------------------------------------------------------------------------------------------

    def plan(self, access: Access, data: bytes) -> tuple[pa.Schema, list[bytes]]:
        """Plan a batch read, or one batch of a stream. Each task gets a ticket."""
        space, asked = self._asked(access, data, Right.READ, options=dict, schema=str, start=_OFFSET, end=_OFFSET)
        schema = bounds.schema(asked["schema"])
        if asked["end"] is None:
            parts = BatchReader(ReadOptions.of(_options(space, asked["options"])), schema).partitions()
        else:
            reader, turn = self._stream_reader(access, space, asked, schema)
            with turn:
                parts = list(reader.partitions(bounds.offset(asked["start"]), bounds.offset(asked["end"])))
        tickets, columns = [], schema.json()
        for part in parts:
            assert isinstance(part, Partition)
            tickets.append(seal(self._key, ReadTicket(asked["space"], columns, part.missing, part.items)))
        return to_arrow_schema(schema, timezone="UTC"), tickets

    def read(self, access: Access, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        ticket = unseal(self._key, data)
        space, schema = self._space(access, ticket.space, Right.READ), bounds.schema(ticket.schema)
        batches = read(space.path, ticket.items, schema, boot_id(), ticket.missing)
        return to_arrow_schema(schema, timezone="UTC"), batches

    def _stream_reader(
        self, access: Access, space: spool.Space, asked: Mapping[str, Any], schema: StructType
    ) -> Stream:
        """Return the reader of a stream, and the lock for its calls.

        Each call of a stream with a subscription needs the right to this subscription.
        """
        options = StreamOptions.of(_options(space, bounds.options(asked["options"])))
        if options.subscription:
            access.check_subscription(asked["space"], options.subscription)
        return self._streams.reader(space, options, schema, access.token)

    def stream(self, access: Access, data: bytes) -> Answer:
        """Make a call of a stream read: get the first or the latest offset, or report the offset that was read."""
        space, asked = self._asked(
            access, data, Right.READ, options=dict, schema=str, call=str, start=_OFFSET, limit=(list, type(None)),
            target=(int, type(None)),
        )  # fmt: skip
        reader, turn = self._stream_reader(access, space, asked, bounds.schema(asked["schema"]))
        call = _STREAM_CALLS.get(asked["call"])
        if call is None:
            raise ProtocolError(f"a stream has no call {asked['call'][:100]!r}")
        start = {} if asked["start"] is None else bounds.offset(asked["start"])
        limit, target = bounds.limit(asked["limit"]), bounds.target(asked["target"])
        with turn:
            reader.target = target
            return {"offset": call(reader, start, limit)}

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self, access: Access, data: bytes) -> Answer:
        """Begin a write; the answer has its session."""
        space, asked = self._asked(access, data, Right.WRITE, options=dict, schema=str, key=(str, type(None)))
        _job(space, asked).check_queue(space)
        return {"session": self._sessions.begin(asked["space"], space, asked["key"], access.token).id}

    def renew(self, access: Access, data: bytes) -> Answer:
        """Renew the lease of a write's session. The client makes this call several times during a lease."""
        _, asked = self._asked(access, data, Right.WRITE, session=bytes)
        with self._sessions.using(asked["space"], asked["session"]):
            return {"seconds": self._sessions.lease_seconds}

    def write(
        self, access: Access, data: bytes, columns: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> tuple[Vote | None, Answer]:
        space, asked = self._asked(
            access, data, Right.WRITE, session=bytes, options=dict, schema=str, partition=int, attempt=int
        )
        job = _job(space, asked)
        if not columns.equals(to_arrow_schema(bounds.schema(asked["schema"]), timezone="UTC")):
            raise InvalidArgument(f"the rows have other columns than the write: {columns.names}")
        with self._sessions.using(asked["space"], asked["session"]) as session:
            xid = session.xid(*bounds.task(asked["partition"], asked["attempt"]))
        sent = self._renewing(asked["space"], asked["session"], rows)
        vote, count = write_branch(space.path, job.rows, xid, asked["partition"], sent)
        return vote, {"rows": count}

    def _renewing(self, name: str, session: bytes, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Each batch renews the lease, so a call without rows does not keep the session."""
        for batch in rows:
            with self._sessions.using(name, session):
                yield batch

    def commit(self, access: Access, data: bytes) -> Answer:
        """Commit the branches of a write; the answer says whether the batch was committed before."""
        space, asked = self._asked(
            access, data, Right.WRITE, session=bytes, votes=list, rows=int, batch=(list, type(None))
        )
        bounds.check_rows(asked["rows"])
        votes, batch = bounds.votes(asked["votes"]), bounds.batch(asked["batch"])
        return self._sessions.commit(
            asked["space"], asked["session"], votes, lambda xids: not xids or adopt(space, xids, batch)
        )

    def abort(self, access: Access, data: bytes) -> Answer:
        """End a write, named by its session or its stream. Uncommitted branches of the write are rolled back."""
        _, asked = self._asked(access, data, Right.WRITE, session=(bytes, type(None)), key=(str, type(None)))
        if asked["session"] is not None:
            self._sessions.end(asked["space"], asked["session"])
        if asked["key"] is not None:
            self._sessions.end_stream(asked["space"], asked["key"], access.token)
        return {}

    def health(self, access: Access, data: bytes) -> Answer:
        """Return the newest commit that a read can see. A program can call this to check that the server works."""
        return {"number": self._asked(access, data, Right.READ)[0].engine.durable_number()}

    actions = {
        "abort": abort, "begin": begin, "commit": commit, "health": health, "renew": renew, "stream": stream,
    }  # fmt: skip


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
