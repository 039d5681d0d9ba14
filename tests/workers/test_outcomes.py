"""Each outcome of a function that ``space.work`` calls is in one commit with the function's puts; and the state after a
run."""

import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.model import codecs
from spool.runtime.context import associated
from spool.transactions.coordinated import CoordinatedTransaction
from spool.workers import worker_run as runs
from spool.workers.attempt import Attempt
from spool.workers.outcome import Passed, Rejected, Replied, Retried
from tests import door
from tests.workers.conftest import WAIT, counts, fail

# -- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "reply"), [({"a": 1}, {"a": 1}), ("text", "text"), (None, b"")])
def test_a_value_is_the_reply_in_one_commit_with_the_removal(space: spool.Space, value: Any, reply: Any) -> None:
    sent = space.put("orders", "x", client_id="me")
    assert counts(space.work("orders", lambda message: value, once=True)) == {"delivered": 1}
    answer = space.get("replies")
    assert (answer.body, answer.correlation_id, answer.client_id) == (reply, sent, "me")
    assert sum(stats.ready for stats in space.stats().values()) == 0


def test_puts_of_a_function_are_committed_only_if_it_succeeds(space: spool.Space) -> None:
    space.put_many("orders", [1, 2])

    def half(message: spool.Message) -> None:
        space.put("other", message.body)
        assert space.stats("other").ready == message.body - 1
        if message.body == 2:
            raise RuntimeError

    summary = space.work("orders", half, once=True)
    assert counts(summary) == {"delivered": 1, "retried": 1, "left": 1}
    assert [message.body for message in space.browse("other")] == [1]


def test_a_rejection_counts_although_the_transaction_of_the_function_is_lost(space: spool.Space) -> None:
    """As after a get of the function that was cancelled, and that may have taken a message."""
    space.put("orders", "never")

    def function(message: spool.Message) -> None:
        found = associated(door.store(space))
        assert isinstance(found, CoordinatedTransaction)
        found.lost = "a get in it was cancelled"
        raise spool.Reject("no such account")

    assert counts(space.work("orders", function, once=True)) == {"rejected": 1}
    assert space.get("errors").failure_reason == "no such account"


def test_the_reason_of_a_failure_is_kept_and_logged_with_its_traceback_and_the_loop_goes_on(
    space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    """2.5: the main worker loop loses the reason of a failure; 15: how often it was tried is gone."""
    space.change_queue("orders", retries=0)
    space.put_many("orders", ["bad", "good"])
    summary = space.work("orders", lambda message: fail(message) if message.body == "bad" else None, once=True)
    assert counts(summary) == {"delivered": 1, "dead_lettered": 1}
    assert summary.reasons == {"dead_lettered": "ValueError: no such article"}
    dead = space.get("errors")
    assert (dead.body, dead.failure_reason) == ("bad", "ValueError: no such article")
    assert (dead.origin_queue, dead.origin_attempts) == ("orders", 1)
    [record] = [record for record in caplog.records if record.exc_info]
    assert (record.name, record.levelno) == ("spool", logging.WARNING)
    assert "no such article" in record.getMessage()
    assert dead.id in record.getMessage()


def test_the_queue_is_as_another_program_has_changed_it_meanwhile(space: spool.Space) -> None:
    space.put("orders", "x")

    def change_and_fail(message: spool.Message) -> None:
        with spool.open(space.path) as other:
            other.change_queue("orders", retries=0)
        fail(message)

    assert counts(space.work("orders", change_and_fail, once=True)) == {"dead_lettered": 1}


@pytest.mark.parametrize("delay", ["x", -1, float("nan"), b""])
def test_a_delay_that_is_no_number_of_seconds_is_refused_in_words(delay: Any) -> None:
    for kind in (spool.Retry, spool.Reject):
        with pytest.raises(spool.InvalidArgument, match="delay is a number of seconds from 0, not "):
            kind("busy", delay=delay)


class Later(spool.Retry):
    def __init__(self, delay: Any, reason: Any = "later") -> None:
        self.delay, self.reason = delay, reason


@pytest.mark.parametrize(
    "call",
    [
        partial(Later, "5"), partial(Later, None, ValueError("x")), partial(Retried, ValueError("x")),
        partial(Retried, "x", "5"), partial(Replied, "text"), partial(Replied, b"x", 5), partial(Passed, 5),
        partial(Replied, b"x", None, 5), partial(Rejected, "r", b"reply"), partial(Rejected, 5),
    ],
)  # fmt: skip
def test_wrong_values_of_an_outcome_are_a_failed_attempt(space: spool.Space, call: Callable[[], object]) -> None:
    """They were committed, and no reader takes such a commit, with all messages of other threads in it."""

    def function(message: spool.Message) -> object:
        if isinstance(found := call(), Exception):
            raise found
        return found

    space.put("orders", "x")
    assert counts(space.work("orders", function, once=True))["retried"] == 1
    assert "InvalidArgument" in next(space.browse("orders")).failure_reason  # type: ignore[operator]
    assert space.check() == []


def test_the_delay_of_a_failure_is_at_most_a_week(space: spool.Space) -> None:
    ids = [space.put("orders", delay) for delay in (math.inf, 1e30)]

    def function(message: spool.Message) -> Retried:
        if message.body == math.inf:
            raise Later(math.inf)
        return Retried("later", message.body)

    assert counts(space.work("orders", function, once=True))["retried"] == 2
    assert all(space.show(id).not_before < space.show(id).enqueued_at + 8 * 86_400 for id in ids)  # type: ignore[operator]
    assert space.check() == []


def test_a_rejected_message_is_final_and_no_get_takes_it_in_between(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = space.put("orders", "x")
    ids: list[str] = []

    def reject(message: spool.Message) -> None:
        ids.append(space.put("failures", "not this"))
        raise spool.Reject("no such account", reply="try elsewhere")

    begin_anew = CoordinatedTransaction.begin_anew

    def look(self: CoordinatedTransaction, *args: Any) -> None:
        begin_anew(self, *args)
        with pytest.raises(spool.Empty):
            space.get("orders", transaction=None)

    monkeypatch.setattr(CoordinatedTransaction, "begin_anew", look)
    assert counts(space.work("orders", reject, once=True)) == {"rejected": 1}
    failure = space.get("failures")
    assert (failure.body, failure.correlation_id) == ("try elsewhere", sent)
    assert failure.id not in ids
    request = space.get("errors")
    assert (request.id, request.failure_reason, request.origin_attempts) == (sent, "no such account", 1)
    assert space.stats("failures").ready == 0


def test_other_messages_that_a_failing_function_took_go_back_with_one_attempt(space: spool.Space) -> None:
    space.put("orders", "x")
    space.put("other", "y")

    def take_and_fail(message: spool.Message) -> None:
        space.get("other")
        raise ValueError("no such article")

    space.work("orders", take_and_fail, once=True)
    [other] = space.browse("other")
    assert other.attempts == 1


def test_a_put_that_a_failing_function_submitted_raises_rolled_back(space: spool.Space) -> None:
    space.put("orders", "x")
    futures = []

    def submit_and_fail(message: spool.Message) -> None:
        futures.append(space.submit("other", 1))
        raise ValueError("no such article")

    space.work("orders", submit_and_fail, once=True)
    [future] = futures
    assert isinstance(future.exception(WAIT), spool.TransactionRolledBack)


@pytest.mark.parametrize(("error_queue", "effect"), [("errors", "dead_lettered"), (None, "dropped")])
def test_a_last_attempt_whose_answer_never_fits_is_counted_by_its_outcome(
    space: spool.Space, error_queue: str | None, effect: str
) -> None:
    space.create_queue("small", max_messages=0)
    space.change_queue("orders", retries=0, error_queue=error_queue)
    space.put("orders", "x", reply_queue="small")
    summary = space.work("orders", lambda message: "done", once=True)
    assert counts(summary) == {effect: 1}
    assert space.stats("errors").ready == (error_queue is not None)


def test_a_large_branch_of_a_failing_function_leaves_nothing(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", "x")

    def put_much_and_fail(message: spool.Message) -> None:
        space.put_many("other", [b"x" * 1024] * (17 << 10))
        raise ValueError("no such article")

    assert counts(space.work("orders", put_much_and_fail, once=True)) == {"retried": 1, "left": 1}
    assert space.stats("other").ready == 0
    assert list((tmp_path / "space" / "active").glob("*.msgpack")) == []


def test_a_body_that_cannot_be_read_here_is_an_attempt_and_a_damaged_one_goes_to_quarantine(
    space: spool.Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", {"a": 1}, content_type="application/json")
    monkeypatch.delitem(codecs.CODECS, "json")
    space.put("orders", "whole")
    space.put("orders", "damaged body")
    [file] = [path for path in (tmp_path / "space" / "committed").iterdir() if b"damaged body" in path.read_bytes()]
    file.write_bytes(file.read_bytes().replace(b"damaged body", b"damagid body"))
    assert counts(space.work("orders", lambda message: None, once=True)) == {
        "delivered": 1, "retried": 1, "quarantined": 1, "left": 1,
    }  # fmt: skip
    assert len(space.quarantined()) == 1


# -- once, threads, groups --------------------------------------------------------------------------------------------


def test_once_handles_each_message_once_and_the_messages_that_follow_from_it(space: spool.Space) -> None:
    """A queue without a retry delay would be hammered for ever."""
    space.put_many("orders", range(5))
    seen: list[Any] = []

    def function(message: spool.Message) -> None:
        seen.append(message.body)
        if message.body == 4:
            space.put("orders", "follows")
        if message.body in (0, 3):
            raise ValueError("no such article")

    assert counts(space.work("orders", function, once=True, threads=3)) == {"delivered": 4, "retried": 2, "left": 2}
    assert sorted(seen, key=str) == [0, 1, 2, 3, 4, "follows"]


def test_a_message_that_came_back_while_another_thread_looked_is_not_looked_at_again(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", "fails")
    take, failed, begun = Attempt.take, threading.Event(), threading.Lock()

    def take_late(self: Attempt, *args: Any) -> Any:
        if begun.acquire(blocking=False):  # the first that looks; the others are faster
            assert failed.wait(WAIT)
        return take(self, *args)

    monkeypatch.setattr(Attempt, "take", take_late)
    handler = spool.Handler(fail)
    handler.ended = lambda *_: failed.set()  # type: ignore[method-assign]
    assert counts(space.work("orders", handler, once=True, threads=2)) == {"retried": 1, "left": 1}


def test_threads_call_it_side_by_side(space: spool.Space) -> None:
    space.put_many("orders", range(4))
    together = threading.Barrier(4)
    space.work("orders", lambda message: together.wait(WAIT) and None, threads=4, once=True, timeout=None)
    assert space.stats("orders").ready == 0


def test_a_failed_message_of_a_group_keeps_the_later_ones_waiting(space: spool.Space) -> None:
    for number in range(3):
        space.put("orders", number, group="g")
    seen: list[int] = []

    def function(message: spool.Message) -> None:
        seen.append(message.body)
        fail(message)

    space.work("orders", function, threads=2, once=True)
    assert seen == [0]


# -- consume ----------------------------------------------------------------------------------------------------------


async def answer(message: spool.Message) -> None:
    """A coroutine function."""


@pytest.mark.parametrize(
    ("function", "text"), [(answer, "use spool.aio"), (lambda message, more: None, "give it one parameter")]
)
def test_a_function_that_cannot_be_called_with_a_message_costs_no_attempt(space: spool.Space, function: Any, text: str):
    space.put("orders", "a")
    with pytest.raises(spool.InvalidArgument, match=text):
        space.work("orders", function, once=True)
    assert space.get("orders").attempts == 0


def test_consume_records_a_failure_reason_when_its_loop_is_left(space: spool.Space) -> None:
    """2.5: a generator learns neither of a break nor of the exception."""
    space.change_queue("orders", retries=0)
    space.put("orders", "x")
    for _ in space.consume("orders"):
        break
    expected = "the loop was left before its body ended (break, return or an exception)"
    assert space.get("errors").failure_reason == expected


def test_consume_may_be_left_after_a_commit(space: spool.Space) -> None:
    space.put("orders", "x")
    for transaction, _ in space.consume("orders"):
        transaction.put("other", "y")
        transaction.commit()
        break
    assert (space.stats("orders").dequeued, space.stats("other").ready) == (1, 1)


def test_a_run_in_which_too_many_fail_leaves_the_rest(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runs, "MOST_FAILED", 3)
    space.put_many("orders", range(5))

    def fail(message: spool.Message) -> None:
        raise ValueError(message.body)

    assert counts(space.work("orders", fail, once=True)) == {"retried": 3, "left": 5}
    assert "3 messages failed: the run ends" in caplog.text
    assert [message.attempts for message in space.browse("orders")] == [1, 1, 1, 0, 0]


def test_messages_under_way_are_not_among_the_failed(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MOST_FAILED", 3)
    space.put_many("orders", ["bad", "bad", *["good"] * 6])
    summary = space.work(
        "orders", lambda message: fail(message) if message.body == "bad" else None, once=True, threads=4
    )
    assert counts(summary) == {"retried": 2, "delivered": 6, "left": 2}
