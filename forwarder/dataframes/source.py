"""The data source ``format("spool")``: the classes that read and write. Spark creates an instance for each use."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from forwarder.network.server_options import is_remote, without_connection


class SpoolSource(DataSource):
    """Queues of a space as DataFrames. Modules are imported when used, because Spark looks up formats often."""

    @classmethod
    def name(cls) -> str:
        return "spool"

    def schema(self) -> StructType:
        """Return the columns of a read, unless the program chooses them with ``.schema(…)``."""
        from forwarder.dataframes.columns import chosen_columns
        from forwarder.dataframes.spaces import of_space, spaces_of, with_space

        if spaces := spaces_of(self.options):
            return with_space(chosen_columns(without_connection(of_space(self.options, spaces[0]))))
        return chosen_columns(without_connection(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from forwarder.dataframes.spaces import SpacesReader, of_space, spaces_of

        if spaces := spaces_of(self.options):
            return SpacesReader(spaces, schema, lambda space, own: _batch_reader(of_space(self.options, space), own))
        return _batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from forwarder.dataframes.columns import StreamOptions
        from forwarder.dataframes.stream import StreamReader

        if is_remote(self.options):
            from forwarder.dataframes.server_space import RemoteStreamReader

            return RemoteStreamReader(self.options, schema)
        return StreamReader(StreamOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from forwarder.dataframes.sink import BatchWriter, Job

        if is_remote(self.options):
            from forwarder.dataframes.server_space import batch_writer

            return batch_writer(self.options, schema, overwrite=overwrite)
        return BatchWriter(Job.of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from forwarder.dataframes.sink import StreamWriter

        if is_remote(self.options):
            from forwarder.dataframes.server_space import stream_writer

            return stream_writer(self.options, schema, overwrite=overwrite)
        return StreamWriter.of(self.options, schema, overwrite=overwrite)


def _batch_reader(options: MutableMapping[str, str], schema: StructType) -> DataSourceReader:
    from forwarder.dataframes.columns import ReadOptions
    from forwarder.dataframes.read_plan import BatchReader

    if is_remote(options):
        from forwarder.dataframes.server_space import RemoteBatchReader

        return RemoteBatchReader(options, schema)
    return BatchReader(ReadOptions.of(options), schema)
