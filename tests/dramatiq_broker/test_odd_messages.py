"""A worker of Dramatiq lives with any message and option: a message runs, waits, or is dead-lettered."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import GroupCallbacks
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import spool
from dramatiq_xaspool import XaspoolRateLimiterBackend
from dramatiq_xaspool.limits import running
from tests import children
from tests.dramatiq_broker.app import App, working


class Odd(App):
    """An application with one worker thread, so that its messages run in their order."""

    def __init__(self, space: Path) -> None:
        super().__init__(space)
        self.broker.add_middleware(GroupCallbacks(XaspoolRateLimiterBackend(space)))
        self.done: list[str] = []
        self.consumers = 0
        self.marked = threading.Event()
        self.act = dramatiq.actor(self._act, actor_name="act", broker=self.broker, store_results=True, max_retries=1)
        self.mark = dramatiq.actor(self.marked.set, actor_name="mark", broker=self.broker)
        consume = self.broker.consume

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.consumers += 1
            return consume(*args, **kwargs)

        self.broker.consume = counted  # type: ignore[method-assign]

    def _act(self, *args: Any, **kwargs: Any) -> Any:
        if "fail" in args:
            raise ValueError(*args)
        self.done += [running.get().message_id, running.get().claimed.id]
        return args

    def check(self, worker: dramatiq.Worker, ids: list[str], tasks: list[str]) -> None:
        """Wait until the worker has handled all messages. Each of them was done, waits, or is dead-lettered."""
        self.marked.clear()
        self.mark.send()
        assert self.marked.wait(60), "the worker does not go on"
        assert all(thread.is_alive() for thread in (*worker.workers, *worker.consumers.values()))
        assert self.consumers == 1, "the consumer began again"
        space = self.broker.space
        waiting, dead = ([*space.browse(queue)] for queue in ("default", "default.XQ"))
        assert all(message.failure_reason for message in dead)
        kept = {name for message in (*waiting, *dead) for name in (message.id, message.correlation_id)}
        for id, task in zip(ids, tasks, strict=True):
            assert {id, task} & {*kept, *self.done}, (id, task)
        space.purge("default")
        space.purge("default.XQ")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Odd, dramatiq.Worker]]:
    app = Odd(tmp_path_factory.mktemp("odd") / "space")
    with working(app, threads=1) as worker:
        yield app, worker
    app.broker.space.close()


SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("fail"),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)
OPTIONS = st.dictionaries(
    st.sampled_from([
        "throws", "retries", "max_retries", "min_backoff", "max_backoff", "pipe_target", "on_success", "on_failure",
        "max_age", "time_limit", "eta", "group_completion_uuid", "group_completion_callbacks", "store_results",
        "result_ttl", "notify_shutdown", "traceback", "broker_priority", "redis_message_id", "on_retry_exhausted",
    ]) | st.text(max_size=5),
    JSON,
    max_size=4,
)  # fmt: skip


def valid(**changes: Any) -> dict[str, Any]:
    message = dramatiq.Message(queue_name="default", actor_name="act", args=(), kwargs={}, options={})
    return {**message.asdict(), **changes}


FIELDS = st.dictionaries(
    st.sampled_from([*valid()]) | st.text(max_size=5), JSON | st.lists(JSON, max_size=2) | OPTIONS, max_size=3
)
BODIES = st.one_of(
    st.builds(lambda changes: json.dumps(valid(**changes)).encode(), FIELDS),
    st.builds(lambda options, args: json.dumps(valid(options=options, args=args)).encode(), OPTIONS, st.lists(JSON)),
    st.builds(lambda gone: json.dumps({k: v for k, v in valid().items() if k != gone}), st.sampled_from([*valid()])),
    JSON.map(json.dumps),
    st.binary(max_size=20),
    st.text(max_size=20),
    st.just("[" * 100_000),
)


def odd_body(**changes: Any) -> bytes:
    return json.dumps(valid(**changes)).encode()


@SETTINGS
@example(bodies=[odd_body(options=None), odd_body(options=["eta"]), odd_body(kwargs=[1]), odd_body(actor_name=["act"])])
@example(bodies=[odd_body(queue_name="other"), odd_body(queue_name=None), odd_body(message_timestamp="yesterday")])
@example(bodies=[odd_body(args=["fail"], options={"throws": "ValueError"})])
@example(bodies=[odd_body(args=["fail"], options={"retries": "three"})])
@example(bodies=[odd_body(options={"pipe_target": {"actor_name": "act"}})])
@example(bodies=[odd_body(args=["\ud800"], message_id="\ud800"), odd_body(message_id=7), odd_body(message_id="")])
@example(bodies=[odd_body(args=["fail", "\ud800"], options={"max_retries": 0})])
@given(bodies=st.lists(BODIES, max_size=6))
def test_a_worker_lives_with_any_body_in_its_queue(odd: tuple[Odd, dramatiq.Worker], bodies: list[Any]) -> None:
    app, worker = odd
    app.broker._declared("default")
    app.done.clear()
    put = []
    for body in bodies:
        try:
            put.append((app.broker.space.put("default", body), body))
        except spool.InvalidArgument:
            continue  # (a text that is no UTF-8)
    app.check(worker, [id for id, _ in put], [task_id(body) for _, body in put])


def task_id(body: Any) -> str:
    """Return the id in a body, with which the message may be put again."""
    try:
        return str(json.loads(body)["message_id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


@SETTINGS
@given(calls=st.lists(st.tuples(
    st.lists(JSON, max_size=2), st.dictionaries(st.text(max_size=5), JSON, max_size=2), OPTIONS,
    st.none() | st.integers(-(10**6), 10**12) | st.floats(0, 5), st.none() | st.text(), st.none() | st.text(),
), max_size=5))  # fmt: skip
def test_a_worker_lives_with_any_options_of_send_with_options(
    odd: tuple[Odd, dramatiq.Worker], calls: list[tuple[Any, ...]]
) -> None:
    app, worker = odd
    app.done.clear()
    tasks = []
    for args, kwargs, options, delay, id, actor in calls:
        try:
            message = app.act.message_with_options(args=args, kwargs=kwargs, **options)
        except TypeError:
            continue  # (Dramatiq refuses a callback that is no actor)
        message = message.copy(message_id=id or message.message_id, actor_name=actor or "act")
        tasks.append(app.broker.enqueue(message, delay=delay).message_id)
    app.check(worker, [""] * len(tasks), tasks)


def test_a_failed_message_whose_next_attempt_cannot_be_put_is_dead_lettered_with_both_causes(
    odd: tuple[Odd, dramatiq.Worker],
) -> None:
    app, worker = odd
    app.done.clear()
    message = app.act.send_with_options(args=("fail",), min_backoff="soon")
    app.marked.clear()
    app.mark.send()
    assert app.marked.wait(60)
    (dead,) = app.broker.space.browse("default.XQ", correlation_id=message.message_id)
    assert str(dead.failure_reason).startswith("ValueError: fail; and it could not go on: TypeError: ")
    app.check(worker, [dead.id], [message.message_id])


def test_a_message_with_an_eta_waits_in_space_and_takes_no_place_of_a_worker(odd: tuple[Odd, dramatiq.Worker]) -> None:
    """Another broker has put the message, with its own way to delay it."""
    app, worker = odd
    app.done.clear()
    ids = [app.broker.space.put("default", json.dumps(valid(options={"eta": 4e12}))) for _ in range(20)]
    app.marked.clear()
    app.mark.send()
    assert app.marked.wait(60)
    assert app.broker.space.stats("default").delayed == 20
    app.check(worker, ids, [""] * 20)


def test_a_body_of_an_unknown_codec_is_dead_lettered(odd: tuple[Odd, dramatiq.Worker]) -> None:
    app, worker = odd
    app.done.clear()

    def put() -> None:
        spool.register_codec("chai", spool.Codec("application/x-chai", lambda _: b"tea", lambda _: Tea()), Tea)
        app.broker._declared("default").put("default", Tea(), priority=100, correlation_id="tea")

    assert children.exit_code_of(put) == 0
    assert app.broker.space.find("default.XQ", correlation_id="tea", timeout=60)
    app.check(worker, [""], ["tea"])


class Tea:
    """A type of another program."""


@pytest.mark.parametrize("name", ["q" * 300, "Tea_1.b-c", "_x"])
def test_any_name_of_a_queue_that_dramatiq_allows_has_a_queue(tmp_path: Path, name: str) -> None:
    app = App(tmp_path / "space")
    act = dramatiq.actor(lambda: app.tell("acted"), actor_name="a" * 300, queue_name=name, broker=app.broker)
    other = dramatiq.actor(lambda: None, actor_name="other", queue_name=f"{name}2", broker=app.broker)
    act.send_with_options(delay=1)
    other.send()
    with working(app):
        app.until_told(1)
        app.broker.join(name, timeout=60_000)
        app.broker.join(f"{name}2", timeout=60_000)
    app.broker.flush(name)
    assert len(app.broker.space.queues()) == 6


@pytest.mark.parametrize("first", [0, 1])
def test_a_namespace_is_no_queue_of_actors(tmp_path: Path, first: int) -> None:
    app = App(tmp_path / "space")
    act = dramatiq.actor(lambda: None, actor_name="act", queue_name="shop", broker=app.broker)
    limits = XaspoolRateLimiterBackend(tmp_path / "space", namespace="shop")
    calls: list[Callable[[], Any]] = [act.send, partial(limits.add, "key", 1, 1000)]
    calls[first]()
    with pytest.raises(spool.InvalidArgument, match="namespace"):
        calls[1 - first]()
    assert (app.broker.space.queues()["shop"].role == "state") == first


def test_a_message_that_an_administrator_moved_runs_in_its_new_queue(tmp_path: Path) -> None:
    app = App(tmp_path / "space")
    app.note.send("tea")
    dramatiq.actor(lambda: None, actor_name="other", queue_name="other", broker=app.broker).send()
    space = app.broker.space
    (message,) = space.browse("default")
    space.move(message.id, "other")
    with working(app):
        app.until_told(1, "tea")
        app.broker.join("other", timeout=60_000)
