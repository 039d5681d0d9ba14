"""The division of housekeeping between many processes: the process that works, the time, and the amount of work at
once."""

import threading
from itertools import pairwise
from pathlib import Path

import pytest

import spool
from spool.maintenance import housekeeper, triggers
from spool.model import layout
from tests import door
from tests.clocks import until
from tests.meanwhile import Processes


def test_one_producer_compacts_unless_a_consumer_does() -> None:
    there = Processes()
    one, two, three = there.space(), there.space(), there.space()
    assert door.is_elected(one)
    assert door.is_elected(one)
    assert not door.is_elected(two)
    three.stats("orders")
    assert door.is_elected(three), "what it has read is at hand"
    assert not door.is_elected(one)
    two.stats("orders")
    assert door.is_elected(two), "each looks at what it has in memory itself"
    for _ in range(2):  # no process reads the commits any more
        door.is_elected(three)
        door.is_elected(two)
    assert door.is_elected(one)


def test_its_puts_need_not_wait_until_the_housekeeper_has_read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Processes()
    space, other = there.space(), there.space()
    for turn in range(200):
        space.put("orders", turn)
    seen = [0]
    monkeypatch.setattr(door.housekeeper(other), "_pause", lambda: seen.append(door.index(other).applied))
    door.housekeeper(other)._catch_up()
    assert seen[-1] == there.newest()
    assert max(after - before for before, after in pairwise(seen)) <= 64


def test_a_space_that_is_busy_is_compacted_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The housekeeper is woken again and again to reclaim, at shorter intervals than its wait before a compaction."""
    monkeypatch.setattr(housekeeper, "EVERY_SECONDS", 0.1)
    compacted = threading.Event()
    with spool.create(tmp_path / "space") as space:
        monkeypatch.setattr(door.housekeeper(space)._compactor, "has_work", lambda: compacted.set() or False)
        until(lambda: door.housekeeper(space)._wake.set() or compacted.is_set())


def test_a_process_takes_the_reclaim_lock_only_for_much_work() -> None:
    """The lock takes longer than the rest of a round, and many processes may wait for messages."""
    there = Processes()
    space, (other, disk) = there.space(), there.open()
    for _ in range(triggers.TIDY_FROM):
        other.put("orders", "new")
        other.get("orders")
    disk.before("exclusively", lambda: None, layout.RECLAIM_LOCK)
    door.housekeep(other)
    other.close()
    assert disk.waits_for("exclusively")
    assert door.reclaim(space)


def test_the_newest_files_stay_while_others_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "RETAINED_FOR_READERS", 10)
    there = Processes()
    space, (other, disk) = there.space(), there.open()
    space.put_many("orders", range(20))
    for _ in range(20):
        space.get("orders")
    newest = there.newest()
    door.reclaim_behind(space, triggers.RETAINED_FOR_READERS)
    left = sorted(disk.names(layout.COMMITTED))
    assert f"{layout.COMMITTED}/{left[0]}" == layout.committed(newest - 10)
    other.close()
    door.reclaim_behind(space, triggers.RETAINED_FOR_READERS)
    assert len(disk.names(layout.COMMITTED)) < 5, "nobody else is there"


def test_a_few_large_files_come_back_as_soon_as_many_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a process that writes large commits would create new files all the time, because the pool holds few
    large files."""
    monkeypatch.setattr(triggers, "RECLAIM_BYTES", 2000)
    there = Processes()
    space, (other, disk) = there.space(), there.open()

    def come_and_go() -> int:
        for _ in range(20):
            space.put("orders", bytes(100))
            space.get("orders")
        return len(disk.names(layout.COMMITTED))

    assert come_and_go() == 40, "the newest stay while others are at work"
    other.close()
    assert come_and_go() < 40
    door.reclaim_behind(space)
    assert door.index(space).idle_bytes < 2000


def test_small_steps_are_not_held_up_while_nothing_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Processes()
    space, other = there.space(), there.space()
    pauses: list[float] = []
    monkeypatch.setattr(door.clock(other), "sleep", pauses.append)
    for _ in range(10):
        door.housekeeper(other)._pause()
    assert not pauses, "every process is idle"
    space.put("orders", "another process's")
    for _ in range(2 * housekeeper.PAUSES_AFTER_A_COMMIT):
        door.housekeeper(other)._pause()
    assert len(pauses) == housekeeper.PAUSES_AFTER_A_COMMIT, "a busy application has pauses, for a while"
    other.put("orders", "its own")
    door.housekeeper(other)._pause()
    assert len(pauses) == housekeeper.PAUSES_AFTER_A_COMMIT + 1
