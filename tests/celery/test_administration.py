"""The messages and results of tasks, as administrators find them: ids, names, states and causes of failures."""

import re

import pytest
from celery import states

from tests.celery.conftest import Shop
from tests.celery.workers import SECONDS, until


def test_a_message_has_the_id_and_the_name_of_its_task(own: Shop) -> None:
    sent = [own.app.send_task(name, countdown=60) for name in ("shop.buy", "shop.sell")]
    for result, name in zip(sent, ("shop.buy", "shop.sell"), strict=True):
        [message] = own.space.browse("celery", correlation_id=result.id)
        assert message.headers == {"task": name}


@pytest.mark.parametrize("text", ["x" * 300, "a\nb", "é" * 255], ids=["long", "odd", "wide"])
def test_a_message_is_sent_whatever_its_id_and_name_are(own: Shop, text: str) -> None:
    own.app.send_task(f"\ud800{text}", task_id=text)
    [message] = own.space.browse("celery")
    assert (message.correlation_id or "").startswith(text[:200])
    assert message.headers["task"].startswith(f"\\ud800{text[:190]}")
    own.app.backend.store_result(text, 1, states.SUCCESS)
    assert own.app.AsyncResult(text).get(timeout=SECONDS) == 1


def test_a_space_that_allows_no_headers_gets_messages_and_results_without_them(own: Shop) -> None:
    with (own.place / "space" / "space.toml").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write("max_headers = 0\n" + text)
    own.space.close()
    own.app.send_task("shop.buy")
    own.app.backend.store_result("id", 1, states.SUCCESS)
    assert own.app.AsyncResult("id").get(timeout=SECONDS) == 1


def test_a_result_has_the_name_the_state_the_time_and_the_worker_of_its_task(shop: Shop) -> None:
    sent = shop.app.tasks["note"].delay("hello", 0.01)
    failed = shop.app.tasks["fail"].delay()
    sent.get(timeout=SECONDS)
    with pytest.raises(ValueError, match="this task fails"):
        failed.get(timeout=SECONDS)
    for result, name, state in ((sent, "note", "SUCCESS"), (failed, "fail", "FAILURE")):
        [message] = shop.space.browse("celery.results", correlation_id=f"celery-task-meta-{result.id}")
        headers = dict(message.headers)
        assert (headers.pop("task"), headers.pop("state")) == (name, state)
        assert re.fullmatch(r"\d+\.\d{3}", headers.pop("runtime"))
        assert re.fullmatch(r"[^:]+:\d+", headers.pop("worker"))
        assert headers == {}


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("refuse", "Reject: no tea left"),
        ("refuse_for_error", "ValueError: no tea left"),
        ("fail_unacknowledged", "Unpicklable: several words"),
        ("late", "TimeLimitExceeded: 1 s"),
        ("die", "WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL)"),
        ("unknown", "NotRegistered: the worker knows no task 'unknown'"),
    ],
)
def test_a_failed_message_has_its_cause_as_its_reason(shop: Shop, task: str, reason: str) -> None:
    if "risky" not in shop.space.queues():
        shop.space.create_queue("failed")
        shop.space.create_queue("risky", error_queue="failed", retries=0)
        shop.app.control.add_consumer("risky", reply=True, timeout=SECONDS, limit=1)
    sent = shop.app.send_task(task, queue="risky")
    until(lambda: list(shop.space.browse("failed", correlation_id=sent.id)), shop.worker)
    [message] = shop.space.browse("failed", correlation_id=sent.id)
    assert (message.failure_reason or "").startswith(reason)
    assert message.headers["task"] == task
    if task == "unknown":  # (its failure is stored after its rejection)
        until(lambda: shop.space.find("celery.results", correlation_id=f"celery-task-meta-{sent.id}"), shop.worker)
    assert [each.task for each in shop.space.metrics().failed if each.id == sent.id] == [task]
