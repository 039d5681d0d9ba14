"""A forwarding round on a real space, with tasks in this process: the effect of each outcome on the queues."""

import json
from pathlib import Path
from unittest import mock

import pytest

import spool
from forwarder.forwarder import Forwarder
from forwarder.round import Round, Route, split
from forwarder.task import Chunk, TaskResult
from spool.engine.engine import RoomLeft
from spool.model import codecs
from spool.model.xid import Xid
from spool.store import parts
from spool.workers.effects import Effect
from spool.workers.outcome import Rejected, Replied, Retried
from tests import door
from tests.at_once import AT_ONCE
from tests.forwarder.rounds import SPARK, Scripted, answers, dies, echo, forward, in_process, run_round
from tests.shown import bodies


def test_replies_and_removals_are_one_commit(space: spool.Space) -> None:
    space.put_many("work", [b"%d" % i for i in range(50)])
    assert forward(space, echo).effects == {Effect.DELIVERED: 50}
    replies = list(space.browse("replies"))
    assert [m.body for m in replies] == [b"re: %d" % i for i in range(50)], "in the order of the requests"
    assert len({m.position.number for m in replies}) == 1
    assert bodies(space, "work") == []
    assert not list(Path(space.path, "prepared").iterdir())


def test_x05_a_task_applies_no_commit_and_its_branch_is_listed_without_its_messages(space: spool.Space) -> None:
    """Otherwise each vote reads the whole space again, and each commit goes through the messages of the branches."""
    for n in range(10):
        space.put("work", b"%d" % n)
    answers["it"] = echo

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        with mock.patch("spool.index.index.Index.apply", side_effect=AssertionError("a task applied a commit")):
            return in_process(chunks)

    with Round(space, Route("work", Scripted("it"))) as round_:
        assert round_.claim(10, timeout=0)
        round_.call(job, tasks=2)
        with mock.patch.object(parts, "addressed_positions", side_effect=AssertionError("message by message")):
            assert round_.commit().effects == {Effect.DELIVERED: 10}


def test_q09_an_answer_carries_the_attributes_of_its_request(space: spool.Space) -> None:
    space.put("work", b"x", correlation_id="c", user_code=7, client_id="me", application_key="k", headers={"h": "v"})
    plain = space.put("work", b"y")
    forward(space, lambda request: Replied(b"", "text/x", None))
    first, second = space.browse("replies")
    assert (first.correlation_id, first.user_code, first.client_id, first.application_key) == ("c", 7, "me", "k")
    assert (dict(first.headers), first.content_type, first.body) == ({"h": "v"}, "text/x", b""), "an empty reply is one"
    assert second.correlation_id == plain


def test_e05_a_counted_failure_comes_back_and_ends_in_the_error_queue(space: spool.Space) -> None:
    wanted = space.put("work", b"x")
    for attempt in (1, 2):
        assert forward(space, lambda request: Retried("not now")).effects == {Effect.RETRIED: 1}
        assert space.show(wanted).attempts == attempt
    assert forward(space, lambda request: Retried("not now")).effects == {Effect.DEAD_LETTERED: 1}
    dead = space.get("errors")
    assert (dead.id, dead.origin_queue, dead.failure_reason) == (wanted, "work", "not now")
    assert space.stats("work").failed == 1


def test_effects_are_names_for_programs_and_words_for_people() -> None:
    assert all(effect.value.isidentifier() for effect in Effect)
    assert Effect("dead_lettered").words == "moved to the error queue"
    assert Effect.QUARANTINED.words == "quarantined"


def test_q11_a_round_takes_no_more_than_its_answers_find_room_for(space: spool.Space) -> None:
    space.change_queue("replies", max_messages=2)
    space.put_many("work", [b"1", b"2", b"3"])
    space.put("replies", b"there")
    assert forward(space, echo).effects == {Effect.DELIVERED: 1}
    result = forward(space, echo)
    assert (result.effects, result.down) == ({Effect.KEPT: 1}, "there is no room (queue replies is full)")
    space.get("replies")
    assert forward(space, echo).effects == {Effect.DELIVERED: 1}
    space.change_queue("replies", max_messages=None, max_bytes=1)
    assert forward(space, echo).down == result.down
    space.get_many("replies", 9)
    space.get("work")
    assert forward(space, echo).down == "", "nothing waits"


def test_q11_answers_that_find_room_one_by_one_are_not_kept_back_by_the_others(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forwarder.forwarder.spark_job", lambda context, chunks, tasks: in_process(chunks))
    answers["it"] = lambda request: Replied(b"x" * (1000 if request.raw == b"small" else 5000))
    space.change_queue("replies", max_bytes=4000)
    space.change_queue("work", retries=1)
    space.put_many("work", [b"small"] * 3)
    large = space.put("work", b"large")
    for _ in range(3):  # as a night's calls of ``--once``
        Forwarder(space.path, [Route("work", Scripted("it"))], SPARK).run(once=True)
    assert space.stats("replies").ready == 3
    dead = space.get("errors")
    assert dead.id == large
    assert "there is no room for its answer" in (dead.failure_reason or "")


def test_q11_votes_of_a_dead_forwarder_s_tasks_do_not_fill_a_queue(space: spool.Space) -> None:
    space.change_queue("replies", max_messages=2)
    space.put_many("work", [b"1", b"2"])
    with spool.open(space.path) as other, pytest.raises(KeyboardInterrupt):
        answers["it"] = echo
        run_round(other, Route("work", Scripted("it")), dies, limit=9, tasks=2, timeout=0)
    assert forward(space, echo).effects == {Effect.DELIVERED: 2}


def test_q11_a_round_counts_messages_that_others_put_and_voted_for(space: spool.Space) -> None:
    space.put("work", b"1")
    with spool.open(space.path) as other:
        other.change_queue("replies", max_messages=2)
        other.put("replies", b"there")
        branch = door.branch(other, xid=Xid(7, b"one", b""))
        branch.put("replies", b"voted for")
        branch.prepare()
        assert "queue replies is full" in forward(space, echo).down


def test_q11_a_round_knows_a_limit_that_another_process_has_just_set(space: spool.Space) -> None:
    with spool.open(space.path) as other:
        other.change_queue("replies", max_messages=1)
        other.put("replies", b"there")
    assert space.engine.room(["replies"]) == RoomLeft(0, "replies")


def test_q11_answers_that_find_no_room_when_they_are_committed_cost_no_attempt(space: spool.Space) -> None:
    space.change_queue("replies", max_messages=2)
    ids = space.put_many("work", [b"1", b"2"])
    with spool.open(space.path) as other:

        def overtaken(chunks: list[Chunk]) -> list[TaskResult]:
            blocks = in_process(chunks)
            with other.transaction(), pytest.raises(spool.Full):
                other.put("replies", b"x")  # the queue's room counts branches that have voted
            other.change_queue("replies", max_messages=1)
            return blocks

        result = forward(space, echo, job=overtaken)
    assert result.effects == {Effect.KEPT: 2}
    assert "at most 1 (max_messages)" in result.down
    assert bodies(space, "replies") == []
    assert [space.show(id_).attempts for id_ in ids] == [0, 0]
    assert space.stats("work").ready == 2
    assert forward(space, echo).effects == {Effect.DELIVERED: 1}


def test_q11_a_round_of_a_full_space_makes_room_for_its_answers_and_failures_move_in_any_case(tmp_path: Path) -> None:
    with spool.create(tmp_path / "full", max_messages=2, defaults=AT_ONCE) as space:
        space.create_queue("replies")
        space.create_queue("errors", max_messages=0)
        space.create_queue("work", reply_queue="replies", error_queue="errors", retries=0)
        space.put_many("work", [b"1", b"2"])
        answers = iter([Replied(b"done"), Retried("no")])
        assert forward(space, lambda request: next(answers)).effects == {Effect.DELIVERED: 1, Effect.DEAD_LETTERED: 1}
        assert (bodies(space, "replies"), bodies(space, "errors")) == ([b"done"], [b"2"])


def test_q12_a_delay_that_the_service_asks_for_is_kept(space: spool.Space) -> None:
    wanted = space.put("work", b"x")
    before = door.clock(space).now()
    forward(space, lambda request: Retried("later", delay=3600.0))
    due = space.show(wanted).not_before
    assert due is not None
    assert 3600 <= due - before < 3700
    assert forward(space, echo).effects == {}


def test_e05_q12_a_rejection_sends_its_reply_and_the_request_apart(space: spool.Space) -> None:
    wanted = space.put("work", b"x", correlation_id="c")
    assert forward(space, lambda request: Rejected("no", Replied(b"why"))).effects == {Effect.REJECTED: 1}
    failure = space.get("failures")
    assert (failure.body, failure.correlation_id) == (b"why", "c")
    message = space.get("errors")
    assert (message.id, message.origin_attempts) == (wanted, 1)
    space.put("work", b"x")
    assert forward(space, lambda request: Rejected("no"), on_failure="retry").effects == {Effect.RETRIED: 1}


@pytest.mark.parametrize(
    ("reply", "failure_queue", "deleted"),
    [(Replied(b"why"), "failures", True), (None, "failures", False), (Replied(b"why"), None, False)],
)
def test_q12_a_refused_request_may_be_deleted_once_its_reply_is_in_the_failure_queue(
    space: spool.Space, reply: Replied | None, failure_queue: str | None, deleted: bool
) -> None:
    space.change_queue("work", failure_queue=failure_queue)
    space.put("work", b"x")
    assert forward(space, lambda request: Rejected("no", reply), on_failure="delete").effects == {Effect.REJECTED: 1}
    assert bodies(space, "failures") == ([b"why"] if deleted else [])
    assert bodies(space, "errors") == ([] if deleted else [b"x"]), "nothing is deleted without a trace"
    assert bodies(space, "work") == []


def test_a_damaged_body_is_set_aside_and_the_rest_is_delivered(space: spool.Space) -> None:
    space.put_many("work", [b"first" * 100, b"second" * 100, b"third" * 100])
    (path,) = Path(space.path, "committed").glob("*.msgpack")
    data = bytearray(path.read_bytes())
    data[data.index(b"second") + 20] ^= 1
    path.write_bytes(data)
    assert forward(space, echo).effects == {Effect.DELIVERED: 2, Effect.QUARANTINED: 1}
    assert bodies(space, "replies") == [b"re: " + b"first" * 100, b"re: " + b"third" * 100]
    assert bodies(space, "work") == []
    assert len(space.quarantined()) == 1


def test_a_body_that_its_codec_cannot_decode_is_set_aside_as_a_worker_does(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON that is nested too deep for the frames of a task, say."""

    def fails_on_deep(raw: bytes) -> object:
        if raw == b'"deep"':
            raise RecursionError("maximum recursion depth exceeded")
        return json.loads(raw)

    space.put_many("work", [codecs.Encoded(b'"deep"', "json"), codecs.Encoded(b'"flat"', "json")])
    monkeypatch.setitem(codecs.CODECS, "json", codecs.CODECS["json"]._replace(decode=fails_on_deep))
    assert forward(space, echo).effects == {Effect.DELIVERED: 1, Effect.QUARANTINED: 1}
    assert "maximum recursion depth exceeded" in str(space.quarantined()[0])
    assert space.stats("work").ready == 0


def test_a_round_of_slow_calls_ends_after_some_and_the_next_goes_on(space: spool.Space) -> None:
    """Thereby a first signal need not wait for all claimed messages, and finished calls are committed soon."""
    space.put_many("work", [b"%d" % i for i in range(9)])
    answers["it"] = echo
    counts, route = [], Route("work", Scripted("it"))
    while space.stats("work").ready:
        result = run_round(space, route, in_process, limit=1000, tasks=2, timeout=0, calling=0.0)
        counts.append(result.messages)
    assert counts == [2, 2, 2, 2, 1], "one of each task that can begin at once, and none of those that wait for it"
    assert len(bodies(space, "replies")) == 9


def test_a_round_skips_the_messages_that_it_is_given_to_skip(space: spool.Space) -> None:
    space.put_many("work", [b"1", b"2", b"3"])
    failed = forward(space, lambda request: Retried("no") if request.raw != b"2" else Replied())
    assert len(failed.attempted) == 2
    answers["it"] = echo
    route = Route("work", Scripted("it"))
    passed = set(failed.attempted[:1])
    for effects in ({Effect.DELIVERED: 1}, {}):
        result = run_round(space, route, in_process, limit=9, tasks=2, timeout=0, passed=passed)
        assert result.effects == effects
    assert forward(space, echo).effects == {Effect.DELIVERED: 1}


def test_chunks_keep_the_order_and_are_bounded(space: spool.Space) -> None:
    space.put_many("work", [b"x" * 1_000_000] * 20)
    seen: list[list[Chunk]] = []

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        seen.append(chunks)
        return in_process(chunks)

    forward(space, lambda request: Replied(b""), job=job)
    (chunks,) = seen
    assert [one.first + n for chunk in chunks for one in chunk.runs for n in range(one.length)] == list(range(20))
    marks = [chunks[0].marks.after(sum(map(len, chunks[:place]))) for place in range(len(chunks))]
    assert [chunk.marks for chunk in chunks] == marks, "a mark for each message, in order"
    assert all(sum(run.bytes for run in chunk.runs) <= 8 << 20 for chunk in chunks)
    assert [len(chunk) for chunk in split(chunks[0], 1)] == [3, 2], "about two a task"
