"""Time limits, revocations, replaced processes, and workers that end in the middle of tasks."""

import signal
from collections import Counter

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded
from celery.result import AsyncResult

from tests.celery.conftest import Shop, expect_all_run
from tests.celery.workers import SECONDS, Worker, until, working


def running(shop: Shop, worker: Worker, *words: str) -> list[AsyncResult]:
    """Send tasks that wait for words, and wait until they run."""
    before = shop.space.stats("notes").ready
    results = [shop.app.tasks["wait_for_word"].delay(word) for word in words]
    until(lambda: shop.space.stats("notes").ready == before + len(words), worker)
    return results


def is_empty(shop: Shop) -> bool:
    stats = shop.space.stats("celery")
    return not (stats.ready or stats.claimed or stats.delayed)


def test_a_soft_time_limit_interrupts_a_call_of_the_space_which_remains_usable(shop: Shop) -> None:
    """The exception comes in the middle of a ``get``. Both processes of the pool run further tasks."""
    wait = shop.app.tasks["wait_for_word"]
    late = [wait.apply_async((f"soft {n}",), soft_time_limit=1) for n in range(2)]
    for result in late:
        with pytest.raises(SoftTimeLimitExceeded):
            result.get(timeout=SECONDS)
    words = running(shop, shop.worker, "after one", "after two")
    for word in ("after one", "after two", "soft 0"):
        shop.space.put("words", "", correlation_id=word)
    assert [result.get(timeout=SECONDS) for result in words] == ["after one", "after two"]
    assert shop.space.get("words", correlation_id="soft 0").body == "", "the interrupted call took nothing"
    until(lambda: is_empty(shop), shop.worker)


def test_a_hard_time_limit_ends_the_process_and_acknowledges_the_task(shop: Shop) -> None:
    result = shop.app.tasks["wait_for_word"].apply_async(("hard",), time_limit=1)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=SECONDS)
    until(lambda: is_empty(shop), shop.worker)
    assert [shop.app.tasks["add"].delay(n, n).get(timeout=SECONDS) for n in range(4)] == [0, 2, 4, 6]


def test_a_terminated_task_is_revoked_and_acknowledged(shop: Shop) -> None:
    [result] = running(shop, shop.worker, "terminated")
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=SECONDS)
    until(lambda: is_empty(shop), shop.worker)
    assert shop.app.tasks["add"].delay(1, 2).get(timeout=SECONDS) == 3


def test_a_task_that_was_revoked_before_its_time_does_not_run(shop: Shop) -> None:
    notes = shop.space.stats("notes").enqueued
    result = shop.app.tasks["note"].apply_async(("revoked",), countdown=2)
    assert shop.app.control.revoke(result.id, reply=True, timeout=SECONDS, limit=1)
    assert shop.space.stats("celery").delayed == 1
    until(lambda: result.state == states.REVOKED and is_empty(shop), shop.worker)
    assert shop.space.stats("notes").enqueued == notes


def test_a_worker_begins_and_ends_to_consume_a_queue(shop: Shop) -> None:
    add, control = shop.app.tasks["add"], shop.app.control
    for _ in range(2):
        sent = add.apply_async((1, 2), queue="extra")
        assert not sent.ready()
        [reply] = control.add_consumer("extra", reply=True, timeout=SECONDS, limit=1)
        assert "ok" in reply[shop.worker.name]
        assert sent.get(timeout=SECONDS) == 3
        [reply] = control.cancel_consumer("extra", reply=True, timeout=SECONDS, limit=1)
        assert "ok" in reply[shop.worker.name]
    waiting = add.apply_async((1, 2), queue="extra")
    assert add.delay(2, 2).get(timeout=SECONDS) == 4
    assert shop.space.stats("extra").ready == 1
    assert waiting.state == states.PENDING


def test_processes_are_replaced_after_some_tasks_and_no_task_is_lost(own: Shop) -> None:
    with working(own.place, "replacing", "--max-tasks-per-child", "3"):
        results = [own.app.tasks["process"].delay() for _ in range(9)]
        processes = Counter(result.get(timeout=SECONDS) for result in results)
        until(lambda: is_empty(own))
    assert max(processes.values()) <= 3


def test_a_cold_shutdown_returns_the_running_tasks_to_the_queue(own: Shop) -> None:
    words = [str(number) for number in range(6)]
    with working(own.place, "cold") as cold:
        results = [own.app.tasks["wait_for_word"].delay(word) for word in words]
        until(lambda: own.space.stats("notes").ready == 2 and own.space.stats("celery").claimed == 6, cold)
        cold.process.send_signal(signal.SIGQUIT)
        cold.process.wait(SECONDS)
        assert "Cold shutdown" in cold.log
    assert sorted(message.attempts for message in own.space.browse("celery")) == [0] * 6
    expect_all_run(own, words, results)


def test_the_command_shutdown_finishes_running_tasks(own: Shop) -> None:
    with working(own.place, "leaving") as leaving:
        results = running(own, leaving, "one", "two")
        own.app.control.shutdown()
        until(lambda: "shutdown from remote" in leaving.log, leaving)
        for word in ("one", "two"):
            own.space.put("words", "", correlation_id=word)
        assert leaving.process.wait(SECONDS) == 0
    assert [result.state for result in results] == [states.SUCCESS] * 2
    assert is_empty(own)
