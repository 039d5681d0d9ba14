"""Several processes with the space open put each due message once, also if some of them are killed."""

import mmap
import os
import random
import signal
import struct
import time
from collections import Counter
from pathlib import Path

import pytest

import spool
from spool.admin.schedules import put_due
from spool.maintenance import housekeeper
from spool.runtime.clock import Clock
from tests import children, door
from tests.clocks import timed, until
from tests.housekeepers import end_housekeeping

START, MINUTE = 1_700_000_000.0, 60.0


class SharedClock(Clock):
    """A wall clock that a test moves for all its processes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)
        self.set(START)

    def now(self) -> float:
        return float(struct.unpack("d", self._memory[:8])[0])

    def set(self, now: float) -> None:
        self._memory[:8] = struct.pack("d", now)


def made(path: Path, clock: SharedClock) -> spool.Space:
    space = spool.create(timed(path, clock))
    space.create_queue("q", deduplication_window=0.0)
    space.create_schedule("s", "q", "tick", cron="* * * * *")
    return space


def dues(space: spool.Space) -> Counter[str]:
    return Counter(one.headers["schedule-due"] for one in space.browse("q"))


def test_of_processes_that_are_killed_the_others_put_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The housekeeping of each process puts the messages; at each minute, one process is killed at some moment."""
    chance, times, path, clock = random.Random(1), 20, tmp_path / "space", SharedClock()

    def live() -> None:
        with spool.open(timed(path, clock)):
            signal.pause()

    with made(path, clock) as space:
        end_housekeeping(space)  # this process only looks
        monkeypatch.setattr(housekeeper, "EVERY_SECONDS", 0.05)
        living = [children.start(live) for _ in range(3)]
        for minute in range(times):
            clock.set(START + MINUTE * (minute + 1))
            time.sleep(chance.random() * 0.1)
            victim = living.pop(0)
            os.kill(victim, signal.SIGKILL)
            assert children.exit_code(victim) == -signal.SIGKILL
            living.append(children.start(live))
            until(lambda wanted=minute + 1: len(dues(space)) == wanted)  # type: ignore[misc]
        for child in living:
            os.kill(child, signal.SIGKILL)
            children.exit_code(child)
        put_due(door.core(space))
        assert Counter(dues(space).values()) == {1: times}
        assert space.check() == []


def test_a_late_message_is_put_although_the_elected_process_is_stopped(tmp_path: Path):
    clock = SharedClock()
    with made(tmp_path / "space", clock) as stopped, spool.open(timed(tmp_path / "space", clock)) as other:
        for space in (stopped, other):
            end_housekeeping(space)
        door.steps(stopped)
        for seconds, count in ((45.0, 0), (55.0, 1)):  # the message is due after 40 seconds
            clock.set(START + seconds)
            door.steps(other)
            assert len(dues(stopped)) == count
