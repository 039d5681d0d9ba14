"""Makes ``format("spool")`` known to Spark, because Spark looks for data sources in the packages ``pyspark_…``."""

try:
    from forwarder.dataframes.source import SpoolSource as DefaultSource
except ImportError as error:
    from spool.errors import in_place_of

    if other := in_place_of(error):
        raise ImportError(other) from error
    raise

__all__ = ["DefaultSource"]
