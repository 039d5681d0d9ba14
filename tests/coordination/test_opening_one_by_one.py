"""Many processes open a space at once: each waits while the others open it one by one, and names a stuck opener."""

import fcntl
import os
import signal
import threading
from itertools import chain, repeat
from pathlib import Path

import pytest

from spool.coordination.locks import LockFile, OpenLock
from spool.disk import Disk
from spool.runtime.clock import Deadline, WaitExpired
from tests import children
from tests.clocks import SimulatedClock


class Opening(Disk):
    """A disk of which other processes lock the directory until a time."""

    def __init__(self, root: Path, clock: SimulatedClock, until: float, openers: list[str]) -> None:
        super().__init__(str(root))
        self.asked = 0
        self._clock = clock
        self._until = clock.monotonic() + until
        self._openers = chain(openers, repeat(openers[-1]))

    def flock(self, handle: int) -> bool:
        self.asked += 1
        return self._clock.monotonic() >= self._until and super().flock(handle)

    def flock_holder(self, handle: int) -> str:
        return next(self._openers)


def enter(path: Path, until: float, openers: list[str]) -> Opening:
    """Open a space that others open for so many seconds; the limit is 30 seconds for one of them."""
    clock = SimulatedClock()
    disk = Opening(path, clock, until, openers)
    try:
        assert OpenLock(disk).enter(Deadline(clock, 30.0, clock.monotonic() + 30.0))
    finally:
        disk.close_all()
    return disk


def test_a_process_waits_as_long_as_others_open_the_space_one_by_one(tmp_path: Path) -> None:
    disk = enter(tmp_path, 80.0, ["process 1 (python)", "process 2 (python)", "process 3 (python)"])
    assert disk.asked < 80 / 0.05 + 60, "many processes that wait leave the processor to the opener"


@pytest.mark.parametrize("opener", ["process 1", ""])
def test_a_process_names_the_opener_that_does_not_end(tmp_path: Path, opener: str) -> None:
    with pytest.raises(
        WaitExpired, match=f"is being opened by {opener or 'a process that /proc does not show'}.* 30 s"
    ):
        enter(tmp_path, 80.0, [opener])


def test_the_opener_is_named_and_not_the_processes_that_have_the_space_open(tmp_path: Path) -> None:
    opened, opening = Disk(str(tmp_path)), Disk(str(tmp_path))
    try:
        with_it, another = OpenLock(opened), OpenLock(opening)
        with_it.finish_opening()
        assert opening.flock_holder(another.handle) == ""
        assert opening.flock(another.handle)
        (holder,) = opened.lock_holders(with_it.handle, 0)[:1]
        assert opened.flock_holder(with_it.handle) == holder, "it is this process"
    finally:
        opened.close_all()
        opening.close_all()


def test_a_child_that_has_inherited_the_lock_of_a_dead_opener_is_named(tmp_path: Path) -> None:
    """E.g. a program that forked while it opened the space, and ended."""
    disk = Disk(str(tmp_path))
    reading, writing = os.pipe()

    def open_and_die() -> None:
        handle = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if heir := os.fork():
            os.write(writing, str(heir).encode())
            os._exit(0)
        os.close(writing)
        threading.Event().wait(60)

    assert children.exit_code_of(open_and_die) == 0
    heir = int(os.read(reading, 20))
    try:
        assert disk.flock_holder(OpenLock(disk).handle).startswith(f"process {heir} (")
    finally:
        os.kill(heir, signal.SIGKILL)
        disk.close_all()


@pytest.mark.parametrize(("user", "words"), [(0, "in this container"), (1, "to this user")])
def test_root_is_not_told_that_its_rights_hide_a_process(
    tmp_path: Path, user: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(WaitExpired, match=f"by a process that /proc does not show {words}, "):
        enter(tmp_path, 80.0, [""])


def test_a_lock_that_several_processes_take_in_turn_is_not_held_by_a_hidden_process(tmp_path: Path) -> None:
    disk, clock = Disk(str(tmp_path)), SimulatedClock()
    disk.create("control")
    try:
        locks = LockFile(disk, "control", make=False)
        error = locks.expired(0, Deadline(clock, 30.0, clock.monotonic()), "the lock on commit numbers")
        assert "held by several processes, one after another" in str(error)
    finally:
        disk.close_all()
