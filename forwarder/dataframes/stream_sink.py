"""Write a stream into queues: each micro-batch is one commit, however often Spark runs it.

A micro-batch is written like a batch write (``sink``). Spark commits the batch to its checkpoint afterwards, so after
a crash in between Spark runs the same batch again. The commit of a batch therefore also records the number of the
batch, under the stream's name. A batch whose number is recorded writes nothing (``spool.policies.applications``).

The stream's name is the option ``applicationId``, or else the id of the query. Spark keeps the id in the checkpoint, so
a query that is restarted on its checkpoint has the same id. Only the tasks get the id, so they return the id in
their messages.

A stream with a new checkpoint counts its batches from 0 again. If the stream had the name of an older stream, its first
batches would be lost. The commit therefore also records the id of the query, and refuses a batch of another
query.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from forwarder.dataframes.columns import NAME, Options, parse_options
from forwarder.dataframes.coordination.coordinator import Coordinator, address_of
from forwarder.dataframes.puts import RowsAsPuts
from forwarder.dataframes.sink import QUEUE, Job, Written, commit, end, log_repetition, write_partition
from spool.engine.tasks import BatchOf
from spool.errors import InvalidArgument
from spool.model.checks import ValueCheck

if TYPE_CHECKING:
    from pyarrow import RecordBatch

QUERY_ID = "sql.streaming.queryId"
"""The local property from which the tasks of a micro-batch get the id of their query."""

_ANY = ValueCheck("a text", str)
STREAMING: Mapping[str, ValueCheck] = {
    "queue": QUEUE,
    "applicationId": NAME,
    "checkpointLocation": _ANY,
    "queryName": _ANY,
}
"""The options of a stream write; the last two are Spark's own."""


@dataclass(frozen=True)
class WrittenToStream(Written):
    """The result of one attempt at a task of a micro-batch. ``query``: the id of the query in its checkpoint."""

    query: str


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream write. Spark creates one writer for the tasks of a micro-batch, and another for its commit or abort.

    coordinator: the coordinator of the micro-batch; None until the writer is sent to the tasks.
    """

    def __init__(self, job: Job, application: str | None, key: str | None) -> None:
        """``key``: the name of the stream in its space, the same in every process; None if the stream has no name."""
        self.job = job
        self.application = application
        self.key = key
        self.coordinator: Coordinator | None = None

    @classmethod
    def of(cls, given: Options, schema: StructType, *, overwrite: bool) -> Self:
        """Return the writer for the options and the columns of a stream write. InvalidArgument if either is wrong."""
        found = parse_options(given, STREAMING, "writing a stream to a space")
        if overwrite:
            raise InvalidArgument(
                "messages are added to a queue, which is never overwritten: "
                "write with .outputMode('append'), or 'update'"
            )
        application, checkpoint = found.get("applicationId"), found.get("checkpointLocation")
        key = None if checkpoint is None else f"checkpoint {checkpoint}"
        key = key if application is None else f"application {application}"
        return cls(Job(found["path"], RowsAsPuts.of(schema, found.get("queue"))), application, key)

    def __getstate__(self) -> dict[str, Any]:
        """Begin the write, and return the state that Spark sends to the tasks.

        Spark sends only the writer for the tasks, so no other writer begins a write.
        """
        if self.coordinator is None:
            self.coordinator = self.job.begin(self.key)
        return self.__dict__

    def write(self, iterator: "Iterator[RecordBatch]") -> WrittenToStream:  # type: ignore[override]
        """Write the rows of a partition into a branch, and prepare it."""
        assert self.coordinator is not None
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if not query:
            raise InvalidArgument(
                "this is no task of a streaming query: write a DataFrame that is no stream with .write"
            )
        done = write_partition(self.job, self.coordinator, iterator)
        return WrittenToStream(done.coordinator, done.vote, done.rows, query)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Commit the branches, unless the batch was committed before. The errors are those of ``sink.commit``."""
        first: WrittenToStream = messages[0]
        batch = BatchOf(self.application or first.query, batchId, first.query)
        if not commit(self.job.path, first.coordinator, messages, batch):
            log_repetition(batch)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Roll back the branches that are not committed."""
        known = [message.coordinator for message in messages if message is not None]
        if not known and self.key is not None:
            known = [Coordinator(b"", address_of(self.job.path, self.key))]
        if known:
            end(self.job.path, known[0])
