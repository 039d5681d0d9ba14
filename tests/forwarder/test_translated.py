"""A message that becomes others, in one commit, through a round and through a worker; and rounds of ordered queues."""

from pathlib import Path

import pytest

import spool
from forwarder.forwarder import Forwarder
from forwarder.round import Route
from forwarder.services import MissingQueue, Request
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Replied, Retried
from tests.forwarder.rounds import Scripted, answers, forward, in_process, run_round
from tests.shown import bodies


def split(message: object) -> spool.Translated:
    """Two messages for the queue ``next``, one for ``replies``."""
    parts = [spool.NewMessage("next", {"part": part}, priority=part) for part in (1, 2)]
    return spool.Translated([*parts, spool.NewMessage("replies", b"whole", correlation_id="own")], "split in two")


def through_a_round(space: spool.Space) -> dict[str, int]:
    result = forward(space, lambda request: split(request.message))
    assert result.failures.last(Effect.DELIVERED) == "split in two"
    return result.effects


def through_a_worker(space: spool.Space) -> dict[str, int]:
    summary = space.work("work", split, once=True)
    assert summary.reasons == {"delivered": "split in two"}
    return {Effect.DELIVERED: summary.delivered}


@pytest.mark.parametrize("way", [through_a_round, through_a_worker])
def test_q13_the_results_of_a_message_and_its_removal_are_one_commit(space: spool.Space, way) -> None:
    sent = space.put("work", b"x")
    assert way(space) == {Effect.DELIVERED: 1}
    parts, [whole] = space.get_many("next", 9), space.get_many("replies", 9)
    assert [(part.body, part.priority) for part in parts] == [({"part": 1}, 1), ({"part": 2}, 2)]
    assert [part.correlation_id for part in parts] == [sent, sent], "that of its source, or else the source's id"
    assert (whole.body, whole.correlation_id) == (b"whole", "own")
    assert len({message.position.number for message in (*parts, whole)}) == 1
    assert space.stats("work").ready == 0


@pytest.mark.parametrize("way", ["round", "worker"])
def test_a_translation_that_cannot_be_put_loses_nothing(space: spool.Space, way: str) -> None:
    def result(new: spool.NewMessage) -> tuple[dict[str, int], str | None]:
        space.put("work", b"x", correlation_id="c")
        outcome = spool.Translated([spool.NewMessage("next", b"ok"), new])
        if way == "round":
            done = forward(space, lambda request: outcome)
            return done.effects, next(iter(done.failures)).reason
        summary = space.work("work", lambda message: outcome, once=True)
        return {e: n for e in Effect if (n := getattr(summary, e.value, 0))}, next(iter(summary.reasons.values()))

    effects, reason = result(spool.NewMessage("work", b"x", headers={"a": "b" * 9000}))
    assert (effects, "headers of 8192 bytes" in (reason or "")) == ({Effect.REJECTED: 1}, True)
    assert space.get("errors").failure_reason == reason
    effects, reason = result(spool.NewMessage("nowhere", b"x"))
    assert (effects, reason) == ({Effect.RETRIED: 1}, "the queue 'nowhere' does not exist: create it")
    assert bodies(space, "next") == []


def test_a_new_message_refuses_options_that_depend_on_the_queue(space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument, match="deduplication_key depends on the contents of the queue"):
        spool.NewMessage("next", b"", deduplication_key="k")
    with pytest.raises(spool.InvalidArgument, match="a whole number from 1 to 100"):
        spool.NewMessage("next", b"", priority=0)
    with pytest.raises(spool.InvalidArgument, match="cannot be written as msgpack"):
        spool.NewMessage("next", object())
    with pytest.raises(spool.InvalidArgument, match="Translated takes messages"):
        spool.Translated(["next"])  # type: ignore[list-item]


def test_a_route_pauses_while_a_queue_that_it_puts_into_is_full(space: spool.Space) -> None:
    """The route counts no attempt, as with a full reply queue."""
    space.change_queue("next", max_messages=1)
    sent = space.put_many("work", [b"1", b"2"])
    answers["it"] = lambda request: spool.Translated([spool.NewMessage("next", request.raw)])
    route = Route("work", Scripted("it"), into=("next", "replies"))
    for effects in ({Effect.DELIVERED: 1}, {Effect.KEPT: 1}):
        result = run_round(space, route, in_process, limit=9, tasks=2, timeout=0)
        assert result.effects == effects
    assert result.down == "there is no room (queue next is full)"
    assert space.show(sent[1]).attempts == 0


def test_a_queue_that_a_route_puts_into_must_be_there(space: spool.Space) -> None:
    with pytest.raises(MissingQueue, match="there is no queue 'nowhere' to forward work to"):
        Forwarder(space.path, [Route("work", Scripted("it"), into=("nowhere",))]).run()


# -- in order ---------------------------------------------------------------------------------------------------------


def test_e07_a_round_of_an_ordered_queue_takes_many_and_stops_at_one_that_comes_back(space: spool.Space) -> None:
    space.change_queue("work", ordered=True, retry_delay=0.0, error_queue="errors")
    space.put_many("work", [b"%d" % n for n in range(9)])
    called: list[bytes] = []
    fails = {b"4"}

    def answer(request: Request) -> Outcome:
        called.append(request.raw)
        return Retried("not now") if request.raw in fails else Replied(request.raw)

    assert forward(space, answer).effects == {Effect.DELIVERED: 4, Effect.RETRIED: 1}
    fails.clear()
    assert forward(space, answer).effects == {Effect.DELIVERED: 5}
    assert called == [b"%d" % n for n in (0, 1, 2, 3, 4, 4, 5, 6, 7, 8)]
    assert bodies(space, "replies") == [b"%d" % n for n in range(9)]


def test_e07_a_message_that_leaves_an_ordered_queue_holds_up_nothing(space: spool.Space) -> None:
    space.change_queue("work", ordered=True, retries=0, error_queue="errors")
    space.put_many("work", [b"%d" % n for n in range(4)])
    result = forward(space, lambda request: Retried("no") if request.raw == b"1" else Replied(request.raw))
    assert result.effects == {Effect.DELIVERED: 3, Effect.DEAD_LETTERED: 1}
    assert bodies(space, "replies") == [b"0", b"2", b"3"]


def test_with_once_the_routes_of_a_step_are_drained_before_the_next_begins(
    space: spool.Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.forwarder.test_once import SPARK, driver

    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))
    space.put_many("work", [b"%d" % n for n in range(5)])
    answers["first"] = lambda request: spool.Translated([spool.NewMessage("next", request.raw)])
    answers["then"] = lambda request: Replied()
    routes = [Route("next", Scripted("then"), step=1), Route("work", Scripted("first"), into=("next",))]
    summary = Forwarder(space.path, routes, SPARK).run(once=True)
    assert summary.effects == {"work": {Effect.DELIVERED: 5}, "next": {Effect.DELIVERED: 5}}
