"""Answers that find no room: the route pauses and counts no attempt, in rounds and in threads alike."""

import re
import threading
from typing import Any

import pytest

import spool
from forwarder import Forwarder, ThreadForwarder
from forwarder.round import Route
from forwarder.services import QueueService, Request
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Rejected, Replied, Translated
from tests.forwarder.rounds import SPARK, Run, Scripted, answers, echo, in_process
from tests.shown import bodies


def twice_into_next(request: Request) -> Outcome:
    return Translated([spool.NewMessage("next", request.raw), spool.NewMessage("next", request.raw)])


IT = Scripted("it")


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("route", "answer", "limits"),
    [
        (Route("work", IT), lambda request: Replied(bytes(300)), {"max_bytes": 1000}),
        (Route("work", IT), lambda request: Rejected("no", Replied(bytes(300))), {"max_bytes": 1000}),
        (Route("work", IT, into=("next",)), twice_into_next, {"max_messages": 2}),
        (Route("work", IT), twice_into_next, {"max_messages": 2}),
        (Route("work", QueueService("next")), None, {"max_bytes": 1000}),
    ],
    ids=["reply", "reply of a refusal", "two messages", "into a queue that the route does not name", "passed on"],
)
def test_c05_a_destination_without_room_for_a_message_pauses_its_route_and_counts_no_attempt(
    space: spool.Space, run: Run, route: Route, answer: Any, limits: dict[str, int]
) -> None:
    """The destination is almost full, and the message has one attempt left."""
    space.change_queue("work", retries=0, reply_queue="next", failure_queue="next")
    space.change_queue("next", **limits)
    space.put("next", bytes(900))
    sent = space.put("work", bytes(300))
    answers["it"] = answer
    for _ in range(2):
        down = run(route).down["work"]
        assert re.match(r"there is no room \(queue next holds (1 message|900 bytes) of at most", down)
    assert (space.stats("work").ready, space.show(sent).attempts) == (1, 0)
    space.get("next")
    assert run(route).down == {}
    assert space.stats("work").ready == 0


def test_a_route_pauses_when_many_messages_wait_for_queues_of_their_own(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim has to pass over all of them."""
    monkeypatch.setattr("spool.workers.pauses.MOST_WAITING", 1)
    monkeypatch.setattr("forwarder.forwarder.spark_job", lambda context, chunks, tasks: in_process(chunks))
    space.change_queue("next", max_messages=1)
    space.put("next", b"there")
    space.put_many("work", [b"1", b"2"], reply_queue="next")
    answers["it"] = echo
    summary = Forwarder(space.path, [Route("work", IT)], SPARK).run(once=True)
    assert "many messages wait" in summary.down["work"]


@pytest.mark.timeout(60)
def test_one_place_for_the_replies_of_many_threads_costs_no_message_an_attempt(space: spool.Space) -> None:
    space.change_queue("replies", max_messages=1)
    space.change_queue("work", retries=0)
    space.put_many("work", [b"x"] * 8)
    together = threading.Barrier(8)

    def answer(request: Request) -> Outcome:
        together.wait(30)
        return Replied(b"y")

    answers["it"] = answer
    summary = ThreadForwarder(space.path, [Route("work", Scripted("it", threads=8))]).run(once=True)
    assert summary.effects == {"work": {Effect.DELIVERED: 1, Effect.KEPT: 7}}
    assert [message.attempts for message in space.browse("work")] == [0] * 7
    assert bodies(space, "errors") == []
