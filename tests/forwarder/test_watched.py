"""X13: people who watch the space see the routes of running forwarders and workers, and their outcomes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from forwarder.pipelines.pipeline import Pipeline
from forwarder.round import Route
from forwarder.routes.in_threads import ThreadForwarder
from forwarder.services import PythonService, parse
from tests.threads import beside

SEEN: list[dict[tuple[str, ...], int]] = []
WATCHED: list[spool.Space] = []


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space") as space:
        for name in ("orders", "answers"):
            space.create_queue(name)
        WATCHED[:], SEEN[:] = [space], []
        yield space


def note(message: spool.Message) -> None:
    SEEN.append(dict(WATCHED[0].metrics().states))


def test_x13_a_route_is_seen_while_it_runs(space: spool.Space) -> None:
    space.put("orders", 1)
    route = Route("orders", PythonService(f"{__name__}:note"), into=("answers",))
    ThreadForwarder(space.path, [route]).run(once=True)
    assert SEEN[0]["route", "orders", f"python:{__name__}:note"] == 1
    assert SEEN[0]["destination", "orders", "answers"] == 1
    assert ("workers", "orders") not in SEEN[0]
    assert space.metrics().states == {}
    assert space.metrics().counts["outcomes", "forwarder", "orders", "delivered"] == 1


def test_x13_a_route_whose_service_is_down_is_seen(space: spool.Space) -> None:
    space.put("orders", 1)
    url = "http://user:password@127.0.0.1:1/adt?token=secret"
    paused = threading.Event()
    forwarder = ThreadForwarder(
        space.path, {"orders": url}, on_event=lambda event: paused.set() if type(event).__name__ == "Paused" else None
    )
    with beside(forwarder.run, forwarder.stop):
        assert paused.wait(60)
        states = space.metrics().states
        assert states["route_down", "orders", "http://127.0.0.1:1/adt"] == 1
        assert ("workers_paused", "orders") not in states
        assert "secret" not in str(states)
        assert "password" not in str(states)
    assert space.metrics().states == {}


def test_x13_the_counts_of_a_worker_are_those_of_its_summary(space: spool.Space) -> None:
    for number in range(4):
        space.put("orders", number)

    def handle(message: spool.Message) -> None:
        if message.body == 3:
            raise spool.Reject("no such account")

    summary = spool.Worker(space, "orders", handle, threads=2, once=True).run()
    counts = space.metrics().counts
    assert counts["outcomes", "worker", "orders", "delivered"] == summary.delivered == 3
    assert sum(count for key, count in counts.items() if key[0] == "outcomes") == summary.handled == 4


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://user:pw@host:80/path?token=1", "http://host:80/path"),
        ("exec:/usr/bin/tool --password secret", "exec:/usr/bin/tool"),
        ("python:package.module:function", "python:package.module:function"),
        ("file:/srv/out?name={id}", "file:/srv/out"),
        ("kafka://host:9092/topic?sasl.password=1", "kafka://host:9092/topic"),
        ("queue:other", "queue:other"),
        ("queue:other@/srv/spool", "queue:other@/srv/spool"),
    ],
)
def test_x13_the_name_of_a_service_has_no_passwords(url: str, name: str) -> None:
    assert parse(url).shown_name == name


def test_x13_a_pipeline_is_seen_as_its_flow() -> None:
    pipeline = Pipeline(
        name="adt", routes=[{"name": "lab", "to": "lab"}], destinations={"lab": {"service": "http://lab.example/adt"}}
    )
    way = {route.queue: (route.service.shown_name, route.into) for route in pipeline.routes()}
    assert way == {"adt": ("translation", ("adt.to.lab", "adt.failures")), "adt.to.lab": ("http://lab.example/adt", ())}
