"""A session of Spark on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session_on(master: str) -> "Iterator[SparkSession]":
    """A session of Spark that is up; SparkUnavailable if none can be started."""
    from forwarder import session

    spark = session.start(master, "xaspool-bench", conf={"spark.driver.host": "127.0.0.1"})
    try:
        session.warm_up(spark)
        yield spark
    finally:
        session.stop(spark)
