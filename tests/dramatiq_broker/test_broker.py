"""The broker, its consumer and its results, in one process."""

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import SkipMessage
from dramatiq.results.errors import ResultFailure, ResultMissing, ResultTimeout

import spool
from dramatiq_xaspool import XaspoolBroker, XaspoolRateLimiterBackend, XaspoolResults
from tests import children
from tests.dramatiq_broker.app import App, working
from tests.spaces import remove_by_hand
from tests.watch.healthy import expect_healthy_an_hour_later


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path / "space")


def words(space: spool.Space, queue: str = "default") -> list[object]:
    return [dramatiq.Message.decode(message.body).args for message in space.browse(queue)]


def test_the_declaration_of_actors_touches_no_file(tmp_path: Path) -> None:
    App(tmp_path / "space")
    assert not [*tmp_path.iterdir()]


def test_a_worker_runs_actors_and_keeps_their_results(app: App) -> None:
    with working(app):
        sent = [app.add.send(number, 1) for number in range(20)]
        assert [message.get_result(backend=app.results, block=True) for message in sent] == [*range(1, 21)]
        app.broker.join("default", timeout=60_000)


def test_a_delayed_message_remains_in_the_space_until_its_time(app: App) -> None:
    app.note.send_with_options(args=("later",), delay=3_600_000)
    app.note.send("now")
    with working(app):
        assert app.until_told(1) == ["now"]
        with pytest.raises(QueueJoinTimeout):
            app.broker.join("default", timeout=100)
        stats = app.broker.space.stats("default")
        assert (stats.delayed, stats.claimed) == (1, 0)  # no worker holds it


def test_an_actor_of_higher_priority_runs_first(app: App) -> None:
    for actor, word in ((app.note, "one"), (app.urgent, "two"), (app.note, "three"), (app.urgent, "four")):
        actor.send(word)
    with working(app, threads=1):
        assert app.until_told(4) == ["two", "four", "one", "three"]


def test_x20_a_result_has_the_id_and_the_name_of_its_task_its_state_runtime_and_worker(app: App) -> None:
    with working(app):
        sent = [app.add.send(1, 2), app.fail.send()]
        app.broker.join("default", timeout=60_000)
        with pytest.raises(ResultFailure):
            sent[1].get_result(backend=app.results, block=True)
    (added, failed) = (app.broker.space.find("dramatiq-results", correlation_id=one.message_id) for one in sent)
    assert added is not None
    assert failed is not None
    worker = f"{socket.gethostname()}:{os.getpid()}"
    found = [{**message.headers, "runtime": float(message.headers["runtime"]) >= 0} for message in (added, failed)]
    assert found == [{"task": name, "state": state, "worker": worker, "runtime": True}
                     for name, state in (("add", "SUCCESS"), ("fail", "FAILURE"))]  # fmt: skip


def test_a_message_that_fails_for_good_moves_to_the_dead_letter_queue_with_its_reason(app: App) -> None:
    with working(app):
        message = app.fail.send()
        with pytest.raises(ResultFailure, match="no tea"):
            message.get_result(backend=app.results, block=True)
        app.broker.join("default", timeout=60_000)
    assert app.told() == ["failed"] * 2
    (dead,) = app.broker.space.browse("default.XQ")
    assert dead.failure_reason == "ValueError: no tea left"
    assert (dead.correlation_id, dead.headers["task"]) == (message.message_id, "fail")
    assert app.broker.space.redrive("default.XQ") == 1
    with working(app):
        app.until_told(3)


def test_a_consumer_claims_as_many_messages_as_its_prefetch(app: App) -> None:
    for number in range(5):
        app.note.send(number)
    space = app.broker.space
    with closing(app.broker.consume("default", prefetch=3, timeout=1)) as consumer:
        taken = [next(consumer) for _ in range(4)]
        assert taken[3] is None
        assert space.stats("default").claimed == 3
        one, two, three = filter(None, taken)
        consumer.ack(one)
        two.stuff_exception(ValueError("two is bad"))
        consumer.nack(two)
        assert [message.failure_reason for message in space.browse("default.XQ")] == ["ValueError: two is bad"]
        consumer.requeue([three])
        assert words(space) == [(2,), (3,), (4,)]
        again = next(consumer)
        assert again is not None
        assert again.args == (2,)
    assert space.stats("default").ready == 3  # the close has released the message


def test_an_attempt_begins_with_the_actor_and_not_with_the_delivery(app: App) -> None:
    """A worker dies with three messages, of which it runs one."""
    for number in range(3):
        app.note.send(number)

    def die() -> None:
        consumer = app.broker.consume("default", prefetch=3, timeout=1)
        delivered = [next(consumer) for _ in range(3)]
        app.broker.emit_before("process_message", delivered[1])
        os._exit(0)

    assert children.exit_code_of(die) == 0
    with closing(app.broker.consume("default", prefetch=3, timeout=1)) as consumer:
        again = [delivery.claimed for delivery in (next(consumer) for _ in range(3)) if delivery]
    assert sorted(message.attempts for message in again) == [0, 0, 1]


def test_a_message_whose_acknowledgement_fails_returns_to_its_queue(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.note.send("tea")
    with closing(app.broker.consume("default", prefetch=1, timeout=1)) as consumer:
        delivery = next(consumer)
        assert delivery is not None
        failed: Future[None] = Future()
        failed.set_exception(spool.DiskFailure("the disk is broken"))
        monkeypatch.setattr(spool.Claims, "remove", lambda *_: failed)
        with pytest.raises(spool.DiskFailure, match="broken"):
            consumer.ack(delivery)
        monkeypatch.undo()
        again = next(consumer)
        assert again is not None
        assert again.args == ("tea",)
        consumer.ack(again)
    assert words(app.broker.space) == []


def test_a_message_whose_consumer_began_again_runs_once(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A worker keeps prefetched messages while its consumer begins again: they are delivered a second time."""
    app.note.send("tea")
    with closing(app.broker.consume("default", timeout=1)) as first:
        prefetched = next(first)
    with closing(app.broker.consume("default", timeout=1)) as second:
        delivered = next(second)
        assert prefetched is not None
        assert delivered is not None
        with pytest.raises(SkipMessage, match="not claimed any more"):
            app.broker.emit_before("process_message", prefetched)
        app.broker.emit_before("process_message", delivered)
        second.ack(prefetched)
        second.requeue([prefetched])
        assert "runs again, because its claim has ended" in caplog.text
        assert app.broker.space.stats("default").claimed == 1
        second.ack(delivered)
    assert words(app.broker.space) == []


def test_a_body_that_is_no_message_of_dramatiq_moves_to_the_dead_letter_queue(app: App) -> None:
    app.note.send("first")
    app.broker.space.put("default", {"not": "a message"}, priority=100)
    with working(app):
        app.until_told(1)
        app.broker.join("default", timeout=60_000)
    (dead,) = app.broker.space.browse("default.XQ")
    assert dead.failure_reason is not None
    assert dead.failure_reason.startswith("not a message of Dramatiq")


@pytest.mark.parametrize("options", [{}, {"retries": 0}], ids=["unlimited", "no retries"])
def test_a_message_of_another_framework_is_never_dropped(
    app: App, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    space = app.broker.space
    space.create_queue("default", **options)  # as another framework does: without an error queue
    foreign = [space.put("default", body) for body in ('{"body": "W1tdXQ==", "properties": {}}', {"task": "shop.add"})]
    app.note.send("first")
    with working(app):
        app.until_told(1)
    assert [message.id for message in space.browse("default")] == foreign
    assert "another framework uses the queue default: give each framework separate queues" in caplog.text


def test_a_message_of_another_framework_takes_no_place_of_the_prefetched_messages(app: App) -> None:
    space = app.broker.space
    space.create_queue("default", retries=3)  # without an error queue, so the message remains in the queue
    space.put("default", {"task": "shop.add"})
    app.note.send("first")
    with closing(app.broker.consume("default", prefetch=1)) as consumer:
        assert next(consumer) is not None


def test_a_message_that_fails_for_good_remains_while_its_dead_letter_queue_is_missing(app: App) -> None:
    app.fail.send()
    space = app.broker.space
    with closing(app.broker.consume("default")) as consumer:
        delivery = next(consumer)
        assert delivery is not None
        remove_by_hand(space, "default.XQ")
        consumer.nack(delivery)
    assert (space.stats("default").delayed, space.stats("default").failed) == (1, 0)


def test_a_message_for_a_queue_of_another_program_is_kept_and_not_consumed_here(app: App) -> None:
    sent = dramatiq.Message(queue_name="elsewhere", actor_name="act", args=(), kwargs={}, options={})
    app.broker.enqueue(sent)
    assert app.broker.get_declared_queues() == {"default"}
    assert app.broker.space.stats("elsewhere").ready == 1
    for call in (app.broker.consume, app.broker.flush, app.broker.join):
        with pytest.raises(QueueNotFound):
            call("elsewhere")


def test_flush_deletes_waiting_and_delayed_messages(app: App) -> None:
    app.note.send("one")
    app.note.send_with_options(args=("two",), delay=60_000)
    app.broker.flush_all()
    app.broker.join("default", timeout=0)


def test_a_result_has_a_time_to_live_and_replaces_the_result_of_an_earlier_run(app: App) -> None:
    message = app.add.message(1, 2)
    with pytest.raises(ResultMissing):
        app.results.get_result(message)
    with pytest.raises(ResultTimeout):
        app.results.get_result(message, block=True, timeout=1)
    for result in ("old", "new"):
        app.results.store_result(message, result, 5_000)
    assert app.results.get_result(message) == "new"
    (stored,) = app.broker.space.browse("dramatiq-results")
    assert stored.expires_at is not None
    assert stored.expires_at - stored.enqueued_at == pytest.approx(5)


def test_an_idle_consumer_wakes_for_a_message_of_another_process(app: App) -> None:
    app.note.send("first")
    with closing(app.broker.consume("default", prefetch=2, timeout=3_600_000)) as consumer:
        delivered = filter(None, consumer)
        assert next(delivered).args == ("first",)
        child = children.start(lambda: app.note.send("second"))  # the fork opens the space itself
        assert next(delivered).args == ("second",)
        assert children.exit_code(child) == 0


@pytest.mark.parametrize("made", [XaspoolBroker, XaspoolResults, XaspoolRateLimiterBackend])
def test_an_empty_path_is_refused(made: Callable[[str], object]) -> None:
    with pytest.raises(spool.InvalidArgument, match="the path of a space is empty"):
        made("")


def test_a_path_that_is_a_file_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    app = App(tmp_path / "file")
    with pytest.raises(spool.NotASpace, match="file"):
        app.note.send("word")


def test_a_healthy_space_has_no_finding_and_no_alert_an_hour_later(app: App, tmp_path: Path) -> None:
    """X20."""
    with working(app):
        assert app.add.send(1, 2).get_result(backend=app.results, block=True) == 3
    expect_healthy_an_hour_later(app.broker.path, tmp_path, {"dramatiq-results"})
