"""The data source ``format("spool")``: which class reads and which writes. Spark makes an instance for each use."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from forwarder.dataframes.columns import ReadOptions


class SpoolSource(DataSource):
    """Queues of a space as DataFrames. The modules are imported when they are used: looking a format up is frequent."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "spool"

    def schema(self) -> StructType:
        """Return the columns of a read, unless the program chooses them with ``.schema(…)``."""
        from forwarder.dataframes.columns import columns

        return columns(self._read_options().body)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a DataFrame."""
        from forwarder.dataframes.scan import BatchReader

        return BatchReader(self._read_options(), schema)

    def _read_options(self) -> "ReadOptions":
        from forwarder.dataframes.columns import ReadOptions

        return ReadOptions.of(self.options)
