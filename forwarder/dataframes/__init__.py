"""Queues as Spark's DataFrames: the data source ``format("spool")``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make ``format("spool")`` known to a Spark session.

    If xaspool is installed, a new session finds the format by itself, in the package ``pyspark_xaspool``. Call this
    function in a checkout, and for a second session in one Spark process. The second session does not know the formats
    of the first session.
    """
    from forwarder.dataframes.source import SpoolSource  # (the module needs PySpark, an optional dependency)

    spark.dataSource.register(SpoolSource)
