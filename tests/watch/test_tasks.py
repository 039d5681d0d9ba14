"""X20: one administration of tasks: a message of Celery, Django, Dramatiq or a worker is the same kind of task."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.watch.tasks import Task, task_of

NOW = 2_000_000_000.0
KOMBU = {
    "body": '[[1, "a"], {"size": "large"}, {"callbacks": null}]',
    "content-encoding": "utf-8",
    "headers": {"task": "shop.bake", "id": "5f0c", "argsrepr": "(1, 'a')", "kwargsrepr": "{'size': 'large'}"},
    "properties": {"delivery_tag": "x"},
}
BARE = {**KOMBU, "headers": {"task": "shop.bake", "id": "5f0c"}}
HIDDEN = {**KOMBU, "headers": {**KOMBU["headers"], "argsrepr": "<hidden>", "kwargsrepr": "{'card': '4...'"}}  # type: ignore[dict-item]
FIRST = {"body": json.dumps({"task": "shop.bake", "id": "5f0c", "args": [1, "a"], "kwargs": {"size": "large"}}),
         "headers": {}, "properties": {}}  # fmt: skip
DJANGO = {"task": "shop.bake", "args": [1, "a"], "kwargs": {"size": "large"}, "priority": 0, "run_after": None}
DRAMATIQ = {"queue_name": "default", "actor_name": "shop.bake", "args": [1, "a"], "kwargs": {"size": "large"},
            "options": {}, "message_id": "5f0c", "message_timestamp": 1}  # fmt: skip
ARGUMENTS = "1, 'a', size='large'"


def entry(body: Any, **options: Any) -> spool.QueueEntry:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    state, holder = options.pop("state", "ready"), options.pop("holder", None)
    position = spool.Position(1, 0)
    message = spool.Message("ab" * 12 + "0" * 8, "celery", raw, NOW - 60, position, options)
    return spool.QueueEntry(message.id, position, state, message, holder, None, len(raw))


def of(body: Any, **options: Any) -> Task | None:
    return task_of(entry(body, **options), NOW)


@pytest.mark.parametrize(
    ("body", "id", "arguments"),
    [
        (KOMBU, "5f0c", ARGUMENTS), (BARE, "5f0c", ARGUMENTS), (FIRST, "5f0c", ARGUMENTS),
        (HIDDEN, "5f0c", "<hidden>, {'card': '4...'"),
        (DJANGO, None, ARGUMENTS), (DRAMATIQ, "5f0c", ARGUMENTS),
    ],
)  # fmt: skip
def test_x20_each_framework_has_the_same_form(body: Any, id: str | None, arguments: str) -> None:
    assert of(body) == Task(id, "shop.bake", arguments, "waiting")
    assert of(body, correlation_id="7") == Task("7", "shop.bake", arguments, "waiting")


def test_x20_the_header_names_the_task_of_any_body() -> None:
    assert of(b"\xff\x00", headers={"task": "label"}, correlation_id="7") == Task("7", "label", "", "waiting")
    assert of(b"\xff\x00") is None
    assert of({"order": 7, "properties": {}}) is None
    cut = entry(KOMBU)._replace(body_cut=True)
    assert task_of(cut, NOW) is None


def test_x20_a_task_is_waiting_delayed_reserved_running_or_failed_with_its_worker_and_cause() -> None:
    held = spool.Holder("claimed", None, 17, "celery")
    begun = spool.Holder("claimed", "7.aa.bb", 17, "celery", NOW - 2.5)
    assert of(KOMBU, state="delayed") == Task("5f0c", "shop.bake", ARGUMENTS, "delayed")
    worker = "process 17 (celery)"
    assert of(KOMBU, state="claimed", holder=held) == Task("5f0c", "shop.bake", ARGUMENTS, "reserved", None, worker)
    assert of(KOMBU, state="claimed", holder=begun) == Task("5f0c", "shop.bake", ARGUMENTS, "running", 2.5, worker)
    failed = {"failure_reason": "ValueError: no", "origin_queue": "celery", "failed_at": NOW}
    assert of(KOMBU, **failed) == Task("5f0c", "shop.bake", ARGUMENTS, "failed", None, None, "ValueError: no")
    retried = of(KOMBU, failure_reason="ValueError: no", failed_at=NOW, attempts=1)
    assert retried is not None
    assert (retried.state, retried.cause) == ("waiting", "ValueError: no")


def test_x20_a_result_has_the_state_runtime_and_worker_of_its_headers_and_the_cause_of_its_body() -> None:
    headers = {"task": "shop.bake", "state": "SUCCESS", "runtime": "0.137", "worker": "oven:17"}
    options: dict[str, Any] = {"headers": headers, "correlation_id": "celery-task-meta-5f0c"}
    assert of({"status": "SUCCESS"}, **options) == Task("5f0c", "shop.bake", "", "SUCCESS", 0.137, "oven:17")
    options["headers"] = {"task": "shop.bake", "state": "FAILURE", "runtime": "much"}
    celery = {"status": "FAILURE", "result": {"exc_type": "ValueError", "exc_message": ["no", 3], "exc_module": "b"}}
    assert of(celery, **options) == Task("5f0c", "shop.bake", "", "FAILURE", None, None, "ValueError: no, 3")
    options["headers"] = {"task": "shop.bake", "state": "FAILED"}
    django = {"errors": [{"exception_class_path": "b.E", "traceback": "Traceback:\n  File x\nb.E: too hot\n"}]}
    assert of(django, **options) == Task("5f0c", "shop.bake", "", "FAILED", None, None, "b.E: too hot")
    options = {"headers": {"task": "bake", "state": "FAILURE"}, "correlation_id": "5f0c"}
    dramatiq = {"__t": "dramatiq.results.Result", "exn": {"type": "ValueError", "msg": "no\ntea"}}
    assert of(dramatiq, **options) == Task("5f0c", "bake", "", "FAILURE", None, None, "ValueError: no tea")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
shapes = [KOMBU, BARE, FIRST, DJANGO, DRAMATIQ, {"result": {"exc_type": "E"}, "errors": [{}], "exn": {}}]


@given(st.sampled_from(shapes), st.data())
def test_x20_no_body_is_an_error(shape: dict[str, Any], data: st.DataObject) -> None:
    body = {**shape, data.draw(st.sampled_from(sorted(shape))): data.draw(json_values)}
    headers = {"task": "t", "state": data.draw(st.sampled_from(["FAILURE", "x"]))} if data.draw(st.booleans()) else {}
    for raw in (body, data.draw(json_values), data.draw(st.binary(max_size=40))):
        task = of(raw, headers=headers)
        assert task is None or all(each.isprintable() for each in (task.name, task.arguments, task.cause or ""))
