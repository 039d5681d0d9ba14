"""Fixtures for tests of the forwarder; a Spark session that the tests of one process share."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spool
from forwarder import Forwarder, Route, Summary, ThreadForwarder
from forwarder import forwarder as driver
from tests.at_once import AT_ONCE
from tests.forwarder.rounds import SPARK, Run, in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"  # a task has four attempts

# A module that the workers find in the directory in which Spark was started.
MODULE = """
import os, sys
def tell(message):
    print("a word from the worker")
    return {"pid": os.getpid(), "parent": os.getppid(), "python": sys.executable, "body": message.body}
"""


def interrupted(number: int, frame: Any) -> None:
    """A handler of SIGINT that was set before Spark was started."""


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which Spark is started."""
    place = tmp_path_factory.mktemp("place")
    (place / "xaspool_here.py").write_text(MODULE)
    return place


@pytest.fixture(scope="package")
def spark(place: Path) -> "Iterator[SparkSession]":
    """The session of all tests of one process. The last test of ``TestSession`` stops it."""
    from forwarder import session

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            spark = session.start(MASTER)
            handler = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handler is interrupted, "the start of Spark changes no handler"
    yield spark
    session.stop(spark)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        for queue in ("replies", "failures", "errors", "next"):
            space.create_queue(queue)
        space.create_queue("work", reply_queue="replies", failure_queue="failures", error_queue="errors", retries=2)
        yield space


@pytest.fixture(params=["threads", "rounds"])
def run(request: pytest.FixtureRequest, space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one route until nothing is left to do: in threads, and in rounds whose tasks run in this process."""
    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))

    def run(route: Route) -> Summary:
        if request.param == "threads":
            return ThreadForwarder(space.path, [route]).run(once=True)
        return Forwarder(space.path, [route], SPARK).run(once=True)

    return run


@pytest.fixture
def chance() -> random.Random:
    """A random sequence that $SEED repeats; it is printed."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    return random.Random(seed)
