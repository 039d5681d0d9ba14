"""Tasks, retries, times and canvases, with a real worker."""

import re
import threading
import time
from collections import Counter

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError, TimeoutError
from celery.result import AsyncResult

from tests.beside.company import two_that_commit
from tests.celery.conftest import Shop
from tests.celery.tasks import LOG, application
from tests.celery.workers import SECONDS, until, working


def notes(shop: Shop, count: int) -> list[str]:
    """Wait for some notes of tasks, and take them."""
    until(lambda: shop.space.stats("notes").ready >= count, shop.worker)
    return [message.body for message in shop.space.get_many("notes", count + 1)]


def test_200_tasks_run_once_each(shop: Shop) -> None:
    results = [shop.app.tasks["note"].delay(str(number)) for number in range(200)]
    for result in results:
        result.get(timeout=SECONDS)
    assert Counter(notes(shop, 200)) == Counter(str(number) for number in range(200))
    until(lambda: shop.space.stats("celery").claimed == 0)
    assert shop.space.stats("celery").ready == 0


def test_a_task_is_retried_and_then_succeeds(shop: Shop) -> None:
    assert shop.app.tasks["second_time"].delay(0.1).get(timeout=SECONDS) == 2


def test_an_error_of_a_task_is_its_result(shop: Shop) -> None:
    result = shop.app.tasks["fail"].delay()
    with pytest.raises(ValueError, match="this task fails"):
        result.get(timeout=SECONDS)
    assert result.state == states.FAILURE


def test_the_queue_keeps_a_task_until_its_time(shop: Shop) -> None:
    begun = time.time()
    result = shop.app.tasks["add"].apply_async((1, 2), countdown=1.0)
    assert shop.space.stats("celery").delayed == 1
    assert result.get(timeout=SECONDS) == 3
    assert result.date_done.timestamp() >= begun + 1.0


def test_without_native_eta_the_worker_keeps_a_task_until_its_time(shop: Shop) -> None:
    with application(shop.space.path, broker_transport_options={"native_eta": False}) as app:
        result = app.tasks["add"].apply_async((1, 2), countdown=600)
        inspect = shop.app.control.inspect([shop.worker.name])
        until(lambda: (inspect.scheduled() or {}).get(shop.worker.name), shop.worker)
        assert shop.space.stats("celery").delayed == 0
        result.revoke()


def test_a_task_that_has_expired_is_revoked(shop: Shop) -> None:
    result = shop.app.tasks["add"].apply_async((1, 2), expires=-1)
    until(lambda: result.state == states.REVOKED, shop.worker)


def test_group_chain_and_nested_chords(shop: Shop) -> None:
    add, total = shop.app.tasks["add"], shop.app.tasks["total"]
    assert group(add.s(i, i) for i in range(5))().get(timeout=SECONDS) == [0, 2, 4, 6, 8]
    assert chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=SECONDS) == 10
    assert chord(add.s(i, 1) for i in range(20))(total.s()).get(timeout=SECONDS) == sum(range(21))
    inner = chord([add.s(1, 1), add.s(2, 2)], total.s())
    assert chord([inner, add.s(3, 3), group(add.s(4, 4), add.s(5, 5))])(total.s()).get(timeout=SECONDS) == 30


def test_a_chord_leaves_only_results_and_its_ended_counter(shop: Shop) -> None:
    """The counter shows that all parts were counted, should one run again. It expires as a result does."""
    add, total = shop.app.tasks["add"], shop.app.tasks["total"]
    shop.space.purge("celery.results")
    inner = chord([add.s(1, 1), chain(add.s(2, 2), add.s(3))], total.s())
    outer = chord([inner, add.s(3, 3), group(add.s(4, 4), chain(add.s(5, 5), add.s(6)))])(total.s())
    assert outer.get(timeout=SECONDS) == 39
    messages = list(shop.space.browse("celery.results"))
    assert all(message.expires_at and message.expires_at < time.time() + 86_401 for message in messages)
    keys = {message.correlation_id or "": str(message.body) for message in messages}
    counters = {key for key, body in keys.items() if key.startswith("chord-unlock-") and body == "ended "}
    assert len(counters) == 2
    assert all(key in counters or re.fullmatch(r"celery-task-meta-.{36}", key) for key in keys)


def test_the_failed_part_of_a_chord_fails_the_chord(shop: Shop) -> None:
    result = chord([shop.app.tasks["add"].s(1, 1), shop.app.tasks["fail"].s()])(shop.app.tasks["total"].s())
    until(lambda: result.state == states.FAILURE, shop.worker)  # (``get`` may raise the error of the part before)
    assert isinstance(result.result, ChordError)
    assert "this task fails" in str(result.result)


def test_a_result_that_does_not_come_ends_in_a_timeout(shop: Shop) -> None:
    with pytest.raises(TimeoutError):
        AsyncResult("nobody", app=shop.app).get(timeout=0.05)


@pytest.mark.parametrize("is_started", [False, True])
def test_a_waiting_program_wakes_when_the_result_is_committed(shop: Shop, is_started: bool) -> None:
    """(The result also replaces the message of the state STARTED.)"""
    result = shop.app.tasks["wait_for_word"].delay("tea")
    assert notes(shop, 1) == ["tea"]
    if is_started:
        result.backend.store_result(result.id, None, states.STARTED)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(result.get(timeout=SECONDS, interval=10 * SECONDS)))
    waiting.start()
    shop.space.put("words", "", correlation_id="tea")
    waiting.join(SECONDS)
    assert found == ["tea"]


def test_tasks_of_a_transaction_are_sent_with_its_commit(shop: Shop) -> None:
    add = shop.app.tasks["add"]
    with shop.space.transaction() as transaction:
        lost = add.delay(1, 1)
        transaction.rollback()
    with shop.space.transaction():
        sent = add.delay(2, 2)
        with pytest.raises(TimeoutError):
            sent.get(timeout=0.2)
    assert sent.get(timeout=SECONDS) == 4
    assert lost.state == states.PENDING


def test_two_brokers_in_one_process(shop: Shop, own: Shop) -> None:
    elsewhere = own.app.tasks["add"].delay(1, 1)
    assert shop.app.tasks["add"].delay(2, 2).get(timeout=SECONDS) == 4
    assert elsewhere.state == states.PENDING
    assert own.space.stats("celery").ready == 1


@pytest.mark.slow
def test_10000_waiting_tasks_run_once_each_beside_two_processes_that_commit(own: Shop, monkeypatch: pytest.MonkeyPatch):
    log = own.place / "tasks.log"
    monkeypatch.setenv(LOG, str(log))
    with two_that_commit(own.place):
        with own.space.transaction():
            sent = [own.app.tasks["logged"].delay().id for _ in range(10_000)]
        with working(own.place) as worker:
            for some in range(1000, 10_001, 1000):
                until(lambda some=some: own.space.stats("celery").dequeued >= some, worker)
    runs = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin"))
    assert runs == Counter(sent)
    assert own.space.stats("celery").claimed == 0
