"""``spool-admin message get --exec`` runs a command with each message, and commits the outcome as a worker does."""

import os
import signal
from pathlib import Path

import pytest

import spool
from tests.clocks import until
from tests.scripts.conftest import Run, execute, one_line, start
from tests.shown import bodies_at
from tests.spaces import path_with

path = path_with("replies", "other", "errors", orders={"error_queue": "errors", "retries": 1, "retry_delay": 0.0})


def put(path: Path, *bodies: str, **options: str) -> None:
    with spool.open(path) as space:
        for body in bodies:
            space.put("orders", body, **options)  # type: ignore[arg-type]


def test_the_output_goes_to_the_reply_queue_with_the_fields_of_a_reply(run: Run, path: Path) -> None:
    put(path, "tea", reply_queue="replies", correlation_id="c")
    done = run("message", "get", "orders", "--exec", "sh -c 'cat; echo \" $SPOOL_QUEUE $SPOOL_ATTEMPTS\"'")
    assert (done.code, done.out, done.err) == (0, b"", "")
    with spool.open(path) as space:
        reply = space.get("replies")
        assert (reply.body, reply.correlation_id) == (b"tea orders 0\n", "c")
        assert space.stats("orders").dequeued == 1
        id_ = space.put("orders", "tea", reply_queue="replies", headers={"a": "b"}, user_code=7)
    assert run("message", "get", "orders", "--exec", "cat", "--reply-to", "other").code == 0
    with spool.open(path) as space:
        reply = space.get("other")
        assert (reply.body, reply.correlation_id, reply.user_code) == (b"tea", id_, 7)
        assert (reply.headers, space.stats("replies").enqueued) == ({"a": "b"}, 1)


@pytest.mark.parametrize(
    ("status", "code", "queue", "attempts"),
    [(65, 6, "errors", 0), (75, 5, "orders", 1), (1, 5, "orders", 1), (69, 5, "orders", 0)],
)
def test_the_exit_status_of_the_command_is_the_outcome(
    run: Run, path: Path, status: int, code: int, queue: str, attempts: int
) -> None:
    put(path, "tea")
    done = run("message", "get", "orders", "--exec", f"sh -c 'echo no tea >&2; exit {status}'", "--reply-to", "replies")
    assert (done.code, done.out) == (code, b"")
    assert f"exit status {status}: no tea" in done.err
    with spool.open(path) as space:
        [message] = space.browse(queue)
        assert message.attempts == attempts
        assert message.failure_reason == (None if status == 69 else f"exit status {status}: no tea")
        assert space.stats("replies").ready == 0


def test_the_last_attempt_fails_for_good(run: Run, path: Path) -> None:
    put(path, "tea")
    assert [run("message", "get", "orders", "--exec", "false").code for _ in range(3)] == [5, 6, 3]
    assert bodies_at(path, "errors") == ["tea"]


def test_count_and_all_run_the_command_for_several_messages(run: Run, path: Path) -> None:
    put(path, "a", "b", "c", "d")
    words = ["message", "get", "orders", "--exec", "cat", "--reply-to", "replies"]
    assert run(*words, "--count", 2).code == 0
    assert bodies_at(path, "replies") == [b"a", b"b"]
    done = run(*words, "--all", "--json")
    assert (done.code, done.objects[0]["delivered"], bodies_at(path, "orders")) == (0, 2, [])
    one_line(run(*words), "queue orders has no message that can be taken now", code=3)


def test_it_waits_for_a_message(path: Path) -> None:
    words = ["-s", path, "message", "get", "orders", "--exec", "cat", "--reply-to", "replies", "--timeout", "60"]
    with start("spool-admin", *words) as waiting:
        with spool.open(path) as space:
            until(lambda: len(space.metrics().processes) == 2)
            space.put("orders", "late")
        assert waiting.wait(60) == 0
    assert bodies_at(path, "replies") == [b"late"]
    assert execute("spool-admin", *words[:-1], "0.2").code == 3


def test_a_kill_in_the_middle_counts_an_attempt_and_puts_nothing(path: Path, tmp_path: Path) -> None:
    put(path, "tea")
    os.mkfifo(tmp_path / "begun")
    command = f"sh -c 'echo > {tmp_path}/begun; sleep 60'"
    with start(
        "spool-admin", "-s", path, "message", "get", "orders", "--exec", command, "--reply-to", "replies"
    ) as run:
        (tmp_path / "begun").read_text()
        run.send_signal(signal.SIGKILL)
    with spool.open(path) as space:
        [message] = space.browse("orders")
        assert (message.attempts, space.stats("replies").enqueued) == (1, 0)


def test_wrong_usage_claims_no_message(run: Run, path: Path) -> None:
    put(path, "tea")
    words = ["message", "get", "orders", "--exec", "cat"]
    one_line(run(*words[:3], "--exec", "no-such-command"), "no command 'no-such-command'", code=2)
    one_line(run(*words, "--reply-to", "nowhere"), "there is no queue 'nowhere'", code=1)
    one_line(run(*words[:3], "--reply-to", "replies"), "--exec", code=2)
    one_line(run(*words, "--correlation-id", "c"), "--correlation-id", code=2)
    assert bodies_at(path, "orders") == ["tea"]
