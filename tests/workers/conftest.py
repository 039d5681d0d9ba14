"""Fixtures for tests of ``space.work``: a space, a clock that a test can move, and functions that fail or hang."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool
from spool.runtime.context import associated
from spool.store.store import Store
from spool.workers import worker
from spool.workers.worker import Worker
from tests.clocks import MovedClock, timed

WAIT = 60.0
"""Seconds after which a test that waits in vain fails; none waits as long."""


def let_pass(clock: MovedClock, seconds: float, worker: Worker) -> None:
    """Move the clock, and let the worker read it."""
    with worker._changed:
        clock.ahead += seconds
        worker._ended.notify_all()


@pytest.fixture
def space(tmp_path: Path, clock: MovedClock) -> Iterator[spool.Space]:
    with spool.create(timed(tmp_path / "space", clock)) as found:
        for queue in ("replies", "failures", "errors", "other"):
            found.create_queue(queue)
        found.create_queue(
            "orders", retry_delay=0, retry_delay_max=None, error_queue="errors", reply_queue="replies",
            failure_queue="failures",
        )  # fmt: skip
        yield found


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """The event for which a hanging function waits. The fixture sets it at the end, so that no thread remains."""
    event = threading.Event()
    yield event
    event.set()


def fail(message: spool.Message) -> None:
    raise ValueError("no such article")


def stuck_in_its_transaction(
    store: Store, called: list[threading.Thread], go_on: threading.Event
) -> Callable[[spool.Message], None]:
    """A function that is inside a call of its transaction until ``go_on`` is set. ``called``: gets its thread."""

    def function(message: spool.Message) -> None:
        called.append(threading.current_thread())
        found = associated(store)
        assert found is not None
        with found.mutex:
            go_on.wait(WAIT)

    return function


def counts(summary: worker.WorkSummary) -> dict[str, int]:
    return {name: value for name, value in vars(summary).items() if name != "reasons" and value}
