"""The forwarder without Spark: a route has the same outcomes, counts and reports in threads as in rounds."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder import Effect, Request, Route, ThreadForwarder
from forwarder.events import Done, Down, Event
from forwarder.services import parse
from spool.model import codecs
from spool.store.settings_reader import read_settings_text, write_settings
from spool.workers.outcome import NewMessage, Outcome, Rejected, Replied, Retried, Translated
from tests import door
from tests.forwarder.rounds import Answer, Run, Scripted, answers
from tests.shown import bodies
from tests.spaces import space_with

space = space_with("work", "other")


def scripted(answer: Answer, **options: Any) -> Route:
    answers["it"] = answer
    return Route("work", Scripted("it", **options))


def refused(request: Request) -> Outcome:
    return Rejected(str(request.message.body))


# -- the outcomes of a route ------------------------------------------------------------------------------------------


def test_a_summary_counts_by_plain_words(run: Run, space: spool.Space) -> None:
    """A program prints them, and writes them as JSON."""
    space.put("work", "tea")
    assert repr(run(scripted(refused)).effects) == "{'work': {'rejected': 1}}"


def test_a_message_moves_to_another_queue_as_it_is(run: Run, space: spool.Space) -> None:
    put = {"headers": {"spool-route": "lab", "h": "v"}, "priority": 7, "content_type": "text/x-lab"}
    space.put("work", "x", **put)
    assert run(Route("work", parse("queue:other"))).effects == {"work": {"delivered": 1}}
    [message] = space.browse("other")
    assert (message.body, dict(message.headers), message.priority, message.content_type, message.correlation_id) == (
        "x", put["headers"], 7, "text/x-lab", None,
    )  # fmt: skip


def test_a_message_over_a_limit_that_came_later_moves_all_the_same(run: Run, space: spool.Space) -> None:
    space.put("work", b"x" * 100)
    disk = door.disk(space)
    write_settings(disk, f"max_body_bytes = 10\n{read_settings_text(disk)}")
    assert run(Route("work", parse("queue:other"))).effects == {"work": {"delivered": 1}}
    assert bodies(space, "other") == [b"x" * 100]


@pytest.mark.usefixtures("codecs_of_its_own")
def test_q17_a_body_that_no_codec_here_reads_is_bytes_for_a_service_and_an_attempt_for_a_function(
    run: Run, space: spool.Space, tmp_path: Path
) -> None:
    spool.register_codec("far", spool.Codec("text/x-far", lambda _: b"1", lambda _: 1j), complex)
    space.put_many("work", [1j, 1j])
    del codecs.CODECS["far"]
    summary = run(Route("work", parse("python:tests.pipelines.hooks:one")))
    [failure] = summary.failures["work"]
    reason = "its body was written by the codec 'far', which this process lacks: register it"
    assert failure == (Effect.RETRIED, reason, 2)
    assert run(Route("work", parse("queue:other"))).effects == {"work": {"delivered": 2}}
    for id_ in [entry.id for entry in space.entries("other")]:
        space.move(id_, "work")
    (tmp_path / "out").mkdir()
    assert run(Route("work", parse(f"file:{tmp_path / 'out'}"))).effects == {"work": {"delivered": 2}}
    assert [file.read_bytes() for file in (tmp_path / "out").iterdir()] == [b"1", b"1"]


# -- counts and reports -----------------------------------------------------------------------------------------------


def test_failures_are_counted_by_their_reasons(run: Run, space: spool.Space) -> None:
    space.put_many("work", ["A", "A", "B", "A", "A"])
    summary = run(scripted(refused))
    assert summary.effects == {"work": {"rejected": 5}}
    assert list(summary.failures["work"]) == [("rejected", "A", 4), ("rejected", "B", 1)]


def test_a_failure_is_logged_as_it_comes_up_each_kind_once_and_the_others_are_counted(
    run: Run, space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    space.put_many("work", ["A", "A", "B"])
    with caplog.at_level(logging.WARNING, "spool.forwarder"):
        run(scripted(refused))
    said = [record.getMessage() for record in caplog.records if record.name == "spool.forwarder"]
    assert said == [
        "work: a message was rejected: A", "work: a message was rejected: B",
        "work: 1 more was rejected by Scripted, the last: A",
    ]  # fmt: skip


def test_reports_about_messages_that_were_not_forwarded_are_not_counted(run: Run, space: spool.Space) -> None:
    """The commit found no room for the result of the message, so the report that one was dropped does not count."""
    space.change_queue("other", max_messages=1)
    space.put("other", "there")
    space.put("work", "x")
    summary = run(scripted(lambda request: Translated([NewMessage("other", "y")], "one was dropped")))
    assert summary.effects == {"work": {"kept": 1}}
    assert list(summary.failures["work"]) == []


def test_messages_behind_one_that_failed_in_an_ordered_queue_are_left(run: Run, space: spool.Space) -> None:
    space.change_queue("work", ordered=True, retry_delay=3600.0)
    space.put_many("work", list("abc"))
    assert run(scripted(lambda request: Retried("later"))).left == {"work": 3}


@pytest.mark.timeout(60)
def test_a_call_that_is_given_up_is_told_with_the_time_since_its_claim(space: spool.Space) -> None:
    limit, go_on = 0.05, threading.Event()

    def answer(request: Request) -> Outcome:
        if request.message.body == "slow":
            go_on.wait(60)
        return Replied()

    space.put_many("work", ["fast", "slow"])
    events: list[Event] = []
    try:
        ThreadForwarder(space.path, [scripted(answer, watched=limit)], on_event=events.append).run(once=True)
    finally:
        go_on.set()
    of_slow = [event for event in events if isinstance(event, Done)][1]
    assert (of_slow.effects, of_slow.seconds >= limit) == ({"retried": 1}, True)


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_q12_a_forwarder_whose_service_is_down_is_not_idle(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route's pause is longer than the idle time of the forwarder."""
    monkeypatch.setattr("spool.workers.pauses.FIRST_PAUSE_SECONDS", 0.5)
    space.put("work", "x")
    tries = iter([Retried("refused", counted=False), Replied()])
    route = scripted(lambda request: next(tries))
    summary = ThreadForwarder(space.path, [route], idle=0.1).run()
    assert (summary.effects["work"][Effect.DELIVERED], summary.down) == (1, {})


def test_a_service_that_was_not_reached_is_down_although_a_concurrent_call_ends_well(space: spool.Space) -> None:
    called, refused_ = threading.Event(), threading.Event()

    def answer(request: Request) -> Outcome:
        if request.message.body == "down":
            assert called.wait(30)
            return Retried("refused", counted=False)
        called.set()
        assert refused_.wait(30)
        return Replied()

    def note(event: Event) -> None:
        if isinstance(event, Down):
            refused_.set()

    space.put_many("work", ["down", "slow", "later"])
    summary = ThreadForwarder(space.path, [scripted(answer, threads=2)], on_event=note).run(once=True)
    assert summary.effects == {"work": {"kept": 1, "delivered": 1}}
    assert summary.down == {"work": "the service was not reached (refused)"}


def test_a_forwarder_that_calls_nothing_is_abandoned_at_once(space: spool.Space) -> None:
    """A forwarder calls no service while it opens the space, checks its routes, or counts the remaining messages."""
    ended: list[bool] = []
    forwarder = ThreadForwarder(space.path, [scripted(refused)])
    forwarder.abandon(lambda: ended.append(True))
    failing = ThreadForwarder(space.path, [scripted(refused)], on_event=lambda it: 1 // (not isinstance(it, Done)))
    space.put("work", "x")
    assert len(failing.run(once=True).errors) == 1
    failing.abandon(lambda: ended.append(True))
    assert ended == [True, True]
