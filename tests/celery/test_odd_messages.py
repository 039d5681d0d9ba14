"""A worker of Celery lives with any message: it runs the other tasks, and holds no message for ever."""

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.exceptions import EncodeError

import spool
from tests.celery.conftest import Shop
from tests.celery.workers import SECONDS, until

TASKS = ("add", "total", "fail", "refuse", "unknown")

numbers = st.integers() | st.floats() | st.sampled_from([0, 1, -1, 3600, 1e30])
texts = st.text(max_size=12) | st.sampled_from(
    ["x" * 300, "2030-01-31T08:00:00+00:00", "0001-01-01T00:00:00+00:00", "9999-12-31", "base64", "zlib", *TASKS]
)
plain = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)

HEADERS = {
    "lang": "py", "task": "add", "id": "id", "shadow": None, "eta": None, "expires": None, "group": None,
    "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": "id", "parent_id": None,
    "argsrepr": "(1, 2)", "kwargsrepr": "{}", "origin": "test", "ignore_result": False, "replaced_task_nesting": 0,
    "stamped_headers": None, "stamps": {}, "compression": None,
}  # fmt: skip
EMBEDDED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
ENVELOPE: dict[str, Any] = {
    "body": [[1, 2], {}, EMBEDDED],
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": HEADERS,
    "properties": {
        "correlation_id": "id", "reply_to": "reply", "delivery_mode": 2, "priority": 0, "body_encoding": None,
        "delivery_info": {"exchange": "", "routing_key": "odd"}, "delivery_tag": "tag",
    },
}  # fmt: skip
PROTOCOL_1 = {
    "task": "add", "id": "id", "args": [1, 2], "kwargs": {}, "group": None, "group_index": None, "retries": 0,
    "eta": None, "expires": None, "utc": True, "timelimit": [None, None], "taskset": None, **EMBEDDED,
}  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all parts of a value."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(part, (*path, key))


@st.composite
def changed_envelopes(draw: st.DrawFn) -> str:
    """Return a message of a task with other values in some places."""
    envelope = deepcopy(ENVELOPE)
    if draw(st.booleans()):
        envelope |= {"headers": {}, "body": deepcopy(PROTOCOL_1)}
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(list(paths(envelope))))
        part = envelope
        for key in path:
            part = part[key]
        if draw(st.booleans()):
            part[last] = draw(values)
        else:
            del part[last]
    if draw(st.booleans()) or isinstance(envelope.get("body"), list | dict):
        envelope["body"] = json.dumps(envelope.get("body"))
    return json.dumps(envelope)


bodies = changed_envelopes() | values.map(json.dumps) | st.binary(max_size=20)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "task_id": texts, "headers": st.dictionaries(st.sampled_from([*HEADERS, "x"]), values, max_size=2),
        "priority": values, "expiration": numbers, "eta": texts, "countdown": numbers, "expires": numbers | texts,
        "link": values, "link_error": values, "chord": values, "chain": values, "shadow": values, "time_limit": values,
        "soft_time_limit": values, "group_id": values, "group_index": values, "root_id": values, "parent_id": values,
        "retries": values, "reply_to": values, "ignore_result": values, "argsrepr": values, "stamped_headers": values,
        "compression": st.sampled_from(["zlib", "none", None]), "correlation_id": values, "delivery_mode": values,
        "serializer": st.sampled_from(["json", "pickle", "raw", None]), "content_type": values,
        "content_encoding": values,
    },
)  # fmt: skip
calls = st.tuples(st.sampled_from(TASKS), values, values, OPTIONS)


@pytest.fixture(scope="module")
def odd(shop: Shop) -> Shop:
    """The worker takes tasks from a queue with an error queue, and from a queue without one."""
    shop.space.create_queue("failed")
    shop.space.create_queue("odd", error_queue="failed", retries=2, retry_delay=0.0)
    shop.space.create_queue("aside")
    for queue in ("odd", "aside"):
        shop.app.control.add_consumer(queue, reply=True, timeout=SECONDS, limit=1)
    return shop


def expect_good_worker(odd: Shop, queue: str = "odd") -> None:
    """The worker ends all messages of the queue that are due, and runs further tasks."""
    good = [odd.app.tasks["add"].apply_async((n, n), queue=queue) for n in range(4)]
    assert [result.get(timeout=SECONDS) for result in good] == [0, 2, 4, 6], odd.worker.log[-5000:]
    until(lambda: not (odd.space.stats(queue).ready or odd.space.stats(queue).claimed), odd.worker)
    assert odd.worker.process.poll() is None


GEOJSON = json.dumps({"type": "Feature", "geometry": None, "properties": {"name": "Ulm"}})


class Tea:
    """A type that the worker does not know."""


TEA = spool.Codec("application/x-tea", lambda _: b"tea", lambda _: Tea())


@pytest.mark.parametrize("body", [GEOJSON, Tea()], ids=["a key properties", "an unknown codec"])
@pytest.mark.parametrize("queue", ["odd", "aside"])
def test_a_message_of_another_program_neither_ends_the_worker_nor_holds_up_others(odd: Shop, queue: str, body: object):
    spool.register_codec("tea", TEA, Tea)
    id = odd.space.put(queue, body)
    place = "failed" if queue == "odd" else queue
    until(lambda: [m for m in odd.space.browse(place) if m.id == id and m.failure_reason], odd.worker)
    expect_good_worker(odd, queue)
    [message] = [message for message in odd.space.browse(place) if message.id == id]
    assert "another framework uses the queue" in (message.failure_reason or "")


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(bodies, min_size=1, max_size=20))
def test_a_worker_outlives_any_body(odd: Shop, bodies: list[Any]) -> None:
    for body in bodies:
        odd.space.put("odd", body)
    expect_good_worker(odd)


def send(app: Celery, task: str, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
    """Send a task, unless Celery or the transport refuses an argument."""
    of_celery = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, EncodeError)
    with suppress(*of_celery, spool.InvalidArgument):
        app.send_task(task, args, kwargs, queue="odd", **options)


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(calls, min_size=1, max_size=10))
def test_a_worker_outlives_any_arguments_of_a_task(odd: Shop, calls: list[Any]) -> None:
    for call in calls:
        send(odd.app, *call)
    expect_good_worker(odd)


@pytest.mark.parametrize(
    "options", [{"task_id": 5}, {"shadow": ["a"]}, {"time_limit": "soon"}, {"headers": {"retries": None}}]
)
def test_an_argument_that_no_worker_can_use_is_refused_at_the_call(own: Shop, options: dict[str, Any]) -> None:
    with pytest.raises(spool.InvalidArgument, match="was not sent"):
        own.app.send_task("add", (1, 2), **options)
    assert own.space.stats("celery").enqueued == 0


@pytest.mark.parametrize(
    "options", [{"eta": "1960-01-01T00:00:00+00:00"}, {"expiration": 1e30}, {"priority": -5}, {"reply_to": "x" * 999}]
)
def test_an_argument_at_the_edge_of_its_range_is_sent(own: Shop, options: dict[str, Any]) -> None:
    own.app.send_task("add", (1, 2), **options)
    assert own.space.stats("celery").ready == 1


def test_a_body_that_a_worker_cannot_decode_moves_to_the_error_queue(odd: Shop) -> None:
    """Celery acknowledges such a message, which would delete it."""
    sent = odd.app.send_task("add", (1, 2), queue="odd", serializer="pickle")
    until(lambda: list(odd.space.browse("failed", correlation_id=sent.id)), odd.worker)
    [message] = odd.space.browse("failed", correlation_id=sent.id)
    assert (message.failure_reason or "").startswith("ContentDisallowed: Refusing to deserialize")


def test_a_header_with_the_name_of_an_attempt_has_no_effect(odd: Shop) -> None:
    sent = odd.app.send_task("add", (1, 2), queue="aside", headers={"xaspool_attempt": [1, 5]})
    assert sent.get(timeout=SECONDS) == 3
