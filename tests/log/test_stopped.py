"""A failed flush, or the deletion of a file with locks, stops the space for all processes, at every step of every call.
A closed space says that it is closed."""

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from itertools import islice
from operator import methodcaller
from pathlib import Path

import pytest

import spool
from spool.errors import CommitUnknown, SpaceStopped
from spool.intake import Intake
from spool.log.sequence import settle_all
from spool.log.visibility import catch_up
from spool.model import layout
from tests import door
from tests.meanwhile import XID, Processes, Watched, prepare
from tests.spaces import fail_one


def list_of(found: Callable[[spool.Space], object]) -> Callable[[spool.Space], object]:
    return lambda space: list(found(space))  # type: ignore[call-overload]


CALLS = {
    "create_queue": methodcaller("create_queue", "more"), "create_queues": methodcaller("create_queues", ["more"]),
    "change_queue": methodcaller("change_queue", "orders", retries=1), "queues": methodcaller("queues"),
    "delete_queue": methodcaller("delete_queue", "orders"), "ensure_queue": methodcaller("ensure_queue", "orders"),
    "export": lambda space: space.export(BytesIO()), "put": methodcaller("put", "orders", "one"),
    "get": methodcaller("get", "orders"), "find": methodcaller("find", "orders", correlation_id="any"),
    "replace": methodcaller("replace", "orders", "one", correlation_id="any"), "stats": methodcaller("stats"),
    "request": methodcaller("request", "orders", "one"), "take": lambda space: space.claims().take("orders"),
    "arrivals": methodcaller("arrivals", ["orders"]), "transaction": methodcaller("transaction"),
    "browse": list_of(methodcaller("browse", "orders")), "entries": list_of(methodcaller("entries", "orders")),
    "show": methodcaller("show", "0" * 32), "delete": methodcaller("delete", "0" * 32),
    "move": methodcaller("move", "0" * 32, "orders"), "change": methodcaller("change", "0" * 32, priority=1),
    "purge": methodcaller("purge", "orders"), "redrive": methodcaller("redrive", "orders", "orders"),
    "stats of a queue": methodcaller("stats", "orders"), "check": methodcaller("check"),
    "subscriptions": methodcaller("subscriptions"), "delete subscription": methodcaller("delete_subscription", "any"),
    "quarantined": methodcaller("quarantined"), "quarantined file": methodcaller("quarantined_file", "any"),
    "restore quarantined": methodcaller("restore_quarantined", "any"),
    "delete quarantined": methodcaller("delete_quarantined", "any"), "claims": methodcaller("claims"),
    "backlog": lambda space: space.engine.backlog(["orders"]),
}  # fmt: skip
BY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@BY_CALL
def test_a_space_that_has_stopped_says_so(
    processes: Processes, space: spool.Space, call: Callable[[spool.Space], object]
) -> None:
    door.store(processes.space()).stop()
    with pytest.raises(SpaceStopped):
        call(space)
    with pytest.raises(SpaceStopped):
        processes.space()


@BY_CALL
def test_a_space_whose_lock_file_was_deleted_says_so(space: spool.Space, call: Callable[[spool.Space], object]) -> None:
    space.put("orders", "there")
    door.disk(space).unlink(layout.CONTROL)
    with pytest.raises(SpaceStopped):
        door.store(space).check_in_place()  # (the housekeeper's)
    with pytest.raises(SpaceStopped):
        call(space)


@pytest.mark.parametrize("ending", ["stopped", "moved"])
def test_a_change_that_was_published_before_the_end_is_done(space: spool.Space, watched: Watched, ending: str):
    changing, disk = watched
    store = door.store(changing)
    ends = {"stopped": door.store(space).stop, "moved": lambda: setattr(store, "misplaced", "as the housekeeper finds")}
    space.put("orders", "one")
    disk.before("unlock", ends[ending], spare=2)
    assert changing.purge("orders") == 1
    assert not disk.waits_for("unlock")


def test_a_check_of_a_space_that_was_moved_says_so(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        (tmp_path / "space").rename(tmp_path / "moved")
        with suppress(SpaceStopped):
            door.store(space).check_in_place()
        with pytest.raises(SpaceStopped, match="moved"):
            space.check()


def test_a_space_that_was_moved_and_has_stopped_says_so(space: spool.Space) -> None:
    space.put("orders", "one")
    with space.claims() as claims:
        door.store(space).misplaced = "the directory was moved"  # as the housekeeper has found
        with pytest.raises(SpaceStopped, match="moved"):
            claims.take("orders")
    door.store(space).stop()
    with pytest.raises(SpaceStopped, match="moved"):
        space.metrics()


def test_an_opener_of_a_space_that_has_stopped_changes_nothing(processes: Processes, space: spool.Space) -> None:
    prepare(space)
    disk = processes.disk()
    disk.damage(layout.prepared(XID), 20)
    door.store(space).stop()
    with pytest.raises(SpaceStopped):
        processes.space()
    assert disk.exists(layout.prepared(XID))


def test_a_transaction_of_a_space_that_has_stopped_says_so(processes: Processes, space: spool.Space) -> None:
    space.put("orders", "one")
    transaction = space.transaction()
    door.store(processes.space()).stop()
    for call in (lambda: transaction.put("orders", "two"), lambda: transaction.get("orders"), transaction.commit):
        with pytest.raises(SpaceStopped):
            call()


def test_a_holder_of_claims_and_arrivals_learns_that_the_space_has_stopped(processes: Processes, space: spool.Space):
    space.put_many("orders", ["one", "two", "three"])
    with space.claims() as claims, space.arrivals(["orders"]) as arrivals:
        one, two, three = claims.take("orders", 3)
        door.store(processes.space()).stop()
        for call in (
            lambda: claims.take("orders"),
            lambda: claims.remove([one]).result(),
            lambda: claims.fail(two, "failed").result(),
            lambda: claims.reject([three], "refused").result(),
            lambda: space.state(one),
            arrivals.ready,
            arrivals.next_due,
        ):
            with pytest.raises(SpaceStopped):
                call()


def test_nothing_is_known_of_branches_in_a_space_that_has_stopped(processes: Processes, space: spool.Space) -> None:
    door.store(processes.space()).stop()
    with pytest.raises(SpaceStopped):
        space.engine.is_prepared(XID)


def test_a_browse_stops_with_the_space(processes: Processes, space: spool.Space) -> None:
    space.put_many("orders", ["one", "two"])
    found = space.browse("orders")
    assert [message.body for message in islice(found, 1)] == ["one"]
    door.store(processes.space()).stop()
    with pytest.raises(SpaceStopped):
        next(found)


def test_nothing_is_claimed_in_a_space_that_has_stopped(space: spool.Space, watched: Watched) -> None:
    taking, disk = watched
    space.put("orders", "one")
    assert taking.stats("orders").ready == 1, "the process has caught up, and need not read again"
    door.store(space).stop()
    disk.before("lock", lambda: None)
    with pytest.raises(SpaceStopped):
        taking.get("orders")
    assert disk.waits_for("lock"), "no lock was asked for"


def test_a_commit_gets_no_number_in_a_space_that_has_stopped_meanwhile(space: spool.Space, watched: Watched) -> None:
    writer, disk = watched
    disk.before("write_at", door.store(space).stop)
    with pytest.raises(SpaceStopped):
        writer.put("orders", "one")
    assert not disk.waits_for("write_at")
    assert disk.names(layout.COMMITTED) == []


def test_a_commit_is_not_published_in_a_space_that_has_stopped_meanwhile(space: spool.Space, watched: Watched) -> None:
    writer, disk = watched
    disk.before("make_durable", door.store(space).stop, layout.COMMITTED)
    with pytest.raises(CommitUnknown):
        writer.put("orders", "one")
    assert door.counters(space).published == 0


def test_a_dead_writer_s_commit_is_not_published_in_a_space_that_has_stopped_meanwhile(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    processes.lose_a_writer()
    finisher, disk = watched
    disk.before("rename", door.store(space).stop, layout.ACTIVE)
    with pytest.raises((SpaceStopped, CommitUnknown)):
        finisher.put("orders", "two")
    assert not disk.waits_for("rename")
    assert door.counters(space).published == 0


def test_a_branch_does_not_vote_in_a_space_that_has_stopped(processes: Processes, space: spool.Space) -> None:
    branch = door.branch(space, xid=XID, timeout=None)
    branch.put("orders", "one")
    door.store(processes.space()).stop()
    with pytest.raises(SpaceStopped):
        branch.prepare()


def test_a_reading_that_began_before_the_stop_ends_at_new_settings(space: spool.Space, other: spool.Space) -> None:
    store = door.store(space)
    begun = store.shared.counters.read()
    other.change_queue("orders", order="lifo")
    store.settings.current()
    door.store(other).stop()
    with pytest.raises(SpaceStopped):
        catch_up(store, begun)


@pytest.mark.parametrize("name", [layout.CONTROL, layout.NUMBERS, layout.XIDS])
def test_a_lock_file_that_was_deleted_stops_the_space(space: spool.Space, name: str) -> None:
    door.disk(space).unlink(name)
    with pytest.raises(SpaceStopped, match="deleted"):
        prepare(space)
        space.put("orders", "one")


@pytest.mark.parametrize("transactional", [False, True])
def test_an_empty_queue_is_not_waited_for_where_lock_file_was_deleted(space: spool.Space, transactional: bool) -> None:
    """No other process would ever be heard of."""
    door.disk(space).unlink(layout.CONTROL)
    with pytest.raises(SpaceStopped, match="deleted"):
        if transactional:
            with space.transaction() as transaction:
                transaction.get("orders", timeout=1.0)
        else:
            space.get("orders", timeout=1.0)


def test_claims_in_a_file_that_was_deleted_stop_the_space(space: spool.Space) -> None:
    space.put("orders", "one")
    fail_one(space, "orders")
    door.disk(space).unlink(layout.claim_file(1))
    with pytest.raises(SpaceStopped):
        space.get("orders")


def test_a_reading_by_counters_that_were_just_read_reports_the_stop(space: spool.Space) -> None:
    store = door.store(space)
    store.shared.counters.stop()
    with pytest.raises(spool.SpaceStopped):
        catch_up(store, store.shared.counters.read())
    with pytest.raises(spool.SpaceStopped):
        settle_all(store, door.deadline(space))


def test_an_intake_without_dropped_files_ends_with_the_space(processes: Processes, space: spool.Space) -> None:
    door.store(processes.space()).stop()
    with pytest.raises(SpaceStopped):
        Intake(space).run(once=True)
