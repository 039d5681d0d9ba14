"""X20: spool-admin shows the tasks of Celery, Django and Dramatiq: their names, states, workers and arguments."""

import json
from pathlib import Path

import spool
from tests.scripts.conftest import Run
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
