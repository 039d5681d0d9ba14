"""The driver's side of a read: which messages there are, where they lie, and which task reads which.

The plan is made once, of the index of the space, in a process of its own in which Spark runs it. It holds places and
control fields, and no bodies. A task opens the files itself (``rows``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forwarder.dataframes import rows
from forwarder.dataframes.columns import BODY, ReadOptions, check_columns
from forwarder.dataframes.places import Compacted, Item, Stretch, packed, stretch
from spool.errors import CorruptedFile
from spool.format.table import CompactedTable
from spool.index.run import Run
from spool.index.segment import Piece, Segment, pack_position
from spool.log.visibility import catch_up
from spool.model.layout import MAX_NUMBER, MAX_ORDINAL
from spool.model.message import expiry_time
from spool.model.settings import QueueConfig
from spool.opening import open as open_space
from spool.runtime.calls import public_call
from spool.space import Space
from spool.text import no_queue
from spool.transactions.delivery import WHAT_TO_DO, with_defaults

T = TypeVar("T")

# What a message and a file cost beside the bytes of the bodies, in bytes that are read in the same time.
_MESSAGE_BYTES, _FILE_BYTES = 256, 4096
_TRIES = 3  # of a plan that meets a file which was compacted meanwhile


class Partition(InputPartition):
    """What one task reads."""

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__(None)
        self.items = items


class BatchReader(DataSourceReader):
    """Reads the messages that are in the queues when the plan is made."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_columns(schema)

    def partitions(self) -> list[InputPartition]:  # (Spark takes no other sequence)
        """Plan the tasks. Opens the space beside the processes that have it open."""
        with open_space(self._options.path) as space:
            return list(plan(space, self._options, self._schema))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read what one task reads; in a worker."""
        assert isinstance(partition, Partition)
        return rows.read(self._options.path, partition.items, self._schema)


# -- the plan ---------------------------------------------------------------------------------------------------------


def plan(space: Space, options: ReadOptions, schema: StructType) -> list[Partition]:
    """Plan the read of what is in the queues now; at least one task, which may have nothing to read.

    Raises:
        QueueNotFound: one of the queues is not there.
        CorruptedFile: a table is damaged, so that it is not known which messages there are.
    """
    found = Look(space, options).items(options.first, options.last or MAX_NUMBER)
    with_body = BODY in schema.names
    return [Partition(items) for items in divided(found, options.partition_bytes, with_body=with_body)]


class CommitSize(NamedTuple):
    """How many messages of a commit are there, with how many bytes of bodies."""

    number: int
    messages: int
    bytes: int


class Look:
    """Looks for messages of some queues in the index of an open space."""

    def __init__(self, space: Space, options: ReadOptions) -> None:
        self._store = space.engine.store
        self._headers = options.headers
        there = space.queues()
        for name in options.queues:
            if name not in there:
                raise no_queue(name, there, how="name queues of this space, or none to read all of them")
        self._queues = {name: there[name] for name in options.queues or there}

    @public_call("reading messages")
    def items(self, first: int, last: int) -> list[tuple[Item, int]]:
        """Return what is there now of the commits ``first`` to ``last``, each with the bytes of its bodies."""
        return self._told(lambda: list(self._items(first, last)))

    @public_call("reading messages")
    def sizes(self, first: int, last: int) -> list[CommitSize]:
        """Return how much there is now of each of the commits ``first`` to ``last`` that has any, in order."""
        return self._told(lambda: self._sizes(first, last))

    def _told(self, look: Callable[[], T]) -> T:
        problem: Exception | None = None
        for _ in range(_TRIES):
            catch_up(self._store)
            try:
                with self._store.view.mutex:
                    return look()
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        raise CorruptedFile(f"the messages of a file cannot be told: {problem}; {WHAT_TO_DO}")

    def _items(self, first: int, last: int) -> Iterator[tuple[Item, int]]:
        branches = self._store.view.index.messages.branch_ids
        for run in self._runs(first, last):
            where = stretch(run, *branches.of(run.number, run.first), self._queues[run.queue.name])
            yield where, run.bytes_of(run.first, run.live)
        for segment, table, pieces in self._segments(first, last):
            config = self._queues[segment.queue.name]
            ranges = [(piece.number, piece.first, piece.length) for piece in pieces]
            size = sum(sum(table.lengths[piece.row : piece.row + piece.length]) for piece in pieces)
            rows = _rows_but(pieces, segment.rows)
            yield Compacted(segment.file, segment.entry, config.name, rows, packed(ranges), _defaults(config)), size

    def _sizes(self, first: int, last: int) -> list[CommitSize]:
        sums: dict[int, tuple[int, int]] = {}

        def add(number: int, messages: int, size: int) -> None:
            there, bytes_there = sums.get(number, (0, 0))
            sums[number] = there + messages, bytes_there + size

        for run in self._runs(first, last):
            add(run.number, run.live, run.bytes_of(run.first, run.live))
        for _, table, pieces in self._segments(first, last):
            for piece in pieces:
                add(piece.number, piece.length, sum(table.lengths[piece.row : piece.row + piece.length]))
        return [CommitSize(number, *sums[number]) for number in sorted(sums)]

    def _runs(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs that are meant, in the order of the commits."""
        known, now = self._store.view.index.messages.runs, self._store.clock.now()
        few = range(first, min(last, self._store.view.index.applied) + 1)
        numbers: Iterable[int] = few
        if len(few) > len(known):
            numbers = sorted(number for number in known if number in few)
        for number in numbers:
            for run in known.get(number, ()):
                if run.queue.name in self._queues and not run.is_expired(now) and self._is_wanted(run.attributes):
                    yield run

    def _segments(self, first: int, last: int) -> Iterator[tuple[Segment, CompactedTable, list[Piece]]]:
        """Yield the segments of which something is meant, with that."""
        messages, now = self._store.view.index.messages, self._store.clock.now()
        for segment in messages.segments.irange_key(None, pack_position(last, MAX_ORDINAL)):
            if segment.queue.name not in self._queues or segment.high <= pack_position(first, 0):
                continue
            table = messages.table_of(segment)
            pieces = [
                piece
                for piece in segment.pieces(table)
                if first <= piece.number <= last and self._is_meant(table, piece.run, now)
            ]
            if pieces:
                yield segment, table, pieces

    def _is_meant(self, table: CompactedTable, run: int, now: float) -> bool:
        attributes = table.attributes[table.runs[run][1]]
        expires = expiry_time(attributes, table.origins.times[run])
        return (expires is None or expires > now) and self._is_wanted(attributes)

    def _is_wanted(self, attributes: Mapping[str, Any]) -> bool:
        return not self._headers or self._headers.items() <= attributes.get("headers", {}).items()


def _defaults(config: QueueConfig) -> Mapping[str, Any]:
    return with_defaults(config, {})


def _rows_but(pieces: Sequence[Piece], rows: int) -> bytes:
    """Return one bit for each row of a section, set for those that are in none of the pieces."""
    others = bytearray(b"\xff" * ((rows + 7) // 8))
    for piece in pieces:
        for row in range(piece.row, piece.row + piece.length):
            others[row >> 3] &= ~(1 << (row & 7))
    return bytes(others)


# -- what a task gets -------------------------------------------------------------------------------------------------


def divided(items: Sequence[tuple[Item, int]], size: int, *, with_body: bool) -> Iterator[list[Item]]:
    """Divide items, each with the bytes of its bodies, among tasks of about ``size`` bytes each; at least one task."""
    weights, last_file = [], None
    for item, body_bytes in items:
        count = item.length if isinstance(item, Stretch) else item.section.messages
        new_file = 0 if item.file == last_file else _FILE_BYTES
        weights.append((body_bytes if with_body else 0) + _MESSAGE_BYTES * count + new_file)
        last_file = item.file
    total, done, tasks = sum(weights), 0, 0
    wanted = max(1, round(total / size))
    part: list[Item] = []
    for (item, _), weight in zip(items, weights, strict=True):
        part.append(item)
        done += weight
        if done * wanted >= total * (tasks + 1):
            yield part
            part, tasks = [], tasks + 1
    if not tasks:
        yield []
