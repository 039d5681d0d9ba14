"""Reads and writes of spaces on other machines: a server of spaces does the part of a task that needs the space.

The classes have the same roles as those of ``scan``, ``stream`` and ``sink``, whose code the server runs. Only rows and
short requests travel. Each promise of a read or a write is that of the server's machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from forwarder.dataframes.columns import Options, ReadOptions, StreamOptions, check_columns
from forwarder.dataframes.puts import RowsAsPuts
from forwarder.dataframes.sink import Job, log_repetition, query_id, stream_names, task
from forwarder.dataframes.stream import NUMBER, Offset, limit_of
from forwarder.flight import lease
from forwarder.flight.address import Unreachable
from forwarder.flight.client import Client
from forwarder.flight.options import CONNECTION, without_connection
from spool.engine.tasks import BatchOf
from spool.errors import CommitUnknown

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def client_of(options: Options) -> Client:
    """Return the client for the options. InvalidArgument if the address or a file of the connection is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    return Client.of(given["path"], *(given.get(name.lower()) for name in CONNECTION))


@dataclass(frozen=True)
class _Remote:
    """A read or a write of a server's space. ``options``: as Spark's programs name them. ``schema``: the columns."""

    client: Client
    options: Mapping[str, str]
    schema: StructType

    @classmethod
    def of(cls, options: Options, schema: StructType) -> Self:
        return cls(client_of(options), without_connection(options), schema)

    def asked(self) -> dict[str, Any]:
        return {"options": {k: v for k, v in self.options.items() if k.lower() != "path"}, "schema": self.schema.json()}

    @property
    def arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")


@dataclass
class TicketPartition(InputPartition):
    """The messages that one task reads. ``ticket``: from the server."""

    ticket: bytes


class RemoteBatchReader(DataSourceReader):
    """As ``scan.BatchReader``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._remote = _Remote.of(options, check_columns(schema))
        ReadOptions.of(dict(self._remote.options))  # wrong options are refused before the server is asked

    def partitions(self) -> list[InputPartition]:
        return [TicketPartition(ticket) for ticket in self._remote.client.plan(**self._remote.asked())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TicketPartition)
        return self._remote.client.read(partition.ticket)


class RemoteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """As ``stream.StreamReader``. The server only remembers what it can find again."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._remote = _Remote.of(options, check_columns(schema))
        self._options = StreamOptions.of(dict(self._remote.options))
        self._target: int | None = None

    def _call(self, call: str, start: Offset | None = None, limit: ReadLimit | None = None) -> Any:
        told = None
        if isinstance(limit, ReadMaxRows):
            told = ["rows", limit.max_rows]
        elif isinstance(limit, ReadMaxBytes):
            told = ["bytes", limit.max_bytes]
        asked = {"call": call, "start": start, "limit": told, "target": self._target, **self._remote.asked()}
        return self._remote.client.act("stream", **asked)["offset"]

    def initialOffset(self) -> Offset:
        offset: Offset = self._call("initialOffset")
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        return limit_of(self._options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        offset: Offset = self._call("latestOffset", start, None if isinstance(limit, ReadAllAvailable) else limit)
        return offset

    def reportLatestOffset(self) -> Offset:
        offset: Offset = self._call("reportLatestOffset")
        return offset

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()[NUMBER]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tickets = self._remote.client.plan(start=start, end=end, **self._remote.asked())
        return [TicketPartition(ticket) for ticket in tickets]

    def commit(self, end: Offset) -> None:
        self._call("commit", end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TicketPartition)
        return self._remote.client.read(partition.ticket)

    def stop(self) -> None:
        """Do nothing: the server keeps nothing for a query."""


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemotelyWritten(WriterCommitMessage):
    """The result of one attempt at a task. ``vote``: xid, size and checksum of the branch; None without rows.

    ``session``: the session of the write. ``query``: the id of a streaming query; "" for a batch write.
    """

    session: bytes
    vote: Sequence[Any] | None
    rows: int
    query: str = ""


class RemoteBatchWriter(DataSourceArrowWriter):
    """As ``sink.BatchWriter``."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        self._remote = _Remote.of(options, schema)
        self._job = Job.of(dict(self._remote.options), schema, overwrite=overwrite)
        self._session = _begin(self._remote)

    def write(self, iterator: "Iterator[RecordBatch]") -> RemotelyWritten:  # type: ignore[override]
        return _write(self._remote, self._session, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        batch = self._job.batch
        if not _commit(self._remote, self._session, messages, batch) and batch is not None:
            log_repetition(batch, is_numbered=self._job.is_numbered)

    def abort(self, messages: Sequence[Any]) -> None:
        self._remote.client.act("abort", session=self._session)


class RemoteStreamWriter(DataSourceStreamArrowWriter):
    """As ``sink.StreamWriter``."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        remote = _Remote.of(options, schema)
        self._application, self._key, found = stream_names(dict(remote.options), overwrite=overwrite)
        RowsAsPuts.of(schema, found.get("queue"))  # wrong columns are refused before the server is asked
        self._remote = replace(remote, options={"queue": found["queue"]} if "queue" in found else {})
        self._session: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the write when Spark pickles the writer, because Spark pickles only the writer for the tasks."""
        if self._session is None:
            self._session = _begin(self._remote, self._key)
        return self.__dict__

    def write(self, iterator: "Iterator[RecordBatch]") -> RemotelyWritten:  # type: ignore[override]
        assert self._session is not None
        query = query_id()
        return replace(_write(self._remote, self._session, iterator), query=query)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        first: RemotelyWritten = messages[0]
        batch = BatchOf(self._application or first.query, batchId, first.query)
        if not _commit(self._remote, first.session, messages, batch):
            log_repetition(batch)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        known = [message.session for message in messages if message is not None]
        session = known[0] if known else None
        if session is not None or self._key is not None:
            self._remote.client.act("abort", session=session, key=None if known else self._key)


def _begin(remote: _Remote, key: str | None = None) -> bytes:
    session: bytes = remote.client.act("begin", key=key, **remote.asked())["session"]
    lease.start(remote.client, session)
    return session


def _write(remote: _Remote, session: bytes, batches: "Iterator[RecordBatch]") -> RemotelyWritten:
    partition, attempt = task()
    schema = remote.arrow_schema
    sent = (batch if batch.schema.equals(schema) else batch.cast(schema) for batch in batches)
    answer = remote.client.write(sent, schema, session=session, partition=partition, attempt=attempt, **remote.asked())
    return RemotelyWritten(session, answer["vote"], answer["rows"])


def _commit(remote: _Remote, session: bytes, messages: Sequence[RemotelyWritten], batch: BatchOf | None) -> bool:
    """Commit the branches of the attempts that Spark chose. Return False if the batch was committed before.

    Raises CommitUnknown if the server ended, or could not be reached, during the call.
    """
    votes = [message.vote for message in messages if message.vote is not None]
    rows = sum(message.rows for message in messages)
    told = None if batch is None else list(batch)
    try:
        written: bool = remote.client.act("commit", session=session, votes=votes, rows=rows, batch=told)["written"]
    except Unreachable as error:
        raise CommitUnknown(
            f"the rows may or may not have been written: {error}; look for the messages. A write with the options "
            "applicationId and batchId can be repeated: it writes the rows once"
        ) from error
    return written
