"""What Spark looks for in an installation: a package ``pyspark_…`` with a data source, here ``format("spool")``."""

from forwarder.dataframes.source import SpoolSource as DefaultSource

__all__ = ["DefaultSource"]
