"""A forwarder that is killed: an attempt counts for messages whose call was in progress, and for no others."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

import spool
from forwarder.round import Round, Route
from forwarder.services import Request
from spool.policies.attempt_journal import Journal, clean_up_after_dead
from spool.workers.outcome import Outcome, Replied
from tests import door
from tests.children import die, let_die
from tests.forwarder.rounds import Scripted, answers, forward, in_process
from tests.forwarder.test_calls import in_one_task

WORK = Route("work", Scripted("it"))


def _dies_of(body: object) -> Callable[[Request], Outcome]:
    def answer(request: Request) -> Outcome:
        return die() if request.message.body == body else Replied()

    return answer


def _in_a_child(space: spool.Space, act: Callable[[spool.Space], object]) -> None:
    let_die(lambda: act(spool.open(space.path)))


def _attempts(space: spool.Space) -> dict[object, int]:
    """Return the attempts of each message, as a consumer that takes them all gets them. It gives them back."""
    found: dict[object, int] = {}
    tx = spool.Transaction(door.core(space), counted=False)
    with suppress(spool.Empty):
        while True:
            message = tx.get("work")
            found[message.body] = message.attempts
    tx.rollback()
    return found


def _in_another(space: spool.Space) -> dict[object, int]:
    space.close()
    with spool.open(space.path) as own:
        return _attempts(own)


def _after_a_cleaning(space: spool.Space) -> dict[object, int]:
    clean_up_after_dead(door.store(space), door.deadline(space))
    return _attempts(space)


@pytest.mark.parametrize("found", [_in_another, _after_a_cleaning, _attempts])
def test_a_killed_round_counts_the_call_in_progress_and_nothing_else(
    space: spool.Space, found: Callable[[spool.Space], dict[object, int]]
) -> None:
    """The round has chunks of two messages: two chunks have voted, and the first message of the third is answered."""
    space.put_many("work", range(8))
    _in_a_child(space, lambda own: forward(own, _dies_of(5), job=in_process))
    assert found(space) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 0, 7: 0}


def test_of_calls_side_by_side_those_in_progress_count(space: spool.Space) -> None:
    space.put_many("work", range(6))
    together = threading.Barrier(3)

    def answer(request: Request) -> Outcome:
        if request.message.body >= 3:
            together.wait()
            if request.message.body == 5:
                die()
            threading.Event().wait()
        return Replied()

    _in_a_child(space, lambda own: forward(own, answer, threads=3, job=in_one_task))
    assert _attempts(space) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}


def test_a_round_that_is_killed_before_its_calls_or_in_its_commit_counts_none(space: spool.Space) -> None:
    space.put_many("work", range(4))

    def claims_only(own: spool.Space) -> None:
        Round(own, WORK).claim(10, timeout=0)
        die()

    def calls_all(own: spool.Space) -> None:
        answers["it"] = lambda request: Replied()
        round_ = Round(own, WORK)
        round_.claim(10, timeout=0)
        round_.call(in_process, tasks=2)
        die()

    def writes_its_journal(own: spool.Space) -> None:
        round_ = Round(own, WORK)
        round_.claim(10, timeout=0)
        round_._coordinator.record_calls()
        die()

    for dies in (claims_only, writes_its_journal, calls_all):
        _in_a_child(space, dies)
        with spool.open(space.path) as own:
            assert _attempts(own) == {0: 0, 1: 0, 2: 0, 3: 0}, dies.__name__


def test_a_message_whose_calls_kill_the_forwarder_ends_in_the_error_queue(space: spool.Space) -> None:
    space.put_many("work", range(4))
    for _ in range(3):
        _in_a_child(space, lambda own: forward(own, _dies_of(2), job=in_process))
    assert _attempts(space) == {0: 0, 1: 0, 3: 0}
    [message] = space.browse("errors")
    assert (message.body, message.origin_attempts) == (2, 3)


def test_a_forwarder_that_is_killed_right_after_the_count_of_its_calls_counts_them_once(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put_many("work", range(4))

    def ends(own: spool.Space) -> None:
        round_ = Round(own, WORK)
        round_.claim(10, timeout=0)
        monkeypatch.setattr(Journal, "remove", die)
        answers["it"] = lambda request: round_.count_calls() if request.message.body == 2 else Replied()  # type: ignore
        round_.call(in_one_task, tasks=1)

    _in_a_child(space, ends)
    assert _in_another(space) == {0: 0, 1: 0, 2: 1, 3: 0}
