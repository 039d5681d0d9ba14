"""``state`` names the state of a message as it is now, whatever other processes do, and reads no body."""

import asyncio
from collections.abc import Callable

import pytest

import spool
import spool.aio
import xa
from spool.index.body_files import FileCache
from tests import door
from tests.admin.test_listing import held_by_another
from tests.branches import voting
from tests.clocks import MovedClock, timed
from tests.compaction import small_compactions, tidy
from tests.meanwhile import Meanwhile, Processes, prepare
from tests.spaces import space_with

XID = xa.Xid(7, b"order", b"1")

space = space_with("errors", orders={"error_queue": "errors", "retries": 1}, kept={"on_expiry": "drop"})


def test_a_message_is_ready_delayed_or_gone(space: spool.Space) -> None:
    ready, delayed = space.put("orders", "a"), space.put("orders", "b", delay=1000)
    assert (space.state(ready), space.state(delayed)) == ("ready", "delayed")
    with space.transaction() as tx:
        uncommitted = tx.put("orders", "c")
        assert space.state(uncommitted) == "gone"
    assert space.state(uncommitted) == "ready"
    assert space.purge("orders") == 3
    assert {space.state(id) for id in (ready, delayed, uncommitted, "0" * 32)} == {"gone"}


def test_a_message_object_and_its_id_have_one_state(space: spool.Space) -> None:
    space.put("orders", "a", correlation_id="c")
    found = space.find("orders", correlation_id="c")
    assert found is not None
    with spool.open(space.path) as other:
        assert space.state(found) == space.state(found.id) == other.state(found) == "ready"
        taken = other.get("orders")
        assert space.state(found) == space.state(taken) == "gone"


def test_a_message_that_a_thread_or_another_process_holds_is_claimed(space: spool.Space) -> None:
    message_id, _ = space.put_many("orders", ["a", "b"], delay=0)
    with held_by_another(space.path), space.transaction() as tx, spool.open(space.path) as other:
        mine = tx.get("orders")
        assert [one.state(id) for one in (space, other) for id in (message_id, mine.id)] == ["claimed"] * 4
        tx.rollback()
        assert (space.state(message_id), space.state(mine)) == ("claimed", "ready")
    assert space.state(message_id) == "ready", "its holder was killed"


def test_a_message_in_doubt_is_named_so(space: spool.Space) -> None:
    message_id, manager = space.put("orders", "a"), xa.ResourceManager(space)
    with voting(manager, XID), spool.open(space.path) as other:
        space.get("orders")
        assert other.state(message_id) == "claimed"
    with spool.open(space.path) as other:
        assert space.state(message_id) == other.state(message_id) == "in doubt"
        manager.commit(XID)
        assert space.state(message_id) == other.state(message_id) == "gone"


def test_compacted_messages_have_their_states(space: spool.Space) -> None:
    message_id = space.put("orders", "a")
    with small_compactions():
        rest = space.put_many("orders", ["x"] * 40)
        assert tidy(space)
        assert {space.state(id) for id in (message_id, *rest)} == {"ready"}
        taken = space.get_many("orders", 20)
        assert [space.state(id) for id in rest].count("gone") == len(taken) - 1


def test_no_body_is_read(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    message_id = space.put("orders", "a")
    for name in ("bodies", "beginning", "place"):
        monkeypatch.setattr(FileCache, name, lambda *_: pytest.fail("a body is read"))
    assert space.state(message_id) == "ready"


def test_an_expired_message_is_gone_or_in_the_error_queue(space: spool.Space) -> None:
    clock = MovedClock()
    with spool.open(timed(space.path, clock)) as later:
        moved, dropped = later.put("orders", "a", time_to_live=5), later.put("kept", "b", time_to_live=5)
        held = later.put("orders", "c", time_to_live=5)
        found = later.show(held)
        assert door.store(later).shared.claims.claim(*found.position, 1)
        clock.later = 6
        assert (later.state(moved), later.state(dropped), later.state(held)) == ("ready", "gone", "claimed")
        assert later.stats("errors").ready == 1
        door.store(later).shared.claims.release(*found.position, 1)
        assert later.state(held) == "ready"
        assert later.stats("errors").ready == 2


@pytest.mark.parametrize("wrong", ["", "x" * 32, "0" * 31, None, 7, b"0" * 32])
def test_a_text_that_is_no_id_is_refused(space: spool.Space, wrong: object) -> None:
    with pytest.raises(spool.BadMessageId, match="is not a message id, which is 32 hexadecimal digits"):
        space.state(wrong)  # type: ignore[arg-type]


# -- other processes meanwhile ----------------------------------------------------------------------------------------


def meanwhile(act: Callable[[spool.Space], object]) -> str:
    """Return the state of a message to which another process does something just before its claim is checked."""
    processes = Processes()
    other = processes.space()
    space, disk = processes.open()
    message_id = other.put("orders", "one")
    assert space.state(message_id) == "ready"
    assert isinstance(disk, Meanwhile)
    disk.before("some_lock", lambda: act(other))
    state = space.state(message_id)
    assert not disk.waits_for("some_lock")
    return state


def test_a_message_that_is_taken_during_the_check_is_gone() -> None:
    assert meanwhile(lambda other: other.get("orders")) == "gone"


def test_a_message_that_becomes_in_doubt_during_the_check_is_named_so() -> None:
    assert meanwhile(lambda other: prepare(other, take=True)) == "in doubt"


def test_of_ten_thousand_messages_that_are_taken_each_is_ready_claimed_or_gone(space: spool.Space) -> None:
    """A message that was taken is never ready again."""
    with space.transaction() as tx:
        ids = [tx.put("orders", n) for n in range(10_000)]
    with spool.open(space.path) as other:
        while ids:
            taken = other.get_many("orders", 100)
            assert {space.state(id) for id in ids[:100]} == {"gone"}
            del ids[: len(taken)]
            assert {space.state(id) for id in ids[:100]} <= {"ready"}


def test_tasks_ask_for_states(space: spool.Space) -> None:
    async def main() -> str:
        async with spool.aio.open(space.path) as own:
            return await own.state(await own.put("orders", "a"))

    assert asyncio.run(main()) == "ready"
