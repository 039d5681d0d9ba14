"""A data source whose process dies after its commit, once for each space."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from forwarder.dataframes.sink import BatchWriter, Job, StreamWriter
from forwarder.dataframes.source import SpoolSource


def die_once(path: str) -> None:
    """Kill this process, the first time that it is called for a space."""
    mark = Path(path).parent / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(BatchWriter):
    def commit(self, messages: Sequence[Any]) -> None:
        super().commit(messages)
        die_once(self.job.path)


class DyingStreamWriter(StreamWriter):
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        super().commit(messages, batchId)
        die_once(self.job.path)


class DyingSource(SpoolSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DyingWriter(Job.of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return DyingStreamWriter.of(self.options, schema, overwrite=overwrite)
