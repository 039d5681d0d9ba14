"""A space that is closed while threads are inside it: their calls end first, and no descriptor is used after."""

import itertools
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.coordination.locks import NUMBER
from tests import door
from tests.environment import pressed
from tests.histories.contents import AFTER, Contents
from tests.histories.history import Expectation, History, Unmet
from tests.histories.messages import THREE
from tests.strides import Stride


class WatchedDisk(pressed.PressedDisk):
    """A disk that records the calls that it gets after its files were closed."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.is_closed = False
        self.late: list[str] = []

    def close_all(self) -> None:
        super().close_all()
        self.is_closed = True


def _watched(name: str) -> Callable[..., Any]:
    def call(self: WatchedDisk, *args: Any, **options: Any) -> Any:
        if self.is_closed:
            self.late.append(name)
        return getattr(pressed.PressedDisk, name)(self, *args, **options)

    return call


for _name in pressed.CALLS:
    setattr(WatchedDisk, _name, _watched(_name))


class Waiting(threading.Event):
    """An event that notices the first wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_waited_for.set()
        return super().wait(timeout)


class Inside(threading.Thread):
    """A history in a separate thread, and its error."""

    def __init__(self, run: Callable[[spool.Space, Expectation], object], space: spool.Space, begin: Contents = THREE):
        super().__init__()
        self.expected = pressed.Interrupted(begin)
        self.error: BaseException | None = None
        self.arrived = threading.Event()  # where it is held, or at its end
        self._run, self._space = run, space

    def run(self) -> None:
        try:
            self._run(self._space, self.expected)
        except BaseException as error:
            self.error = error
        finally:
            self.arrived.set()


def hold(arrived: threading.Event, go_on: threading.Event) -> None:
    arrived.set()
    assert go_on.wait(60)


@pytest.mark.every(13, first=1)
@pressed.EACH_HISTORY
def test_closing_waits_for_a_call_wherever_it_is(
    history: History, memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    calls = pressed.some_of(len(pressed.calls_of(history, memory / "calls")), few=3, stride=stride)
    before = pressed.descriptors(collect=True)
    for n in calls:
        path = memory / str(n)
        pressed.begin(path, history)
        disk = WatchedDisk(str(path))
        space = spool.open(disk)
        door.store(space).guard._is_shut = waiting = Waiting()
        inside, go_on = Inside(history.run, space, history.begin), threading.Event()
        disk.press = partial(hold, inside.arrived, go_on)
        disk.arm(n)
        inside.start()
        assert inside.arrived.wait(60)
        is_held = not disk.is_armed
        disk.disarm()
        closer = threading.Thread(target=space.close)
        closer.start()
        if is_held:
            waiting.is_waited_for.wait(1)  # (the close may wait for a mutex of the call instead)
            assert not disk.is_closed or history.by_task  # (the task has a separate opening)
        go_on.set()
        inside.join(60)
        closer.join(60)
        errors = spool.NotOpen | spool.TransactionRolledBack | Unmet | None  # (the close does the housekeeping, too)
        assert isinstance(inside.error, errors) or "space is closed" in str(inside.error), inside.error
        assert disk.is_closed
        assert disk.late == [] or history.by_task
        assert pressed.descriptors() == before
        with pytest.raises(spool.NotOpen):
            space.put(AFTER, "too late")
        pressed.expect_whole(path, pressed.opened(path)[0], inside.expected.after_kill, history)
        shutil.rmtree(path)
    record_property("closings at a call of the disk", len(calls))


@pytest.mark.every(5)
@pytest.mark.parametrize("round_", range(5))
def test_a_close_ends_many_threads_and_keeps_their_acknowledged_puts(
    memory: Path, pool: ThreadPoolExecutor, round_: int
) -> None:
    pressed.begin(memory / "space")
    before = pressed.descriptors(collect=True)
    disk = WatchedDisk(str(memory / "space"))
    space = spool.open(disk)
    space.create_queue("empty")
    put: list[str] = []
    started = threading.Semaphore(0)

    def put_many(name: str) -> None:
        with suppress(spool.NotOpen):
            for n in itertools.count():
                space.put("a", f"{name} {n}")
                put.append(f"{name} {n}")
                started.release()

    def wait_for_a_message() -> None:
        started.release()
        with suppress(spool.NotOpen):
            space.get("empty", timeout=None)

    calls = [*(pool.submit(put_many, name) for name in "abc"), pool.submit(wait_for_a_message)]
    for _ in range(10 + 7 * round_):
        assert started.acquire(timeout=60)
    calls += [pool.submit(space.close) for _ in range(2)]
    for call in calls:
        call.result(60)
    assert disk.late == []
    assert pressed.descriptors() == before
    with spool.open(memory / "space") as again:
        assert again.recovery.alone
        found = {str(message.body) for message in again.browse("a")}
        assert set(put) <= found, "acknowledged"
        assert again.check() == []


def test_a_close_from_inside_a_call_does_not_wait_for_that_call(memory: Path) -> None:
    """A handler of SIGTERM that interrupts a put closes the space like this."""
    pressed.begin(memory / "space")
    before = pressed.descriptors(collect=True)
    disk = WatchedDisk(str(memory / "space"))
    space = spool.open(disk)
    usual = signal.signal(signal.SIGTERM, lambda *_: space.close())
    disk.press = lambda: signal.raise_signal(signal.SIGTERM)
    disk.arm(10)
    try:
        with suppress(spool.NotOpen):
            space.put_many("a", pressed.NEW)
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert disk.late == []
    assert pressed.descriptors() == before
    pressed.expect_whole(memory / "space", spool.open(memory / "space"), [THREE, pressed.WITH_NEW])


def test_a_commit_that_has_its_number_is_finished(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit waits for an earlier number, but its caller does not get CommitUnknown because the space is closed
    meanwhile."""
    monkeypatch.setattr("spool.log.write_set.SECTION_BYTES", 1)  # the second streams: it has a file of its own
    pressed.begin(memory / "space")
    disk = WatchedDisk(str(memory / "space"))
    space = spool.open(disk)
    door.store(space).guard._is_shut = waiting = Waiting()
    first = Inside(lambda space, _: space.put("a", pressed.NEW[0]), space)
    second = Inside(lambda space, _: space.put_many("a", [pressed.NEW[1], "more"]), space)
    go_on, tries = threading.Event(), threading.Semaphore(0)

    def look() -> None:
        if threading.current_thread() is first and disk.calls[-1] == "make_durable ":
            hold(first.arrived, go_on)
        elif threading.current_thread() is second and disk.calls[-1] == "make_durable ":
            second.arrived.set()

    numbers = door.store(space).shared.numbers
    try_lock = numbers.try_lock

    def tried(byte: int, *, shared: bool = False) -> bool:
        if threading.current_thread() is second and second.arrived.is_set():
            tries.release()
        return try_lock(byte, shared=shared)

    monkeypatch.setattr(numbers, "try_lock", tried)
    disk.press, disk.every = look, True
    first.start()
    assert first.arrived.wait(60)
    second.start()
    assert second.arrived.wait(60)
    closer = threading.Thread(target=space.close)
    closer.start()
    assert waiting.is_waited_for.wait(60)
    for _ in range(20):
        assert tries.acquire(timeout=60)
    go_on.set()
    for thread in (first, second, closer):
        thread.join(60)
    assert (first.error, second.error, disk.late) == (None, None, [])
    pressed.expect_whole(memory / "space", spool.open(memory / "space"), [pressed.WITH_NEW.put("a", "more")])


def test_a_put_that_waits_for_a_lock_raises_at_once_when_the_space_is_closed(memory: Path) -> None:
    pressed.begin(memory / "space")
    disk = WatchedDisk(str(memory / "space"))
    space = spool.open(disk)
    with spool.open(memory / "space") as other:
        assert door.store(other).shared.control.try_lock(NUMBER)
        waits = threading.Event()

        def look() -> None:
            if disk.calls.count("lock ") > 10:
                waits.set()

        disk.press, disk.every = look, True
        inside = Inside(lambda space, _: space.put_many("a", pressed.NEW), space)
        inside.start()
        assert waits.wait(60)
        space.close()
        inside.join(60)
        assert isinstance(inside.error, spool.NotOpen), "and not a timeout, half a minute later"
        assert disk.late == []
        door.store(other).shared.control.unlock(NUMBER)
    pressed.expect_whole(memory / "space", spool.open(memory / "space"), [THREE])
