"""Orders of durable steps that few power cuts can show."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from spool.errors import SpaceStopped
from spool.log.sequence import settle_all
from spool.model import layout
from tests import door
from tests.meanwhile import Meanwhile, Processes


@pytest.fixture
def strict() -> Processes:
    """Nothing that was not flushed need survive."""
    return Processes(ordered=False)


def told(disk: Meanwhile, *calls: str) -> list[tuple[str, Any]]:
    """(call, its first argument) of these calls from now on."""
    seen: list[tuple[str, Any]] = []

    def watched(call: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def tell(first: Any, *args: Any, **options: Any) -> Any:
            seen.append((call, first))
            return inner(first, *args, **options)

        return tell

    for call in calls:
        setattr(disk, call, watched(call, getattr(disk, call)))
    return seen


def test_a_consumed_file_is_durably_in_the_pool_before_a_process_may_overwrite_it(strict: Processes) -> None:
    """Otherwise its old name could return, with the bytes of a later commit."""
    space, disk = strict.open()
    space.put("orders", "one")
    space.get("orders")
    space.put("orders", "newest")
    seen = told(disk, "rename", "flush_directory")
    assert door.reclaim(space) > 0
    moves = [place for place, (call, name) in enumerate(seen) if call == "rename" and name.startswith("committed/")]
    offers = [place for place, (call, name) in enumerate(seen) if call == "rename" and name.endswith(".new")]
    assert offers
    for offer in offers:
        last_moved = max(place for place in moves if place < offer)
        between = {name for call, name in seen[last_moved:offer] if call == "flush_directory"}
        assert {layout.COMMITTED, layout.FREE} <= between


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "strict"])
def test_a_dead_writers_commit_is_copied_whole_before_the_copy_takes_its_name(ordered: bool) -> None:
    """Otherwise the name could lead to an empty file, although it led to a whole file before."""
    processes = Processes(ordered=ordered)
    doomed, its_disk = processes.open()
    other, disk = processes.open()
    its_disk.dies_before("make_durable", lambda: doomed.put("orders", "one"), layout.COMMITTED)
    seen = told(disk, "create", "write_at", "flush", "rename")
    settle_all(door.store(other), door.deadline(other))
    (begun,) = (place for place, (call, name) in enumerate(seen) if call == "create" and str(name).endswith(".copy"))
    calls = [call for call, _ in seen[begun:]]
    written = calls[: calls.index("rename")]
    assert "write_at" in written
    assert written[-1] == "flush"
    assert other.get("orders").body == "one"


def test_reclaim_leaves_one_record_of_the_removed_files(strict: Processes) -> None:
    """The previous record is removed at once, with the files that it recorded."""
    space, disk = strict.open()
    for body in ("one", "two", "three"):
        space.put("orders", body)
        space.get("orders")
        door.reclaim(space)
    space.put("orders", "newest")
    door.reclaim(space)
    assert len(disk.names(layout.COMMITTED)) == 2, "the newest put, and the record"


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_get_that_finds_nothing_notices_that_run_was_deleted(strict: Processes, in_a_transaction: bool) -> None:
    """Otherwise the call would wait for ever for messages in files that its process does not know."""
    space, _ = strict.open()
    strict.disk().unlink(layout.CONTROL)
    with pytest.raises(SpaceStopped, match="was deleted"), space.transaction() if in_a_transaction else nullcontext():
        space.get("orders")


def test_reclaim_in_batches_counts_each_on_top_of_the_last(strict: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spool.maintenance.reclaim._BATCH_FILES", 1)
    (space, disk), (other, _) = strict.open(), strict.open()
    for body in ("one", "two", "three"):
        space.put("orders", body)
        space.get("orders")
    space.put("orders", "newest")
    disk.before("identity", lambda: other.put("orders", "meanwhile"), "run/xids")
    assert door.reclaim(space) > 3
    assert not disk.waits_for("identity")
    assert (space.stats("orders").enqueued, space.stats("orders").dequeued) == (5, 3)
    assert space.check() == []
