"""How ``space.work`` ends: a call whose time is up, an event, Ctrl-C, and a space that fails."""

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import spool
from spool.policies.attempt_journal import Journal
from spool.transactions.coordinated import CoordinatedTransaction
from spool.workers import attempt
from spool.workers import worker_run as runs
from spool.workers.attempt import Attempt
from spool.workers.outcome import Retried
from spool.workers.worker import Worker
from tests import door
from tests.children import die, exit_code_of, let_die
from tests.clocks import MovedClock
from tests.workers.conftest import WAIT, counts, fail, let_pass, stuck_in_its_transaction

# -- the time limit ---------------------------------------------------------------------------------------------------


def test_a_function_that_hangs_does_not_hang_the_worker(space: spool.Space, clock: MovedClock, hang: threading.Event):
    """The worker releases the message and counts the attempt; later calls of the hanging thread on the transaction are
    refused."""
    space.change_queue("orders", retries=0)
    space.put_many("orders", ["hangs", "works"])
    late: list[BaseException] = []
    ended = threading.Event()

    def function(message: spool.Message) -> str | None:
        if message.body == "works":
            return "done"
        space.put("other", "before")
        let_pass(clock, 31, worker)
        hang.wait(WAIT)
        try:
            space.put("other", "late")
        except spool.SpoolError as error:
            late.append(error)
        ended.set()
        return "too late"

    worker = Worker(space, "orders", function, once=True)
    assert counts(worker.run()) == {"delivered": 1, "dead_lettered": 1, "abandoned": 1}
    dead = space.get("errors")
    assert (dead.body, dead.failure_reason, dead.origin_attempts) == ("hangs", "took longer than 30 s", 1)
    hang.set()
    assert ended.wait(WAIT)
    assert [type(error) for error in late] == [spool.ProtocolError]
    assert space.stats("other").ready == 0
    assert [message.body for message in space.browse("replies")] == ["done"]


def test_the_time_limit_counts_from_the_call_and_not_from_the_claim(
    space: spool.Space, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Attempt.begin

    def begin_late(attempt: Attempt) -> bool:
        let_pass(clock, 31, worker)
        time.sleep(0.1)  # the supervisor reads the clock
        return begin(attempt)

    monkeypatch.setattr(Attempt, "begin", begin_late)
    space.put("orders", "x")
    worker = Worker(space, "orders", lambda message: "done", once=True)
    assert counts(worker.run()) == {"delivered": 1}


def test_a_call_that_waits_for_a_message_in_its_transaction_is_given_up_too(space: spool.Space) -> None:
    space.put("orders", "x")
    ended = threading.Event()

    def function(message: spool.Message) -> None:
        try:
            space.get("other", timeout=None)
        finally:
            ended.set()

    summary = space.work("orders", function, once=True, timeout=0.05)
    assert counts(summary) == {"retried": 1, "abandoned": 1, "left": 1}
    assert ended.wait(WAIT)
    [message] = space.browse("orders")
    assert message.attempts == 1


def test_too_many_calls_that_hang_end_the_worker(
    space: spool.Space, hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_ABANDONED", 2)
    space.put_many("orders", range(9))
    with pytest.raises(spool.SystemFailure, match=r"3 calls .* end this process"):
        space.work("orders", lambda message: hang.wait(WAIT) and None, once=True, timeout=0.02, threads=3)
    assert space.stats("orders").claimed == 0
    assert sum(message.attempts for message in space.browse("orders")) >= 3


def test_a_call_inside_its_transaction_that_was_given_up_is_ended_when_its_function_returns(
    space: spool.Space, hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_WAIT_FOR_CALL_SECONDS", 0.01)
    monkeypatch.setattr(attempt, "_WAIT_FOR_END_SECONDS", 0.01)
    space.put("orders", "x")
    called: list[threading.Thread] = []
    summary = space.work("orders", stuck_in_its_transaction(door.store(space), called, hang), once=True, timeout=0.01)
    assert (summary.abandoned, space.stats("orders").claimed) == (1, 1)
    hang.set()
    called[0].join(WAIT)
    assert space.stats("orders").claimed == 0
    [message] = space.browse("orders")
    assert (message.attempts, message.failure_reason) == (1, "took longer than 0.01 s")


def test_a_generator_that_takes_its_time_does_not_hold_the_transaction(
    space: spool.Space, hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_WAIT_FOR_END_SECONDS", 0.01)
    space.put("orders", "x")

    def bodies() -> Iterator[int]:
        yield 1
        hang.wait(WAIT)

    summary = space.work("orders", lambda message: space.put_many("other", bodies()), once=True, timeout=0.01)
    assert (summary.abandoned, space.stats("orders").claimed) == (1, 0)


# -- ends -------------------------------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_worker_waits_for_messages_until_the_event_is_set(space: spool.Space) -> None:
    stop, taken = threading.Event(), threading.Event()
    found: list[runs.WorkSummary] = []
    thread = in_thread(lambda: found.append(space.work("orders", lambda message: taken.set(), threads=2, stop=stop)))
    space.put("orders", "x")
    assert taken.wait(WAIT)
    stop.set()
    thread.join(WAIT)
    assert counts(found[0]) == {"delivered": 1}


@pytest.mark.parametrize(("step", "end", "is_before"), [("take", "stop", False), ("begin", "end", True)])
def test_an_end_before_the_call_begins_gives_the_message_back_and_counts_no_attempt(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, step: str, end: str, is_before: bool
) -> None:
    """The worker finds, for example, a message that another thread has just released because the service is down."""
    original = getattr(Attempt, step)

    def ended(attempt: Attempt, *arguments: Any) -> Any:
        if is_before:
            getattr(worker, end)()
        found = original(attempt, *arguments)
        getattr(worker, end)()
        return found

    monkeypatch.setattr(Attempt, step, ended)
    sent = space.put("orders", "x")
    worker = Worker(space, "orders", fail)
    assert counts(worker.run()) == {}
    assert (space.stats("orders").ready, space.show(sent).attempts) == (1, 0)


def set_when_stopped(worker: Worker, stopping: threading.Event) -> None:
    stop = worker.stop

    def told() -> None:
        stop()
        stopping.set()

    worker.stop = told  # type: ignore[method-assign]


def test_an_interrupt_finishes_the_message_under_way(space: spool.Space) -> None:
    space.put_many("orders", ["first", "second"])
    stopping = threading.Event()
    worker = Worker(space, "orders", lambda message: interrupt(), threads=1)
    set_when_stopped(worker, stopping)

    def interrupt() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.wait(WAIT)
        return "done"

    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert counts(worker.summary) == {"delivered": 1}
    assert [message.body for message in space.browse("replies")] == ["done"]
    assert [message.body for message in space.browse("orders")] == ["second"]


def test_a_second_interrupt_ends_it_at_once_and_loses_nothing(space: spool.Space, hang: threading.Event) -> None:
    space.put("orders", "x")
    stopping = threading.Event()
    worker = Worker(space, "orders", lambda message: interrupt_twice(), timeout=None)
    set_when_stopped(worker, stopping)

    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.wait(WAIT)
        os.kill(os.getpid(), signal.SIGINT)
        hang.wait(WAIT)

    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert counts(worker.summary) == {"retried": 1, "abandoned": 1}
    assert [(message.body, message.attempts) for message in space.browse("orders")] == [("x", 1)]


def test_a_message_that_comes_back_as_the_worker_stops_is_not_called_again(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread claims the message, after it had checked that the worker does not stop."""
    wanted = space.put("orders", "x")
    take, called = Attempt.take, list[spool.Message]()

    def looks_no_more(self: Attempt, queue: str, seconds: float | None, passed: Any) -> Any:
        self._stopping = lambda: False
        return take(self, queue, seconds, passed)

    def function(message: spool.Message) -> Retried:
        called.append(message)
        worker.stop()
        return Retried("not reached", counted=False)

    monkeypatch.setattr(Attempt, "take", looks_no_more)
    worker = Worker(space, "orders", function, threads=2)
    worker.run()
    assert len(called) == 1
    assert (space.show(wanted).attempts, space.stats("orders").ready) == (0, 1)


@pytest.mark.parametrize("dies_in", ["begin_call", "conclude"])
def test_a_process_that_dies_before_the_call_or_after_it_costs_no_attempt(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    """A message that was only claimed has not failed, nor has one that the function has answered."""
    space.put("orders", "x")

    def work() -> None:
        monkeypatch.setattr(CoordinatedTransaction, dies_in, lambda *args, **options: os._exit(7))
        with spool.open(space.path) as mine:
            mine.work("orders", lambda message: "done", once=True)

    assert exit_code_of(work) == 7
    seen: list[int] = []
    space.work("orders", lambda message: seen.append(message.attempts), once=True)
    assert seen == [0]


def test_a_process_that_dies_right_after_the_commit_of_a_failed_attempt_counts_it_once(space: spool.Space) -> None:
    space.put("orders", b"x")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "end", die)
        let_die(lambda: spool.open(space.path).work("orders", fail, once=True))
    assert space.get("orders", timeout=WAIT).attempts == 1


def gone(self: Attempt, *args: Any) -> None:
    raise spool.DiskFailure(5, "the disk is gone")


def test_a_space_that_fails_ends_the_worker_with_its_error(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.put("orders", "x")
    monkeypatch.setattr(Attempt, "take", gone)
    with pytest.raises(spool.DiskFailure, match="the disk is gone"):
        space.work("orders", lambda message: None, threads=3)


def test_an_interrupt_while_its_threads_are_started_ends_them(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    worker = Worker(space, "orders", lambda message: None, threads=3)
    start, begun = worker._start, []

    def interrupt() -> None:
        start()
        begun.append(threading.active_count())
        if len(begun) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert (worker.is_stopping, worker._serving) == (True, set())


def test_a_thread_that_cannot_be_started_ends_those_that_were(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_one(self: threading.Thread) -> None:
        if self.name.startswith("spool-work") and started:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    worker = Worker(space, "orders", lambda message: None, threads=3)
    with pytest.raises(RuntimeError, match="start new thread"):
        worker.run()
    assert (worker.is_stopping, worker._serving) == (True, set())


def test_a_call_that_cannot_be_given_up_ends_the_worker_with_that_error(
    space: spool.Space, clock: MovedClock, hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put_many("orders", ["hangs", "works"])
    together = threading.Barrier(2)

    def gone(self: Attempt, *args: Any) -> None:
        hang.set()
        raise spool.DiskFailure(5, "the disk is gone")

    def function(message: spool.Message) -> None:
        together.wait(WAIT)
        if message.body == "hangs":
            let_pass(clock, 31, worker)
        hang.wait(WAIT)

    monkeypatch.setattr(Attempt, "withdraw", gone)
    worker = Worker(space, "orders", function, threads=2)
    with pytest.raises(spool.DiskFailure, match="the disk is gone"):
        worker.run()
    assert (worker.is_stopping, worker._serving) == (True, set())


def test_the_error_that_ended_it_is_not_kept(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "take", gone)
    worker = Worker(space, "orders", fail)
    kept = weakref.ref(worker)
    gc.disable()
    try:
        with pytest.raises(spool.DiskFailure) as found:
            worker.run()
        del worker, found
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"queue": "order"}, spool.QueueNotFound, "did you mean orders"),
        ({"threads": 0}, spool.InvalidArgument, "threads is a whole number from 1"),
        ({"timeout": 0}, spool.InvalidArgument, "timeout is a number of seconds"),
        ({"timeout": "soon"}, spool.InvalidArgument, "timeout is a number of seconds"),
        ({"function": None}, spool.InvalidArgument, "function is a callable that takes a message, not None"),
    ],
)
def test_wrong_arguments_are_refused_before_a_message_is_taken(
    space: spool.Space, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        space.work(**{"queue": "orders", "function": fail, "once": True, **options})
