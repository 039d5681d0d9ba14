"""A real disk that calls a function at each of its own calls, and the checks that tests make of the space
afterwards."""

import gc
import inspect
import os
import random
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Unpack

import pytest

import spool
from spool.disk import Disk
from tests.at_once import AT_ONCE
from tests.clocks import MovedClock
from tests.histories.branches import end_branches
from tests.histories.contents import AFTER, QUEUES, Contents, look
from tests.histories.history import Effect, Expectation, History, Options
from tests.histories.messages import THREE
from tests.histories.table import BY_NAME
from tests.strides import Stride

_NO_CALLS = {"path", "close_all", "disown", "boot_id", "network_file_system", "exclusively"}
CALLS = [name for name, found in inspect.getmembers(Disk, inspect.isfunction) if name[0] != "_"]
CALLS = [name for name in CALLS if name not in _NO_CALLS]
_HOUSEKEEPING = "xaspool housekeeping"
_NUMBERS = re.compile(r"[0-9][0-9A-Za-z_.-]*")

NEW = ["new 1", "new 2"]
WITH_NEW = THREE.put("a", *NEW)
PLAIN = BY_NAME["get"]  # it begins with three messages

# The close of a space has tests of its own.
HISTORIES = [history for name, history in BY_NAME.items() if name != "close"]
EACH_HISTORY = pytest.mark.parametrize("history", HISTORIES, ids=str)


class Unflushed(Disk):
    """The power is not cut here, so nothing need reach the platter."""

    def flush(self, handle: int, **how: bool) -> None:
        self.flushes += 1


class PressedDisk(Unflushed):
    """``press`` is called before or after the n-th call from now, or at every one (``every``). It flushes nothing.

    Calls of the housekeeper's thread are not counted. They come at times that depend on the machine, and their signal
    would reach the main thread at any place.
    """

    def __init__(self, root: str, press: Callable[[], None] = lambda: signal.raise_signal(signal.SIGINT)) -> None:
        self.counted = self
        self.left = 0
        self.after = False
        self.every = False
        self.calls: list[str] = []
        self.press = press
        self.clock = MovedClock()
        super().__init__(root)

    def __copy__(self) -> "PressedDisk":
        """Return the disk of a task in this process, whose calls count as calls of this disk."""
        found = type(self)(self.root)
        found.counted = self.counted
        return found

    def arm(self, n: int, *, after: bool = False) -> None:
        self.left, self.after, self.calls = n, after, []

    @property
    def is_armed(self) -> bool:
        """The n-th call has not come."""
        return self.left > 0

    def disarm(self) -> None:
        self.left, self.every = 0, False


def _pressing(name: str) -> Callable[..., Any]:
    def call(self: PressedDisk, *args: Any, **options: Any) -> Any:
        if threading.current_thread().name == _HOUSEKEEPING:
            return getattr(Unflushed, name)(self, *args, **options)
        counted = self.counted
        counted.calls.append(f"{name} {_NUMBERS.sub('#', args[0]) if args and isinstance(args[0], str) else ''}")
        counted.left -= 1
        now = counted.left == 0 or counted.every
        if now and not counted.after:
            counted.press()
        result = getattr(Unflushed, name)(self, *args, **options)
        if now and counted.after:
            counted.press()
        return result

    return call


for _name in CALLS:
    setattr(PressedDisk, _name, _pressing(_name))


def begin(path: Path, history: History = PLAIN) -> None:
    """Make a space in which the history begins: a copy of the first one that was made beside it."""
    template = path.with_name(f"{history} begins")
    if not template.exists():
        template.mkdir(parents=True)
        with spool.create(PressedDisk(str(template)), defaults=AT_ONCE) as space:
            for queue in QUEUES:
                space.create_queue(queue)
            history.setup(space)
    shutil.copytree(template, path)


def calls_of(history: History, path: Path) -> list[str]:
    """Return the calls that the history makes of the disk."""
    begin(path, history)
    space, disk = opened(path)
    with space:
        disk.arm(0)
        history.run(space, Expectation(history.begin))
        return disk.calls.copy()


class Interrupted(Expectation):
    """The contents that are allowed after calls of which one was interrupted, e.g. between two of its commits."""

    @contextmanager
    def becoming(self, effect: Contents | Effect, **options: Unpack[Options]) -> Iterator[None]:
        partly = [*options.get("partly", ()), *options.get("failing", lambda contents: ())(self.contents)]
        with super().becoming(effect, **{**options, "meanwhile": [*options.get("meanwhile", ()), *partly]}):
            yield


def some_of(count: int, *, few: int, stride: Stride) -> list[int]:
    """Return so few of the numbers from 1 on, but all with --long, and the number after the last one."""
    numbers = range(1, count + 1)
    return [*(numbers if stride(2) == 1 else sorted(random.Random(count).sample(numbers, min(few, count)))), count + 1]


def opened(path: Path) -> tuple[spool.Space, PressedDisk]:
    disk = PressedDisk(str(path))
    return spool.open(disk), disk


def descriptors(*, collect: bool = False) -> set[str]:
    """Return the open descriptors of this process, each with the name of its file.

    ``collect``: whether to collect garbage first, so that no space that an earlier test dropped is closed later.
    """
    if collect:
        gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def expect_whole(path: Path, space: spool.Space, allowed: Collection[Contents], history: History = PLAIN) -> None:
    """Expect one of these contents, in this space and in the next opener's. The next opener is the first opener, so no
    lock remained.

    The work of the history is finished first, and its coordinator decides the branch in doubt. Each message can be
    taken."""
    with space:
        assert [f for f in space.check() if f.kind != "in doubt"] == []
        history.finish(space)
        shown = look(space)
        assert shown in allowed
        end_branches(space, history.outcome)
        found = look(space)
        assert found == history.decided.get(shown, {}).get(history.outcome, shown)
        with space.claims() as claims:
            for queue, bodies in zip(QUEUES, found.queues, strict=True):
                taken = claims.take(queue, 100) if bodies else []
                assert tuple(str(message.body) for message in taken) == bodies, "each is free to be taken"
    with spool.open(PressedDisk(str(path))) as again:
        assert again.recovery.alone
        assert again.recovery.findings == []
        assert look(again) == found
        again.put(AFTER, "goes on")
        assert again.check() == []


class Instructions:
    """Calls ``press`` with the frame at the n-th bytecode of these files: Python lets a signal in less often."""

    def __init__(self, at: int, files: tuple[str, ...], press: Callable[[FrameType], object]) -> None:
        self.left, self._files, self._press = at, files, press

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        return self.opcode

    def opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self._press(frame)
        return self.opcode
