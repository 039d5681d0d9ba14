"""A queue of another space as a service gets each message exactly once, even if a process dies between the two
commits."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder import Effect, Forwarder, ServiceError
from forwarder import forwarder as driver
from forwarder.services import MissingQueue, Request, parse
from spool.workers.outcome import Rejected, Replied
from tests.forwarder.rounds import SPARK, in_process
from tests.forwarder.test_services import assert_not_reached, call, request
from tests.shown import bodies


@pytest.fixture
def other(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "other") as other:
        other.create_queue("orders", deduplication_window=86400.0)
        yield other


def to(other: spool.Space, queue: str = "orders") -> str:
    return f"queue:{queue}@{other.path}"


def test_a_message_is_put_there_with_its_fields(space: spool.Space, other: spool.Space) -> None:
    options: Any = {
        "priority": 7, "headers": {"a": "b"}, "user_code": 5, "client_id": "me", "application_key": "k", "group": "g",
        "correlation_id": "c", "expires_at": time.time() + 3600, "reply_queue": "replies",
    }  # fmt: skip
    space.put("work", {"n": 1}, content_type="application/json", **options)
    sent = space.get("work")
    outcome = call(parse(to(other)), Request(sent, b'{"n": 1}'))
    got = other.get("orders")
    assert outcome == Replied(got.id.encode())
    same = ("body", "content_type", "codec", *options)
    assert {n: getattr(got, n) for n in same} == {n: getattr(sent, n) for n in same} | {"reply_queue": None}


def test_x08_a_message_that_is_forwarded_again_is_there_once(other: spool.Space) -> None:
    caller = parse(to(other)).open()
    first, second = caller(request(b"x")), caller(request(b"x"))
    caller.close()
    assert first == second
    assert bodies(other, "orders") == [b"x"]
    other.get("orders")
    assert call(parse(to(other)), request(b"x")) == first, "also once it was taken"
    assert bodies(other, "orders") == []


def test_q13_a_message_without_a_correlation_id_can_be_followed(other: spool.Space) -> None:
    call(parse(to(other)), request(b"x"))
    assert other.get("orders").correlation_id == request().message.id


def test_q12_a_put_that_the_other_space_cannot_do_now_counts_no_attempt(other: spool.Space) -> None:
    caller = parse(to(other)).open()
    other.change_queue("orders", max_messages=1)
    other.put("orders", b"x")
    assert_not_reached(caller(request()))
    other.get("orders")
    other.delete_queue("orders")
    assert_not_reached(caller(request()))
    other.create_queue("orders")
    assert isinstance(caller(request()), Replied)
    caller.close()


def test_a_stopped_destination_space_is_opened_again(other: spool.Space) -> None:
    caller: Any = parse(to(other)).open()
    assert isinstance(caller(request(b"1")), Replied)
    caller._space.close()
    assert_not_reached(caller(request(b"2")))
    assert isinstance(caller(request(b"2")), Replied)
    caller.close()


def test_a_body_that_is_too_large_there_is_refused(tmp_path: Path) -> None:
    with spool.create(tmp_path / "small", max_body_bytes=10) as small:
        small.create_queue("orders", deduplication_window=86400.0)
        assert isinstance(call(parse(to(small)), request(bytes(11))), Rejected)


def test_a_wrong_destination_is_refused_before_any_work(
    space: spool.Space, other: spool.Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ServiceError, match="no-space"):
        parse(f"queue:orders@{tmp_path}/no-space").check()
    with pytest.raises(MissingQueue, match="'nowhere' in"):
        parse(to(other, "nowhere")).check()
    with pytest.raises(ServiceError, match="own space: write queue:replies"):
        Forwarder(space.path, {"work": f"queue:replies@{space.path}"}, SPARK).run(once=True)
    other.change_queue("orders", deduplication_window=60.0)
    parse(to(other)).check()
    assert "remembers the key of a put for only 60 s" in caplog.text


def test_a_queue_of_another_space_is_a_route_like_any_other(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))
    space.put_many("work", range(50))
    summary = Forwarder(space.path, {"work": to(other)}, SPARK).run(once=True)
    assert summary.effects == {"work": {Effect.DELIVERED: 50}}
    assert sorted(bodies(other, "orders")) == list(range(50))


VICTIM = """
import sys
from forwarder import Forwarder, forwarder as driver
from tests.forwarder.rounds import SPARK, in_process

driver.spark_job = lambda context, chunks, tasks: in_process(chunks)
print("ready", flush=True)
Forwarder(sys.argv[1], {"work": sys.argv[2]}, SPARK).run(once=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_x08_each_message_is_there_exactly_once_however_often_the_forwarder_is_killed(
    space: spool.Space, other: spool.Space, kills: int
) -> None:
    """Killed once its commits there have begun and those here have not ended."""
    # A kill counts an attempt of the messages that are being called: none of them may come to the error queue.
    space.change_queue("work", retries=kills)
    count, killed = 0, 0
    command = [sys.executable, "-c", VICTIM, space.path, to(other)]
    while killed < kills:
        if not space.stats("work").ready:  # at first, or where a victim came to its end before it was killed
            space.put_many("work", range(count, count + 100 * kills))
            count += 100 * kills
        there = other.stats("orders").enqueued
        with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as victim:
            while victim.poll() is None and other.stats("orders").enqueued < there + 1 + killed % 50:
                time.sleep(0.001)
            victim.kill()
        assert victim.returncode in (0, -signal.SIGKILL)
        killed += victim.returncode == -signal.SIGKILL
    assert other.stats("orders").enqueued >= count - space.stats("work").ready, "nothing is lost"
    again = subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert not again.stderr
    assert sorted(bodies(other, "orders")) == list(range(count))
    assert space.stats("work").ready == 0
    assert not [finding for finding in other.check() if finding.kind == "damaged"]
