"""A session of Spark on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let workers that start during the block assume that the space is on another machine, so they use the network."""
    from forwarder.network.space_directory import Place

    with mock.patch.object(Place, "of", lambda path: Place(path, None, "another boot")):
        yield


@contextmanager
def session_on(master: str) -> "Iterator[SparkSession]":
    """Yield a running Spark session; SparkUnavailable if no session can be started."""
    from forwarder import session

    conf = {"spark.app.name": "xaspool-bench", "spark.driver.host": "127.0.0.1"}
    spark = session.start(master, conf=conf)
    try:
        session.warm_up(spark)
        yield spark
    finally:
        session.stop(spark)
