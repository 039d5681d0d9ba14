"""Read messages as a stream: each batch has the messages of all commits between two offsets.

An offset is the number of a durable commit: the query has read this commit and all earlier commits. Commits become
visible in the order of their numbers (Rule 2), so no smaller number appears afterwards. No number is issued twice (Rule
16). Spark keeps the offsets in the checkpoint of the query. The space does not know its readers, so any number of
queries can read at the same time. A query does not read messages that were consumed before the query reached them.

Spark starts one process for the query. This process computes the offsets and the plans, and has the space open until
the query ends. The tasks read like the tasks of a batch read.

For a query with a *subscription*, the space keeps all commits after the registration (Rule 15), and the query reads
these commits from their files. The query reads earlier commits in the same way as a query without a subscription. The
offsets of this query also contain the number of the commit that registered the subscription. This number distinguishes
subscriptions with the same name.
"""

import math
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
from forwarder.dataframes.columns import GO_ON, StreamOptions, check_columns
from forwarder.dataframes.read_plan import Partition, planned
from forwarder.subscriber import NUMBER, SINCE, Offset, Subscriber
from spool.engine.remote import Missing
from spool.errors import InvalidArgument

if TYPE_CHECKING:
    from spool import Space
    from spool.engine.remote import Backlog, CommitSize

# The largest number of commits whose sizes one call reads.
_COMMITS = 1 << 20


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Spark pickles one reader for the tasks. Another reader has the space open.

    space: the open space, which the caller closes. Without this argument, the reader opens the space at the first use.
    """

    def __init__(self, options: StreamOptions, schema: StructType, space: "Space | None" = None) -> None:
        self._options = options
        self._schema = check_columns(schema)
        self._space = space
        self._is_closing = space is None  # whether ``stop`` closes the space
        self.target: int | None = None  # the last commit to read, if the query has to end there
        self._ahead: deque[CommitSize] = deque()  # commits with messages after the last requested offset
        self._since: int | None = None  # the commit that registered the subscription, or None
        self._looked = range(0)  # the commits that ``_ahead`` covers

    # -- offsets ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Return the first offset of a query without a checkpoint. (Spark calls this method more than once.)"""
        first = self._options.first
        if not self._options.subscription:
            return {NUMBER: first - 1 if first else self._published()}
        if self._since is None:
            self._since = self._subscriber().begin()
        return {NUMBER: first - 1 if first else self._since, SINCE: self._since}

    def getDefaultReadLimit(self) -> ReadLimit:
        return limit_of(self._options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch, or ``start`` if no message can be read.

        A batch has whole commits. If a limit is set, a batch has as many commits as the limit allows, but at least one.
        """
        begin, newest = start[NUMBER], self._published()
        if begin > newest:
            raise InvalidArgument(
                f"the checkpoint of the query is at commit {begin}, and {self._options.path} has {newest} commits: "
                "it belongs to another space; give the query a separate checkpoint"
            )
        since = self._subscriber().renew(start) if self._options.subscription else None
        if since != self._since:
            self._since, self._looked = since, range(0)
        if self.target is not None:
            newest = max(begin, min(newest, self.target))
        if since is None and isinstance(limit, ReadAllAvailable):
            return {NUMBER: newest if self._within(begin, newest, 1, 1) > begin else begin}
        end = {NUMBER: self._within(begin, newest, *self._limits(limit))}
        return end if since is None else {**end, SINCE: since}

    def reportLatestOffset(self) -> Offset:
        return {NUMBER: self._published()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end once it has read the present messages. The query does not read newer messages."""
        self.target = self._published()

    def _limits(self, limit: ReadLimit) -> tuple[float, float]:
        """Return the limits of messages and bytes in a batch.

        Spark passes on one limit, but the options may have two.
        """
        most, most_bytes = math.inf, math.inf
        if not isinstance(limit, ReadAllAvailable):
            most, most_bytes = self._options.max_messages or math.inf, self._options.max_bytes or math.inf
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            most_bytes = min(most_bytes, limit.max_bytes)
        return most, most_bytes

    def _within(self, begin: int, newest: int, most: float, most_bytes: float) -> int:
        """Return the last commit for a batch after ``begin`` within these limits.

        The first commit with messages always counts as fitting. With a subscription, the returned commit has put
        messages, so it is durable. A power cut may undo later commits that only count attempts. New messages would then
        get the same commit numbers, and the query would skip these messages.
        """
        self._forget_up_to(begin)
        end, messages, size, at = begin, 0, 0, 0
        while True:
            if at == len(self._ahead):
                if self._looked.stop > newest:
                    return newest if end > begin and self._since is None else end
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
        """Read the sizes of the next commits, at most up to the commit ``newest``."""
        last = min(newest, self._looked.stop + _COMMITS - 1)
        backlog, first = self._backlog(), self._looked.stop
        since = last if self._since is None else self._since  # the subscription keeps later commits
        if first <= since:
            self._ahead.extend(backlog.sizes(first, min(last, since)))
        if since < last:
            self._ahead.extend(backlog.kept_sizes(max(first, since + 1), last))
        self._looked = range(self._looked.start, last + 1)

    # -- batches ------------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the tasks of a batch. The tasks read the messages that still exist between the two offsets."""
        if SINCE not in end:  # without a subscription
            found = self._backlog().items(start[NUMBER] + 1, end[NUMBER])
            return list(planned(found, self._options, self._schema)) if start[NUMBER] < end[NUMBER] else []
        present, kept = self._subscriber().places(self._backlog(), start, end)
        missing = Missing.FAIL if self._options.fail_on_loss else Missing.SKIP
        parts: list[InputPartition] = []
        if present:
            parts += planned(present, self._options, self._schema)
        if kept:
            parts += planned(kept, self._options, self._schema, missing)
        return parts or list(planned([], self._options, self._schema))  # (headers may have excluded all messages)

    def commit(self, end: Offset) -> None:
        """Let the space release all commits up to ``end``, which the query has read."""
        if SINCE in end and self._options.subscription:
            self._subscriber().read(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        return partition.read(self._options.path, self._schema)

    def stop(self) -> None:
        if self._space is not None and self._is_closing:
            self._space.close()

    # -- the space ----------------------------------------------------------------------------------------------------

    def _opened(self) -> "Space":
        if self._space is None:
            self._space = spool.open(self._options.path)
        return self._space

    def _backlog(self) -> "Backlog":
        return self._opened().engine.backlog(self._options.queues, self._options.headers)

    def _subscriber(self) -> "Subscriber":
        options = self._options
        go_on = GO_ON if options.fail_on_loss else None
        return Subscriber(self._opened().engine, options.subscription, options.queues, options.expiry, go_on)

    def _published(self) -> int:
        """Return the newest commit that is visible and durable.

        A power cut may undo a commit that is not durable. Another commit then gets the same number. Spark's
        checkpoint would falsely record that the query has read the new commit.
        """
        return self._opened().engine.durable_number()


def limit_of(options: StreamOptions) -> ReadLimit:
    """Return the limit of a batch. Spark passes on one limit; of two limits, this is the limit of messages."""
    if options.max_messages is not None:
        return ReadMaxRows(options.max_messages)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()
