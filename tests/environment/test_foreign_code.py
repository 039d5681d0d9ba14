"""Code that Python runs in the middle of a call: exceptions from outside, calls by finalizers, handlers of signals.

Each test plants the code at lines of the engine, one line after another. Afterwards no lock is left, no call hangs,
each message is whole, and the space goes on or closes itself with a reason.
"""

import ctypes
import gc
import itertools
import logging
import os
import shutil
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import opentelemetry.trace  # noqa: F401  (so that the methods with spans are under test, too)
import pytest

import spool
import xa
from spool.runtime import call_guard
from tests import alarms, door
from tests.environment import pressed
from tests.environment.test_interrupts import Lines, lines_of, traced
from tests.histories.contents import AFTER
from tests.histories.history import Expectation, History, Unmet
from tests.histories.messages import THREE
from tests.histories.table import BY_NAME
from tests.housekeepers import end_housekeeping
from tests.simdisk import few_claim_files
from tests.strides import Stride

PATIENT_SECONDS = 30


class TimeLimit(Exception):
    """As Celery's, rq's and pytest-timeout's: no error of the engine, and ``except Exception`` catches it."""


class Shutdown(BaseException):
    """As Dramatiq's."""


@pytest.fixture(autouse=True)
def _few_claim_files() -> Iterator[None]:
    with few_claim_files():
        yield


def in_main_thread(function: Callable[[], None]) -> None:
    function()


def in_another_thread(function: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENT_SECONDS)
    assert not thread.is_alive(), "the call hangs"
    try:
        for error in raised:
            raise error
    finally:
        raised.clear()  # (otherwise the error would refer to itself through this frame)


def raising(kind: type[BaseException]) -> Callable[[], None]:
    def plant() -> None:
        raise kind("planted")

    return plant


def locks() -> list[str]:
    """Return the descriptors of this process that hold a lock. (An exception after ``open`` may leave one that holds
    none.)"""
    found = []
    for name in os.listdir("/proc/self/fdinfo"):
        with suppress(FileNotFoundError):
            if "lock:" in Path("/proc/self/fdinfo", name).read_text():
                found.append(name)
    return found


def run_traced(lines: Lines, history: History, space: spool.Space, expected: Expectation) -> None:
    with traced(lines):
        history.run(space, expected)


KINDS = [TimeLimit, Shutdown, MemoryError, TimeoutError, RecursionError]
WHERE = [in_main_thread, in_another_thread]
PLANTED = [*zip(pressed.HISTORIES, itertools.cycle(KINDS), itertools.cycle(WHERE))]


@pytest.mark.timeout(1800)  # (with --long, thousands of spaces)
@pytest.mark.every(13, first=3)
@pytest.mark.parametrize(("history", "kind", "where"), PLANTED, ids=[*map(str, pressed.HISTORIES)])
def test_x18_an_exception_at_each_line_leaves_no_lock_and_no_half_message(
    history: History,
    kind: type[BaseException],
    where: Callable[[Callable[[], None]], None],
    memory: Path,
    stride: Stride,
    quiet: None,
    record_property: Callable[[str, object], None],
) -> None:
    """The exception comes at each line with --long, and at a few lines without."""
    places, torn = pressed.some_of(lines_of(history, memory / "lines"), few=5, stride=stride), 0
    before = locks()
    for at in places:
        path, expected = memory / str(at), pressed.Interrupted(history.begin)
        pressed.begin(path, history)
        space, _ = pressed.opened(path)
        lines = Lines(at, press=raising(kind))
        with suppress(kind, spool.SpoolError, xa.XAError, Unmet):
            where(partial(run_traced, lines, history, space, expected))
        lines._last.clear()  # (it refers to frames, and so to descriptors)
        if door.store(space).closed:
            torn += 1
            with pytest.raises(spool.NotOpen, match="open the space again"):
                space.put(AFTER, "x")
            in_another_thread(space.close)
            space, _ = pressed.opened(path)
        in_another_thread(partial(pressed.expect_whole, path, space, expected.after_kill, history))
        assert locks() == before, at
        shutil.rmtree(path)
    record_property("interrupts by an exception at a line", len(places))
    record_property("interrupts that closed the space", torn)


@pytest.mark.parametrize("history", [BY_NAME["transaction"], BY_NAME["one phase"]], ids=str)
def test_x18_an_exception_just_after_a_lock_is_taken_makes_no_call_of_its_thread_wait_for_that_lock(
    history: History, memory: Path, quiet: None, stride: Stride, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception comes at each line of the functions that take locks and turns, or at some of these lines."""
    for at in itertools.count(1, stride(5)):
        path, waits = memory / str(at), []
        pressed.begin(path, history)
        space, _ = pressed.opened(path)
        monkeypatch.setattr(door.clock(space), "wait", lambda woken, seconds, waits=waits: waits.append(seconds))
        lines = Lines(at, only=("try_lock", "name", "call"), press=raising(TimeoutError))
        with suppress(TimeoutError, spool.SpoolError, xa.XAError, Unmet):
            in_another_thread(partial(run_traced, lines, history, space, Expectation(history.begin)))
        assert waits == [], at
        in_another_thread(space.close)
        if lines.seen < at:
            break
    assert at > 40


@pytest.mark.timeout(1800)  # (with --long, hundreds of spaces)
@pytest.mark.every(13, first=4)
@pressed.EACH_HISTORY
def test_x18_an_exception_of_another_thread_after_each_call_of_the_system_stops_no_other_process(
    history: History, memory: Path, quiet: None, stride: Stride
) -> None:
    """A thread is in a call of the system most of the time, so an exception that another thread raises mostly comes
    just after such a call. ``TimeoutError`` is an OSError, but no failure of the disk."""
    for at in itertools.count(1, stride(29)):
        path, left, expected = memory / str(at), [at], pressed.Interrupted(history.begin)
        pressed.begin(path, history)
        space = spool.open(path)  # (on a disk that flushes)
        with spool.open(path) as other:

            def watch(frame: Any, event: str, argument: object, left: list[int] = left) -> None:
                if event == "c_return" and frame.f_globals["__name__"].startswith("spool.disk."):
                    left[0] -= 1
                    if left[0] == 0:
                        raise TimeoutError("planted")

            def run(space: spool.Space = space, watch: Any = watch, expected: Expectation = expected) -> None:
                sys.setprofile(watch)
                try:
                    history.run(space, expected)
                finally:
                    sys.setprofile(None)

            with suppress(TimeoutError, spool.SpoolError, xa.XAError, Unmet):
                in_another_thread(run)
            in_another_thread(space.close)
            other.create_queue("others")
            assert other.get("others", message_id=other.put("others", "goes on")).body == "goes on"
        pressed.expect_whole(path, pressed.opened(path)[0], expected.after_kill, history)
        shutil.rmtree(path)
        if left[0] > 0:
            break
    assert at > 20


# -- calls in the middle of a call ------------------------------------------------------------------------------------


def call_put(space: spool.Space) -> None:
    with pytest.raises(spool.ProtocolError, match="use submit there"):
        space.put("orders", "no")


def call_get(space: spool.Space) -> None:
    with pytest.raises(spool.ProtocolError, match="use submit there"):
        space.get("orders")


def call_commit(space: spool.Space) -> None:
    with pytest.raises(spool.ProtocolError), space.transaction() as tx:
        tx.put("orders", "no")


def put_one(space: spool.Space) -> None:
    space.put("orders", "new")


def get_one(space: spool.Space) -> None:
    space.get("orders")


def commit_two(space: spool.Space) -> None:
    with space.transaction() as tx:
        tx.get("orders")
        tx.put("orders", "new")


STEPS = [put_one, get_one, commit_two]


def lines_of_step(step: Callable[[spool.Space], None], space: spool.Space) -> int:
    for _ in range(3):  # (so that later steps take the usual ways)
        step(space)
    lines = Lines(0)
    with traced(lines):
        step(space)
    return lines.seen


@pytest.fixture
def stocked(memory: Path, stride: Stride) -> Iterator[spool.Space]:
    gc.collect()  # (Python ignores the exception of a handler that comes while a space of another test is collected)
    with spool.create(memory / "space") as space:
        space.create_queue("orders")
        space.create_queue("late")
        space.put_many("orders", [b"old"] * (4000 // stride(10)))
        end_housekeeping(space)
        yield space


@pytest.mark.every(5)
@pytest.mark.parametrize("where", [in_main_thread, in_another_thread])
@pytest.mark.parametrize("call", [call_put, call_get, call_commit])
@pytest.mark.parametrize("step", STEPS)
def test_x18_a_call_by_a_finalizer_at_each_line_is_refused_at_once(
    step: Callable[[spool.Space], None],
    call: Callable[[spool.Space], None],
    where: Callable[[Callable[[], None]], None],
    stocked: spool.Space,
    stride: Stride,
    record_property: Callable[[str, object], None],
) -> None:
    refused: list[int] = []

    def plant() -> None:
        if call_guard.get_ident() in call_guard._busy:  # (else the line is before or after the call)
            call(stocked)
            refused.append(1)

    lines, space = lines_of_step(step, stocked), stocked
    for at in range(1, lines + 1, stride(58)):

        def run(at: int = at) -> None:
            with traced(Lines(at, press=plant)):
                step(space)

        where(run)
    assert len(refused) > lines // stride(58) // 2
    assert not door.store(space).closed
    assert space.check() == []
    record_property("interrupts by a call at a line", len(refused))


def test_x18_a_message_submitted_by_a_finalizer_at_each_line_is_put_when_the_call_has_ended(
    stocked: spool.Space, stride: Stride
) -> None:
    """Where a block is left whose transaction has just ended, the message is refused."""
    futures, refused = [], 0

    def plant() -> None:
        nonlocal refused
        try:
            futures.append(stocked.submit("late", len(futures)))
        except spool.ProtocolError:
            refused += 1

    for step in STEPS:
        for at in range(1, lines_of_step(step, stocked) + 1, stride(58)):
            with traced(Lines(at, press=plant)):
                step(stocked)
    ids = [future.result(PATIENT_SECONDS) for future in futures]
    assert len(ids) > 10
    assert refused < 10
    assert [message.id for message in stocked.browse("late")] == ids
    assert [message.body for message in stocked.browse("late")] == list(range(len(ids)))


def test_x18_an_option_that_a_finalizers_submit_may_not_have_fails_its_future(stocked: spool.Space) -> None:
    futures = []
    plant = lambda: futures.append(stocked.submit("missing", "x"))  # noqa: E731
    with traced(Lines(30, press=plant)):
        stocked.put("orders", "new")
    with pytest.raises(spool.QueueNotFound):
        futures[0].result(PATIENT_SECONDS)


def test_x18_a_space_closed_by_a_finalizer_is_closed_when_the_call_has_ended(memory: Path, stride: Stride) -> None:
    before = locks()
    for at in itertools.count(1, 40 * stride(3)):
        path = memory / str(at)
        pressed.begin(path)
        space, _ = pressed.opened(path)
        lines = Lines(at, press=space.close)
        with traced(lines), suppress(spool.NotOpen):  # (it was closed before the call began)
            space.put_many("a", pressed.NEW)
        lines._last.clear()
        if lines.seen < at:
            space.close()
        assert locks() == before
        pressed.expect_whole(path, pressed.opened(path)[0], [pressed.WITH_NEW, *([THREE] if at == 1 else [])])
        if lines.seen < at:
            break
    assert at > 200


class Putting:
    """An object that puts a message when it is collected."""

    def __init__(self, space: spool.Space, said: list[str]) -> None:
        self.space, self.said = space, said
        self.myself = self  # so that only the garbage collector frees it

    def __del__(self) -> None:
        try:
            self.space.put("late", "x", transaction=None)
            self.said.append("put")
        except spool.ProtocolError:
            self.said.append("refused")


def test_x18_objects_that_put_messages_when_collected_hang_nothing(stocked: spool.Space, stride: Stride) -> None:
    said: list[str] = []
    count = 200 // stride(4)
    threshold = gc.get_threshold()
    gc.set_threshold(20, 1, 1)
    try:
        for n in range(count):
            Putting(stocked, said)
            weakref.finalize(Putting(stocked, said), stocked.submit, "late", n)
            in_another_thread(lambda: stocked.put("orders", "new"))
    finally:
        gc.set_threshold(*threshold)
        gc.collect()
    assert len(said) == 2 * count
    assert stocked.stats("late").ready + door.waiting(stocked) >= said.count("put")
    assert stocked.check() == []


class PutsRecords(logging.Handler):
    """A handler that puts each record into a queue: most are refused, because they come from the middle of a call."""

    def __init__(self, space: spool.Space, *, submits: bool) -> None:
        super().__init__()
        self.space, self.submits = space, submits
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            (self.space.submit if self.submits else self.space.put)("late", record.getMessage())
            self.said.append("put")
        except spool.ProtocolError:
            self.said.append("refused")


@pytest.mark.parametrize("submits", [False, True])
def test_x18_a_handler_that_puts_the_librarys_own_records_hangs_nothing(submits: bool, stocked: spool.Space) -> None:
    handler = PutsRecords(stocked, submits=submits)
    log = logging.getLogger("spool")
    log.addHandler(handler)
    try:
        stocked.create_queue("dropping", retries=0)
        stocked.put("dropping", "x")
        with pytest.raises(ZeroDivisionError), stocked.transaction() as tx:
            tx.get("dropping")
            raise ZeroDivisionError
    finally:
        log.removeHandler(handler)
    assert handler.said
    assert set(handler.said) == ({"put"} if submits else {"refused"})
    if submits:
        stocked._drain()
        assert stocked.stats("late").ready == len(handler.said)


def test_x18_a_callback_of_a_future_may_put(stocked: spool.Space) -> None:
    done = threading.Event()
    putting: list[str] = []

    def answer(future: Any) -> None:
        putting.append(stocked.put("late", "answer", transaction=None))
        done.set()

    stocked.submit("orders", "x").add_done_callback(answer)
    assert done.wait(PATIENT_SECONDS)
    with stocked.transaction() as tx:
        done.clear()
        tx.submit("orders", "x").add_done_callback(answer)
    assert done.wait(PATIENT_SECONDS)
    assert stocked.stats("late").ready == 2


# -- handlers of signals ----------------------------------------------------------------------------------------------


@contextmanager
def handled(handler: Callable[..., Any], number: int = signal.SIGUSR1) -> Iterator[None]:
    usual = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, usual)


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGTERM, put_one), (signal.SIGALRM, get_one), (signal.SIGHUP, commit_two)]
)
def test_x18_a_handler_that_raises_is_called_after_the_call(
    step: Callable[[spool.Space], None],
    number: int,
    stocked: spool.Space,
    stride: Stride,
    record_property: Callable[[str, object], None],
) -> None:
    presses = came = 0

    def press() -> None:
        nonlocal presses
        presses += 1
        signal.raise_signal(number)

    def handler(number: int, frame: object) -> None:
        assert call_guard.get_ident() not in call_guard._busy
        raise TimeLimit

    lines = lines_of_step(step, stocked)
    for at in range(1, lines + 1, stride(58)):
        with handled(handler, number):
            try:
                with traced(Lines(at, press=press)):  # (a step that takes fewer lines than the measured one ends first)
                    step(stocked)
            except TimeLimit:
                came += 1
        assert not door.store(stocked).closed
    assert came == presses > lines // stride(58) // 2
    assert stocked.check() == []
    record_property("interrupts by a handler of a signal at a line", came)


def test_x18_a_handler_that_puts_a_last_message_puts_it_after_the_call(stocked: spool.Space, stride: Stride) -> None:
    put: list[str] = []
    with handled(lambda *_: put.append(stocked.put("late", "last", transaction=None))):
        presses: list[int] = []

        def press() -> None:
            presses.append(1)
            signal.raise_signal(signal.SIGUSR1)

        for step in STEPS:
            for at in range(1, lines_of_step(step, stocked) + 1, stride(58)):
                with traced(Lines(at, press=press)):
                    step(stocked)
    assert len(put) == len(presses) > 20
    assert stocked.stats("late").ready == len(presses)


def test_x18_a_handler_that_puts_and_gets_does_so_while_a_get_waits(stocked: spool.Space) -> None:
    """The get waits for messages, and holds nothing meanwhile."""

    def handler(number: int, frame: object) -> None:
        stocked.put("orders", "put by the handler")
        assert stocked.get("orders", timeout=None).body == "put by the handler"
        stocked.put("late", "end")

    stocked.purge("orders")
    with alarms.handled(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert stocked.get("late", timeout=PATIENT_SECONDS).body == "end"
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert stocked.get("late", timeout=PATIENT_SECONDS).body == "end"


def test_x18_a_time_limit_ends_a_get_that_waits_and_the_space_goes_on(stocked: spool.Space) -> None:
    def handler(number: int, frame: object) -> None:
        raise TimeLimit

    with alarms.handled(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeLimit):
            stocked.get("late", timeout=None)
    assert stocked.get("orders").body == b"old"


# -- exceptions that another thread raises ----------------------------------------------------------------------------


def test_x18_an_exception_of_another_thread_ends_a_get_that_waits_and_the_space_goes_on(
    stocked: spool.Space, stride: Stride, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, raised, clock = threading.Event(), [], door.clock(stocked)

    def wait_and_say_so(woken: Callable[[float], bool], seconds: float) -> bool:
        waiting.set()
        return woken(seconds)

    monkeypatch.setattr(clock, "wait", wait_and_say_so, raising=False)

    def wait() -> None:
        try:
            stocked.get("late", timeout=None)
        except TimeLimit as error:
            raised.append(error)

    times = 20 // stride(5)
    for _ in range(times):
        thread = threading.Thread(target=wait)
        waiting.clear()
        thread.start()
        assert waiting.wait(PATIENT_SECONDS)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeLimit))
        thread.join(PATIENT_SECONDS)
        assert not thread.is_alive()
    assert len(raised) == times


@pytest.mark.parametrize("kind", [TimeLimit, Shutdown])
def test_x18_an_exception_of_another_thread_while_a_call_begins_or_ends_hangs_nothing(
    kind: type[BaseException], memory: Path, quiet: None
) -> None:
    """It comes at each place of the mechanism itself where Python lets it in: as a function begins, and after a call of
    a C function."""
    before = locks()
    for at in itertools.count(1):
        path = memory / str(at)
        pressed.begin(path)
        space, _ = pressed.opened(path)
        left = [at]

        def watch(frame: Any, event: str, argument: object, left: list[int] = left) -> None:
            if frame.f_code.co_filename == call_guard.__file__ and event in ("call", "c_return"):
                left[0] -= 1
                if left[0] == 0:
                    raise kind("planted")

        def run(space: spool.Space = space, watch: Any = watch) -> None:
            sys.setprofile(watch)
            try:
                space.put_many("a", pressed.NEW)
            finally:
                sys.setprofile(None)

        states = [THREE, pressed.WITH_NEW]
        with suppress(kind, spool.NotOpen):
            in_another_thread(run)
        if not door.store(space).closed:
            with suppress(spool.NotOpen):
                in_another_thread(lambda space=space: space.put("a", "goes on"))
                states = [state.put("a", "goes on") for state in states]
        in_another_thread(space.close)
        assert not door.store(space).guard._inside
        assert locks() == before, at
        pressed.expect_whole(path, pressed.opened(path)[0], states)
        if left[0] > 0:
            break
    assert at > 5
