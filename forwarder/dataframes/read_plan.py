"""The part of a read that runs for the driver: a plan divides the messages among tasks.

Spark starts a separate process, which creates the plan once, from the index of the space. The plan has the places and
control fields of the messages, but no bodies. A task opens the files itself (``arrow_batches``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import spool
from forwarder.cores import cores
from forwarder.dataframes import arrow_batches
from forwarder.dataframes.columns import ReadOptions, check_columns
from forwarder.message_columns import BODY
from spool.engine.remote import Item, Missing, StoredRun, boot_id
from spool.model.layout import MAX_NUMBER

# The time that a message and a file cost, apart from the bodies. The unit is the time to read one byte.
_MESSAGE_BYTES, _FILE_BYTES = 256, 4096

# The start of a Python task costs 60 ms of processor time, as much as reading 40 MiB. With two tasks for each
# processor, a single slow task delays the read less.
_LEAST_TASK_BYTES, _MOST_TASK_BYTES = 4 << 20, 64 << 20
_TASKS_A_PROCESSOR = 2


@dataclass
class Partition(InputPartition):
    """The messages that one task reads.

    missing: the action for a message that the task cannot read.
    boot_id: the boot id of the machine that created the plan.
    """

    items: Sequence[Item]
    missing: Missing
    boot_id: str

    def read(self, path: str, schema: StructType) -> Iterator[pa.RecordBatch]:
        return arrow_batches.read(path, self.items, schema, self.boot_id, self.missing)


class BatchReader(DataSourceReader):
    """Reads the messages that are in the queues at the time of the plan."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_columns(schema)

    def partitions(self) -> list[InputPartition]:  # (Spark accepts only a list)
        """Plan the tasks. If no message can be read, plan one task without messages.

        Raises:
            QueueNotFound: one of the queues does not exist.
            CorruptedFile: a table is damaged, so its messages are not known.
        """
        options = self._options
        with spool.open(options.path) as space:
            backlog = space.engine.backlog(options.queues, options.headers)
            found = backlog.items(options.first, options.last or MAX_NUMBER)
        return list(planned(found, options, self._schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        return partition.read(self._options.path, self._schema)


def planned(
    found: Sequence[tuple[Item, int]], options: ReadOptions, schema: StructType, missing: Missing = Missing.RELOCATE
) -> Iterator[Partition]:
    """Yield at least one task. ``found``: the places to read, each with the size of its bodies in bytes."""
    here = boot_id()
    for items in divided(found, options.partition_bytes, with_body=BODY in schema.names):
        yield Partition(items, missing, here)


def divided(items: Sequence[tuple[Item, int]], size: int | None, *, with_body: bool) -> Iterator[list[Item]]:
    """Divide items among tasks of about ``size`` bytes each. Yield at least one task.

    Each item has the size of its bodies in bytes. Without ``size``, the number of tasks depends on the processors of
    this machine, because all workers run here.
    """
    weights, last_file = [], None
    for item, body_bytes in items:
        count = item.length if isinstance(item, StoredRun) else item.section.messages
        new_file = 0 if item.file == last_file else _FILE_BYTES
        weights.append((body_bytes if with_body else 0) + _MESSAGE_BYTES * count + new_file)
        last_file = item.file
    total, done, tasks = sum(weights), 0, 0
    usual = min(max(total / (_TASKS_A_PROCESSOR * cores()), _LEAST_TASK_BYTES), _MOST_TASK_BYTES)
    wanted = max(1, round(total / (size or usual)))
    part: list[Item] = []
    for (item, _), weight in zip(items, weights, strict=True):
        part.append(item)
        done += weight
        if done * wanted >= total * (tasks + 1):
            yield part
            part, tasks = [], tasks + 1
    if not tasks:
        yield []
