"""X21: Dramatiq's rate limiters, barriers and group callbacks on a space."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits import Barrier, BucketRateLimiter, ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import StubBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spool
from dramatiq_xaspool import XaspoolRateLimiterBackend
from tests import children
from tests.dramatiq_broker.app import App, working
from tests.dramatiq_broker.test_workers import SECONDS, dramatiq_program, kill

HOUR = 3_600_000
PROCESSES, TURNS = 4, 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("limits") / "space"
    yield path
    spool.shared(path).close()


@pytest.fixture
def backend(place: Path) -> XaspoolRateLimiterBackend:
    return XaspoolRateLimiterBackend(place, durability="none")


@pytest.fixture
def key() -> str:
    return uuid4().hex


def in_processes(act: Callable[[], object]) -> None:
    """Call a function in several processes at the same time."""
    started = [children.start(act) for _ in range(PROCESSES)]
    assert [children.exit_code(child) for child in started] == [0] * PROCESSES


# -- the methods of a back end ----------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b@1", "b@2"])
AMOUNTS, LIMITS = st.integers(1, 3), st.integers(0, 5)
CALLS = st.one_of(
    st.tuples(st.just("add"), KEYS, AMOUNTS),
    st.tuples(st.just("incr"), KEYS, AMOUNTS, LIMITS),
    st.tuples(st.just("decr"), KEYS, AMOUNTS, LIMITS),
    st.tuples(st.just("incr_and_sum"), KEYS, st.sets(KEYS), AMOUNTS, LIMITS),
)


class Model(StubBackend):
    """Dramatiq's back end for tests, with one difference to its back end on Redis removed."""

    def add(self, key: str, value: int, ttl: int) -> bool:
        """Set a key, but not to 0, as ``incr_and_sum`` of the stub does first."""
        return value != 0 and bool(super().add(key, value, ttl))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=12))
def test_x21_each_method_answers_as_the_back_end_of_dramatiq_s_tests(
    backend: XaspoolRateLimiterBackend, calls: list[tuple[Any, ...]]
) -> None:
    model, prefix = Model(), uuid4().hex
    for name, key, *values in calls:
        if name == "incr_and_sum":
            named = [prefix + each for each in values[0]]
            values = [lambda named=named: named, *values[1:]]
        answers = {getattr(each, name)(prefix + key, *values, HOUR) for each in (model, backend)}
        assert len(answers) == 1, (name, key, values)


def test_x21_any_text_is_a_key(backend: XaspoolRateLimiterBackend) -> None:
    for key in ("", "k" * 300, "k" * 299 + "l", "\ud800", "a\nb", "@", "ключ@1"):
        assert backend.add(key, 1, HOUR)
        assert not backend.add(key, 1, HOUR)
        assert backend.incr(key, 1, 2, HOUR)


def test_x21_a_key_ends_after_its_time_to_live(backend: XaspoolRateLimiterBackend, key: str) -> None:
    assert backend.add(key, 5, 50)
    pause = threading.Event()
    while not backend.add(key, 1, HOUR):
        pause.wait(0.01)
    assert backend.incr(key, 1, 2, HOUR)
    assert not backend.incr(key, 1, 2, HOUR)


def test_x21_keys_survive_a_power_cut_unless_the_back_end_says_otherwise(tmp_path: Path) -> None:
    for durability in ("flush", "none"):
        XaspoolRateLimiterBackend(tmp_path / "space", namespace=durability, durability=durability).add("key", 1, HOUR)  # type: ignore[arg-type]
    XaspoolRateLimiterBackend(tmp_path / "space").add("key", 1, HOUR)
    queues = spool.shared(tmp_path / "space").queues()
    found = {name: (queue.durability, queue.role, queue.on_expiry) for name, queue in queues.items()}
    assert found == {name: (name.replace("dramatiq-limits", "flush"), "state", "drop")
                     for name in ("flush", "none", "dramatiq-limits")}  # fmt: skip


# -- limiters ---------------------------------------------------------------------------------------------------------


def test_x21_no_more_holders_than_the_limit_run_at_a_time_in_all_processes(
    backend: XaspoolRateLimiterBackend, key: str, tmp_path: Path
) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act() -> None:
        limiter, done = ConcurrentRateLimiter(backend, key, limit=2), 0
        while done < TURNS:
            with limiter.acquire(raise_on_failure=False) as acquired:
                if acquired:
                    os.write(log, b"+")
                    done += 1
                    os.write(log, b"-")

    in_processes(act)
    os.close(log)
    signs = (tmp_path / "log").read_text()
    assert len(signs) == 2 * PROCESSES * TURNS
    assert max(signs[:end].count("+") - signs[:end].count("-") for end in range(len(signs))) <= 2
    with ConcurrentRateLimiter(backend, key, limit=1).acquire():
        pass  # each holder has released its share


@pytest.mark.parametrize("limiter", [
    lambda backend, key: WindowRateLimiter(backend, key, limit=7, window=3600),
    lambda backend, key: BucketRateLimiter(backend, key, limit=7, bucket=24 * HOUR),
], ids=["window", "bucket"])  # fmt: skip
def test_x21_all_processes_together_do_no_more_than_the_limit(
    backend: XaspoolRateLimiterBackend, key: str, limiter: Callable[..., Any], tmp_path: Path
) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act() -> None:
        for _ in range(4):
            with limiter(backend, key).acquire(raise_on_failure=False) as acquired:
                os.write(log, b"+" if acquired else b"")

    if isinstance(limiter(backend, key), WindowRateLimiter):
        window = limiter(backend, key)
        window._get_keys = lambda: [f"{key}@{second}" for second in range(100)]  # (a window has a key for each second)
        limiter = lambda *_: window  # noqa: E731
    in_processes(act)
    os.close(log)
    assert (tmp_path / "log").read_text() == "+" * 7


def test_x21_a_killed_holder_keeps_its_share_for_its_time_to_live_and_no_longer(
    backend: XaspoolRateLimiterBackend, key: str
) -> None:
    """Also while another process acquires and releases the same limiter all the while."""
    limiter = ConcurrentRateLimiter(backend, key, limit=2, ttl=700)

    begun = time.monotonic()
    children.let_die(limiter._acquire)
    ended = time.monotonic()
    is_free = False
    while not is_free:
        with limiter.acquire(), limiter.acquire(raise_on_failure=False) as is_free:
            assert is_free or time.monotonic() < ended + 30
    assert time.monotonic() >= begun + 0.7


# -- barriers ---------------------------------------------------------------------------------------------------------


def test_x21_a_barrier_counts_the_parties_of_all_processes_each_once(
    backend: XaspoolRateLimiterBackend, key: str, tmp_path: Path
) -> None:
    barrier = Barrier(backend, key)
    assert barrier.create(PROCESSES * TURNS)
    assert not barrier.create(1)
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def act() -> None:
        for _ in range(TURNS):
            os.write(log, b"cleared" if barrier.wait(block=False) else b"")

    in_processes(act)
    os.close(log)
    assert (tmp_path / "log").read_text() == "cleared"


def test_x21_parties_wait_for_the_last_one(backend: XaspoolRateLimiterBackend, key: str) -> None:
    barrier = Barrier(backend, key)
    barrier.create(2)
    assert not backend.wait(barrier.key_events, timeout=1)
    child = children.start(lambda: os._exit(not barrier.wait(timeout=SECONDS * 1000)))
    pause = threading.Event()
    while not barrier.wait(block=False):
        pause.wait(0.01)  # (this party comes first, if the child has not begun: then it comes again, as the child)
    assert children.exit_code(child) == 0
    assert barrier.wait()


# -- groups -----------------------------------------------------------------------------------------------------------


class GroupApp(App):
    def __init__(self, space: Path, **options: Any) -> None:
        super().__init__(space, **options)
        self.limits = XaspoolRateLimiterBackend(space)
        self.broker.add_middleware(GroupCallbacks(self.limits))

    def group(self, *words: object) -> dramatiq.group:
        group = dramatiq.group([self.note.message(word) for word in words], broker=self.broker)
        group.add_completion_callback(self.note.message("all"))
        return group


@pytest.fixture
def app(tmp_path: Path) -> GroupApp:
    return GroupApp(tmp_path / "space")


def test_x21_a_group_calls_back_once_all_its_messages_have_run(app: GroupApp) -> None:
    with working(app):
        app.group(*range(5)).run()
        app.until_told(6)
        app.broker.join("default", timeout=SECONDS * 1000)
    assert sorted(app.told()[:5]) == [*"01234"]
    assert app.told()[5:] == ["all"]


def test_x21_a_message_that_runs_again_after_the_death_of_its_worker_counts_once(app: GroupApp) -> None:
    """The worker dies between the count at the barrier and the acknowledgement."""
    app.group("one", "two").run()

    def run_and_die() -> None:
        with closing(app.broker.consume("default", timeout=1)) as consumer:
            delivered = next(consumer)
            app.broker.emit_before("process_message", delivered)
            app.broker.emit_after("process_message", delivered, result=None)
            os._exit(0)

    queue = app.broker.space
    for _ in range(3):
        assert children.exit_code_of(run_and_die) == 0
        assert queue.stats("default").ready == 2  # (the death counts an attempt, and "all" is not there)
    queue.get("default")  # the other message remains
    for _ in range(2):  # the last message gives the same answer each time
        assert children.exit_code_of(run_and_die) == 0
    assert [dramatiq.Message.decode(message.body).args for message in queue.browse("default")] == [
        ("two",), ("all",), ("all",)
    ]  # fmt: skip


@pytest.mark.slow
def test_x21_a_group_whose_workers_are_killed_calls_back_after_all_its_messages(tmp_path: Path) -> None:
    app, count = GroupApp(tmp_path / "space", retries=1000), 300
    app.group(*range(count)).run()
    pause = threading.Event()
    while "all" not in app.told():
        with dramatiq_program(app, module="tests.dramatiq_broker.group_program") as program:
            told = len(app.told())
            for _ in range(3000):
                if len(app.told()) >= told + 40 or "all" in app.told():
                    break
                pause.wait(0.01)
            kill(program)
    assert {*map(str, range(count))} <= {*app.told()[: app.told().index("all")]}
