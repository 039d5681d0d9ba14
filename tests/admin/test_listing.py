"""An administrator lists messages: held, in doubt and damaged ones, with holders and places; the counts add up."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spool
import xa
from spool.admin import admin
from spool.format.writer import writer_name
from spool.index.body_files import FileCache, Stored
from spool.index.commit import FileRef
from spool.transactions.transaction import Transaction
from tests import door
from tests.branches import voting
from tests.children import living
from tests.compaction import small_compactions
from tests.conftest import in_memory
from tests.meanwhile import elsewhere
from tests.spaces import fail_one, space_with

XID = xa.Xid(7, b"order", b"1")

space = space_with("orders", "errors", defaults={})


def held_by_another(path: str) -> AbstractContextManager[int]:
    """Let another process hold the next message of ``orders``; yield its process id."""

    def act(ready: Callable[[], object]) -> object:
        transaction = spool.open(path).transaction(timeout=None)
        transaction.get("orders")
        return ready(), transaction

    return living(act)


def states(space: spool.Space, queue: str = "orders") -> list[str]:
    return [entry.state for entry in space.entries(queue)]


def test_a_dry_run_and_the_real_run_leave_out_a_message_of_another_process(space: spool.Space) -> None:
    space.put_many("orders", [b"1", b"2", b"3"])
    with held_by_another(space.path):
        assert space.purge("orders", dry_run=True) == 2
        assert space.redrive("orders", "errors", dry_run=True) == 2
        assert space.stats("orders").ready == 2  # and nothing was done
        assert space.redrive("orders", "errors") == 2
        assert space.purge("orders", dry_run=True) == space.purge("orders") == 0


def test_a_dry_run_leaves_out_messages_that_this_process_holds(space: spool.Space) -> None:
    space.put_many("orders", [b"1", b"2", b"3"])
    with space.transaction() as transaction:
        transaction.get("orders")
        assert space.purge("orders", dry_run=True) == 2
        transaction.rollback()


def test_a_held_message_is_named_with_its_process_its_program_and_since_when(space: spool.Space) -> None:
    message_id, _ = space.put_many("orders", [b"1", b"2"])
    with held_by_another(space.path) as pid:
        found = space.holders("orders")
        entries = list(space.entries("orders"))
        assert [message.id for message in space.browse("orders")] == [entry.id for entry in entries]
    assert list(found) == [message_id]
    holder = found[message_id]
    assert (holder.state, holder.pid, holder.program) == ("claimed", pid, writer_name()["program"])
    assert holder.xid is not None
    assert holder.since is not None
    assert 0 <= time.time() - holder.since < 600
    assert [(entry.id == message_id, entry.state, entry.holder) for entry in entries] == [
        (True, "claimed", holder),
        (False, "ready", None),
    ]


def test_a_holder_that_left_no_note_is_not_taken_for_a_dead_one(space: spool.Space) -> None:
    space.put("orders", b"1")
    with held_by_another(space.path):
        pass
    door.store(space).shared.claims.claim(1, 0, 1)
    [holder] = space.holders("orders").values()
    assert (holder.state, holder.pid) == ("claimed", os.getpid())
    door.store(space).shared.claims.release(1, 0, 1)


def test_a_message_in_doubt_is_named_with_its_transaction(space: spool.Space) -> None:
    space.put("orders", b"1")
    space.put("orders", b"2", delay=3600)
    manager = xa.ResourceManager(space)
    with voting(manager, XID):
        taken = space.get("orders")
    assert states(space) == ["in doubt", "delayed"]
    assert list(space.browse("orders", message_id=taken.id)) == []
    holder = space.holders("orders")[taken.id]
    assert (holder.state, holder.xid) == ("in doubt", str(XID))
    assert holder.pid is not None
    assert holder.since is not None
    manager.rollback(XID)
    assert space.holders("orders") == {}


def test_an_entry_is_as_other_processes_left_it_a_moment_ago(space: spool.Space) -> None:
    with spool.open(space.path) as other:
        message_id = other.put("orders", b"1")
        assert space.entry(message_id).state == "ready"
        manager = xa.ResourceManager(other)
        with voting(manager, XID):
            other.get("orders")
        assert space.entry(message_id).state == "in doubt"
        manager.rollback(XID)
        other.delete(message_id)
    with pytest.raises(spool.BadMessageId):
        space.entry(message_id)


def test_a_heuristic_decision_by_another_process_is_listed(space: spool.Space) -> None:
    with spool.open(space.path) as other:
        manager = xa.ResourceManager(other)
        with voting(manager, XID):
            other.put("orders", b"1")
        manager.decide_heuristically(XID, commit=True)
        assert space.engine.decisions() == {str(XID): "committed"}


def flip_body(space: spool.Space, number: int) -> None:
    file = Path(space.path, "committed", f"{number:016d}.msgpack")
    data = bytearray(file.read_bytes())
    data[data.index(b"to be damaged")] ^= 1
    file.write_bytes(data)


def test_browse_entries_show_and_get_many_name_a_damaged_message(space: spool.Space, caplog: pytest.LogCaptureFixture):
    ids = [space.put("orders", body) for body in (b"1", b"to be damaged", b"3")]
    flip_body(space, 2)
    with caplog.at_level(logging.WARNING, "spool"):
        assert [message.id for message in space.browse("orders")] == [ids[0], ids[2]]
    assert f"message {ids[1]} of queue orders (position 2/0) is damaged" in caplog.text
    assert "spool-admin check --repair" in caplog.text
    caplog.clear()
    _, damaged, _ = space.entries("orders")
    assert (damaged.id, damaged.position, damaged.state, damaged.message) == (ids[1], (2, 0), "damaged", None)
    with pytest.raises(spool.CorruptedFile, match=f"message {ids[1]} of queue orders"):
        space.show(ids[1])
    with caplog.at_level(logging.WARNING, "spool"):
        assert [message.body for message in space.get_many("orders", 3)] == [b"1", b"3"]
    assert f"message {ids[1]} of queue orders was not delivered" in caplog.text


def test_a_damaged_table_of_many_messages_is_named(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_compactions():
        for _ in range(8):
            space.put("orders", b"x")
        door.compact(space)
        segments = list(door.index(space).messages.segments)

        def unreadable(*_: object) -> list[object]:
            raise spool.CorruptedFile("its table is damaged")

        monkeypatch.setattr(door.index(space).messages, "runs_of", unreadable)
        found = [entry.damage for entry in space.entries("orders") if entry.state == "damaged"]
    assert len(found) == len(segments) > 0
    for segment, damage in zip(sorted(segments, key=lambda one: one.key), found, strict=True):
        assert damage.startswith(f"{segment.live} of the messages of queue orders cannot be read: their table in")


def test_messages_taken_and_reclaimed_during_a_listing_are_not_listed_as_damaged(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_compactions(), spool.open(space.path) as other:
        for _ in range(8):
            space.put("orders", b"x")
        door.compact(space)

        def gone(*_: object) -> list[object]:
            with elsewhere():
                other.purge("orders")
            raise FileNotFoundError("reclaimed")

        monkeypatch.setattr(door.index(space).messages, "runs_of", gone)
        assert "damaged" not in states(space)


def test_messages_with_a_correlation_id_are_listed_in_the_order_of_all_messages(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_BROWSED_FIRST", 2)
    monkeypatch.setattr(admin, "_BROWSED_AT_ONCE", 3)
    space.change_queue("orders", order=("priority", "fifo"))

    def fill() -> None:
        for n in range(60):
            delay = 1000 + n % 4 if n % 3 == 1 else None
            group = f"{n % 4}" if n % 5 == 0 else None
            space.put("orders", n, correlation_id=f"{n % 3}", priority=1 + n % 7, delay=delay, group=group)

    with small_compactions():
        fill()
        while door.compact(space):
            pass
        assert len(door.index(space).messages.segments) > 4
    fill()
    every = [*space.browse("orders")]
    for key in "012":
        wanted = [message.id for message in every if message.correlation_id == key]
        assert [message.id for message in space.browse("orders", correlation_id=key)] == wanted
        assert space.purge("orders", correlation_id=key) == len(wanted) == 40
    assert not space.stats("orders").ready


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    what=st.lists(
        st.tuples(
            st.sampled_from(["put", "get", "delete", "purge", "move", "fail", "expire", "hold", "doubt", "reclaim"]),
            st.sampled_from(["orders", "errors"]),
        ),
        max_size=12,
    )
)
def test_each_enqueued_message_exists_or_is_counted_as_removed(what: list[tuple[str, str]]) -> None:
    with in_memory() as directory, spool.create(directory / "space") as space:
        space.create_queue("errors", retries=0)
        space.create_queue("orders", retries=0, error_queue="errors")
        deleted = {"orders": 0, "errors": 0}
        held: list[Transaction] = []
        for place, (name, queue) in enumerate(what):
            other = {"orders": "errors", "errors": "orders"}[queue]
            space.put_many(queue, [b"1", b"2"])
            _do(space, name, queue, other, deleted, held, place)
        found = space.stats()
        for queue, stats in found.items():
            assert stats.deleted == deleted[queue]
            there = stats.ready + stats.delayed + stats.claimed + stats.in_doubt
            gone = stats.dequeued + stats.failed + stats.expired + stats.deleted
            assert stats.enqueued == there + gone
        for one in held:
            one.rollback()


def _do(
    space: spool.Space, name: str, queue: str, other: str, deleted: dict[str, int], held: list[Transaction], place: int
) -> None:
    with suppress(spool.Empty, spool.MessageInUse):
        if name == "get":
            space.get(queue)
        elif name == "delete":
            space.delete(next(space.browse(queue)).id)
            deleted[queue] += 1
        elif name == "purge":
            deleted[queue] += space.purge(queue)
        elif name == "move":
            deleted[queue] += space.redrive(queue, other)
        elif name == "fail":
            fail_one(space, queue)
        elif name == "expire":
            space.put(queue, b"", time_to_live=0.0001)
            space.put(queue, b"", delay=1000)
        elif name == "hold":
            held.append(space.transaction(timeout=None))
            held[-1].get(queue)
        elif name == "doubt":
            manager, xid = xa.ResourceManager(space), xa.Xid(7, b"%d" % place, b"")
            manager.start(xid)
            try:
                space.get(queue)
            finally:
                manager.end(xid)
                manager.prepare(xid)
        elif name == "reclaim":
            door.reclaim(space)


# -- previews ----------------------------------------------------------------------------------------------------------

LARGE = 300_000


def test_a_preview_reads_only_the_beginning_of_each_body_and_names_the_whole_size(
    space: spool.Space, read_bytes: list[int]
) -> None:
    space.put("orders", "é" * LARGE)  # the only body of its section
    space.put_many("orders", [b"%d" % number * LARGE for number in range(3)])
    with small_compactions():
        for number in range(5):
            space.put("orders", b"c%d" % number * LARGE)
        door.compact(space)
    in_doubt = door.branch(space, xid=XID, timeout=30.0)
    in_doubt.get("orders")
    in_doubt.prepare()
    space.put("orders", {"small": 1})
    read_bytes.clear()
    found = list(space.entries("orders", preview=9))
    assert sum(read_bytes) < LARGE
    sizes = [2 * LARGE, *[LARGE] * 3, *[2 * LARGE] * 5]
    assert [(entry.body_bytes, entry.body_cut) for entry in found] == [*((size, True) for size in sizes), (8, False)]
    bodies = [entry.message.body for entry in found if entry.message is not None]
    assert bodies[:3] == ["é".encode() * 4 + b"\xc3", b"0" * 9, b"1" * 9]
    assert bodies[-2:] == [b"c4c4c4c4c", {"small": 1}]  # a body that is not cut is decoded
    assert [entry.state for entry in found][:2] == ["in doubt", "ready"]
    for whole, cut in zip(space.entries("orders"), found, strict=True):
        assert {**whole.message.as_dict(), "body": 0} == {**cut.message.as_dict(), "body": 0}
        assert (whole.body_bytes, whole.body_cut) == (cut.body_bytes, False)
        assert whole.id is not None
        assert space.entry(whole.id, preview=9) == cut


def test_a_preview_is_a_number_of_bytes(space: spool.Space) -> None:
    for wrong in (-1, 1.5, "x", 2**32):
        with pytest.raises(spool.InvalidArgument, match="preview is a whole number from 0"):
            space.entries("orders", preview=wrong)  # type: ignore[arg-type]
    space.put("orders", b"xy")
    (entry,) = space.entries("orders", preview=0)
    assert (entry.message.body, entry.body_bytes, entry.body_cut) == (b"", 2, True)


def test_a_preview_shows_no_bytes_of_a_message_that_gets_the_file_during_the_read(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the messages, reclaims their files, and puts messages into the recycled files."""
    space.put("orders", b"old" * LARGE)
    for _ in range(5):
        space.put("orders", b"x")  # (spare files for the others; a put takes the file of its own size)
    cache, opened = door.store(space).files.cache, FileCache._open_one

    with spool.open(space.path) as other:

        def late(self: FileCache, file: FileRef) -> int:
            handle = opened(self, file)
            if self is cache:
                monkeypatch.setattr(FileCache, "_open_one", opened)
                with elsewhere():
                    other.purge("orders")
                    other.put("errors", b"new" * LARGE)
                assert b"new" in os.pread(handle, 4 * LARGE, 0), "the file was not recycled"
            return handle

        monkeypatch.setattr(FileCache, "_open_one", late)
        assert list(space.entries("orders", preview=1000)) == []


def test_a_preview_follows_a_message_that_a_compaction_moves_during_the_read(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, beginning = door.store(space).files.cache, FileCache.beginning
    with small_compactions(), spool.open(space.path) as other:
        for number in range(10):
            space.put("orders", b"%d" % number * LARGE)
        moved: list[int] = []

        def late(self: FileCache, run: Stored, ordinal: int, count: int) -> bytes:
            data = beginning(self, run, ordinal, count)
            if self is cache and not moved:
                with elsewhere():
                    moved.append(door.compact(other))
            return data

        monkeypatch.setattr(FileCache, "beginning", late)
        last = list(space.entries("orders"))[-1].id
        assert last is not None
        entry = space.entry(last, preview=5)
        assert (moved, entry.message.body, entry.damage) == ([1], b"99999", None)


def test_damage_behind_a_preview_is_found_by_a_whole_list(space: spool.Space) -> None:
    space.put("orders", b"x" * LARGE + b"to be damaged")
    flip_body(space, 1)
    assert [entry.damage for entry in space.entries("orders", preview=10)] == [None]
    (whole,) = space.entries("orders")
    assert (whole.state, whole.body_bytes) == ("damaged", None)
