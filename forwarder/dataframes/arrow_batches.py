"""Turn the messages of a plan into Arrow batches, which a read task sends to Spark."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import spool
from forwarder.dataframes.columns import GO_ON
from forwarder.message_columns import BODY
from forwarder.message_rows import LARGEST_BODY, MessageRows
from spool.engine.remote import Item, MessageReader, Missing
from spool.errors import CorruptedFile, InvalidArgument


def read(
    path: str, items: Sequence[Item], schema: StructType, boot_id: str, missing: Missing = Missing.RELOCATE
) -> Iterator[pa.RecordBatch]:
    """Return the messages of a plan as batches with these columns.

    Args:
        boot_id: the boot id of the machine that created the plan.
        missing: the action for a message that is no longer at its planned place.

    Raises:
        CorruptedFile: a body is damaged.
        InvalidArgument: a body is too large for a row of Spark.
        DiskFailure: a file cannot be read.
        UnsafeFileSystem: this process runs on another machine.
    """
    columns = MessageRows(to_arrow_schema(schema, timezone="UTC"))
    reader = MessageReader(
        path, lambda: spool.open(path), with_body=BODY in schema.names, missing=missing, largest_body=LARGEST_BODY
    )
    with closing(reader):
        reader.check_machine(boot_id)
        try:
            for some in reader.batches(items):
                yield columns.batch(some)
        except InvalidArgument as error:
            if error.name != "largest_body":  # e.g. an invalid space.toml
                raise
            said = error.told({"largest_body": "a row of Spark takes"})
            raise InvalidArgument(f"{said}: read without bodies, .option('body', 'false')") from None
        except CorruptedFile as error:
            if missing is not Missing.FAIL:
                raise
            raise CorruptedFile(f"{error}; {GO_ON}") from error
