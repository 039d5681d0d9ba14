"""Read several spaces as one DataFrame, with a column that names the space of each message.

If one machine is too small, a program may divide the messages among several spaces. One read then gets all messages.
Each space is a directory of this machine, or the address of a space on a server.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from forwarder.network.server_options import CONNECTION
from spool.client.connection import is_address
from spool.errors import InvalidArgument

SPACE = "space"
_MOST_SPACES = 1000


def spaces_of(options: Mapping[str, str]) -> list[str]:
    """Return the spaces that the option ``spaces`` names; [] without the option. InvalidArgument for a wrong value."""
    given = next((value for name, value in options.items() if name.lower() == "spaces"), None)
    if given is None:
        return []
    found = [text.strip() for text in given.split(",")]
    if "" in found or len(set(found)) < len(found) or len(found) > _MOST_SPACES:
        raise InvalidArgument(
            "the option spaces is a list of directories and addresses with commas between them, each of them once"
        )
    if any(name.lower() == "path" for name in options):
        raise InvalidArgument("the option spaces names the spaces to read: call .load() without a path")
    return found


def of_space(options: Mapping[str, str], space: str) -> dict[str, str]:
    """Return the options for reading one of the spaces. Only the spaces of servers get the options of a connection."""
    others = {"spaces"} if is_address(space) else {"spaces", *(name.lower() for name in CONNECTION)}
    return {**{name: value for name, value in options.items() if name.lower() not in others}, "path": space}


def with_space(columns: StructType) -> StructType:
    """Return the columns for reading several spaces."""
    return StructType([StructField(SPACE, StringType(), nullable=False), *columns.fields])


@dataclass
class SpacePartition(InputPartition):
    """The messages of one task. ``place``: the position of their space in the option. ``part``: its own partition."""

    place: int
    part: InputPartition


class SpacesReader(DataSourceReader):
    """Reads the messages that are in the queues of all spaces at the time of the plan.

    Args:
        spaces: the names of the spaces in the column.
        schema: the columns; one of them may be the name of the space.
        reader_of: a function that returns the reader for a space and its columns.
    """

    def __init__(
        self, spaces: Sequence[str], schema: StructType, reader_of: Callable[[str, StructType], DataSourceReader]
    ) -> None:
        self._spaces = list(spaces)
        self._schema = schema
        own = StructType([field for field in schema.fields if field.name != SPACE])
        self._readers = [reader_of(space, own) for space in spaces]

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks of all spaces. If one space cannot be read, the whole read fails, with the error of the space.

        The errors are the same as in ``read_plan.BatchReader``.
        """
        planned = enumerate(reader.partitions() for reader in self._readers)
        return [SpacePartition(place, part) for place, parts in planned for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpacePartition)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in self._readers[partition.place].read(partition.part):
            assert isinstance(batch, pa.RecordBatch)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[SPACE] = pa.array([self._spaces[partition.place]] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
