"""Files that wait for room in their queue become messages in their order, and cost little while they wait."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import spool
from spool.disk import Disk
from spool.intake.full_queues import CommitRoom
from spool.intake.intake import Intake
from tests import door
from tests.at_once import AT_ONCE
from tests.children import exit_code_of
from tests.intake.test_intake import running


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[spool.Space]:
    monkeypatch.setattr("spool.intake.intake._BATCH_FILES", 8)
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders", max_messages=5)
        space.create_queue("mail")
        yield space


def drop(space: spool.Space, *contents: bytes, queue: str = "orders", suffix: str = "", first: int = 0) -> None:
    """Drop files whose last changes are a second apart. Their names are not in this order."""
    for place, content in enumerate(contents, first):
        path = Path(space.path, "drop", queue, f"{(place * 7919) % 10007:05}{suffix}")
        path.write_bytes(content)
        os.utime(path, (place, place))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%04d" % place for place in range(first, first + count)]


def stream(*bodies: bytes) -> bytes:
    return b"".join(msgpack.packb({"body": body}) for body in bodies)


def waiting(space: spool.Space, queue: str = "orders") -> list[Any]:
    return [message.body for message in space.browse(queue)]


def take_one_by_one(space: spool.Space, intake: Intake, count: int) -> list[Any]:
    """Take messages; after each of them, the intake looks at its files."""
    found = []
    for _ in range(count):
        intake.take_all()
        found.append(space.get("orders").body)
    return found


def test_files_that_wait_for_room_are_taken_in_their_order(space: spool.Space) -> None:
    drop(space, *numbered(50))
    intake = Intake(space)
    assert take_one_by_one(space, intake, 40) == numbered(40)
    assert waiting(space) == numbered(4, 40)


def test_a_file_that_was_changed_later_does_not_overtake_files_in_the_folder(space: spool.Space) -> None:
    """The first files are captured already when the intake finds an older file in the folder."""
    drop(space, *numbered(10, 10), first=10)
    intake = Intake(space)
    intake.take_all()
    drop(space, *numbered(2), first=0)
    drop(space, *numbered(2, 20), first=20)
    space.get_many("orders", 5)
    intake.take_all()
    assert waiting(space) == [b"0000", b"0001", b"0015", b"0016", b"0017"]
    space.get_many("orders", 5)
    intake.take_all()
    assert waiting(space) == [b"0018", b"0019", b"0020", b"0021"]


def test_files_that_an_earlier_intake_had_captured_keep_their_order(space: spool.Space) -> None:
    drop(space, *numbered(40))
    found: list[Any] = []
    while len(found) < 40:
        counts = Intake(space).run(once=True)
        found += [message.body for message in space.get_many("orders", 5)]
        assert counts.left == 40 - len(found)
    assert found == numbered(40)


def test_a_full_queue_costs_no_look_at_its_files(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(space, *numbered(40))
    intake, touched = Intake(space), list[str]()
    intake.take_all()
    disk = door.disk(space)
    for name in ("open", "identity", "has_writer", "rename_new"):
        original = getattr(disk, name)

        def call(path: str, *rest: Any, original: Any = original, **options: Any) -> Any:
            touched.append(path)
            return original(path, *rest, **options)

        monkeypatch.setattr(disk, name, call)
    for _ in range(5):
        intake.take_all()
    assert [path for path in touched if "/orders" in path or "drop.orders" in path] == []
    touched.clear()
    read = Intake._read
    bodies = list[str]()
    monkeypatch.setattr(Intake, "_read", lambda self, file: bodies.append(file.name) or read(self, file))
    space.get("orders")
    intake.take_all()
    assert len(bodies) == 1, "it reads the file that has room, and no other"


def test_a_full_queue_is_told_once_and_its_end_once(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    drop(space, *numbered(20))
    intake = Intake(space)
    assert take_one_by_one(space, intake, 20) == numbered(20)
    intake.take_all()
    assert [record.getMessage().partition(", so")[0] for record in caplog.records] == [
        "drop/orders: 15 files wait for room: queue orders holds 5 messages of at most 5 (max_messages)",
        "drop/orders: there was room for all files that waited",
    ]


def test_an_entry_that_is_left_alone_is_told_once_although_the_queue_is_full_now_and_then(
    space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    drop(space, *numbered(20))
    link = Path(space.path, "drop/orders/link")
    link.symlink_to("nothing")
    intake = Intake(space)
    for _ in range(20):
        intake._begin_look()
        intake.take_all()
        assert "drop/orders/link" in intake._left
        space.get("orders")
    expected = ["drop/orders/link: it is no regular file, and is left alone"]
    assert [record.getMessage() for record in caplog.records if "link" in record.getMessage()] == expected
    link.unlink()
    for _ in range(2):
        intake._begin_look()
        intake.take_all()
    assert intake.counts.left == 0
    assert intake._reported == set()


def test_a_run_that_ends_tells_how_many_files_are_left(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    drop(space, *numbered(1200))
    counts = Intake(space).run(once=True)
    assert (counts.files, counts.left) == (5, 1195)
    [record] = caplog.records
    assert record.getMessage().startswith("drop/orders: 1,195 files wait for room: ")


def test_a_stream_waits_until_all_its_messages_have_room_and_no_file_overtakes_it(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put_many("orders", [b"a", b"b", b"c"])
    drop(space, stream(*numbered(4)), suffix=".msgpack")
    drop(space, b"last", first=1)
    intake, bodies, read = Intake(space), list[str](), Intake._read
    monkeypatch.setattr(Intake, "_read", lambda self, file: bodies.append(file.name) or read(self, file))
    assert take_one_by_one(space, intake, 2) == [b"a", b"b"]
    assert waiting(space) == [b"c"]
    assert bodies == ["00000.msgpack"], "the intake reads the file once, and remembers what it needs"
    intake.take_all()
    assert waiting(space) == [b"c", *numbered(4)]
    space.get("orders")
    intake.take_all()
    assert waiting(space) == [*numbered(4), b"last"]


def test_a_file_larger_than_its_whole_queue_holds_up_no_other(space: spool.Space) -> None:
    drop(space, stream(*numbered(6)), suffix=".msgpack")
    drop(space, b"next", first=1)
    space.put_many("orders", [b"a", b"b"])
    counts = Intake(space).run(once=True)
    assert (counts.quarantined, counts.left) == (1, 0)
    assert waiting(space) == [b"a", b"b", b"next"]
    [finding] = space.quarantined()
    assert "queue orders holds at most 5 messages (max_messages), so 6 never fit: raise the limit" in finding.detail
    space.change_queue("orders", max_messages=100)
    space.restore_quarantined(finding.name.partition("/")[2])
    Intake(space).run(once=True)
    assert waiting(space) == [b"a", b"b", b"next", *numbered(6)]


@pytest.mark.parametrize(
    ("size", "suffix", "told"),
    [(11, "", 11), (11, ".txt", 11), (11, ".json", 11), (50, "", 50), (50, ".txt", 47), (50, ".json", 47)],
)
def test_a_file_with_more_bytes_than_its_whole_queue_holds_up_no_other(
    space: spool.Space, size: int, suffix: str, told: int
) -> None:
    """A body has at most three bytes, a byte order mark, less than its file."""
    space.change_queue("orders", max_bytes=10)
    drop(space, b"1" * size, suffix=suffix)
    drop(space, b"next", first=1)
    counts = Intake(space).run(once=True)
    assert (counts.quarantined, counts.left) == (1, 0)
    assert waiting(space) == [b"next"]
    [finding] = space.quarantined()
    assert f"queue orders holds at most 10 bytes (max_bytes), so {told} never fit: raise the limit" in finding.detail


def test_a_limit_that_is_lowered_while_files_wait_holds_up_no_file_that_fits(space: spool.Space) -> None:
    space.put_many("orders", [b"a", b"b", b"c"])
    drop(space, stream(*numbered(4)), suffix=".msgpack")
    drop(space, b"next", first=1)
    intake = Intake(space)
    intake.take_all()
    assert intake.counts.left == 2
    space.change_queue("orders", max_messages=3)
    space.get("orders")
    intake.take_all()
    assert intake.counts.quarantined == 1
    assert waiting(space) == [b"b", b"c", b"next"]


def test_a_queue_that_is_closed_by_a_limit_of_0_keeps_its_files(space: spool.Space) -> None:
    space.change_queue("orders", max_messages=0)
    drop(space, *numbered(3))
    intake = Intake(space)
    intake.take_all()
    assert (intake.counts.quarantined, intake.counts.left) == (0, 3)
    space.change_queue("orders", max_messages=2)
    intake.take_all()
    assert waiting(space) == numbered(2)
    space.change_queue("orders", max_messages=None)
    intake.take_all()
    assert waiting(space) == numbered(3)


def test_a_full_queue_holds_up_no_other_queue(space: spool.Space) -> None:
    drop(space, *numbered(10))
    drop(space, *numbered(10), queue="mail")
    counts = Intake(space).run(once=True)
    assert (counts.files, counts.left) == (15, 5)
    assert waiting(space, "mail") == numbered(10)
    assert waiting(space) == numbered(5)


@pytest.mark.parametrize("limit", ["max_messages", "max_bytes"])
def test_a_full_space_takes_the_files_of_each_folder_in_their_order(tmp_path: Path, limit: str) -> None:
    with spool.create(tmp_path / "small", **{limit: 6 if limit == "max_messages" else 24}) as space:  # type: ignore[arg-type]
        space.create_queue("orders")
        space.create_queue("mail")
        drop(space, *numbered(4))
        drop(space, *numbered(4), queue="mail")
        intake = Intake(space)
        intake.take_all()
        assert intake.counts.left == 2
        found = {queue: [message.body for message in space.get_many(queue, 9)] for queue in ("mail", "orders")}
        assert sum(map(len, found.values())) == 6
        intake.take_all()
        assert {queue: found[queue] + waiting(space, queue) for queue in found} == {
            "mail": numbered(4), "orders": numbered(4),
        }  # fmt: skip


@pytest.mark.parametrize("step", ["put", "commit"])
def test_messages_of_another_process_in_the_last_moment_change_no_order(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The intake has found room for five files, and another process puts three messages before they are committed."""
    drop(space, *numbered(8))
    drop(space, *numbered(2), queue="mail")
    Path(space.path, "drop/mail/bad.json").write_bytes(b"{")
    place = (CommitRoom, "check") if step == "put" else (spool.Transaction, "commit")
    original: Any = getattr(*place)

    def meanwhile(self: Any, *arguments: Any) -> Any:
        if step == "put":  # the check does not see the other process's messages
            monkeypatch.setattr(*place, lambda *_: None)
        else:
            monkeypatch.setattr(*place, original)
        space.put_many("orders", [b"x", b"y", b"z"], transaction=None)
        return None if step == "put" else original(self, *arguments)

    monkeypatch.setattr(*place, meanwhile)
    intake = Intake(space)
    intake.take_all()
    monkeypatch.setattr(*place, original)
    intake.take_all()
    assert (waiting(space), waiting(space, "mail")) == ([b"x", b"y", b"z", *numbered(2)], numbered(2))
    assert take_one_by_one(space, intake, 11) == [b"x", b"y", b"z", *numbered(8)]


def test_a_queue_is_not_deleted_while_captured_files_wait_for_room_in_it(space: spool.Space) -> None:
    drop(space, *numbered(7))
    intake = Intake(space)
    intake.take_all()
    space.get_many("orders", 5)
    with pytest.raises(spool.QueueNotEmpty, match="dropped files wait for room"):
        space.delete_queue("orders")
    intake.take_all()
    assert take_one_by_one(space, intake, 2) == numbered(2, 5)
    space.delete_queue("orders")


def test_an_intake_beside_a_process_that_takes_messages_keeps_the_order(space: spool.Space) -> None:
    drop(space, *numbered(20))
    path = space.path

    def take() -> None:
        with spool.open(path) as there:
            found = [there.get("orders", timeout=60).body for _ in range(20)]
        assert found == numbered(20)

    with running(space):
        assert exit_code_of(take) == 0


def test_many_small_streams_are_committed_in_parts(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spool.intake.intake._BATCH_MESSAGES", 10)
    drop(space, *(stream(*numbered(4, place * 4)) for place in range(10)), queue="mail", suffix=".msgpack")
    before = space.engine.durable_number()
    assert Intake(space).run(once=True).messages == 40
    assert waiting(space, "mail") == numbered(40)
    assert space.engine.durable_number() == before + 4


def test_a_file_whose_writer_came_back_waits_without_holding_up_the_others(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(space, *numbered(3))
    read = Disk.read_at

    def read_and_change(self: Disk, handle: int, *rest: int) -> bytes:
        if (data := read(self, handle, *rest)) == b"0001":
            os.utime(handle, (1.5, 1.5))
        return data

    monkeypatch.setattr(Disk, "read_at", read_and_change)
    intake = Intake(space)
    intake.take_all()
    assert waiting(space) == [b"0000", b"0002"]
    monkeypatch.undo()
    intake.take_all()
    assert waiting(space) == [b"0000", b"0002", b"0001"]


def test_a_file_that_waits_is_no_marker_of_a_suffix_that_came_later(space: spool.Space) -> None:
    intake = Intake(space)
    drop(space, *numbered(7), suffix=".ok")
    intake.take_all()
    space.change_queue("orders", drop_marker=".ok", max_messages=None)
    intake.take_all()
    assert waiting(space) == numbered(7)
