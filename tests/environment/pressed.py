"""A real disk that calls a function at each of its own calls, and the checks that tests make of the space
afterwards."""

import gc
import inspect
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import spool
import xa
from spool.disk import Disk
from spool.intake import Intake
from tests.at_once import AT_ONCE

_NO_CALLS = {"path", "close_all", "disown", "boot_id", "network_file_system", "exclusively"}
CALLS = [name for name, found in inspect.getmembers(Disk, inspect.isfunction) if name[0] != "_"]
CALLS = [name for name in CALLS if name not in _NO_CALLS]
_HOUSEKEEPING = "xaspool housekeeping"
_NUMBERS = re.compile(r"[0-9][0-9A-Za-z_.-]*")

OLD = ["old 1", "old 2", "old 3"]
NEW = ["new 1", "new 2"]
DROPPED = ["dropped"]


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
        self.left = 0
        self.after = False
        self.every = False
        self.calls: list[str] = []
        self.press = press
        super().__init__(root)

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
        self.calls.append(f"{name} {_NUMBERS.sub('#', args[0]) if args and isinstance(args[0], str) else ''}")
        self.left -= 1
        now = self.left == 0 or self.every
        if now and not self.after:
            self.press()
        result = getattr(Unflushed, name)(self, *args, **options)
        if now and self.after:
            self.press()
        return result

    return call


for _name in CALLS:
    setattr(PressedDisk, _name, _pressing(_name))


def furnish(path: Path, consumed: int = 1) -> None:
    """Make a space with the messages ``OLD``, some that were consumed, and one file in ``drop/``."""
    with spool.create(PressedDisk(_made(path)), defaults=AT_ONCE) as space:
        space.create_queue("orders", retries=100)
        for n in range(consumed):
            space.put("orders", f"gone {n}")
            space.get("orders")
        space.put_many("orders", OLD)
    (path / "drop" / "orders" / "file").write_text(DROPPED[0])


def telling(calls: list[str], *, all_: bool) -> Iterator[int]:
    """Return the numbers of the calls to press at, from 1 on: all calls, or the first occurrence of each pair of
    consecutive calls. The last number is that after the last call."""
    seen: Counter[tuple[str, ...]] = Counter()
    for n in range(1, len(calls) + 1):
        pair = tuple(calls[max(0, n - 2) : n])
        seen[pair] += 1
        if all_ or seen[pair] == 1:
            yield n
    yield len(calls) + 1


def _made(path: Path) -> str:
    path.mkdir(parents=True)
    return str(path)


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


def text(message: spool.Message) -> str:
    return message.body.decode() if isinstance(message.body, bytes) else str(message.body)


def roll_back_branches_in_doubt(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    for xid in rm.space.engine.in_doubt():
        rm.rollback(xid)


def contents(space: spool.Space) -> list[str]:
    """Roll back the branches in doubt, take in the dropped files, and return the messages of the queue, each of which
    can be taken."""
    roll_back_branches_in_doubt(space)
    Intake(space).run(once=True)
    found = []
    for message in list(space.browse("orders")):
        with space.transaction() as transaction:
            assert transaction.get("orders", message_id=message.id).id == message.id, "it is free to be taken"
            transaction.set_rollback_only()
        found.append(text(message))
    return sorted(found)


def expect_whole(path: Path, space: spool.Space, *allowed: list[str]) -> None:
    """Expect one of these states, in this space and in the next opener's. The next opener is the first opener, so no
    lock remained."""
    with space:
        assert [f for f in space.check() if f.kind != "in doubt"] == []
        found = contents(space)
        assert found in [sorted([*state, *DROPPED]) for state in allowed]
    with spool.open(PressedDisk(str(path))) as again:
        assert again.recovery.alone
        assert again.recovery.findings == []
        assert contents(again) == found
        again.put("orders", "goes on")
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
