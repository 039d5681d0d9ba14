"""Write a DataFrame or a stream into queues, with one commit for all rows of a DataFrame or of a micro-batch.

Each task streams its rows into a separate branch on the disk, and prepares the branch. One commit adopts the
branches of the attempts that Spark chose, in the order of the partitions. ``coordination.coordinator`` describes the
processes of a write, and the effect if a process dies.

If a process commits and dies before it reports the commit, Spark calls ``abort()`` and fails the job. So ``abort()``
does not decide the outcome. ``abort()`` ends the coordinator and rolls back branches that are not committed. If a
program may repeat a failed job, it names the job with the options ``applicationId`` and ``batchId``. The commit records
both options, so a batch is not written again (``spool.policies.applications``).

Spark commits a micro-batch to its checkpoint after the commit of the rows. After a crash between these two commits,
Spark runs the same micro-batch again. The stream's name is the option ``applicationId``, or else the id of the query.
Spark keeps the id in the checkpoint, so a query that is restarted on its checkpoint has the same id. Only the tasks get
the id, so each task returns the id in its message. A stream with a new checkpoint counts its batches from 0 again. If
the stream had the name of an older stream, its first batches would count as written, and would be lost. The commit
therefore also records the id of the query, and refuses a batch of another query.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import spool
from forwarder.dataframes.columns import Options, number_option, parse_options
from forwarder.dataframes.coordination import write_coordinator
from forwarder.dataframes.coordination.write_coordinator import WriteCoordinator
from forwarder.message_puts import PutOfRows, RowsAsPuts
from spool.engine import UnknownBranch
from spool.engine.remote import BatchOf, RemoteBranch, Vote
from spool.errors import InvalidArgument, SpoolError, TransactionRolledBack
from spool.model.checks import SHORT_TEXT, ValueCheck
from spool.model.layout import MAX_ORDINAL
from spool.model.settings import check_queue_name
from spool.model.text import no_queue
from spool.model.xid import FORMAT_ROUND, Xid

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("spool.forwarder")

_QUERY_ID = (
    "sql.streaming.queryId"  # the local property from which the tasks of a micro-batch get the id of their query
)

_BOTH = {
    "queue": ValueCheck("a queue's name", lambda value: check_queue_name(value, "the option queue: ")),
    "applicationId": SHORT_TEXT,
}
_BATCH: Mapping[str, ValueCheck] = {**_BOTH, "batchId": number_option("a whole number from 0", least=0)}
_ANY = ValueCheck("a text", str)
_STREAM: Mapping[str, ValueCheck] = {**_BOTH, "checkpointLocation": _ANY, "queryName": _ANY}  # last two: Spark's own


def _refuse_overwriting(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidArgument(f"messages are added to a queue, which is never overwritten: write with {instead}")


def _rows(schema: StructType, queue: str | None) -> RowsAsPuts:
    """Return the object that turns rows into puts. InvalidArgument if a column is wrong."""
    told = {field.name: field.dataType.simpleString() for field in schema.fields}
    return RowsAsPuts.of(to_arrow_schema(schema, timezone="UTC"), queue, told)


@dataclass(frozen=True)
class Job:
    """The description of one write, for its tasks and its commit.

    path: the directory of the space.
    rows: the object that turns the rows into puts.
    batch: the name of this write, i.e. an application and a number; None if the program did not name the write.
    is_numbered: whether the program gave the batch its number. If the program gave no number, all writes of the
        application have the same number.
    """

    path: str
    rows: RowsAsPuts
    batch: BatchOf | None = None
    is_numbered: bool = True

    @classmethod
    def of(cls, given: Options, schema: StructType, *, overwrite: bool) -> Self:
        """Return the job for the options and the columns of a write.

        InvalidArgument if an option or a column is wrong.
        """
        found = parse_options(given, _BATCH, "writing to a space")
        _refuse_overwriting(overwrite, ".mode('append'); spool-admin queue purge empties a queue")
        if "batchId" in found and "applicationId" not in found:
            raise InvalidArgument("batchId numbers the batches of an application: set the option applicationId, too")
        batch = BatchOf(found["applicationId"], found.get("batchId", 0)) if "applicationId" in found else None
        return cls(found["path"], _rows(schema, found.get("queue")), batch, "batchId" in found)

    def check_queue(self, space: spool.Space) -> None:
        """Raise QueueNotFound if the queue of the option ``queue`` does not exist."""
        queues = space.queues()
        if self.rows.queue is not None and self.rows.queue not in queues:
            raise no_queue(self.rows.queue, queues)

    def begin(self, key: str | None = None) -> WriteCoordinator:
        """Start the coordinator of the write. QueueNotFound if the queue of the option ``queue`` does not exist.

        ``key``: the stream's name, or None (see ``write_coordinator.start``).
        """
        with spool.open(self.path) as space:
            self.check_queue(space)
            return write_coordinator.start(space, key)

    def write(self, coordinator: WriteCoordinator, batches: "Iterator[RecordBatch]") -> "Written":
        """Write the rows of a partition into a branch of this attempt, and prepare the branch.

        Raises:
            InvalidArgument, QueueNotFound: a row cannot be a message; the error names the row.
            TransactionRolledBack: the write has ended.
        """
        partition, attempt = task()
        xid = Xid(FORMAT_ROUND, coordinator.id, f"{partition}.{attempt}".encode())
        return Written(coordinator, *write_branch(self.path, self.rows, xid, partition, batches))

    def commit(self, coordinator: WriteCoordinator, messages: "Sequence[Written]", batch: BatchOf | None) -> bool:
        """Commit the branches of the attempts that Spark chose, and roll back all others.

        Returns:
            True if this call has written the rows, False if the batch was committed before.

        Args:
            messages: the messages of all partitions, in order.
            batch: the name of the write, if it has one.

        Raises:
            TransactionRolledBack: the coordinator has ended, so nothing was written.
            Full: the rows do not fit; nothing was written.
            MessageInUse: another transaction, which does not end, uses the deduplication key of a row; nothing was
                written.
            CommitUnknown: the disk failed in the middle of the commit, or the server of the space did not answer.
        """
        check_count(sum(message.rows for message in messages))
        xids = [message.vote.xid for message in messages if message.vote is not None]
        with spool.open(self.path) as space:
            is_written = adopt(space, xids, batch)
            _end(space, coordinator)
        return is_written

    def end(self, coordinator: WriteCoordinator) -> None:
        """End a write: this process, or the next process that opens the space, rolls back the uncommitted branches."""
        try:
            with spool.open(self.path) as space:
                _end(space, coordinator)
        except (SpoolError, OSError) as error:
            coordinator.end()
            _log_left_branches(self.path, error)

    def end_stream(self, key: str) -> None:
        """End the write of the stream named ``key``."""
        self.end(WriteCoordinator(b"", write_coordinator.address_of(self.path, key)))


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of one attempt at a task.

    coordinator: the coordinator of the write.
    vote: the prepared branch; None if the attempt had no rows.
    rows: the number of rows.
    query: the id of the streaming query, from its checkpoint; "" for a batch write.
    """

    coordinator: WriteCoordinator
    vote: Vote | None
    rows: int
    query: str = ""


class BatchWriter(DataSourceArrowWriter):
    """A batch write. Spark creates the writer on the driver's machine before the tasks, and sends it to each task."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.coordinator = job.begin()

    def write(self, iterator: "Iterator[RecordBatch]") -> Written:  # type: ignore[override]  # (PySpark's own types)
        return self.job.write(self.coordinator, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit the branches of the tasks. The errors are the same as in ``Job.commit``."""
        batch = self.job.batch
        if not self.job.commit(self.coordinator, messages, batch) and batch is not None:
            log_repetition(batch, is_numbered=self.job.is_numbered)

    def abort(self, messages: Sequence[Any]) -> None:
        self.job.end(self.coordinator)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream write. Spark creates one writer for a micro-batch's tasks, and another for its commit or abort.

    coordinator: the coordinator of the micro-batch; None until the writer is sent to the tasks.
    """

    def __init__(self, job: Job, application: str | None, key: str | None) -> None:
        """``key``: the name of the stream in its space, or None. Every process uses the same name for the stream."""
        self.job = job
        self.application = application
        self.key = key
        self.coordinator: WriteCoordinator | None = None

    @classmethod
    def of(cls, given: Options, schema: StructType, *, overwrite: bool) -> Self:
        """Return the writer for the options and the columns of a stream write. InvalidArgument if either is wrong."""
        found = parse_options(given, _STREAM, "writing a stream to a space")
        _refuse_overwriting(overwrite, ".outputMode('append'), or 'update'")
        application, checkpoint = found.get("applicationId"), found.get("checkpointLocation")
        key = None if checkpoint is None else f"checkpoint {checkpoint}"
        job = Job(found["path"], _rows(schema, found.get("queue")))
        return cls(job, application, key if application is None else f"application {application}")

    def __getstate__(self) -> dict[str, Any]:
        """Begin the write when Spark pickles the writer, because Spark pickles only the writer for the tasks."""
        if self.coordinator is None:
            self.coordinator = self.job.begin(self.key)
        return self.__dict__

    def write(self, iterator: "Iterator[RecordBatch]") -> Written:  # type: ignore[override]
        assert self.coordinator is not None
        return replace(self.job.write(self.coordinator, iterator), query=query_id())

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Commit the branches, unless the batch was committed before. The errors are the same as in ``Job.commit``."""
        first: Written = messages[0]
        batch = BatchOf(self.application or first.query, batchId, first.query)
        if not self.job.commit(first.coordinator, messages, batch):
            log_repetition(batch)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        known = [message.coordinator for message in messages if message is not None]
        if known:
            self.job.end(known[0])
        elif self.key is not None:
            self.job.end_stream(self.key)


# -- in the tasks ------------------------------------------------------------------------------------------------------


def query_id() -> str:
    """Return the id of the streaming query of this task. InvalidArgument if the task belongs to no such query."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    if not query:
        raise InvalidArgument("this is no task of a streaming query: write a DataFrame that is no stream with .write")
    return str(query)


def task() -> tuple[int, int]:
    """Return the number of this task's partition, and the number of this attempt at the task."""
    context = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())


def write_branch(
    path: str, rows: RowsAsPuts, xid: Xid, partition: int, batches: "Iterable[RecordBatch]"
) -> tuple[Vote | None, int]:
    """Write rows into a branch, and prepare the branch; return the vote and the number of rows.

    ``partition``: the number of the partition, for errors. The errors are the same as in ``Job.write``.
    """
    branch = RemoteBranch(path, xid)
    try:
        count = 0
        for batch in batches:
            check_count(count + batch.num_rows)
            for put in rows.puts(batch, count):
                try:
                    _put(branch, put)
                except SpoolError as error:
                    error.add_note(f"(row {_refused_row(branch, put)} of partition {partition}, counted from 0)")
                    raise
            count += batch.num_rows
        return branch.prepare(), count
    finally:
        branch.close()


def _put(branch: RemoteBranch, put: PutOfRows) -> None:
    if put.queue is None:
        raise InvalidArgument("the row names no queue (null): give it one, or leave it out")
    if None in put.bodies:
        raise InvalidArgument("the row has no body (null): give it one, e.g. coalesce(body, ''), or leave it out")
    branch.put(put.queue, put.bodies, **put.options)


def _refused_row(branch: RemoteBranch, put: PutOfRows) -> int:
    """Put the rows again, one by one; return the number of the refused row."""
    for one in put.of_each_row():
        try:
            _put(branch, one)
        except SpoolError:
            return one.row
    return put.row


def check_count(rows: int) -> None:
    """Raise InvalidArgument if one commit cannot have this number of rows."""
    if rows > MAX_ORDINAL + 1:
        raise InvalidArgument(
            f"one write has at most {MAX_ORDINAL + 1:,} rows, because it is one commit: write the DataFrame in parts"
        )


# -- beside the driver -------------------------------------------------------------------------------------------------


def log_repetition(batch: BatchOf, *, is_numbered: bool = True) -> None:
    """Log that a write has written nothing, because its batch was committed before."""
    if is_numbered:
        log.info("batch %d of application %s was committed before: nothing is written", batch.number, batch.application)
    else:
        log.warning(
            "application %s has written before, and this write has no batchId: nothing is written; if it is another "
            "write, give each write of the application a batchId that grows",
            batch.application,
        )


def adopt(space: spool.Space, xids: Sequence[Xid], batch: BatchOf | None) -> bool:
    """Commit the branches; return False if the batch was committed before.

    A batch without rows is also recorded if the program itself counts its batches: it may repeat the batch with rows.
    """
    if not xids and (batch is None or batch.source):
        return True
    try:
        return space.engine.commit_branches(xids, batch)
    except UnknownBranch as error:
        raise TransactionRolledBack(
            f"nothing was written: the process that coordinates the write has ended before the commit ({error}); "
            "write the DataFrame again"
        ) from error


def _end(space: spool.Space, coordinator: WriteCoordinator) -> None:
    """End the coordinator, and roll back uncommitted branches. The outcome is decided, so errors are only logged."""
    coordinator.end()
    try:
        space.engine.resolve_orphans()
    except (SpoolError, OSError) as error:
        _log_left_branches(space.path, error)


def _log_left_branches(path: str, error: Exception) -> None:
    log.warning("the next process that opens %s rolls back the uncommitted branches of a write: %s", path, error)
