"""Q14 on the command line: queues changed, purged and deleted; messages moved, changed, deleted and redriven."""

import grp
import os
import stat
from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import Run, one_line
from tests.shown import bodies_at
from tests.spaces import fail_one
from xaspool_console import reasons


def _put(path: Path, *bodies: object, queue: str = "orders", **options: object) -> list[str]:
    with spool.open(path) as space:
        return [space.put(queue, body, **options) for body in bodies]


def test_q14_queue_change_sets_the_given_options_and_none_removes_them(run: Run, path: Path) -> None:
    text = (path / "space.toml").read_text()
    (path / "space.toml").write_text(f"# about this space\n{text}")
    options = ("--retries", 3, "--error-queue", "errors", "--retry-delay", "2m", "--ordered")
    done = run("queue", "change", "orders", *options)
    assert (done.code, done.out) == (0, b"")
    with spool.open(path) as space:
        found = space.queues()["orders"]
    assert (found.retries, found.error_queue, found.retry_delay, found.ordered) == (3, "errors", 120, True)
    assert run("queue", "change", "orders", "--retries", "none", "--error-queue", "none").code == 0
    with spool.open(path) as space:
        found = space.queues()["orders"]
    assert (found.retries, found.error_queue, found.retry_delay) == (None, None, 120)
    assert (path / "space.toml").read_text().startswith("# about this space\n")


def test_q14_queue_delete_deletes_an_empty_queue_only(run: Run, path: Path) -> None:
    _put(path, 1)
    done = run("queue", "delete", "orders")
    one_line(done, "holds 1 message: take, move or purge it first", "transactions that hold any have ended", code=1)
    assert run("queue", "purge", "orders").out == b"1\n"
    assert run("queue", "delete", "orders").code == 0
    one_line(run("queue", "delete", "orders"), "there is no queue 'orders'")


def test_q14_queue_purge_takes_filters_and_counts_first_if_asked_to(run: Run, path: Path) -> None:
    _put(path, 1, 2, headers={"tenant": "acme"})
    _put(path, 3, correlation_id="c")
    done = run("queue", "purge", "orders", "--header", "tenant=acme", "--dry-run")
    assert (done.code, done.out) == (0, b"2\n")
    one_line(done, "would delete 2 messages of queue orders")
    assert run("queue", "purge", "orders", "--older-than", "1h").out == b"0\n"
    assert run("queue", "purge", "orders", "--header", "tenant=acme").out == b"2\n"
    assert bodies_at(path) == [3]
    assert run("queue", "purge", "orders", "--correlation-id", "c").out == b"1\n"


def test_q14_message_delete_move_and_change(run: Run, path: Path) -> None:
    one, two, three = _put(path, 1, 2, 3)
    assert run("message", "delete", one).code == 0
    (moved,) = run("message", "move", two, "errors", "--json").objects
    assert (moved["id"], moved["queue"]) == (two, "errors")
    (changed,) = run(
        "message", "change", three, "--priority", 90, "--not-before", "2100-01-01T00:00+00:00", "--json"
    ).objects
    assert (changed["priority"], changed["not_before"]) == (90, 4_102_444_800.0)
    done = run("message", "change", three, "--not-before", "none", "--expires-at", "2100-01-01")
    one_line(done, three, "changed", code=0)
    (shown,) = run("message", "show", three, "--json").objects
    assert shown["not_before"] is None
    assert shown["expires_at"] is not None
    assert (bodies_at(path), bodies_at(path, "errors")) == ([3], [2])


def test_a_message_can_be_hidden_for_a_time_from_now_on(run: Run, path: Path) -> None:
    (one,) = _put(path, 1)
    assert run("message", "change", one, "--delay", "1h").code == 0
    assert run("message", "get", "orders").code == 3
    one_line(run("message", "change", one, "--delay", "1h", "--not-before", "none"), "exclude each other")
    assert run("message", "change", one, "--delay", "0").code == 0
    assert run("message", "get", "orders").code == 0


def test_q14_delete_goes_on_after_one_that_is_not_there(run: Run, path: Path) -> None:
    one, two = _put(path, 1, 2)
    one_line(run("message", "delete", one, "no id"), "is not a message id")
    assert bodies_at(path) == [1, 2]
    done = run("message", "delete", one, "0" * 32, two)
    assert done.code == 1
    assert "deleted 2 messages" in done.err
    assert f"there is no message {'0' * 32}" in done.err
    assert bodies_at(path) == []


def test_q14_a_missing_queue_or_a_wrong_value_is_one_line(run: Run, path: Path) -> None:
    (one,) = _put(path, 1)
    one_line(run("message", "move", one, "nowhere"), "there is no queue 'nowhere'")
    one_line(run("message", "change", one, "--priority", 101), "1 to 100")
    assert run("message", "change", one).code == 2
    assert bodies_at(path) == [1]


def test_x12_message_redrive_sends_back_failed_messages(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", retries=0, error_queue="errors")
        space.put_many("orders", [1, 2])
        for _ in range(2):
            fail_one(space, "orders")
    assert run("message", "redrive", "errors", "--dry-run").out == b"2\n"
    assert run("message", "redrive", "errors").out == b"2\n"
    assert bodies_at(path) == [1, 2]
    _put(path, 3, queue="errors")
    done = run("message", "redrive", "errors")
    assert (done.code, done.out) == (0, b"0\n")
    assert "1 message remains" in done.err
    assert "--to QUEUE" in done.err
    assert run("message", "redrive", "errors", "--to", "orders").out == b"1\n"


def _failed(path: Path) -> None:
    """Leave messages of two queues in the error queue, each with its body as the reason."""

    def refuse(message: spool.Message) -> None:
        raise spool.Reject(str(message.body))

    with spool.open(path) as space:
        space.change_queue("orders", retries=0, error_queue="errors")
        space.create_queue("mails", retries=0, error_queue="errors")
        space.put_many("orders", ["HTTP 400"] * 2 + ["HTTP 503"] * 3)
        space.put("mails", "HTTP 503")
        for queue in ("orders", "mails"):
            space.work(queue, refuse, once=True)


def test_a_redrive_tells_to_which_queues_the_messages_went(run: Run, path: Path) -> None:
    _failed(path)
    dry = run("message", "redrive", "errors", "--dry-run")
    assert "would move 6 messages from queue errors to queues orders (5), mails (1)" in dry.err
    some = run("message", "redrive", "errors", "--reason", "HTTP 400")
    assert (some.out, "moved 2 messages from queue errors to queue orders\n" in some.err) == (b"2\n", True)
    rest = run("message", "redrive", "errors", "--to", "mails")
    assert "moved 4 messages from queue errors to queue mails\n" in rest.err


def test_a_redrive_for_a_reason_that_no_message_has_names_the_reasons(run: Run, path: Path) -> None:
    _failed(path)
    done = run("message", "redrive", "errors", "--reason", "http 400")
    assert done.out == b"0\n"
    there = "there are: HTTP 503 (4), HTTP 400 (2)"
    assert f"none of 6 messages has the reason 'http 400' (upper and lower case differ); {there}\n" in done.err
    assert "none of" not in run("message", "redrive", "errors", "--reason", "HTTP 400", "--older-than", "1h").err


def test_a_message_that_is_back_in_its_queue_is_not_redriven_again(run: Run, path: Path) -> None:
    _failed(path)
    run("message", "redrive", "errors")
    assert run("message", "redrive", "orders", "--dry-run").out == b"0\n"
    assert run("message", "redrive", "orders").out == b"0\n"


def test_a_list_of_an_error_queue_counts_the_messages_by_reason(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch):
    _failed(path)
    assert run("message", "list", "errors").err == "spool-admin: by reason: HTTP 503 (4), HTTP 400 (2)\n"
    assert run("message", "list", "errors", "--reason", "400").err == "spool-admin: by reason: HTTP 400 (2)\n"
    assert run("message", "list", "orders").err.count("by reason") == 0
    monkeypatch.setattr(reasons, "MOST_COUNTED", 3)
    assert run("message", "list", "errors").err.endswith("in the first 3 messages\n")


def test_message_put_takes_every_option_of_a_put(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", out_of_order=("top", "before"))
    first = run("message", "put", "orders", "--body", "1").text.strip()
    run("message", "put", "orders", "--body", "before", "--before", first)
    run("message", "put", "orders", "--body", "top", "--top", "--time-to-live", "1h", "--group", "g")
    ids = [run("message", "put", "orders", "--body", "once", "--deduplication-key", "k").text for _ in range(2)]
    assert ids[0] == ids[1]
    assert bodies_at(path) == ["top", "before", "1", "once"]
    found = run("message", "list", "orders", "--json").objects
    assert found[0]["group"] == "g"
    assert found[0]["expires_at"] == pytest.approx(found[0]["enqueued_at"] + 3600)


def test_message_list_takes_filters(run: Run, path: Path) -> None:
    _put(path, "a", headers={"x": "1", "y": "2"})
    _put(path, "b", headers={"x": "1"})
    found = run("message", "list", "orders", "--header", "x=1", "--header", "y=2", "--json").objects
    assert [message["body"] for message in found] == ["a"]
    done = run("message", "list", "orders", "--older-than", "1d")
    assert done.out == b""
    one_line(done, "no such messages")


@pytest.mark.root
def test_a_group_may_drop_files_if_it_is_let(run: Run, path: Path) -> None:
    group = next(each for each in grp.getgrall() if each.gr_gid != os.getgid())
    assert run("queue", "change", "orders", "--drop-group", group.gr_name).code == 0
    folder = os.stat(path / "drop" / "orders")
    assert (stat.S_IMODE(folder.st_mode), folder.st_gid) == (0o3770, group.gr_gid)
    assert stat.S_IMODE(os.stat(path).st_mode) == stat.S_IMODE(os.stat(path / "drop").st_mode) == 0o711
    assert stat.S_IMODE(os.stat(path / "committed").st_mode) == 0o700
    assert run("check").code == 0
    assert run("doctor", path).code == 0
    os.chmod(path / "drop" / "orders", 0o2770)
    assert b"drop/orders: users who drop files there may remove files of other users (mode 2770)" in run("check").out
    assert run("check", "--repair").code == 1
    assert stat.S_IMODE(os.stat(path / "drop" / "orders").st_mode) == 0o3770
    os.chmod(path / "drop" / "orders", 0o2770)
    assert run("queue", "change", "orders", "--retries", "3").code == 0
    assert stat.S_IMODE(os.stat(path / "drop" / "orders").st_mode) == 0o3770
    assert run("queue", "change", "orders", "--drop-group", "none").code == 0
    assert stat.S_IMODE(os.stat(path / "drop" / "orders").st_mode) == 0o700


def test_q19_the_tour_walks_through_the_sample_application(run: Run, tmp_path: Path) -> None:
    done = run("tour", "--keep", tmp_path / "tour", space=None)
    assert done.code == 0
    assert "this is a q example" in done.text
    assert done.text.count("THIS IS A Q EXAMPLE") == 2
    with spool.open(tmp_path / "tour") as space:
        assert {name: stats.ready for name, stats in space.stats().items()} == {"answers": 0, "errors": 0, "strings": 0}
        assert space.stats("strings").failed == 1
