"""Compaction of slow queues (S01-S06): a backlog leaves memory and small files, and no caller notices."""

import os
from pathlib import Path
from unittest import mock

import pytest

import spool
from spool.errors import CorruptedFile
from spool.index.commit import Retention
from spool.index.segment import find_correlation, find_id
from spool.log.visibility import catch_up
from spool.maintenance import compaction, tombstones
from spool.maintenance.compaction import KEPT_MESSAGES, fragmented, is_slow, wasteful
from spool.maintenance.reclaim import next_to_go, note_pins
from spool.model import layout
from tests import door
from tests.clocks import MovedClock, timed
from tests.compaction import MANY, bodies, drain, files, fill, small_compactions, tidy
from tests.spaces import space_with

space = space_with("orders", ranked={"order": ("priority", "fifo")})


# -- deciding ---------------------------------------------------------------------------------------------------------


def test_s01_a_queue_is_slow_if_it_holds_more_than_twice_the_served_messages() -> None:
    assert is_slow(201, 100)
    assert not is_slow(200, 100)
    assert not is_slow(0, 0)


def test_s01_the_housekeeper_looks_every_five_seconds(space: spool.Space) -> None:
    assert compaction.EVERY_SECONDS == 5.0
    fill(space)
    space.close()
    with mock.patch("spool.maintenance.housekeeper.EVERY_SECONDS", 0.05), spool.open(space.path) as again:
        for _ in door.deadline(again, 60).polls(slowest_seconds=0.05):
            if len(files(again)) < 20:
                break
    assert len(files(again)) < 20


def test_s02_as_many_as_were_served_and_five_more_stay_in_memory(space: spool.Space) -> None:
    fill(space)
    tidy(space)
    line = door.index(space).messages.queue("orders")
    assert (line.entries, sum(segment.live for segment in line.segments)) == (KEPT_MESSAGES, MANY - KEPT_MESSAGES)
    drain_some = [space.get("orders").body for _ in range(KEPT_MESSAGES)]
    fill(space, many=MANY)
    tidy(space)
    assert drain_some == bodies(range(KEPT_MESSAGES))
    assert drain(space) == bodies([*range(KEPT_MESSAGES, MANY), *range(MANY)]), (
        "the new ones are behind what was compacted"
    )


def test_s03_compacted_messages_lie_in_few_large_files_in_order(space: spool.Space) -> None:
    fill(space)
    assert len(files(space)) >= MANY
    assert tidy(space) == 1
    assert len(files(space)) < 10
    assert drain(space) == bodies(range(MANY))
    door.reclaim(space)
    door.reclaim(space)
    assert len(files(space)) <= 2, "the space of a drained queue returns whole"


def test_s03_the_front_refills_a_little_at_a_time(space: spool.Space) -> None:
    with small_compactions():
        fill(space, many=60)
        tidy(space)
        line = door.index(space).messages.queue("orders")
        for n in range(60):
            assert space.get("orders").body == b"%d" % n
            assert line.entries <= 4


def test_s04_the_oldest_age_is_that_of_a_message_that_is_left(tmp_path: Path) -> None:
    clock = MovedClock()
    with small_compactions(), spool.create(timed(tmp_path / "space", clock)) as space:
        space.create_queue("orders")
        fill(space, many=6)
        clock.later = 1000.0
        fill(space, many=20)
        tidy(space)
        with spool.open(timed(tmp_path / "space", clock)) as other:  # (which follows the removals of the first)
            assert [space.get("orders").body for _ in range(6)] == bodies(range(6))
            assert [each.stats("orders").oldest_age < 100 for each in (space, other)] == [True, True]
    with spool.open(timed(tmp_path / "space", clock)) as again:
        assert again.stats("orders").oldest_age < 100


def test_s04_positions_ids_and_times_stay(space: spool.Space) -> None:
    ids = fill(space, correlation_id="same", headers={"tenant": "acme"})
    before = [message.as_dict() for message in space.browse("orders")]
    tidy(space)
    assert [message.as_dict() for message in space.browse("orders")] == before
    assert [message.id for message in space.browse("orders")] == ids
    with spool.open(space.path) as other:
        assert [message.as_dict() for message in other.browse("orders")] == before


def test_s04_a_message_that_changes_during_a_compaction_is_neither_lost_nor_doubled(space: spool.Space) -> None:
    ids = fill(space)
    with spool.open(space.path) as other:

        def meanwhile() -> None:
            other.get("orders", message_id=ids[100])
            with other.transaction() as tx:
                tx.get("orders", message_id=ids[120])
                tx.set_rollback_only()

        with_number_lock = compaction.commit

        def commit(*args: object, **options: object) -> int:
            meanwhile()
            return with_number_lock(*args, **options)  # type: ignore[arg-type]

        with mock.patch.object(compaction, "commit", commit):
            assert tidy(space) == 1
        for one in (space, other):
            seen = {message.body: message.attempts for message in one.browse("orders")}
            assert seen == {body: int(body == b"120") for body in bodies(range(MANY)) if body != b"100"}
    assert sorted(map(int, drain(space))) == [n for n in range(MANY) if n != 100]


def test_s04_a_compaction_is_abandoned_if_all_its_messages_were_removed(space: spool.Space) -> None:
    fill(space)
    with spool.open(space.path) as other:
        commit = compaction.commit
        with mock.patch.object(compaction, "commit", lambda *args, **options: (drain(other), commit(*args, **options))):
            assert tidy(space) == 0
    assert drain(space) == []
    assert os.listdir(f"{space.path}/{layout.ACTIVE}") == []
    assert space.check() == []


def test_s05_priorities_hold_across_compactions(space: spool.Space) -> None:
    for n in range(MANY):
        space.put("ranked", n, priority=1 + n % 9)
    tidy(space)
    for n in range(MANY, 2 * MANY):
        space.put("ranked", n, priority=1 + n % 9)
    tidy(space)
    for n in range(2 * MANY, 2 * MANY + 20):
        space.put("ranked", n, priority=1 + n % 9)
    wanted = sorted(range(2 * MANY + 20), key=lambda n: (-(1 + n % 9), n))
    with spool.open(space.path) as other:
        assert [message.body for message in other.browse("ranked")] == wanted
    found: list[int] = []
    while len(found) < len(wanted):
        found += [message.body for message in space.get_many("ranked", 11)]
    assert found == wanted


def test_s05_delayed_messages_are_compacted_and_come_when_they_are_due(space: spool.Space) -> None:
    now = door.clock(space).now()
    for n in range(MANY):
        space.put("orders", b"%d" % n, not_before=now + 1000 + MANY - n)
    tidy(space)
    line = door.index(space).messages.queue("orders")
    assert (line.entries, space.stats("orders").delayed, space.stats("orders").ready) == (0, MANY, 0)
    with pytest.raises(spool.Empty):
        space.get("orders")
    with mock.patch.object(type(door.clock(space)), "now", return_value=now + 1000 + MANY / 2):
        assert space.stats("orders").ready == MANY // 2
        assert sorted(drain(space), key=int) == bodies(range(MANY // 2, MANY))


def test_s06_claimed_messages_and_messages_in_doubt_are_not_moved(space: spool.Space) -> None:
    ids = fill(space)
    with spool.open(space.path) as other, other.transaction() as tx:
        held = tx.get("orders", message_id=ids[77])
        vote = door.branch(other, timeout=None)
        vote.get("orders", message_id=ids[88])
        assert vote.prepare()
        tidy(space)
        index = door.index(space)
        for number in (held.position.number, held.position.number + 11):
            assert index.files[number].live == 1
            assert door.disk(space).exists(layout.committed(number))
    assert b"77" not in drain(space)


def test_a_claim_keeps_the_file_that_it_may_read_from(space: spool.Space) -> None:
    """A reader by path (a forwarder's task) that claims after the compaction's look still finds its message there."""
    ids = fill(space)
    number = space.show(ids[50]).position.number
    with spool.open(space.path) as other:
        tx = other.transaction(timeout=None)
        commit = compaction.commit

        def claimed(*args: object, **options: object) -> int:
            tx.get("orders", message_id=ids[50])
            return commit(*args, **options)  # type: ignore[arg-type]

        with mock.patch.object(compaction, "commit", claimed):
            tidy(space)
        assert door.disk(space).exists(layout.committed(number))
        tx.rollback()
        door.reclaim(space)
        door.reclaim(space)
        assert not door.disk(space).exists(layout.committed(number))


# -- the purpose of a compaction --------------------------------------------------------------------------------------


def test_many_commits_that_only_remove_become_one_file(space: spool.Space) -> None:
    ids = space.put_many("orders", bodies(range(MANY)))
    for message_id in ids[::2]:
        space.get("orders", message_id=message_id)
    assert len(files(space)) > MANY // 2
    with mock.patch.object(tombstones, "MERGED_COMMITS", 10):
        tidy(space)
    assert len(files(space)) < 6
    with spool.open(space.path) as other:
        assert other.stats("orders").dequeued == MANY // 2
        assert [message.body for message in other.browse("orders")] == bodies(range(1, MANY, 2))
    assert space.check() == []


def test_tombstones_kept_by_a_subscription_are_not_written_repeatedly(space: spool.Space) -> None:
    space.engine.register_subscription("seen", ("orders",), 3600.0)
    merged: list[set[int]] = []
    with mock.patch.object(tombstones, "MERGED_COMMITS", 10), mock.patch.object(tombstones, "_MAX_TARGETS", 8):
        for _ in range(3):
            for body in bodies(range(12)):
                space.put("orders", body)
                space.get("orders")
            tidy(space)
            states = door.index(space).files
            merged.append({number for number, state in states.items() if len(state.addressed) > 8})
    assert [len(numbers) for numbers in merged] == [1, 2, 3]
    assert merged[0] < merged[1] < merged[2]
    assert len(files(space)) < 3 * 12 + 12, "the removals are in few files, and what was removed is kept"
    space.delete_subscription("seen")
    tidy(space)
    assert len(files(space)) <= 4


def test_files_that_waste_too_much_are_compacted_in_fast_queues_too() -> None:
    def state(live: int, ever: int, compacted: bool = False) -> Retention:
        return Retention(live=live, live_bytes=live, body_bytes=ever, span=(1, 2) if compacted else None)

    full, half, empty = state(64 << 20, 64 << 20), state(20 << 20, 60 << 20), state(1, 60 << 20)
    assert fragmented({1: full, 2: full, 3: state(60 << 20, 64 << 20)}, 20) == set()
    assert fragmented({1: full, 2: half, 3: empty}, 20) == {2, 3}
    assert fragmented({n: state(10, 10, compacted=True) for n in range(1, 17)}, 20) == set(range(1, 17)), (
        "many small compactions"
    )
    assert fragmented({n: state(10, 10, compacted=True) for n in range(1, 16)}, 20) == set()


def test_a_round_ends_although_a_message_that_is_held_keeps_a_small_file(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other messages move into one more small file, once: that file is not a reason to move them again."""
    monkeypatch.setattr(compaction, "SMALL_FILES", 2)
    written = mock.Mock(wraps=compaction._write, side_effect=[*[mock.DEFAULT] * 9, AssertionError("no end")])
    holder = space.transaction()
    with small_compactions():
        fill(space, many=6)
        tidy(space)
        for _ in range(2):  # the second one lies in the file of the compaction
            holder.get("orders")
        fill(space, many=6)
        monkeypatch.setattr(compaction, "_write", written)
        tidy(space)
    assert written.call_count < 3
    holder.rollback()
    assert sorted(drain(space)) == sorted(bodies([*range(6)] * 2))


def test_space_returns_when_messages_leave_from_the_middle(space: spool.Space) -> None:
    body = os.urandom(64 << 10)
    ids = [message_id for _ in range(12) for message_id in space.put_many("orders", [body] * 64)]
    for message_id in ids[::8]:
        kept = message_id
    taken = [message_id for place, message_id in enumerate(ids) if place % 8]
    with space.transaction(timeout=None) as tx:
        for message_id in taken:
            tx.get("orders", message_id=message_id)
    live = len(ids[::8]) * len(body)
    tidy(space)
    tidy(space)
    used = sum(os.stat(f"{space.path}/{layout.COMMITTED}/{name}").st_size for name in files(space))
    assert used <= 1.1 * live + compaction.SEGMENT_BYTES
    assert space.show(kept).body == body


def test_s04_a_get_by_id_or_correlation_id_finds_a_message_in_a_segment(space: spool.Space) -> None:
    ids = [space.put("orders", b"%d" % n, correlation_id=f"c{n % 50}") for n in range(MANY)]
    tidy(space)
    assert space.show(ids[150]).body == b"150"
    assert space.get("orders", message_id=ids[150]).body == b"150"
    assert [space.get("orders", correlation_id="c33").body for _ in range(4)] == bodies([33, 83, 133, 183])
    with pytest.raises(spool.Empty):
        space.get("orders", correlation_id="c33")
    with pytest.raises(spool.BadMessageId):
        space.show(ids[150])
    assert drain(space) == bodies([n for n in range(MANY) if n != 150 and n % 50 != 33])


def test_by_id_costs_one_binary_search_a_segment() -> None:
    class Counted(bytes):
        looks = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            Counted.looks += 1
            return super().__getitem__(key)

    branches = [n.to_bytes(12, "big") for n in range(4096)]
    packed = Counted(compaction.pack_ids([(branch, 0, run) for run, branch in enumerate(branches)]))
    assert find_id(packed, branches[1234], 0) == 1234
    assert Counted.looks <= 14
    assert find_id(packed, b"\xff" * 12, 0) is None
    hashes = Counted(compaction.pack_correlations([(n.to_bytes(8, "big"), n) for n in range(4096)] + [(b"\0" * 8, 9)]))
    assert find_correlation(hashes, bytes(8)) == [0, 9]


def test_a_body_that_is_damaged_is_left_where_it_is(space: spool.Space) -> None:
    ids = fill(space)
    number = space.show(ids[60]).position.number
    path = f"{space.path}/{layout.committed(number)}"
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    tidy(space)
    assert door.disk(space).exists(layout.committed(number))
    assert drain(space) == bodies([n for n in range(MANY) if n != 60])
    assert [finding.name for finding in space.quarantined()] != []


def test_a_segment_whose_table_is_lost_is_named_and_the_rest_is_served(space: spool.Space) -> None:
    fill(space)
    tidy(space)
    (segment,) = door.index(space).messages.queue("orders").segments
    with open(f"{space.path}/{layout.committed(segment.file.number)}", "r+b") as file:
        file.seek(segment.entry.offset)
        file.write(bytes(segment.entry.table_bytes))
    with spool.open(space.path) as other:
        assert any(f"{segment.file.number:016d}" in finding.name for finding in other.check())
        assert drain(other) == bodies(range(KEPT_MESSAGES))
    door.store(space).files.cache.close()
    door.store(space).files.cache._tables.clear()
    assert drain(space) == []


def test_a_segment_that_cannot_be_searched_is_named_and_the_others_are_searched(space: spool.Space) -> None:
    ids = fill(space)
    tidy(space)
    more = fill(space)
    tidy(space)
    first, _ = door.index(space).messages.queue("orders").segments
    with open(f"{space.path}/{layout.committed(first.file.number)}", "r+b") as file:
        file.seek(first.entry.offset + 20), file.write(b"\xff" * 20)
    door.store(space).files.cache._tables.clear()  # (a table in memory needs no file)
    with pytest.raises(spool.BadMessageId):
        space.show(ids[100])
    assert space.show(more[100]).body == b"100"
    assert [name for name, _ in door.index(space).damage] == [layout.committed(first.file.number)]


def test_a_file_that_has_another_s_name_is_not_read_as_that(space: spool.Space) -> None:
    fill(space, many=2)
    catch_up(door.store(space))
    (run, other) = door.index(space).messages.queue("orders").ready
    assert door.store(space).files.cache.bodies(run, run.first, 1, bytes) == [b"0"]
    run.file = other.file
    with pytest.raises(CorruptedFile):
        door.store(space).files.cache.bodies(run, run.first, 1, bytes)


def test_a_superseded_file_waits_for_older_claims_only() -> None:
    state = Retention(superseded_by=9, span=(3, 7))
    note_pins(8, state, {1, 4, 6})
    assert state.pinned_by == {4, 6}
    note_pins(8, state, {4, 5})
    assert state.pinned_by == {4}
    assert next_to_go({8: state}, [8], 10, 10) == []
    note_pins(8, state, {5, 6})
    assert next_to_go({8: state}, [8], 10, 8) == [], "the compaction is not durable"
    assert next_to_go({8: state}, [8], 10, 10) == [[8]]


def test_on_a_full_disk_only_files_whose_messages_fit_into_the_free_room_are_copied() -> None:
    files = {number: Retention(live=1, live_bytes=live, body_bytes=100) for number, live in enumerate((5, 50, 20, 95))}
    assert wasteful(files, 9, 1_000) == {0, 1, 2}, "a copy of the last file would give little room back"
    assert wasteful(files, 9, 30) == {0, 2}
    assert wasteful(files, 0, 1_000) == {0}, "the round has written the other files itself"
    assert wasteful(files, 9, 0) == set()
