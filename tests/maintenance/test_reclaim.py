"""The files that reclaim removes, their order, and the number of checks of each file."""

from array import array

import pytest

from spool.index.commit import Retention
from spool.maintenance import reclaim
from spool.maintenance.reclaim import next_to_go
from tests import door
from tests.meanwhile import Processes


def test_the_messages_of_a_removal_are_reclaimed_before_the_removal() -> None:
    files = {
        1: Retention(),
        2: Retention(addressed={1}),
        3: Retention(addressed={2, 1}),
        4: Retention(),
        5: Retention(live=1),
        6: Retention(addressed={5}),
        7: Retention(addressed={6}),
        8: Retention(supersedes=array("Q", [4])),
        9: Retention(),
    }
    idle = [number for number in files if number != 5]
    assert next_to_go(files, idle, 9, 9) == [[1, 4], [2, 8], [3]]
    assert next_to_go(files, idle, 10, 2) == [[1], [2]], "what is not durable stays"


def test_each_of_many_files_is_checked_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of a pass would grow with the square of the number of files."""
    space = Processes().space()
    for turn in range(100):
        space.put("orders", turn)
        space.get("orders")
    looked: list[int] = []
    plan = reclaim._plan

    def counted(*args: object) -> list[list[int]]:
        looked.extend(args[3])  # type: ignore[arg-type]
        return plan(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(reclaim, "_plan", counted)
    monkeypatch.setattr(reclaim, "_BATCH_FILES", 10)
    assert door.reclaim(space) >= 199
    assert len(looked) < 300


def test_a_reclaim_ends_although_another_process_takes_message_after_message(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    space, other = processes.space(), processes.space()
    for turn in range(100):
        space.put("orders", turn)
    other.get("orders")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        other.get("orders", timeout=0)

    monkeypatch.setattr(processes.machine.clock, "sleep", pause)
    assert reclaim.reclaim(door.store(space)) > 0
    assert len(pauses) < 5


def test_processes_that_reclaim_in_turns_record_each_removed_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    space, other = processes.space(), processes.space()
    for turn in range(20):
        space.put("orders", turn)
        space.get("orders")
    monkeypatch.setattr(reclaim, "_BATCH_FILES", 3)
    turns = iter([lambda: reclaim.reclaim(door.store(other))])
    monkeypatch.setattr(processes.machine.clock, "sleep", lambda _: next(turns, int)())
    assert reclaim.reclaim(door.store(space)) > 0
    with processes.space() as late:
        assert [each.stats("orders").enqueued for each in (space, other, late)] == [20, 20, 20]
        assert late.check() == []
