"""A process follows another one by the notes of the feed. They have the content of the files, or none: see
``tests/log/test_golden_bytes.py``."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.admin.findings import Kind
from spool.log import write
from spool.model import layout
from spool.store import feed
from spool.store.feed import NOTE_BYTES, addressed_in, commit_of
from tests import door
from tests.at_once import AT_ONCE
from tests.machine import PowerCut
from tests.meanwhile import XID, Processes, commit, prepare
from tests.shown import bodies as shown

Action = Callable[[spool.Space], object]


@given(st.binary(max_size=NOTE_BYTES))
def test_a_note_of_any_bytes_is_a_commit_or_none(note: bytes) -> None:
    assert commit_of(7, note) is None or commit_of(7, note).number == 7  # type: ignore[union-attr]
    assert addressed_in(note) is None or isinstance(addressed_in(note), list)


def test_a_process_that_follows_another_one_reads_none_of_its_files() -> None:
    there = Processes()
    space, (other, disk) = there.space(), there.open()
    opened: list[str] = []
    inner = disk.open
    disk.open = lambda name, *, write=False: opened.append(name) or inner(name, write=write)  # type: ignore[method-assign,func-returns-value]
    for place in range(3):
        space.put("orders", f"m{place}")
        space.get("orders")
        assert other.stats("orders").ready == 0
    space.put("orders", "last")
    assert other.stats("orders").ready == 1
    assert not [name for name in opened if name.startswith("committed")]
    assert other.get("orders").body == "last"
    assert len([name for name in opened if name.startswith("committed")]) == 1, "its body"


def test_the_note_of_an_adopting_commit_has_the_effects_of_a_small_branch() -> None:
    there = Processes()
    space, other = there.space(), there.space()
    space.put("orders", "taken")
    taken = door.counters(space).published
    prepare(space, take=True)
    number = commit(space)
    noted = door.store(other).shared.feed.commit(number)
    assert [part.xid for part in noted.files] == [None, XID]
    assert door.store(other).shared.feed.may_address(number, [(taken, 0, 1)])
    assert not door.store(other).shared.feed.may_address(number, [(taken, 1, 1)])
    assert other.get("orders").body == "new"


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_a_commit_that_does_not_fit_is_read_from_its_file_and_its_note_has_the_positions(in_a_branch: bool) -> None:
    there = Processes()
    space, other = there.space(), there.space()
    if in_a_branch:
        branch = door.branch(space, xid=XID)
        branch.put_many("orders", range(1000))
        branch.prepare()
        commit(space)
    else:
        space.put_many("orders", range(1000))
    many = door.counters(space).published
    assert door.store(other).shared.feed.commit(many) is None
    assert not door.store(other).shared.feed.may_address(many, [(1, 0, 5)]), "it only puts"
    assert len(other.get_many("orders", 1000)) == 1000


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(5, 0, 3)], False), ([(5, 3, 1)], True), ([(5, 4, 2)], True), ([(5, 5, 9)], False), ([(6, 3, 2)], False),
        ([(4, 0, 9), (5, 0, 9)], True), ([], False),
    ],
)  # fmt: skip
def test_a_commit_addresses_the_messages_that_it_removes_or_changes(ranges: list[tuple[int, int, int]], expected: bool):
    there = Processes()
    shared = door.store(there.space()).shared.feed
    shared.write(9, feed.msgpack.packb(([(5, 3, 2)], None)))
    assert shared.may_address(9, ranges) is expected
    assert shared.may_address(10, ranges), "it has no note"


def test_a_commit_that_was_retracted_is_read_from_its_file() -> None:
    there = Processes()
    space, other = there.space(), there.space()
    space.put("orders", "one")
    number = door.counters(space).published
    door.store(space).shared.feed.retract(number)
    assert door.store(other).shared.feed.commit(number) is None
    assert door.store(other).shared.feed.may_address(number, [(1, 0, 1)])
    assert other.get("orders").body == "one"


# -- dead writers ------------------------------------------------------------------------------------------------------


def dies_before_its_stamp(there: Processes, act: Action) -> None:
    """A process dies when its commit has a number and a note in the feed, and its file is not stamped yet."""
    doomed, disk = there.open()
    with mock.patch.object(write, "stamp", side_effect=lambda number: disk.die()), pytest.raises(PowerCut):
        act(doomed)


def test_the_put_of_a_dead_writer_is_not_visible() -> None:
    there = Processes()
    space, other = there.space(), there.space()
    dies_before_its_stamp(there, lambda doomed: doomed.put("orders", "one"))
    assert shown(other) == []
    space.put("orders", "two")
    assert other.stats("orders").ready == space.stats("orders").ready == 1
    assert shown(other) == ["two"]
    assert other.check() == space.check() == []


def test_the_message_of_an_unfinished_get_by_a_dead_writer_exists() -> None:
    there = Processes()
    space, other = there.space(), there.space()
    space.put_many("orders", ["one", "two"])
    dies_before_its_stamp(there, lambda doomed: doomed.get("orders"))
    assert other.get("orders").body == "one"
    assert shown(space) == shown(other) == ["two"]


def test_a_message_that_a_dead_writer_took_is_not_delivered_again() -> None:
    there = Processes()
    space, (doomed, disk) = there.space(), there.open()
    space.put_many("orders", ["one", "two"])
    disk.dies_before("make_durable", lambda: doomed.get("orders"), layout.COMMITTED)
    assert space.get("orders").body == "two"


def test_a_commit_replaced_by_an_empty_commit_is_gone_for_all_processes() -> None:
    there = Processes()
    (space, disk), other = there.open(), there.space()
    space.put("orders", "one")
    number = door.counters(space).published
    disk.damage(layout.committed(number), 30)
    disk.damage(layout.committed(number), 80)
    assert [finding.kind for finding in space.check(repair=True)] == [Kind.DAMAGED]
    space.put("orders", "two")
    assert other.stats("orders").ready == 1
    assert shown(other) == ["two"]
    assert other.check() == []


def test_a_get_that_finds_nothing_finishes_the_commits_of_dead_writers() -> None:
    """No other process may finish the number first."""
    there = Processes()
    space = there.space()
    there.lose_a_writer()
    there.lose_a_writer()
    assert [space.get("orders").body for _ in range(2)] == ["one", "one"]


def test_a_get_that_finds_nothing_waits_for_no_commit_that_is_under_way() -> None:
    there = Processes()
    (space, disk), other = there.open(), there.space()

    def look() -> None:
        with pytest.raises(spool.Empty):
            other.get("orders")

    begun = there.machine.clock.time
    disk.before("make_durable", look, layout.COMMITTED)
    space.put("orders", "one")
    assert not disk.waits_for("make_durable")
    assert there.machine.clock.time == begun


@pytest.mark.parametrize("of_a_branch", [False, True])
def test_a_claim_waits_for_no_commit_that_leaves_it_alone(of_a_branch: bool) -> None:
    there = Processes()
    (space, disk), other = there.open(), there.space()
    space.put_many("orders", ["one", "two"])
    if of_a_branch:
        prepare(space, take=True)
    transaction = other.transaction()
    found: list[object] = []
    begun = there.machine.clock.time
    disk.before("make_durable", lambda: found.append(transaction.get("orders").body), layout.COMMITTED)
    if of_a_branch:
        commit(space)
    else:
        assert space.get("orders").body == "one"
    assert found == ["two"]
    assert there.machine.clock.time == begun
    transaction.commit()
    assert shown(other) == (["new"] if of_a_branch else [])


def test_the_ring_takes_no_more_than_two_megabytes(tmp_path: Path) -> None:
    with mock.patch.object(feed, "SLOTS", 2048), spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        space.put("orders", "one")
        assert (tmp_path / "space" / "run" / "feed").stat().st_size <= 2_200_000


def test_the_feed_is_memory_of_all_processes_and_little_of_it(memory: Path) -> None:
    """Each process maps the feed once and shares it; the feed has a fixed length."""
    with spool.create(memory) as space:
        space.create_queue("orders")
        for turn in range(3):
            space.put_many("orders", [turn] * 1000)
        assert (memory / layout.FEED).stat().st_size <= 4 << 20
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        mine = [line for line in lines if line[-1] == str(memory / layout.FEED)]
        assert len(mine) == 1, "it overwrites in place here, so it is mapped"
        begin, end = (int(at, 16) for at in mine[0][0].split("-"))
        assert end - begin <= 4 << 20
        assert mine[0][1] == "rw-s", "shared"
