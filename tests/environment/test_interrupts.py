"""Ctrl-C between any two steps: the space goes on, nothing is half done, lost or doubled, nothing stays locked."""

import dis
import itertools
import linecache
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import spool
import xa
from spool.intake import Intake
from spool.runtime import call_guard
from spool.runtime.context import associated
from spool.workers.outcome import Replied
from tests import door
from tests.at_once import AT_ONCE
from tests.environment.pressed import NEW, OLD, PressedDisk, descriptors, expect_whole, furnish, opened, telling
from tests.forwarder.rounds import forward
from tests.simdisk import few_claim_files
from tests.strides import Stride
from xa.codes import TMONEPHASE

ENGINE = (str(Path(spool.__file__).parent), str(Path(xa.__file__).parent))
XID = xa.Xid(7, b"global", b"branch")
NOP = dis.opmap["NOP"]


@pytest.fixture(autouse=True)
def _the_usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
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


# -- the interrupted calls --------------------------------------------------------------------------------------------


def put(space: spool.Space) -> None:
    space.put_many("orders", NEW)


def get(space: spool.Space) -> None:
    space.get_many("orders", 2)


def transaction(space: spool.Space) -> None:
    with space.transaction() as tx:
        tx.get("orders")
        tx.put_many("orders", NEW)


def rollback(space: spool.Space) -> None:
    with space.transaction() as tx:
        tx.get("orders")
        tx.put_many("orders", NEW)
        tx.set_rollback_only()


def look(space: spool.Space) -> None:
    found = list(space.browse("orders"))
    space.show(found[0].id)
    space.stats()
    space.check()


def create_queue(space: spool.Space) -> None:
    if "more" not in space.queues():
        space.create_queue("more")


@contextmanager
def transaction_manager(space: spool.Space) -> Iterator[xa.ResourceManager]:
    """A transaction manager with the work of a branch. It rolls back an interrupted branch, as all managers do."""
    rm = xa.ResourceManager(space)
    try:
        rm.start(XID)
        space.get("orders")
        space.put_many("orders", NEW)
        rm.end(XID)
        yield rm
    except BaseException:
        for call in (rm.end, rm.rollback):
            with suppress(xa.XAError):
                call(XID)
        raise


def prepare(space: spool.Space) -> None:
    with transaction_manager(space) as rm:
        rm.prepare(XID)


def two_phases(space: spool.Space) -> None:
    with transaction_manager(space) as rm:
        rm.prepare(XID)
        rm.commit(XID)


def one_phase(space: spool.Space) -> None:
    with transaction_manager(space) as rm:
        rm.commit(XID, TMONEPHASE)


def undo_a_vote(space: spool.Space) -> None:
    with transaction_manager(space) as rm:
        rm.prepare(XID)
        rm.rollback(XID)


def decide_by_hand(space: spool.Space) -> None:
    with transaction_manager(space) as rm:
        rm.prepare(XID)
        rm.recover()
        rm.decide_heuristically(XID, commit=True)
        rm.forget(XID)


def take_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def forward_a_round(space: spool.Space) -> None:
    """Forward a round with tasks in this process, each with a separate disk."""
    forward(space, lambda request: Replied(b"", "text/plain", None), queue="orders")


def remove(space: spool.Space) -> None:
    with door.store(space).guard:
        door.reclaim(space)


@dataclass(frozen=True)
class History:
    """The interrupted calls, and the states that an interrupt may leave: all of the calls happened, or none did."""

    run: Callable[[spool.Space], None]
    after: tuple[str, ...] = tuple(OLD)
    consumed: int = 1

    @property
    def allowed(self) -> list[list[str]]:
        return [OLD, list(self.after)]


MOVED = (*OLD[1:], *NEW)
HISTORIES = [
    History(put, (*OLD, *NEW)), History(get, (OLD[2],)), History(transaction, MOVED), History(rollback),
    History(look), History(create_queue), History(prepare), History(two_phases, MOVED), History(one_phase, MOVED),
    History(undo_a_vote), History(decide_by_hand, MOVED), History(take_in), History(forward_a_round, ()),
    History(remove, consumed=4),
]  # fmt: skip


def calls_of(history: History, path: Path) -> list[str]:
    furnish(path, history.consumed)
    space, disk = opened(path)
    with space:
        disk.arm(0)
        history.run(space)
        return disk.calls.copy()


def interrupted(history: History, path: Path, n: int, press: Callable[[], None] | None = None) -> tuple[bool, bool]:
    """Press at the n-th call of the disk. Returns (the call was there, KeyboardInterrupt came out)."""
    space, disk = opened(path)
    if press is not None:
        disk.press = press
    disk.arm(n)
    came = False
    try:
        history.run(space)
    except KeyboardInterrupt:
        came = True
    pressed = not disk.is_armed
    disk.disarm()
    if press is None:
        assert not door.store(space).closed, "one signal tears no step"
    elif door.store(space).closed:
        with pytest.raises(spool.NotOpen, match="open the space again"):
            space.put("orders", "x")
        space, _ = opened(path)
    expect_whole(path, space, *history.allowed)
    return pressed, came


@pytest.mark.every(4)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.run.__name__)
def test_an_interrupt_at_each_call_of_the_disk_leaves_a_whole_space(
    history: History, memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    step = stride(5)
    *calls, after_the_last = telling(calls_of(history, memory / "calls"), all_=step == 1)
    calls = [*calls[::step], after_the_last]
    before = descriptors(collect=True)
    for n in calls:
        path = memory / str(n)
        furnish(path, history.consumed)
        pressed, came = interrupted(history, path, n)
        assert pressed == came, "every signal comes through"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert descriptors() == before
    assert not pressed, "that was the last one"
    record_property("interrupts at a call of the disk", len(calls) - 1)


def once() -> None:
    signal.raise_signal(signal.SIGINT)


def twice() -> None:
    once()
    once()


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


def test_an_interrupted_get_releases_its_message_until_its_commit_begins(memory: Path) -> None:
    """Otherwise the message would be lost, because no caller got it."""
    calls = calls_of(History(get), memory / "calls")
    read = max(n for n, call in enumerate(calls, 1) if call.startswith("open committed/"))
    for n in range(1, read + 1):
        path = memory / str(n)
        furnish(path)
        assert interrupted(History(get), path, n) == (True, True)


def test_a_transaction_that_is_entered_or_left_stays_nobodys(memory: Path) -> None:
    """The signal comes at each line of entering and leaving the transaction; the next put is a separate commit."""
    for at in itertools.count(1):
        path = memory / str(at)
        furnish(path)
        space, _ = opened(path)
        lines, usual = (
            Lines(at, only=("__enter__", "associate", "enter", "leave", "dissociate", "_reset", "_undo")),
            sys.gettrace(),
        )
        try:
            transaction = space.transaction()
            sys.settrace(lines)
            with transaction:
                sys.settrace(usual)
                space.put_many("orders", NEW)
                sys.settrace(lines)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(usual)
        assert associated(door.store(space)) is None
        expect_whole(path, space, OLD, [*OLD, *NEW])
        if lines.seen < at:
            break
    assert at > 3


@pytest.mark.every(4, first=2)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.run.__name__)
def test_two_at_once_are_like_the_death_of_the_process(
    history: History, memory: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """The second one is not held back: the space closes itself, and opening it again recovers it."""
    long = request.config.getoption("--long")
    calls = list(telling(calls_of(history, memory / "calls"), all_=long))[:: 2 if long else 17]
    before = descriptors(collect=True)
    for n in calls:
        path = memory / str(n)
        furnish(path, history.consumed)
        pressed, came = interrupted(history, path, n, twice)
        assert pressed == came
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert descriptors() == before
    record_property("second interrupts at a call of the disk", len(calls))


# -- opening and closing ----------------------------------------------------------------------------------------------


def open_and_close(path: Path, disk: PressedDisk) -> None:
    spool.open(disk).close()


def create_and_close(path: Path, disk: PressedDisk) -> None:
    if (path / "space.toml").exists():
        spool.open(disk).close()
    else:
        spool.create(disk, defaults=AT_ONCE).close()


@pytest.mark.parametrize("press", [once, pytest.param(twice, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [open_and_close, create_and_close], ids=["open", "create"])
def test_an_interrupt_while_a_space_is_opened_or_closed_leaves_a_whole_space(
    way: Callable[[Path, PressedDisk], None],
    press: Callable[[], None],
    memory: Path,
    stride: Stride,
    record_property: Callable[[str, object], None],
) -> None:
    """The signal comes at each call with --long, and at some calls without."""
    step = stride(13)
    before = descriptors(collect=True)
    for n in itertools.count(1, step):
        path = memory / str(n)
        if way is open_and_close:
            furnish(path, 2)
        else:
            path.mkdir()
        disk = PressedDisk(str(path), press)
        disk.arm(n)
        came = False
        try:
            way(path, disk)
        except KeyboardInterrupt:
            came = True
        assert descriptors() == before
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert came != disk.is_armed
        disk.disarm()
        again = PressedDisk(str(path))
        create_and_close(path, again)
        space = spool.open(PressedDisk(str(path)))
        assert space.recovery.alone, "nobody is left who has it open"
        if way is open_and_close:
            expect_whole(path, space, OLD)
        else:
            space.create_queue("orders")
            assert space.check() == []
            space.close()
        if not came:
            break
    record_property("interrupts at a call of opening and closing", n // step)


@pytest.mark.parametrize("press", [once, pytest.param(twice, marks=pytest.mark.slow)])
def test_a_space_that_was_to_be_closed_is_closed_at_whichever_line_it_came(
    press: Callable[[], None], memory: Path, stride: Stride
) -> None:
    furnish(memory / "space")
    before = descriptors(collect=True)
    for at in itertools.count(2, stride(5)):  # the first is outside
        space, _ = opened(memory / "space")
        lines, usual = Lines(at, press=press), sys.gettrace()
        try:
            sys.settrace(lines)
            space.close()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(usual)
        assert descriptors() == before, at
        if lines.seen < at:
            break
    assert at > 20


def test_a_transaction_that_was_open_keeps_no_descriptor(memory: Path) -> None:
    """A close of the space closes the claim journal and the file of an open transaction, however the transaction
    ends."""
    furnish(memory / "space")
    before = descriptors(collect=True)
    space, _ = opened(memory / "space")
    with pytest.raises(spool.NotOpen), space.transaction() as transaction:
        transaction.get("orders")
        transaction.put_many("orders", ["x" * 1000] * 70_000)  # so many stream to the disk
        space.close()
        assert descriptors() == before
        transaction.put("orders", "too late")
    again, _ = opened(memory / "space")
    expect_whole(memory / "space", again, OLD)


# -- between two lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [*HISTORIES[:4], *HISTORIES[6:8]], ids=lambda history: history.run.__name__)
def test_an_interrupt_at_each_line_of_the_engine_leaves_a_whole_space(
    history: History, memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    """The signal comes at each line with --long, and at one line in 311 without."""
    step = stride(311)
    for at in itertools.count(1, step):
        path = memory / str(at)
        furnish(path, history.consumed)
        space, _ = opened(path)
        lines, usual = Lines(at), sys.gettrace()
        sys.settrace(lines)
        try:
            history.run(space)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(usual)
        assert not door.store(space).closed
        expect_whole(path, space, *history.allowed)
        if lines.seen < at:
            break
    record_property("interrupts at a line of the engine", at // step)
