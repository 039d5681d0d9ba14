"""X20: spool-admin shows the tasks of Celery, Django and Dramatiq: their names, states, workers and arguments."""

import json
import os
import signal
from pathlib import Path

import spool
from tests.children import exit_code, start
from tests.scripts.conftest import Run
from tests.watch.test_consumers import serving, until
from tests.watch.test_tasks import ARGUMENTS, KOMBU


def test_x20_the_list_of_messages_shows_tasks(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        for number in range(3):
            space.put("orders", json.dumps(KOMBU), correlation_id=f"id-{number}", headers={"task": "shop.bake"})
        lines = run("message", "list", "orders").text.splitlines()
        assert lines[0].split() == ["id", "state", "age", "task", "runtime", "arguments"]
        assert all(line.endswith(f"shop.bake{' ' * 17}      -  {ARGUMENTS}") for line in lines[1:])
        claims = space.claims()
        first, second = claims.take("orders", 2)
        claims.begin(first)
        lines = run("message", "list", "orders").text.splitlines()
        assert [line.split()[1] for line in lines[1:]] == ["running", "reserved", "waiting"]
        assert all(line.endswith(ARGUMENTS) for line in lines[1:])
        found = run("message", "list", "orders", "--json").objects
        tasks = {each["id"]: each["task"] for each in found}
        assert [tasks[id]["state"] for id in (first.id, second.id)] == ["running", "reserved"]
        assert sorted(each["task"]["state"] for each in found) == ["reserved", "running", "waiting"]
        assert 0 <= tasks[first.id]["runtime"] < 60
        assert (tasks[first.id]["id"], tasks[first.id]["name"]) == ("id-0", "shop.bake")
        assert [each["state"] for each in found] == ["claimed", "claimed", "ready"]
        shown = run("message", "show", first.id).text
        assert ["arguments", *ARGUMENTS.split()] in [line.split() for line in shown.splitlines()]
        claims.reject([first], "ValueError: no").result()
        claims.close()


def test_x20_the_runtime_of_a_task_begins_with_the_task_and_not_with_its_worker(run: Run, path: Path) -> None:
    with spool.open(path) as space, space.claims() as claims:
        space.put_many("orders", [b"1", b"2"])
        first, second = claims.take("orders", 2)
        claims.begin(first)
        begun = space.holders("orders")[first.id].since
        claims.begin(second)
        later = space.holders("orders")
        assert begun is not None
        assert later[first.id].since == begun
        assert (later[second.id].since or 0.0) > begun


def test_x20_the_consumers_of_a_dead_process_vanish_at_once(path: Path, run: Run) -> None:
    def program() -> None:
        with spool.open(path) as other:
            other.work("orders", lambda message: signal.pause())

    child = start(program)
    with spool.open(path) as space:
        space.put("orders", b"1")
        _look_at(child, space, run)


def _look_at(child: int, space: spool.Space, run: Run) -> None:
    until(lambda: [(one.pid, one.held) for one in serving(space)] == [(child, 1)])
    (listed,) = (one for one in run("queue", "list", "--json").objects if one["name"] == "orders")
    assert [(one["pid"], one["held"]) for one in listed["consumers"]] == [(child, 1)]
    assert f"process {child} (" in run("queue", "show", "orders").text
    text = run("metrics").text
    assert 'xaspool_queue_consumers{queue="orders",' in text
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    assert serving(space) == []
