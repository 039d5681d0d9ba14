"""Queues as Spark's DataFrames: the data source ``format("spool")``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make ``format("spool")`` known to a Spark session.

    Sessions that are started where xaspool is installed find it by themselves, in the package ``pyspark_xaspool``. This
    is for a checkout, and for a second session of one Spark, which does not know the formats that the first one
    registered.
    """
    from forwarder.dataframes.source import SpoolSource  # (it needs PySpark, which is an extra)

    spark.dataSource.register(SpoolSource)
