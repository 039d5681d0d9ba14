"""Ctrl-C between any two steps: the space goes on, nothing is half done, lost or doubled, nothing stays locked."""

import dis
import itertools
import linecache
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

import spool
import xa
from spool.coordination.locks import coordinator_byte
from spool.disk import Disk
from spool.model.xid import FORMAT_ROUND
from spool.remote.remote_branch import RemoteBranch
from spool.runtime import call_guard
from spool.runtime.context import associated
from tests import door
from tests.at_once import AT_ONCE
from tests.environment import pressed
from tests.histories.contents import AFTER
from tests.histories.history import Expectation, History
from tests.histories.messages import THREE
from tests.simdisk import few_claim_files
from tests.strides import Stride

ENGINE = (str(Path(spool.__file__).parent), str(Path(xa.__file__).parent))
NOP = dis.opmap["NOP"]


@pytest.fixture(autouse=True)
def _the_usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert call_guard._deferral.depth == 0
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.fixture(autouse=True)
def _few_claim_files() -> Iterator[None]:
    with few_claim_files():
        yield


@pytest.fixture(autouse=True)
def _same_consumed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process and its tasks try the same consumed file first, so each run makes the same calls."""
    monkeypatch.setattr("spool.disk.recycler._chance", lambda: 0)


def once() -> None:
    signal.raise_signal(signal.SIGINT)


def twice() -> None:
    once()
    once()


def noted() -> None:
    """Send a signal whose handler raises nothing."""
    signal.raise_signal(signal.SIGUSR1)


def interrupted(history: History, path: Path, n: int, press: Callable[[], None] = once) -> bool:
    """Press at the n-th call of the disk. Return whether the history had the call."""
    space, disk = pressed.opened(path)
    disk.press = press
    disk.arm(n)
    came, expected = False, pressed.Interrupted(history.begin)
    try:
        history.run(space, expected)
    except KeyboardInterrupt:
        came = True
    except (spool.SpoolError, xa.XAError) as error:  # (of the history, when it releases the rest)
        came = press is twice and "KeyboardInterrupt" in "".join(traceback.format_exception(error))
        assert came
    was_pressed = not disk.is_armed
    assert came == (was_pressed and press is not noted), "every signal comes through"
    disk.disarm()
    if press is twice and door.store(space).closed:
        with pytest.raises(spool.NotOpen, match="open the space again"):
            space.put(AFTER, "x")
        space, _ = pressed.opened(path)
    assert not door.store(space).closed, "one signal tears no step"
    pressed.expect_whole(path, space, expected.after_kill, history)
    return was_pressed


@pytest.mark.every(13)
@pressed.EACH_HISTORY
@pytest.mark.parametrize("press", [once, noted, twice])
def test_a_signal_at_each_call_of_the_disk_leaves_a_whole_space(
    history: History,
    press: Callable[[], None],
    memory: Path,
    stride: Stride,
    record_property: Callable[[str, object], None],
) -> None:
    """A second Ctrl-C is not held back: the space closes itself like a process that dies, and is recovered."""
    places = pressed.some_of(len(pressed.calls_of(history, memory / "calls")), few=5, stride=stride)
    before = pressed.descriptors(collect=True)
    for n in places:
        path = memory / str(n)
        pressed.begin(path, history)
        was_pressed = interrupted(history, path, n, press)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert pressed.descriptors() == before
        shutil.rmtree(path)
    assert not was_pressed, "that was the last one"
    record_property("interrupts at a call of the disk", len(places) - 1)


class Lines:
    """Counts the lines of the engine that run, and presses Ctrl-C at one of them."""

    def __init__(self, at: int, only: tuple[str, ...] = (), press: Callable[[], None] = once) -> None:
        self.at = at
        self.press = press
        self.seen = 0
        self._only = only
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(ENGINE) or name.endswith(("call_guard.py", "async_exceptions.py")):
            return None
        return self.line if not self._only or frame.f_code.co_name in self._only else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        left = text.startswith("with ") and frame.f_lineno < self._last.get(frame, 0)
        left |= frame.f_code.co_name == "__exit__" and frame not in self._last
        left |= frame.f_code.co_code[frame.f_lasti] == NOP  # (e.g. at ``try:``, which is in no block yet)
        self._last[frame] = frame.f_lineno
        if event == "line" and not left:  # (from the end of a body to the first call of its __exit__ nothing is ours)
            self.seen += 1
            if self.seen == self.at:
                self.press()
        return self.line


@contextmanager
def traced(lines: Lines) -> Iterator[None]:
    usual = sys.gettrace()
    sys.settrace(lines)
    try:
        yield
    finally:
        sys.settrace(usual)


def test_an_interrupted_get_releases_its_message_until_its_commit_begins(memory: Path) -> None:
    """Otherwise the message would be lost, because no caller got it."""
    get = replace(pressed.PLAIN, run=lambda space, _: space.get("a"))
    calls = pressed.calls_of(get, memory / "calls")
    read = max(n for n, call in enumerate(calls, 1) if call.startswith("open committed/"))
    for n in range(1, read + 1):
        path = memory / str(n)
        pressed.begin(path)
        assert interrupted(get, path, n)


def test_a_transaction_that_is_entered_or_left_stays_nobodys(memory: Path) -> None:
    """The signal comes at each line of entering and leaving the transaction; the next put is a separate commit."""
    for at in itertools.count(1):
        path = memory / str(at)
        pressed.begin(path)
        space, _ = pressed.opened(path)
        lines = Lines(at, only=("__enter__", "associate", "enter", "leave", "dissociate", "_reset", "_undo"))
        with suppress(KeyboardInterrupt), traced(lines), space.transaction():
            space.put_many("a", pressed.NEW)
        assert associated(door.store(space)) is None
        pressed.expect_whole(path, space, [THREE, pressed.WITH_NEW])
        if lines.seen < at:
            break
    assert at > 3


# -- opening and closing ----------------------------------------------------------------------------------------------


def open_and_close(path: Path, disk: pressed.PressedDisk) -> None:
    spool.open(disk).close()


def create_and_close(path: Path, disk: pressed.PressedDisk) -> None:
    if (path / "space.toml").exists():
        spool.open(disk).close()
    else:
        spool.create(disk, defaults=AT_ONCE).close()


@pytest.mark.parametrize("press", [once, pytest.param(twice, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [open_and_close, create_and_close], ids=["open", "create"])
def test_an_interrupt_while_a_space_is_opened_or_closed_leaves_a_whole_space(
    way: Callable[[Path, pressed.PressedDisk], None],
    press: Callable[[], None],
    memory: Path,
    stride: Stride,
    record_property: Callable[[str, object], None],
) -> None:
    """The signal comes at each call with --long, and at some calls without."""
    step = stride(13)
    before = pressed.descriptors(collect=True)
    for n in itertools.count(1, step):
        path = memory / str(n)
        if way is open_and_close:
            pressed.begin(path)
        else:
            path.mkdir()
        disk = pressed.PressedDisk(str(path), press)
        disk.arm(n)
        came = False
        try:
            way(path, disk)
        except KeyboardInterrupt:
            came = True
        assert pressed.descriptors() == before
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert came != disk.is_armed
        disk.disarm()
        create_and_close(path, pressed.PressedDisk(str(path)))
        space, _ = pressed.opened(path)
        assert space.recovery.alone, "nobody is left who has it open"
        if way is open_and_close:
            pressed.expect_whole(path, space, [THREE])
        else:
            space.create_queue("a")
            assert space.check() == []
            space.close()
        if not came:
            break
    record_property("interrupts at a call of opening and closing", n // step)


@pytest.mark.parametrize("press", [once, pytest.param(twice, marks=pytest.mark.slow)])
def test_a_space_that_was_to_be_closed_is_closed_at_whichever_line_it_came(
    press: Callable[[], None], memory: Path, stride: Stride
) -> None:
    pressed.begin(memory / "space")
    before = pressed.descriptors(collect=True)
    for at in itertools.count(2, stride(5)):  # the first is outside
        space, _ = pressed.opened(memory / "space")
        lines = Lines(at, press=press)
        with suppress(KeyboardInterrupt), traced(lines):
            space.close()
        assert pressed.descriptors() == before, at
        if lines.seen < at:
            break
    assert at > 20


def test_a_transaction_that_was_open_keeps_no_descriptor(memory: Path) -> None:
    """A close of the space closes the claim journal and the file of an open transaction, however the transaction
    ends."""
    pressed.begin(memory / "space")
    before = pressed.descriptors(collect=True)
    space, _ = pressed.opened(memory / "space")
    with pytest.raises(spool.NotOpen), space.transaction() as transaction:
        transaction.get("a")
        transaction.put_many("a", ["x" * 1000] * 70_000)  # so many stream to the disk
        space.close()
        assert pressed.descriptors() == before
        transaction.put("a", "too late")
    again, _ = pressed.opened(memory / "space")
    pressed.expect_whole(memory / "space", again, [THREE])


def test_a_task_s_branch_that_was_to_be_closed_is_closed(memory: Path) -> None:
    pressed.begin(memory / "space")
    close_all = Disk.close_all
    with pressed.opened(memory / "space")[0] as space:
        assert door.store(space).shared.xids.try_lock(coordinator_byte(b"round"))
        before, task = pressed.descriptors(), RemoteBranch(space.path, xa.Xid(FORMAT_ROUND, b"round", b"1"))
        with (
            pytest.raises(KeyboardInterrupt),
            mock.patch.object(Disk, "close_all", lambda disk: (once(), close_all(disk))),
        ):
            task.close()
        left = pressed.descriptors() - before
        close_all(door.disk(task))
    assert not left


# -- between two lines ------------------------------------------------------------------------------------------------


def lines_of(history: History, path: Path) -> int:
    """Return the number of lines of the engine that the history runs."""
    pressed.begin(path, history)
    lines = Lines(0)
    with pressed.opened(path)[0] as space, traced(lines):
        history.run(space, Expectation(history.begin))
    return lines.seen


@pytest.mark.every(13, first=5)
@pressed.EACH_HISTORY
def test_an_interrupt_at_each_line_of_the_engine_leaves_a_whole_space(
    history: History, memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    """The signal comes at each line with --long, and at a few lines without."""
    places = pressed.some_of(lines_of(history, memory / "lines"), few=5, stride=stride)
    for at in places:
        path, expected = memory / str(at), pressed.Interrupted(history.begin)
        pressed.begin(path, history)
        space, _ = pressed.opened(path)
        with suppress(KeyboardInterrupt), traced(Lines(at)):
            history.run(space, expected)
        assert not door.store(space).closed
        pressed.expect_whole(path, space, expected.after_kill, history)
        shutil.rmtree(path)
    record_property("interrupts at a line of the engine", len(places))
