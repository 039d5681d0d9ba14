"""Read and write spaces on other machines. A server of spaces does the part of each task that needs the space.

The classes have the same roles as the classes of ``read_plan``, ``stream`` and ``sink``. The server runs the code of
those three modules, so each promise of a read or a write also holds here. Only rows and short requests pass over the
network.
"""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from forwarder.dataframes.columns import Options, ReadOptions, StreamOptions, check_columns
from forwarder.dataframes.coordination.write_coordinator import WriteCoordinator
from forwarder.dataframes.sink import BatchWriter, Job, StreamWriter, Written, task
from forwarder.dataframes.stream import limit_of
from forwarder.network import lease
from forwarder.network.server_calls import act, packed_vote, read, vote_of, write
from forwarder.network.server_options import connection_of, without_connection
from forwarder.subscriber import NUMBER, Offset
from spool.client.connection import HttpConnection
from spool.engine.remote import BatchOf
from spool.errors import CommitUnknown, SystemFailure

if TYPE_CHECKING:
    from pyarrow import RecordBatch


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class TicketPartition(InputPartition):
    """The messages that one task reads. ``ticket``: the ticket from the server."""

    ticket: bytes


class _Reader:
    """The common part of the readers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._connection = connection_of(options)
        self._given = without_connection(options)
        self._schema = check_columns(schema)

    def _asked(self) -> dict[str, Any]:
        options = {name: value for name, value in self._given.items() if name.lower() != "path"}
        return {"options": options, "columns": self._schema.names}

    def _planned(self, **offsets: Offset) -> list[InputPartition]:
        tickets = act(self._connection, "plan", **offsets, **self._asked())["tickets"]
        return [TicketPartition(b64decode(ticket)) for ticket in tickets]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TicketPartition)
        return read(self._connection, partition.ticket)


class RemoteBatchReader(_Reader, DataSourceReader):
    """The counterpart of ``read_plan.BatchReader`` for a space of a server."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        ReadOptions.of(dict(self._given))  # wrong options are refused before the server is asked

    def partitions(self) -> list[InputPartition]:
        return self._planned()


class RemoteStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The counterpart of ``stream.StreamReader``. The server can forget and recreate its own reader."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._options = StreamOptions.of(dict(self._given))
        self._target: int | None = None

    def _call(self, call: str, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        told = None
        if isinstance(limit, ReadMaxRows):
            told = ["rows", limit.max_rows]
        elif isinstance(limit, ReadMaxBytes):
            told = ["bytes", limit.max_bytes]
        asked = {"call": call, "start": start, "limit": told, "target": self._target, **self._asked()}
        offset: Offset = act(self._connection, "stream", **asked)["offset"]
        return offset

    def initialOffset(self) -> Offset:
        return self._call("initialOffset")

    def getDefaultReadLimit(self) -> ReadLimit:
        return limit_of(self._options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._call("latestOffset", start, limit)

    def reportLatestOffset(self) -> Offset:
        return self._call("reportLatestOffset")

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()[NUMBER]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._planned(start=start, end=end)

    def commit(self, end: Offset) -> None:
        self._call("commit", end)

    def stop(self) -> None:
        """Do nothing: the server keeps nothing for a query."""


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RemoteJob(Job):
    """The counterpart of ``sink.Job``. The server holds the coordinator's lock. The coordinator's id is the session."""

    connection: HttpConnection
    schema: StructType

    def begin(self, key: str | None = None) -> WriteCoordinator:
        session = act(self.connection, "begin", key=key, queue=self.rows.queue)["session"]
        lease.start(self.connection, session)
        return WriteCoordinator(session.encode(), "")

    def write(self, coordinator: WriteCoordinator, batches: "Iterator[RecordBatch]") -> Written:
        partition, attempt = task()
        schema = to_arrow_schema(self.schema, timezone="UTC")
        sent = (batch if batch.schema.equals(schema) else batch.cast(schema) for batch in batches)
        told = {"task": partition, "attempt": attempt, "queue": self.rows.queue}
        answer = write(self.connection, sent, schema, coordinator.id.decode(), **told)
        return Written(coordinator, vote_of(answer["vote"]), answer["rows"])

    def commit(self, coordinator: WriteCoordinator, messages: Sequence[Written], batch: BatchOf | None) -> bool:
        votes = [packed_vote(message.vote) for message in messages if message.vote is not None]
        rows = sum(message.rows for message in messages)
        told = None if batch is None else list(batch)
        try:
            answer = act(self.connection, coordinator.id.decode(), "commit", votes=votes, rows=rows, batch=told)
        except SystemFailure as error:  # e.g. Unreachable
            raise CommitUnknown(
                f"the rows may or may not have been written: {error}; look for the messages. A write with the options "
                "applicationId and batchId can be repeated: it writes the rows once"
            ) from error
        return bool(answer["written"])

    def end(self, coordinator: WriteCoordinator) -> None:
        act(self.connection, coordinator.id.decode(), "abort")

    def end_stream(self, key: str) -> None:
        act(self.connection, "abort", key=key)


def batch_writer(options: Options, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch write into a space of a server."""
    connection = connection_of(options)
    job = Job.of(without_connection(options), schema, overwrite=overwrite)
    return BatchWriter(RemoteJob(**vars(job), connection=connection, schema=schema))


def stream_writer(options: Options, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Return the writer of a stream write into a space of a server."""
    connection = connection_of(options)
    writer = StreamWriter.of(without_connection(options), schema, overwrite=overwrite)
    writer.job = RemoteJob(**vars(writer.job), connection=connection, schema=schema)
    return writer
