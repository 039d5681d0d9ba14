"""The driver's side of a read: which messages there are, where they lie, and which task reads which.

The plan is made once, of the index of the space, in a process of its own in which Spark runs it. It holds places and
control fields, and no bodies. A task opens the files itself (``rows``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from forwarder.dataframes import rows
from forwarder.dataframes.columns import BODY, ReadOptions, check_columns
from forwarder.dataframes.places import Compacted, Item, Stretch, packed, stretch
from spool.errors import CorruptedFile
from spool.index.segment import Segment
from spool.log.visibility import catch_up
from spool.model.layout import MAX_NUMBER
from spool.model.message import expiry_time
from spool.model.position import Position
from spool.model.settings import QueueConfig
from spool.opening import open as open_space
from spool.runtime.calls import public_call
from spool.space import Space
from spool.text import no_queue
from spool.transactions.delivery import WHAT_TO_DO, with_defaults

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
    found = Plan(space, options).items()
    with_body = BODY in schema.names
    return [Partition(items) for items in divided(found, options.partition_bytes, with_body=with_body)]


class Plan:
    """Looks for messages in the index of an open space."""

    def __init__(self, space: Space, options: ReadOptions) -> None:
        self._store = space.engine.store
        self._options = options
        there = space.queues()
        for name in options.queues:
            if name not in there:
                raise no_queue(name, there, how="name queues of this space, or none to read all of them")
        self._queues = {name: there[name] for name in options.queues or there}

    @public_call("reading messages")
    def items(self) -> list[tuple[Item, int]]:
        """Return what is there now, each with the bytes of its bodies."""
        problem: Exception | None = None
        for _ in range(_TRIES):
            catch_up(self._store)
            try:
                with self._store.view.mutex:
                    return list(self._items(self._store.clock.now()))
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        raise CorruptedFile(f"the messages of a file cannot be told: {problem}; {WHAT_TO_DO}")

    def _items(self, now: float) -> Iterator[tuple[Item, int]]:
        messages = self._store.view.index.messages
        first, last = self._options.first, self._options.last or MAX_NUMBER
        for number in sorted(number for number in messages.runs if first <= number <= last):
            for run in messages.runs[number]:
                config = self._queues.get(run.queue.name)
                if config is not None and not run.is_expired(now) and self._is_wanted(run.attributes):
                    branch, in_branch = messages.branch_of(Position(number, run.first))
                    yield stretch(run, branch, in_branch, config), run.bytes_of(run.first, run.live)
        for segment in messages.segments:
            config = self._queues.get(segment.queue.name)
            if config is not None:
                yield from self._of_segment(segment, config, now)

    def _is_wanted(self, attributes: Mapping[str, Any]) -> bool:
        wanted = self._options.headers
        return not wanted or wanted.items() <= attributes.get("headers", {}).items()

    def _of_segment(self, segment: Segment, config: QueueConfig, now: float) -> Iterator[tuple[Item, int]]:
        """Yield what is meant of a segment, if it is anything."""
        table = self._store.view.index.messages.table_of(segment)
        first, last = self._options.first, self._options.last or MAX_NUMBER
        removed, size, ranges = bytearray(segment.removed), 0, []
        for piece in segment.pieces(table):
            attributes = table.attributes[table.runs[piece.run][1]]
            expires = expiry_time(attributes, table.origins.times[piece.run])
            begin, end = piece.row, piece.row + piece.length
            if first <= piece.number <= last and (expires is None or expires > now) and self._is_wanted(attributes):
                size += sum(table.lengths[begin:end])
                ranges.append((piece.number, piece.first, piece.length))
                continue
            for row in range(begin, end):
                removed[row >> 3] |= 1 << (row & 7)
        if ranges:
            where = segment.file, segment.entry, config.name, bytes(removed), packed(ranges), with_defaults(config, {})
            yield Compacted(*where), size


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
