"""Fixtures for tests of the data source: the Spark session, queries, and a space."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import spool
from tests.forwarder.dataframes.queries import Query
from tests.spaces import space_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")


@pytest.fixture(scope="package")
def spark(spark: "SparkSession") -> "SparkSession":
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


@pytest.fixture
def query(space: spool.Space) -> Iterator[Query]:
    """Makes sources of queries, which end with the test; ``from_`` is the option ``from``."""
    from forwarder.dataframes.columns import StreamOptions, columns
    from forwarder.dataframes.stream import StreamReader

    with ExitStack() as stack:

        def reader(**options: str) -> StreamReader:
            given = {"path": space.path, **{name.rstrip("_"): value for name, value in options.items()}}
            made = StreamReader(StreamOptions.of(given), columns(True))
            stack.callback(made.stop)
            return made

        yield reader


space = space_with("orders", "replies", "errors")
