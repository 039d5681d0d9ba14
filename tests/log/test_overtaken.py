"""Reclaim runs while others read: an overtaken reader continues from the existing files."""

from collections.abc import Callable

import pytest

import spool
from spool.model import layout
from spool.store.feed import Feed
from tests import door
from tests.machine import PowerCut
from tests.meanwhile import Meanwhile, Processes
from tests.shown import bodies

ORDERED = pytest.mark.parametrize("ordered", [True, False])


def listed_around(disk: Meanwhile, action: Callable[[], object], up_to: int) -> None:
    """The next listing of ``committed/`` is no instant: something happens after it came to that number."""
    inner = disk.names

    def names(directory: str) -> list[str]:
        before = inner(directory)
        if directory != layout.COMMITTED:
            return before
        disk.names = inner  # type: ignore[method-assign]
        action()
        return [n for n in before if _number(n) <= up_to] + [n for n in inner(directory) if _number(n) > up_to]

    disk.names = names  # type: ignore[method-assign]


def _number(name: str) -> int:
    return layout.parse_committed(name).number


@pytest.fixture
def without_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is read from its files."""
    monkeypatch.setattr(Feed, "commit", lambda feed, number: None)


def consumed_and_reclaimed(space: spool.Space, body: str) -> None:
    """A message was put and consumed, and a newer message remains."""
    put = space.put("orders", body)
    space.get("orders", message_id=put)
    space.put("orders", f"after {body}")
    assert door.reclaim(space)


@ORDERED
def test_a_message_that_is_consumed_during_a_listing_does_not_return(ordered: bool) -> None:
    """The listing has the message's file; its remover was reclaimed before the listing reached the remover's number.

    One reclaimer dies after its record, and another continues: no newer file names the message any more.
    """
    there = Processes(ordered=ordered)
    (space, disk), heir, (other, others_disk) = there.open(), there.space(), there.open()
    first = space.put("orders", "first")
    assert bodies(other) == ["first"]
    consumed_and_reclaimed(space, "second")  # so the other is overtaken
    space.get("orders", message_id=first)
    space.get("orders", message_id=space.put("orders", "third"))
    space.put("orders", "last")
    disk.before("rename", disk.die, layout.committed(1))
    with pytest.raises(PowerCut):
        door.reclaim(space, behind=3)
    assert bodies(heir) == ["after second", "last"]

    def goes() -> None:
        assert door.reclaim(heir, behind=4) >= 2
        assert door.reclaim(heir) >= 2

    listed_around(others_disk, goes, up_to=1)
    assert other.get("orders").body == "after second"
    assert bodies(other) == ["last"]
    assert other.check() == other.quarantined() == []


@ORDERED
@pytest.mark.usefixtures("without_feed")
def test_a_reader_that_is_overtaken_at_each_file_ends(ordered: bool) -> None:
    """More often than a reader restarts."""
    there = Processes(ordered=ordered)
    space, (other, disk) = there.space(), there.open()
    turns = iter(range(40))

    def goes_on() -> None:
        if (turn := next(turns, None)) is not None:
            consumed_and_reclaimed(space, f"turn {turn}")
            disk.before("open", goes_on, layout.COMMITTED)

    goes_on()
    found = bodies(other)
    assert found == [f"after turn {turn}" for turn in range(len(found))]
    assert bodies(other) == [f"after turn {turn}" for turn in range(40)]


@pytest.mark.usefixtures("without_feed")
def test_a_name_that_leads_nowhere_is_one_clear_error_and_no_endless_search() -> None:
    """A damaged directory can list files that cannot be opened."""
    there = Processes()
    space, (other, disk) = there.space(), there.open()
    space.put("orders", "x")
    inner = disk.names
    disk.names = lambda name: inner(name) + ["0000000000000002.msgpack"] * (name == layout.COMMITTED)  # type: ignore[method-assign]
    space.put("orders", "y")
    disk.unlink(layout.committed(2))
    with pytest.raises(spool.SystemFailure, match="is listed but not found"):
        other.get("orders")


def test_commits_that_others_have_reclaimed_are_forgotten() -> None:
    there = Processes()
    space, other = there.space(), there.space()
    for turn in range(10):
        space.put("orders", turn)
        space.get("orders")
        assert bodies(other) == []
        door.reclaim(space)
    assert bodies(other) == []
    assert len(door.index(other).files) <= len(door.index(space).files) + 3 < 8


@ORDERED
def test_removals_of_a_dead_reclaimer_are_durable_before_their_removers_are_removed(ordered: bool) -> None:
    there = Processes(ordered=ordered)
    (space, disk), (other, others_disk) = there.open(), there.open()
    space.put_many("orders", ["a", "b"])
    space.get_many("orders", 2)
    space.put("orders", "c")
    assert bodies(other) == ["c"]
    disk.before("flush_directory", disk.die, layout.COMMITTED)
    with pytest.raises(PowerCut):
        door.reclaim(space)
    events: list[str] = []
    others_disk.before("flush_directory", lambda: events.append("flush"), layout.COMMITTED)
    for call in ("unlink", "rename"):
        others_disk.before(call, lambda: events.append("remove"), layout.COMMITTED)
    assert bodies(other) == ["c"]
    assert door.reclaim(other)
    assert events[0] == "flush"
    assert bodies(other) == ["c"]


# -- processes that only put ------------------------------------------------------------------------------------------


def test_a_process_that_only_puts_reads_no_commits_of_others() -> None:
    there = Processes()
    space, (other, disk) = there.space(), there.open()
    opened: list[str] = []
    inner = disk.open

    def watched(name: str, *, write: bool = False) -> int:
        opened.append(name)
        return inner(name, write=write)

    disk.open = watched  # type: ignore[method-assign]
    for turn in range(100):
        space.put("orders", f"theirs {turn}")
        other.put("orders", f"ours {turn}")
    assert not [name for name in opened if name.startswith(layout.COMMITTED)]
    found = bodies(other)
    assert found == [f"{whose} {turn}" for turn in range(100) for whose in ("theirs", "ours")]
    assert bodies(space) == found
    assert door.store(other).view.own_commits == {}


@pytest.mark.unled("this process keeps no commit of its leader")
def test_own_commits_that_were_read_with_others_are_not_kept() -> None:
    there = Processes()
    space, other = there.space(), there.space()
    consumed_and_reclaimed(space, "one")
    other.put("orders", "own")
    assert door.store(other).view.own_commits
    assert bodies(other) == ["after one", "own"]
    assert door.store(other).view.own_commits == {}
