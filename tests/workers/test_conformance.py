"""One policy for attempts in all four drivers: threads, asyncio tasks, forwarding in threads, and rounds of tasks.

Each case runs through each driver, in this process. The rounds run without Spark: their tasks are called directly.
"""

import asyncio
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
import spool.aio
from forwarder import Forwarder, Summary, ThreadForwarder
from forwarder import forwarder as rounds
from forwarder.round import Route, TaskDied
from forwarder.services import Request
from forwarder.task import Chunk, TaskResult
from spool.disk.disk import Disk
from spool.workers.conclusion import Conclusion
from spool.workers.outcome import Outcome, Rejected, Replied, Retried, of_value
from tests.children import die, let_die
from tests.forwarder.rounds import SPARK, Scripted, answers, in_process
from tests.full import no_room
from tests.shown import bodies
from tests.spaces import remove_by_hand, space_with

WAIT = 60.0

Function = Callable[[spool.Message], Any]


class Driver:
    """Calls a function with each message of queue ``work``, in its own way."""

    def __init__(self, space: spool.Space) -> None:
        self.space = space
        self.stop: Callable[[], object] = lambda: None
        self.end: Callable[[], object] = lambda: None

    def run(self, function: Function, *, once: bool = True, timeout: float | None = None) -> dict[str, int]:
        """Run to the end; return how many messages had each effect."""
        raise NotImplementedError


class Threads(Driver):
    def run(self, function: Function, *, once: bool = True, timeout: float | None = None) -> dict[str, int]:
        worker = spool.Worker(self.space, "work", function, once=once, timeout=timeout)
        self.stop, self.end = worker.stop, worker.end
        return counts(worker.run())


class Tasks(Driver):
    def run(self, function: Function, *, once: bool = True, timeout: float | None = None) -> dict[str, int]:
        async def whole() -> dict[str, int]:
            loop, stop, me = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
            assert me is not None
            self.stop = lambda: loop.call_soon_threadsafe(stop.set)
            self.end = lambda: loop.call_soon_threadsafe(me.cancel)
            async with spool.aio.open(self.space.path) as space:
                return counts(await space.work("work", function, once=once, timeout=timeout, stop=stop))

        try:
            return asyncio.run(whole())
        except asyncio.CancelledError:
            return {}


class ForwardingThreads(Driver):
    def run(self, function: Function, *, once: bool = True, timeout: float | None = None) -> dict[str, int]:
        return self._run(ThreadForwarder(self.space.path, [self.route(function, timeout)]), once)

    def route(self, function: Function, timeout: float | None) -> Route:
        def answer(request: Request) -> Outcome:
            return of_value(function(request.message), 1 << 20)

        answers["conformance"] = answer
        return Route("work", Scripted("conformance", watched=timeout))

    def _run(self, forwarder: ThreadForwarder | Forwarder, once: bool) -> dict[str, int]:
        ended = threading.Event()
        self.stop = forwarder.stop
        self.end = lambda: (forwarder.stop(), forwarder.abandon(ended.set))
        summaries = list[Summary]()
        thread = threading.Thread(target=lambda: summaries.append(forwarder.run(once)), daemon=True)
        thread.start()
        while thread.is_alive() and not ended.is_set():
            thread.join(0.01)
        if not summaries:
            return {}  # a program would have ended
        if summaries[0].errors:
            raise spool.SpoolError(summaries[0].errors[0])
        return {str(effect): count for effect, count in summaries[0].effects.get("work", {}).items()}


class Rounds(ForwardingThreads):
    """A function that takes too long ends its task, as the watchdog ends the process of one."""

    def run(self, function: Function, *, once: bool = True, timeout: float | None = None) -> dict[str, int]:
        def timed(message: spool.Message) -> Any:
            return timed_in_a_task(function, message, timeout)

        return self._run(Forwarder(self.space.path, [self.route(timed, timeout)], SPARK), once)


def timed_in_a_task(function: Function, message: spool.Message, timeout: float | None) -> Any:
    """Call the function; end the task at the time limit."""
    if timeout is None:
        return function(message)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function(message)), daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise KeyboardInterrupt("late")
    return found[0]


def in_tasks(context: object, chunks: list[Chunk], tasks: int) -> list[TaskResult]:
    """Run all work of a round in one task, so that it makes one call after the other as the other drivers do."""
    try:
        return in_process([replace(chunks[0], runs=[one for chunk in chunks for one in chunk.runs])])
    except KeyboardInterrupt as error:
        raise TaskDied(str(error)) from None


def counts(summary: spool.WorkSummary) -> dict[str, int]:
    names = ("delivered", "retried", "rejected", "dead_lettered", "dropped", "quarantined", "kept")
    return {name: getattr(summary, name) for name in names if getattr(summary, name)}


space = space_with(
    "replies",
    "failures",
    "errors",
    "own",
    work={"reply_queue": "replies", "failure_queue": "failures", "error_queue": "errors", "retries": 0},
)


@pytest.fixture(params=[Threads, Tasks, ForwardingThreads, Rounds])
def driver(request: pytest.FixtureRequest, space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(rounds, "spark_job", in_tasks)
    return request.param(space)  # type: ignore[no-any-return]


@dataclass
class Service:
    """A function that notes its calls, and answers as the test says."""

    answer: Function = lambda message: "done"
    called: list[Any] = field(default_factory=list)

    def __call__(self, message: spool.Message) -> Any:
        self.called.append(message.body)
        return self.answer(message)


def raising(error: BaseException) -> Function:
    return mock.Mock(side_effect=error)


def attempts(space: spool.Space) -> list[int]:
    return [message.attempts for message in space.browse("work")]


# -- outcomes and exceptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "effect"),
    [
        (lambda message: "done", "delivered"),
        (lambda message: None, "delivered"),
        (raising(ValueError("no such article")), "retried"),
        (raising(SystemExit(3)), "retried"),
        (raising(KeyboardInterrupt()), "retried"),
        (raising(spool.Retry("later")), "retried"),
        (raising(spool.Reject("never")), "rejected"),
        (lambda message: 1j, "retried"),
    ],
    ids=["value", "none", "exception", "exit", "interrupt", "retry", "reject", "no codec"],
)
def test_each_end_of_a_call_has_the_same_effect(driver: Driver, function: Function, effect: str) -> None:
    driver.space.change_queue("work", retries=5)
    driver.space.put("work", "x")
    assert driver.run(function) == {effect: 1}
    assert attempts(driver.space) == ([1] if effect == "retried" else [])
    assert len(bodies(driver.space, "replies")) == (effect == "delivered")


def test_a_service_that_is_not_reached_costs_no_attempt_and_is_not_called_again(driver: Driver) -> None:
    driver.space.put_many("work", range(3))
    service = Service(lambda message: Retried("refused", counted=False))
    assert driver.run(service) == {"kept": 1}
    assert (service.called, attempts(driver.space)) == ([0], [0, 0, 0])


@pytest.mark.parametrize("kind", [Threads, Tasks])
def test_a_handler_gets_the_end_of_each_attempt_and_then_a_pause(space: spool.Space, kind: type[Driver]) -> None:
    told: list[tuple[Any, ...]] = []

    class Noting(spool.Handler):
        def ended(self, queue: str, position: spool.Position, conclusion: Conclusion, seconds: float) -> None:
            told.append((queue, position, conclusion.effect, seconds > 0))

        def paused(self, queue: str, reason: str, seconds: float) -> None:
            told.append((queue, reason, seconds))

    space.put_many("work", ["done", "down"])
    first, second = [message.position for message in space.browse("work")]
    handler = Noting(lambda message: Retried("refused", counted=False) if message.body == "down" else None)
    assert kind(space).run(handler) == {"delivered": 1, "kept": 1}
    assert told == [
        ("work", first, "delivered", True), ("work", second, "kept", True),
        ("work", "the service was not reached (refused)", 0.0),
    ]  # fmt: skip


def test_a_retry_with_a_delay_waits_as_long_as_it_says(driver: Driver) -> None:
    driver.space.change_queue("work", retries=5)
    driver.space.put("work", "x")
    assert driver.run(raising(spool.Retry("later", delay=3600))) == {"retried": 1}
    [message] = driver.space.browse("work")
    assert (message.attempts, driver.space.stats("work").delayed) == (1, 1)
    assert message.not_before is not None
    assert message.not_before > message.enqueued_at + 3500


def test_an_answer_whose_queue_was_deleted_is_an_attempt(driver: Driver) -> None:
    driver.space.change_queue("work", retries=5)
    driver.space.put("work", "x", reply_queue="own")
    driver.space.delete_queue("own")
    assert driver.run(lambda message: "done") == {"retried": 1}
    [message] = driver.space.browse("work")
    assert (message.attempts, message.failure_reason) == (1, "the reply queue 'own' does not exist: create it")


# -- ends of processes and of spaces ----------------------------------------------------------------------------------


def test_x06_a_call_that_kills_its_process_is_an_attempt_of_its_message_alone(driver: Driver) -> None:
    driver.space.change_queue("work", retries=5)
    driver.space.put_many("work", range(3))

    def work() -> None:
        type(driver)(spool.open(driver.space.path)).run(lambda message: die() if message.body == 1 else "done")

    let_die(work)
    seen: dict[int, int] = {}
    driver.run(lambda message: seen.update({message.body: message.attempts}))
    assert seen.pop(1) == 1
    assert set(seen.values()) == {0}


def test_a_full_disk_ends_the_driver_and_costs_no_attempt(driver: Driver) -> None:
    driver.space.put("work", "x")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(spool.SpoolError, match="No space left on device"):
        driver.run(lambda message: patched.setattr(Disk, "write_at", no_room))
    assert attempts(driver.space) == [0]
    assert driver.run(lambda message: "done") == {"delivered": 1}


def test_a_space_that_is_replaced_ends_the_driver_and_costs_no_attempt(driver: Driver, tmp_path: Path) -> None:
    path = Path(driver.space.path)
    driver.space.put("work", "x")
    shutil.copytree(path, tmp_path / "copy")

    def replace(message: spool.Message) -> None:
        path.rename(tmp_path / "old")
        (tmp_path / "copy").rename(path)

    with pytest.raises(spool.SpoolError, match="was moved, replaced or removed"):
        driver.run(replace)
    with spool.open(path) as space:
        assert attempts(space) == [0]


def test_a_queue_that_is_deleted_during_a_call_ends_the_driver_after_the_call(driver: Driver) -> None:
    driver.space.put("work", "x")
    with pytest.raises(spool.SpoolError, match="work"):
        driver.run(lambda message: remove_by_hand(driver.space, "work"), once=False)
    assert len(bodies(driver.space, "replies")) == 1


# -- full queues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "calls"), [(b"there", 0), (bytes(90), 2)], ids=["full", "nearly full"])
def test_c05_a_reply_queue_without_room_costs_no_attempt(driver: Driver, there: bytes, calls: int) -> None:
    """If the queue is full, the function is not even called."""
    driver.space.change_queue("replies", max_bytes=100, max_messages=2 if calls else 1)
    driver.space.put("replies", there)
    driver.space.put("work", "x")
    service = Service(lambda message: bytes(50))
    for _ in range(2):
        assert driver.run(service) == {"kept": 1}
    assert (len(service.called), attempts(driver.space), bodies(driver.space, "errors")) == (calls, [0], [])
    driver.space.get("replies")
    assert driver.run(service) == {"delivered": 1}


@pytest.mark.parametrize("error", [ValueError("no such article"), spool.Reject("never")], ids=["retries", "reject"])
def test_q11_a_message_that_failed_for_good_moves_even_into_a_full_error_queue(driver: Driver, error: Exception):
    driver.space.change_queue("errors", max_messages=1)
    driver.space.put("errors", "there")
    driver.space.put_many("work", ["good", "bad", "good"])
    service = Service(lambda message: "done" if message.body == "good" else raising(error)(message))
    effects = driver.run(service)
    assert (effects["delivered"], sum(effects.values())) == (2, 3)
    assert bodies(driver.space, "errors") == ["there", "bad"]


@pytest.mark.parametrize(
    "answer",
    [raising(ValueError("no such article")), lambda message: Rejected("never", Replied(b"no"))],
    ids=["retries", "reject"],
)
def test_q11_a_message_that_failed_for_good_waits_until_its_missing_error_queue_exists(
    driver: Driver, answer: Function
) -> None:
    driver.space.put("work", "bad")
    remove_by_hand(driver.space, "errors")
    assert driver.run(answer) == {"retried": 1}
    stats = driver.space.stats("work")
    assert (attempts(driver.space), stats.delayed, stats.failed) == ([1], 1, 0)
    assert bodies(driver.space, "failures") == [], "the rejection has no effect yet"
    driver.space.create_queue("errors")
    [waiting] = driver.space.browse("work")
    driver.space.change(waiting.id, not_before=None)
    driver.run(answer)
    assert bodies(driver.space, "errors") == ["bad"]


def test_q11_a_rejection_with_a_delay_drops_no_message(driver: Driver) -> None:
    driver.space.change_queue("work", error_queue=None, retries=0)
    driver.space.put("work", "bad")
    assert driver.run(raising(spool.Reject("never", reply="no", delay=3600))) == {"retried": 1}
    stats = driver.space.stats("work")
    assert (attempts(driver.space), stats.delayed, stats.failed) == ([0], 1, 0)
    assert bodies(driver.space, "failures") == [], "the rejection has no effect yet"


def test_c05_a_full_queue_that_one_message_alone_names_delays_no_other(driver: Driver) -> None:
    driver.space.change_queue("own", max_messages=1)
    driver.space.put("own", "there")
    driver.space.put("work", 1, reply_queue="own")
    driver.space.put_many("work", [2, 3])
    found = driver.run(lambda message: "done")
    assert (set(found), found["delivered"], attempts(driver.space)) == ({"kept", "delivered"}, 2, [0])
    assert bodies(driver.space, "work") == [1]


def test_an_answer_that_its_queue_can_never_take_is_an_attempt_and_holds_up_no_other(driver: Driver) -> None:
    driver.space.change_queue("replies", max_bytes=10)
    driver.space.put_many("work", [50, 1])
    assert driver.run(lambda message: bytes(message.body)) == {"dead_lettered": 1, "delivered": 1}


@pytest.mark.every(2)
def test_q12_a_driver_goes_on_after_growing_pauses_when_there_is_room(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver waits for messages; meanwhile it counts no attempt for the message. The log tells the end, too."""
    monkeypatch.setattr("spool.workers.pauses.FIRST_PAUSE_SECONDS", 0.01)
    driver.space.change_queue("replies", max_bytes=100)
    driver.space.put("replies", bytes(90))
    driver.space.put("work", "x")
    seen: list[int] = []

    def function(message: spool.Message) -> bytes:
        seen.append(message.attempts)
        if len(seen) == 3:
            driver.space.get("replies", transaction=None)
        if len(seen) >= 3:
            driver.stop()
        return bytes(50)

    assert driver.run(function, once=False)["delivered"] == 1
    assert seen == [0] * 3
    told = [record.getMessage() for record in caplog.records if "work" in record.getMessage()]
    assert "next attempt in" in told[0]
    assert "again" in told[-1]


# -- pauses -----------------------------------------------------------------------------------------------------------


class Pauses(logging.Handler):
    """The pauses that the log tells."""

    def __init__(self) -> None:
        super().__init__()
        self.texts, self.begun = list[str](), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "next attempt in" in record.getMessage():
            self.texts.append(record.getMessage())
            self.begun.set()


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    told = Pauses()
    logging.getLogger("spool").addHandler(told)
    yield told
    logging.getLogger("spool").removeHandler(told)


def test_x21_a_driver_pauses_at_a_storm_of_failures_and_one_message_shows_that_it_is_over(
    driver: Driver, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spool.workers.pauses.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("spool.workers.pauses.LONGEST_PAUSE_SECONDS", 0.02)
    driver.space.change_queue("work", retries=10, retry_delay=3600.0)
    driver.space.put_many("work", range(60))
    failed, calls = list[int](), set[int]()

    def function(message: spool.Message) -> None:
        calls.add(message.body)
        if len(calls) == 60:
            driver.stop()
        if len(pauses.texts) < 3:
            failed.append(message.body)
            raise ConnectionError(f"HTTP 503: request {len(calls)}")

    assert driver.run(function, once=False) == {"retried": len(failed), "delivered": 60 - len(failed)}
    assert 12 <= len(failed) <= 22, "without pauses, all messages would have failed"
    assert "10 messages failed one after another, the last with: " in pauses.texts[0]
    assert all("the service still fails: one more message " in text for text in pauses.texts[1:])


def test_e06_a_paused_driver_attempts_a_message_at_once_when_an_administrator_of_another_process_asks(
    driver: Driver, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spool.workers.pauses.FIRST_PAUSE_SECONDS", 3600.0)
    driver.space.change_queue("replies", max_messages=1)
    driver.space.put("replies", "in the way")
    driver.space.put("work", "tea")
    code = "import spool, sys\nwith spool.open(sys.argv[1]) as space:\n    space.get('replies'); space.resume('work')"

    def resume() -> None:
        assert pauses.begun.wait(WAIT)
        driver.space.resume("errors")  # (another queue)
        subprocess.run([sys.executable, "-c", code, driver.space.path], check=True)

    thread = threading.Thread(target=resume)
    thread.start()
    assert driver.run(lambda message: driver.stop() and None, once=False)["delivered"] == 1
    thread.join()
    assert len(pauses.texts) == 1


# -- stops and late results -------------------------------------------------------------------------------------------


def test_q12_a_stop_finishes_the_call_and_counts_no_attempt(driver: Driver) -> None:
    driver.space.put_many("work", range(3))

    def function(message: spool.Message) -> str:
        driver.stop()
        return "done"

    delivered = driver.run(function, once=False)["delivered"]
    assert delivered >= 1
    assert attempts(driver.space) == [0] * (3 - delivered)


def test_an_end_at_once_counts_an_attempt_of_the_call_alone(driver: Driver, hang: threading.Event) -> None:
    driver.space.change_queue("work", retries=5)
    driver.space.put_many("work", range(3))
    driver.run(lambda message: [driver.end(), hang.wait(WAIT)], once=False)
    assert attempts(driver.space) == [1, 0, 0]


def test_a_call_that_takes_too_long_is_an_attempt_even_if_the_error_queue_is_full(
    driver: Driver, hang: threading.Event
) -> None:
    """The driver ignores the result of the call at any later time."""
    driver.space.change_queue("errors", max_messages=1)
    driver.space.put("errors", "there")
    driver.space.put_many("work", ["hangs", "works"])
    found = driver.run(lambda message: hang.wait(WAIT) if message.body == "hangs" else "done", timeout=0.3)
    hang.set()
    assert found == {"dead_lettered": 1, "delivered": 1}
    assert bodies(driver.space, "errors") == ["there", "hangs"]
    assert bodies(driver.space, "replies") == ["done"]
