"""X20: the failures of the last day by task and cause: messages of error queues, and results of failed tasks."""

import json
from typing import Any

import pytest

import spool
from spool.watch.failures import TaskFailures, by_task, grouped, kind_of
from tests import door
from tests.compaction import small_compactions
from tests.spaces import space_with

space = space_with(
    "errors", results={"role": "state", "on_expiry": "drop"}, orders={"retries": 0, "error_queue": "errors"}
)


def fail(space: spool.Space, id: str, task: str = "bake", reason: str = "ValueError: no") -> None:
    space.put("orders", b"x", correlation_id=id, headers={"task": task} if task else {})
    with space.claims() as claims:
        claims.reject(claims.take("orders"), reason).result()


def store_result(space: spool.Space, id: str, state: str, task: str = "bake", **options: Any) -> None:
    body = {"status": state, "result": {"exc_type": "KeyError", "exc_message": [id]} if state == "FAILURE" else 1}
    headers = {"task": task, "state": state}
    space.replace("results", json.dumps(body), correlation_id=f"celery-task-meta-{id}", headers=headers, **options)


def counted(space: spool.Space) -> dict[tuple[str, str, str], int]:
    return {(each.task, each.queue, each.kind): each.count for each in space.metrics().failures}


def test_x20_failures_are_counted_by_task_queue_and_kind_of_cause(space: spool.Space) -> None:
    assert space.metrics().failures == ()
    for number in range(3):
        fail(space, f"a{number}", reason=f"ValueError: order {number}")
    fail(space, "b", "label", "no paper")
    fail(space, "c", "", "no paper")
    store_result(space, "d", "FAILURE")
    store_result(space, "e", "SUCCESS")
    assert counted(space) == {
        ("bake", "orders", "ValueError"): 3, ("label", "orders", "no paper"): 1, ("", "orders", "no paper"): 1,
        ("bake", "results", "KeyError"): 1,
    }  # fmt: skip
    first, newest = space.metrics().failures[0], space.metrics().failed[0]
    assert (first.cause, first.kept_in) == ("ValueError: order 2", "errors")
    assert (newest.id, newest.task, newest.cause, newest.kept_in) == ("d", "bake", "KeyError: d", "results")


def test_x20_a_task_with_a_failed_message_and_a_failed_result_counts_once(space: spool.Space) -> None:
    fail(space, "a")
    store_result(space, "a", "FAILURE")
    assert counted(space) == {("bake", "orders", "ValueError"): 1}


def test_x20_what_was_redriven_deleted_or_replaced_does_not_count_any_more(space: spool.Space) -> None:
    fail(space, "a")
    fail(space, "b")
    store_result(space, "c", "FAILURE")
    store_result(space, "d", "FAILURE")
    assert sum(counted(space).values()) == 4
    space.redrive("errors", correlation_id="a")
    store_result(space, "c", "SUCCESS")
    assert counted(space) == {("bake", "orders", "ValueError"): 1, ("bake", "results", "KeyError"): 1}
    space.purge("errors")
    space.purge("results")
    assert counted(space) == {}


def test_x20_a_failure_is_counted_for_a_day(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(space, "a")
    store_result(space, "b", "FAILURE")
    assert sum(counted(space).values()) == 2
    later = space.engine.clock.now() + 86_401
    monkeypatch.setattr(type(space.engine.clock), "now", lambda clock: later)
    assert counted(space) == {}


def test_x20_results_are_read_once_also_from_compacted_files(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    for number in range(40):
        store_result(space, str(number), "FAILURE" if number % 4 == 0 else "SUCCESS")
    assert counted(space) == {("bake", "results", "KeyError"): 10}
    read: list[object] = []
    from spool.watch import failures

    peek = failures.peek
    monkeypatch.setattr(failures, "peek", lambda *given: (read.append(given), peek(*given))[1])
    assert counted(space) == {("bake", "results", "KeyError"): 10}
    assert read == []
    with small_compactions():
        assert door.compact(space)
    store_result(space, "40", "FAILURE")
    assert counted(space) == {("bake", "results", "KeyError"): 11}
    with spool.open(space.path) as other:
        assert counted(other) == {("bake", "results", "KeyError"): 11}


def test_x20_texts_that_differ_only_in_numbers_are_one_kind() -> None:
    assert kind_of("bad customer 12") == kind_of("bad customer 7")


def test_x20_kinds_of_causes_and_groups_are_few() -> None:
    assert kind_of("shop.errors.Cold_1: 3 °C") == "shop.errors.Cold_1"
    assert kind_of("HTTP 503: down") == "HTTP 503: down"
    assert kind_of("x" * 100) == "x" * 60
    failures = [TaskFailures(f"task-{n}", "q", "e", "K", "K: x", n + 1, float(n)) for n in range(300)]
    (*named, rest) = by_task(failures, 100)
    assert (len(named), rest.task, rest.queue) == (99, "other", "other")
    assert sum(each.count for each in (*named, rest)) == sum(range(301))
    assert grouped([]) == ()


def test_x20_a_message_that_fails_after_a_look_at_the_failures_is_counted(space: spool.Space) -> None:
    space.put("orders", b"x", correlation_id="early", headers={"task": "bake"})
    for number in range(3):
        space.put("results", b"1", correlation_id=str(number))
    assert counted(space) == {}
    with space.claims() as claims:
        claims.reject(claims.take("orders"), "ValueError: no").result()
    assert counted(space) == {("bake", "orders", "ValueError"): 1}


def test_x20_a_shared_error_queue_is_counted_by_origin(space: spool.Space) -> None:
    space.create_queue("mail", retries=0, error_queue="errors")
    for number in range(3):
        fail(space, str(number))
    space.put("mail", b"x")
    with space.claims() as claims:
        claims.reject(claims.take("mail"), "no").result()
    space.put("errors", b"not failed")
    assert space.metrics().origins == {"errors": {"orders": 3, "mail": 1}}
