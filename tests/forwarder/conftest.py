"""Fixtures for tests of the forwarder."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from forwarder import Forwarder, Route, Summary, ThreadForwarder
from forwarder import forwarder as driver
from tests.at_once import AT_ONCE
from tests.forwarder.rounds import SPARK, Run, in_process


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
