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


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_of_processes_that_are_killed_or_stopped_the_others_put_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: signal.Signals
):
    """The housekeeping of each process puts the messages; at each minute, one process is killed, or stopped until the
    message is there."""
    chance, times, path, clock = random.Random(1), 20, tmp_path / "space", SharedClock()

    def live() -> None:
        with spool.open(timed(path, clock)):
            signal.pause()

    with made(path, clock) as space:
        end_housekeeping(space)  # this process only looks
        monkeypatch.setattr(housekeeper, "EVERY_SECONDS", 0.05)
        living = [children.start(live) for _ in range(3)]
        until(lambda: len(space.engine.other_processes()) == 3)
        for minute in range(times):
            victim = living.pop(0)
            os.kill(victim, signal.SIGSTOP if kind is signal.SIGSTOP else 0)  # (in a commit, it would stop the others)
            clock.set(START + MINUTE * (minute + 1))
            if kind is signal.SIGKILL:
                time.sleep(chance.random() * 0.1)
                os.kill(victim, kind)
                assert children.exit_code(victim) == -kind
                victim = children.start(live)
            living.append(victim)
            until(lambda wanted=minute + 1: len(dues(space)) == wanted)  # type: ignore[misc]
            os.kill(victim, signal.SIGCONT)
        for child in living:
            os.kill(child, signal.SIGKILL)
            children.exit_code(child)
        put_due(door.core(space))
        assert Counter(dues(space).values()) == {1: times}
        assert space.check() == []
