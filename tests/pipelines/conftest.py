"""Fixtures for tests of pipelines: a space, a short way to declare a pipeline, and two ways to run it."""

from collections.abc import Callable
from typing import Any

import pytest

import spool
from forwarder import Forwarder, Pipeline, Summary, ThreadForwarder
from forwarder import forwarder as driver
from tests.forwarder.rounds import SPARK, in_process
from tests.pipelines import hooks
from tests.spaces import space_with

HOOKS = "tests.pipelines.hooks"

Run = Callable[[Pipeline], Summary]


def declared(**options: Any) -> Pipeline:
    """A pipeline with two destinations, whose one route goes to both, unless options say otherwise."""
    given: dict[str, Any] = {
        "name": "p",
        "routes": [{"name": "all", "to": ["one", "two"]}],
        "destinations": {name: {"service": f"python:{HOOKS}:{name}"} for name in ("one", "two")},
        "retry_delay": 0.0,
    }
    return Pipeline(**given | options)


space = space_with()


@pytest.fixture(autouse=True)
def delivered() -> list[tuple[str, str]]:
    """Clear and return the list of (destination, body) of the delivered messages."""
    hooks.delivered.clear()
    return hooks.delivered


@pytest.fixture(params=["threads", "rounds"])
def run(request: pytest.FixtureRequest, space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a pipeline until nothing is left to do: in threads, and in rounds whose tasks run in this process."""
    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))

    def run(pipeline: Pipeline) -> Summary:
        pipeline.create_queues(space)
        if request.param == "threads":
            return ThreadForwarder(space.path, pipeline.routes(by_name=False)).run(once=True)
        return Forwarder(space.path, pipeline.routes(), SPARK).run(once=True)

    return run
