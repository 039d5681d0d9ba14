"""What the tests of ``space.work`` share: a space, a clock that can be moved, and functions that fail or hang."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool
from spool.runtime.clock import Clock
from spool.runtime.context import associated
from spool.store.store import Store
from spool.workers import worker
from spool.workers.worker import Worker

WAIT = 60.0
"""Seconds after which a test that waits in vain fails; none waits as long."""


class SteppedClock(Clock):
    """The machine's, and as many seconds later as it was told."""

    def __init__(self) -> None:
        self.later = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later

    def let_pass(self, seconds: float, worker: Worker) -> None:
        """And the worker looks what time it is."""
        with worker._changed:
            self.later += seconds
            worker._changed.notify_all()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def space(tmp_path: Path, clock: SteppedClock) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", clock=clock) as found:
        for queue in ("replies", "failures", "errors", "other"):
            found.create_queue(queue)
        found.create_queue(
            "orders", retry_delay=0, retry_delay_max=None, error_queue="errors", reply_queue="replies",
            failure_queue="failures",
        )  # fmt: skip
        yield found


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What a function waits for that hangs; set at the end, so that no thread is left behind."""
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
        with found._lock:
            go_on.wait(WAIT)

    return function


def counts(summary: worker.WorkSummary) -> dict[str, int]:
    return {name: value for name, value in vars(summary).items() if name != "reasons" and value}
