"""spool-admin init and queue."""

import json
import os
from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import Run, one_line


def test_init_refuses_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    one_line(run("init", tmp_path / "file", space=None), str(tmp_path / "file"), code=1)
    assert (tmp_path / "file").read_text() == "mine"


def test_queue_create_passes_every_option_on(run: Run, path: Path) -> None:
    done = run(
        *("queue", "create", "fast", "--order", "priority,fifo", "--retries", 5, "--retry-delay", 1.5),
        *("--error-queue", "errors", "--reply-queue", "orders", "--failure-queue", "errors"),
    )
    assert (done.code, done.out) == (0, b"")
    with spool.open(path) as space:
        assert space.queues()["fast"] == spool.QueueConfig(
            "fast",
            order=("priority", "fifo"),
            retries=5,
            retry_delay=1.5,
            retry_delay_max=300.0,
            error_queue="errors",
            reply_queue="orders",
            failure_queue="errors",
        )


def test_c06_durability_none_is_a_value_and_removes_no_option(run: Run, path: Path) -> None:
    assert run("queue", "create", "readings", "--durability", "none").code == 0
    assert run("queue", "change", "orders", "--durability", "none").code == 0
    with spool.open(path) as space:
        assert {space.queues()[name].durability for name in ("readings", "orders")} == {"none"}
    assert json.loads(run("queue", "show", "readings", "--json").out)["durability"] == "none"
    assert run("queue", "change", "orders", "--durability", "flush").code == 0
    assert "durability" not in (path / "space.toml").read_text().partition("[queues.orders]")[2].partition("[")[0]


def test_queue_list_counts_messages(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"ab", b"c"])
        space.put("orders", b"later", delay=3600)
    lines = [line.split() for line in run("queue", "list").text.splitlines()]
    assert lines[0][:4] == ["name", "role", "ready", "delayed"]
    assert [line[:4] for line in lines[1:]] == [["errors", "work", "0", "0"], ["orders", "work", "2", "1"]]
    assert len({len(line) for line in run("queue", "list").text.splitlines()[1:]} | {0}) <= 3


def test_queue_list_as_json_has_one_object_a_queue_with_its_options_and_counts(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", b"ab")
    errors, orders = run("queue", "list", "--json").objects
    assert (errors["name"], errors["ready"], errors["oldest_age"]) == ("errors", 0, None)
    assert (orders["name"], orders["ready"], orders["bytes"], orders["enqueued"]) == ("orders", 1, 2, 1)
    assert orders["order"] == ["fifo"]
    assert orders["oldest_age"] >= 0
    assert run("queue", "show", "orders", "--json").objects[0].keys() == orders.keys()


def test_queue_show_says_for_ever_where_there_is_no_limit(run: Run) -> None:
    shown = dict(line.split("  ", 1) for line in run("queue", "show", "orders").text.splitlines())
    assert shown["retries"].strip() == "for ever"
    assert shown["order"].strip() == "fifo"


def test_a_space_without_queues_says_so_on_stderr(run: Run, tmp_path: Path) -> None:
    run("init", tmp_path / "new", space=None)
    one_line(run("queue", "list", space=tmp_path / "new"), "no queues yet", code=0)


def test_the_space_is_the_option_or_the_variable_or_the_current_directory(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = run("queue", "list").out
    assert run("queue", "list", "-s", path, space=None).out == listing
    assert run("queue", "-s", path, "list", space=None).out == listing
    monkeypatch.setenv("SPOOL_SPACE", str(path))
    assert run("queue", "list", space=None).out == listing
    monkeypatch.setenv("SPOOL_SPACE", "/nonexistent")
    assert run("queue", "list").out == listing  # the option wins
    monkeypatch.setenv("SPOOL_SPACE", "")
    done = run("queue", "list", space=None)
    assert done.code == 2
    assert "-s PATH" in done.err
    assert "$SPOOL_SPACE" in done.err
    monkeypatch.chdir(path)
    assert run("queue", "list", space=None).out == listing


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_a_path_that_is_no_space_is_refused_with_the_command_that_makes_one(run: Run, tmp_path: Path, kind: str):
    where = tmp_path / "not-a-space"
    if kind == "empty":
        where.mkdir()
    elif kind == "file":
        where.write_bytes(b"")
    one_line(run("queue", "list", space=where), str(where), "spool-admin init", code=1)
    assert kind != "empty" or os.listdir(where) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format = 1\n[queues.orders\n", ["line"]),
        ("", ["format"]),
        ("format = 1\ncolour = 'blue'\n", ["colour", "max_body_bytes"]),
    ],
)
def test_a_broken_space_toml_is_named_with_the_mistake(run: Run, path: Path, text: str, words: list[str]) -> None:
    (path / "space.toml").write_text(text)
    one_line(run("queue", "list"), str(path / "space.toml"), *words, code=1)


def test_a_queue_that_is_not_there_is_made_only_if_that_is_asked_for(run: Run, path: Path) -> None:
    done = run("queue", "create", "q", "--retries", 1, "--error-queue", "erors")
    one_line(
        done,
        "--error-queue: there is no queue 'erors'",
        "did you mean errors?",
        "at once with --create-missing",
        code=1,
    )
    assert run("queue", "create", "q", "--retries", 1, "--error-queue", "bad", "--create-missing").code == 0
    assert run("queue", "change", "q", "--reply-queue", "answers", "--create-missing").code == 0
    with spool.open(path) as space:
        assert {"q", "bad", "answers"} <= set(space.queues())


def test_a_group_that_is_not_there_changes_nothing(run: Run, path: Path) -> None:
    one_line(run("queue", "change", "orders", "--retry-delay", 7, "--drop-group", "no-such-group"), "there is no group")
    with spool.open(path) as space:
        assert space.queues()["orders"].retry_delay != 7


def test_init_and_queue_create_with_if_missing_can_be_repeated(run: Run, tmp_path: Path) -> None:
    space = tmp_path / "new"
    for said, queue in (("made a queue space in", "made queue q"), ("is a queue space", "queue q exists")):
        assert said in run("init", space, "--if-missing", "--max-body-bytes", 9, space=None).err
        options = ("--retries", 3, "--error-queue", "e", "--create-missing", "--if-missing")
        done = run("queue", "create", "q", *options, space=space)
        assert (done.code, queue in done.err) == (0, True)
    for more in ((), ("--if-missing", "--max-body-bytes", 8)):
        done = run("init", space, *more, space=None)
        assert done.code == 1
    one_line(done, "--max-body-bytes is 9, not 8")
    done = run("queue", "create", "q", "--retries", 4, "--if-missing", space=space)
    one_line(done, "queue 'q' exists with other options (--retries is 3, not 4)", "spool-admin queue change q", code=1)
    one_line(run("queue", "create", "q", space=space), "queue 'q' exists already", "--if-missing", code=1)


def test_create_missing_names_every_queue_that_it_made(run: Run) -> None:
    done = run("queue", "create", "new", "--error-queue", "failed", "--reply-queue", "orders", "--create-missing")
    assert done.err.splitlines() == ["spool-admin: made queue failed", "spool-admin: made queue new"]
    done = run("queue", "change", "new", "--reply-queue", "answers", "--create-missing")
    assert done.err.splitlines() == ["spool-admin: made queue answers", "spool-admin: changed queue new"]


def test_e06_resume_makes_failed_messages_ready_and_counts_the_paused_programs(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", retry_delay=3600.0, retry_delay_max=None)
        space.put("orders", b"1")
        space.put("orders", b"2", delay=3600)
        space.work("orders", lambda message: 1 / 0, once=True)
        space.engine.meters.change("workers_paused", "orders", by=2)
        space.engine.meters.change("route_down", "orders", "http://shop", by=1)
        done = run("queue", "resume", "orders")
        assert (done.code, done.text) == (0, "1\n")
        one_line(done, "1 failed message is ready in queue orders; the pauses of 2 workers and 1 route end")
        assert (space.stats("orders").ready, space.stats("orders").delayed) == (1, 1)
    assert run("queue", "resume", "orders", "--json").objects == [{"count": 0}]
    one_line(run("queue", "resume", "nowhere"), "nowhere")
