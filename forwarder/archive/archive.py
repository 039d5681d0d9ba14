"""One run of an archive: read the messages that were put since the last run, and write them to Parquet files.

A subscription keeps the messages between two runs. The directory has a record of the archive: the last archived commit,
and the files of the last run (``record``). A run takes these steps:

1. Finish the files of a run that was killed after step 4, and remove the files of a run that was killed before step 4.
2. Write the rows to temporary files, and flush them.
3. Check that the subscription still exists, so that no message was lost.
4. Replace the record. From now on the messages are archived.
5. Rename the files to their final names.
6. Advance the subscription, so that the space may remove the kept messages.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

import spool
from forwarder.archive.files import DatedFiles
from forwarder.archive.record import Record, RecordFile
from forwarder.message_rows import LARGEST_BODY, MessageRows, arrow_schema
from forwarder.subscriber import NUMBER, SINCE, Offset, Subscriber
from spool.engine.remote import MessageReader, Missing, space_of
from spool.errors import InvalidArgument

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from spool import Space

AFTER_LOSS = "to continue with the readable messages, run spool-admin archive once with --after-loss"

_COMMITS = 1 << 16  # whose sizes one call reads
_PLANNED_MESSAGES = 10_000  # whose places are in memory at a time, if each commit is small


@dataclass(frozen=True)
class ArchiveReport:
    """The result of one run.

    directory: the directory of the files.
    files: the new files, relative to the directory.
    messages, bytes: the number of archived messages, and the sum of the sizes of their bodies.
    first, last: the run archived the messages that the commits ``first`` to ``last`` put. Without messages, ``last`` is
        ``first - 1``.
    """

    queue: str
    directory: str
    files: tuple[str, ...]
    messages: int
    bytes: int
    first: int
    last: int


class Archive:
    """An archive of one queue in one directory.

    Args:
        space: the open space.
        directory: the directory of the files, which is created if it is missing.
        subscription: the name of the archive's subscription.
        expiry: the seconds after which the subscription ends without another run.
        row_group: the number of messages in a row group, which are in memory at a time.
        after_loss: whether the run continues although messages were lost, e.g. after the end of the subscription.
    """

    def __init__(
        self,
        space: "Space",
        queue: str,
        directory: str,
        *,
        subscription: str,
        expiry: float,
        row_group: int = 10_000,
        after_loss: bool = False,
    ) -> None:
        if (inside := space_of(os.path.realpath(directory))) is not None:  # only ``spool.disk`` may change its files
            raise InvalidArgument(f"{directory} is inside the queue space {inside}: name another directory")
        self._space, self._engine, self._queue = space, space.engine, queue
        self._directory, self._row_group = directory, row_group
        self._missing = Missing.SKIP if after_loss else Missing.FAIL
        advice, self._place = None if after_loss else AFTER_LOSS, os.path.realpath(directory)
        self._subscriber = Subscriber(self._engine, subscription, [queue], expiry, advice, self._place)
        self._backlog = self._engine.backlog([queue])
        self._file = RecordFile(directory, subscription)

    def run(self) -> ArchiveReport:
        """Archive the messages that were put since the last run.

        The first run registers the subscription, and archives the messages that are in the queue.

        Raises:
            InvalidArgument: the subscription has ended, so messages may be missing; or the directory has the archive of
                another space or queue; or the subscription belongs to another directory; or another run writes the
                archive now.
            CorruptedFile: a kept message cannot be read.
            OSError: the directory cannot be written. The next run archives the same messages.
        """
        with self._file.locked():
            record = self._file.read()
            start = self._begin() if record is None else self._continue(record)
            newest = self._engine.durable_number()
            if start[NUMBER] > newest:
                raise InvalidArgument(
                    f"{self._directory} has the messages up to commit {start[NUMBER]}, and the space has {newest} "
                    "commits: it is another space; use another directory"
                )
            report = self._write(start, newest)
            self._subscriber.read({**start, NUMBER: report.last})
        return report

    def _begin(self) -> Offset:
        self._file.check_new()
        try:
            start = {NUMBER: 0, SINCE: self._subscriber.begin()}
        except InvalidArgument:
            raise InvalidArgument(self._taken()) from None
        self._save(start, ())
        return start

    def _taken(self) -> str:
        """Return why this directory cannot begin an archive with the subscription."""
        known = self._engine.subscription(self._subscriber.name)
        owner = known.directory if known is not None else ""
        if owner == self._place:
            return f"{owner} has lost the record of its archive: restore {self._file.path} from a backup; {AFTER_LOSS}"
        reader = f"the archive in {owner}: name that directory with --to, or" if owner else "a query:"
        belongs = f"the subscription {self._subscriber.name!r} belongs to {reader}"
        return f"{self._directory} has no archive yet, and {belongs} begin a second archive with another --subscription"

    def _continue(self, record: Record) -> Offset:
        if (record.space, record.queue) != (self._engine.space_id, self._queue):
            raise InvalidArgument(
                f"{self._directory} has the archive of queue {record.queue} of another space or another queue: give "
                "each archive its own directory, or its own --subscription"
            )
        self._file.finish(record)
        start = {NUMBER: record.number, SINCE: self._subscriber.renew({NUMBER: record.number, SINCE: record.since})}
        if start[SINCE] != record.since:  # after a loss: the next run knows the new registration, even without rows now
            self._save(start, ())
        return start

    def _save(self, offset: Offset, files: tuple[tuple[str, str], ...]) -> None:
        self._file.write(Record(self._engine.space_id, self._queue, offset[SINCE], offset[NUMBER], files))

    def _write(self, start: Offset, newest: int) -> ArchiveReport:
        begin, schema = start[NUMBER], arrow_schema()
        report = ArchiveReport(self._queue, self._directory, (), 0, 0, begin + 1, begin)
        # (the record names the files of the last run that was not killed, so no later run has the same temporary names)
        with DatedFiles(self._directory, f"{self._file.prefix}{report.first}.", schema, self._row_group) as files:
            for end in self._ends(start, newest):
                for batch in self._batches({**start, NUMBER: report.last}, {**start, NUMBER: end}):
                    files.add(batch)
                    size = pc.sum(batch.column("body_bytes")).as_py() or 0
                    report = replace(report, messages=report.messages + batch.num_rows, bytes=report.bytes + size)
                report = replace(report, last=end)
            if not report.messages:
                return report
            written = files.finish(f"{self._file.name}-{report.first:016d}-{report.last:016d}")
            start[SINCE] = self._subscriber.renew(start)
            files.release()  # even if the record cannot be flushed, the record may name the files
        self._save({**start, NUMBER: report.last}, written)
        self._file.finish(self._file.read())
        return replace(report, files=tuple(final for _, final in written))

    def _ends(self, start: Offset, newest: int) -> Iterator[int]:
        """Yield the last commits of parts of the commits up to ``newest``. The messages of a part fit into memory.

        The last commit of each part has put messages. The number of such a commit is durable, but a power cut may undo
        a later commit that only counts attempts.
        """
        messages, end = 0, 0
        for first, last, kept in self._windows(start, newest):
            sizes = (self._backlog.kept_sizes if kept else self._backlog.sizes)(first, last)
            for number, count, _ in sizes:
                if end and messages + count > _PLANNED_MESSAGES:
                    yield end
                    messages = 0
                messages, end = messages + count, number
        if end:
            yield end

    def _windows(self, start: Offset, newest: int) -> Iterator[tuple[int, int, bool]]:
        """Yield ranges of commits. The third value: whether the subscription keeps the messages of the range."""
        since = start[SINCE]
        for begin, end, kept in ((start[NUMBER], min(since, newest), False), (max(start[NUMBER], since), newest, True)):
            for first in range(begin + 1, end + 1, _COMMITS):
                yield first, min(first + _COMMITS - 1, end), kept

    def _batches(self, start: Offset, end: Offset) -> "Iterator[RecordBatch]":
        present, kept = self._subscriber.places(self._backlog, start, end)
        rows, path = MessageRows(arrow_schema()), self._engine.path
        for items, missing in ((present, Missing.RELOCATE), (kept, self._missing)):
            reader = MessageReader(
                path, lambda: spool.open(path), with_body=True, missing=missing, largest_body=LARGEST_BODY
            )
            with closing(reader):
                for messages in reader.batches([item for item, _ in items]):
                    yield rows.batch(messages)
