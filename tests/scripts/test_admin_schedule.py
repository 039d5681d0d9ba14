"""``spool-admin schedule`` creates, lists, shows, runs and deletes schedules."""

from pathlib import Path

import spool
from tests.scripts.conftest import Run, one_line


def test_x16_a_schedule_is_created_listed_shown_run_and_deleted(run: Run, path: Path) -> None:
    one_line(run("schedule", "list"), "no schedules yet", "spool-admin schedule create NAME QUEUE")
    words = ["schedule", "create", "nightly", "orders", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"]
    content = path.parent / "order.json"
    content.write_text('{"a": 1}')
    made = [*words, "--file", content, "--header", "tenant=x", "--missed", "skip", "--time-to-live", "5m"]
    one_line(run(*made), "schedule nightly puts into queue orders, next at", "0:00", code=0)
    one_line(run(*made, "--if-missing"), "schedule nightly puts into queue orders", code=0)
    one_line(run("schedule", "change", "nightly", "--missed", "once"), "changed schedule nightly, next", code=0)
    ran = run("schedule", "run", "nightly", "--json").objects
    listed = run("schedule", "list").text
    columns = ("name", "queue", "cron", "timezone", "next due", "last put", "last error", "nightly", "Europe/Berlin")
    assert all(word in listed for word in columns)
    [found] = run("schedule", "list", "--json").objects
    [shown] = run("schedule", "show", "nightly", "--json").objects
    assert shown == {**found, "body": '{"a": 1}', "body_encoding": "utf-8"}
    assert (found["missed"], found["error"], found["last_due"]) == ("once", "", None)
    assert '{"a": 1}' in run("schedule", "show", "nightly").text
    with spool.open(path) as space:
        message = space.get("orders")
        assert (ran, message.body) == ([{"id": message.id}], {"a": 1})
        assert message.headers == {"schedule": "nightly", "tenant": "x"}
    one_line(run("schedule", "delete", "nightly", "--yes"), "deleted schedule nightly", code=0)
    assert run("schedule", "list", "--json").objects == []


def test_wrong_usage_is_one_line_that_names_the_option(run: Run) -> None:
    words = ["schedule", "create", "s", "orders", "--cron"]
    for wrong in ([*words, "@daily"], [*words, "@daily", "--body", "x", "--file", "-"], ["schedule", "change", "s"]):
        one_line(run(*wrong), "--body or --file", code=2)
    one_line(run(*words, "25 * *", "--body", "x"), "--cron is five fields", "'25 * *'", code=2)
    one_line(run(*words, "@daily", "--body", "x", "--timezone", "CET/2"), "--timezone is the name", code=2)
    one_line(run("schedule", "create", "s", "ordres", "--cron", "@daily", "--body", "x"), "did you mean orders", code=1)
    for verb, *options in (["show"], ["run"], ["delete"], ["change", "--cron", "@daily"], ["change", "--body", "x"]):
        one_line(run("schedule", verb, "s", *options), "no schedule", "spool-admin schedule list", code=2)
