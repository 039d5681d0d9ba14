"""Compaction while other processes open the space, change its queues, commit or die."""

from unittest import mock

import pytest

import spool
from spool.log.visibility import catch_up
from spool.maintenance import compaction
from spool.model import layout
from spool.runtime.clock import WaitExpired
from tests import door
from tests.compaction import MANY, bodies, drain, fill, tidy
from tests.spaces import space_with

space = space_with("orders")


def test_an_opener_that_was_overtaken_by_compactions_starts_again(space: spool.Space) -> None:
    fill(space)
    tidy(space)
    with spool.open(space.path) as late:
        door.store(late).files.cache._tables.clear()
        assert drain(space, at_once=3)[:3] == bodies(range(3))
        fill(space)
        tidy(space)
        door.reclaim(space)
        assert [message.body for message in late.browse("orders")] == bodies(range(MANY))


def test_an_order_changes_for_a_process_with_an_index_of_removed_files(space: spool.Space) -> None:
    fill(space)
    tidy(space)
    with spool.open(space.path) as late:
        door.store(late).files.cache._tables.clear()
        drain(space)
        tidy(space)
        fill(space, many=3)
        space.change_queue("orders", order="lifo")
        assert [message.body for message in late.get_many("orders", 9)] == [b"2", b"1", b"0"]
        assert door.index(late).damage == []


def test_an_order_changes_for_a_process_that_began_before_those_removals(space: spool.Space) -> None:
    fill(space)
    tidy(space)
    with spool.open(space.path) as late:
        store = door.store(late)
        store.files.cache._tables.clear()
        begun = store.shared.counters.read()
        drain(space)
        tidy(space)
        space.change_queue("orders", order="lifo")
        store.settings.current()
        catch_up(store, begun)
        assert store.view.index.damage == []


def test_a_compaction_applies_the_commits_of_others(space: spool.Space) -> None:
    with spool.open(space.path) as other:
        fill(space)
        assert tidy(other) == 1


def test_one_process_compacts_at_a_time(space: spool.Space) -> None:
    fill(space)
    with spool.open(space.path) as other, door.disk(other).exclusively(layout.RECLAIM_LOCK):
        assert door.compact(space) == 0
        door.save(space)
        assert not door.disk(space).exists(layout.CHECKPOINT)
    door.save(space)
    assert door.disk(space).exists(layout.CHECKPOINT)


def test_an_opener_leaves_the_file_of_a_compaction_in_progress(space: spool.Space) -> None:
    fill(space)
    commit = compaction.commit

    def opened(*args: object, **options: object) -> int:
        spool.open(space.path).close()
        return commit(*args, **options)  # type: ignore[arg-type]

    with mock.patch.object(compaction, "commit", opened):
        assert tidy(space) == 1
    assert drain(space) == bodies(range(MANY))


def test_a_removal_that_is_not_visible_yet_is_seen_by_the_compaction(space: spool.Space) -> None:
    """The get of another process has a number that is not published: the compaction finishes that commit first."""
    ids = fill(space)
    with spool.open(space.path) as other:
        commit = compaction.commit

        def dying(*args: object, **options: object) -> int:
            with (
                mock.patch.object(
                    door.store(other).shared.counters, "publish_next", side_effect=WaitExpired("it died")
                ),
                pytest.raises(spool.CommitUnknown),
            ):
                other.get("orders", message_id=ids[100])
            return commit(*args, **options)  # type: ignore[arg-type]

        with mock.patch.object(compaction, "commit", dying):
            assert tidy(space) == 1
    assert drain(space) == bodies([n for n in range(MANY) if n != 100])
