"""Reading as a stream: batch after batch of what was put, from one commit to another.

An offset is the number of a commit: all that was put up to it is read. Numbers are visible in their order (Rule 2), so
nothing appears behind an offset later. Spark keeps the offsets in the checkpoint of the query, and the space knows
nothing of its readers: any number of queries read it side by side, and what is consumed before a query came to it is
not read by that query.

Offsets and plans are made in one process, which Spark starts for the query and which has the space open until the query
ends. The tasks read as those of a batch read do.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import spool
from forwarder.dataframes import rows
from forwarder.dataframes.columns import StreamOptions, check_columns
from forwarder.dataframes.scan import Partition, planned
from spool.errors import InvalidArgument

if TYPE_CHECKING:
    from forwarder.dataframes.reading.look import CommitSize, Look
    from spool.space import Space

# At how many commits one look for sizes goes at most.
_COMMITS = 1 << 20

Offset = dict[str, int]
_NUMBER = "number"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source. Spark pickles one to the tasks, which use ``read`` alone; only another one has the space."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_columns(schema)
        self._space: Space | None = None
        self._target: int | None = None  # of a query that ends once it has read what is there
        self._ahead: deque[CommitSize] = deque()  # commits with messages behind the offset that was asked for last
        self._looked = range(0)  # the commits of which ``_ahead`` has those with messages

    # -- offsets ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Return the offset with which a query without a checkpoint begins."""
        return {_NUMBER: self._options.first - 1 if self._options.first else self._published()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch, as the options have it."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch: ``start`` if there is nothing to read.

        A batch has whole commits, and at least one. With a limit it has no more of them than fit.
        """
        begin, newest = start[_NUMBER], self._published()
        if begin > newest:
            raise InvalidArgument(
                f"the checkpoint of the query is at commit {begin}, and {self._options.path} has {newest} commits: "
                "it belongs to another space; give the query a checkpoint of its own"
            )
        if self._target is not None:
            newest = min(newest, self._target)
        if not isinstance(limit, ReadAllAvailable):
            return {_NUMBER: self._within(begin, newest, *self._limits(limit))}
        return {_NUMBER: newest if self._within(begin, newest, 1, 1) > begin else begin}

    def reportLatestOffset(self) -> Offset:
        """Return the newest commit, for the progress of the query."""
        return {_NUMBER: self._published()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now and nothing newer: then the query ends."""
        self._target = self._published()

    def _limits(self, limit: ReadLimit) -> tuple[float, float]:
        """Return the most messages and bytes of a batch: Spark passes on one limit, and the options may have two."""
        most, most_bytes = (self._options.max_messages or float("inf"), self._options.max_bytes or float("inf"))
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            most_bytes = min(most_bytes, limit.max_bytes)
        return most, most_bytes

    def _within(self, begin: int, newest: int, most: float, most_bytes: float) -> int:
        """Return the last commit behind ``begin`` up to which there is no more than that, but for the first one."""
        self._forget_up_to(begin)
        end, messages, size, at = begin, 0, 0, 0
        while True:
            if at == len(self._ahead):
                if self._looked.stop > newest:
                    return newest if end > begin else begin
                self._look_on(newest)
                continue
            commit = self._ahead[at]
            messages, size = messages + commit.messages, size + commit.bytes
            if commit.number > newest or (end > begin and (messages > most or size > most_bytes)):
                return end
            end, at = commit.number, at + 1

    def _forget_up_to(self, begin: int) -> None:
        if begin + 1 not in range(self._looked.start, self._looked.stop + 1):
            self._ahead.clear()
            self._looked = range(begin + 1, begin + 1)
        while self._ahead and self._ahead[0].number <= begin:
            self._ahead.popleft()
        self._looked = range(begin + 1, self._looked.stop)

    def _look_on(self, newest: int) -> None:
        """Look at the next commits, up to ``newest`` at most."""
        last = min(newest, self._looked.stop + _COMMITS - 1)
        self._ahead.extend(self._look().sizes(self._looked.stop, last))
        self._looked = range(self._looked.start, last + 1)

    # -- batches ------------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the tasks of a batch: of what there is, now, of the messages between its offsets."""
        if start[_NUMBER] >= end[_NUMBER]:
            return []
        found = self._look().items(start[_NUMBER] + 1, end[_NUMBER])
        return list(planned(found, self._options, self._schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads; in a worker."""
        assert isinstance(partition, Partition)
        return rows.read(self._options.path, partition.items, self._schema)

    def stop(self) -> None:
        """Close the space: the query has ended."""
        if self._space is not None:
            self._space.close()

    # -- the space ----------------------------------------------------------------------------------------------------

    def _opened(self) -> "Space":
        if self._space is None:
            self._space = spool.open(self._options.path)
        return self._space

    def _look(self) -> "Look":
        from forwarder.dataframes.reading.look import Look

        return Look(self._opened(), self._options.queues, self._options.headers)

    def _published(self) -> int:
        """Return the newest commit that is visible."""
        return self._opened().engine.store.check_usable().published
