"""Files dropped from outside become messages, each exactly once."""

import ctypes
import errno
import os
import threading
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import msgpack
import pytest
from watchdog.observers import inotify_c

import spool
from spool.disk import Disk
from spool.intake.directories import CapturedFile
from spool.intake.intake import Intake
from tests import door
from tests.environment.pressed import descriptors
from tests.full import no_room
from tests.spaces import space_with
from tests.threads import beside

space = space_with("orders", defaults={})


def running(space: spool.Space) -> AbstractContextManager[None]:
    """An intake runs in a thread meanwhile."""
    intake = Intake(space)
    return beside(intake.run, intake.stop)


def folder(space: spool.Space, queue: str = "orders") -> Path:
    return Path(space.path, "drop", queue)


def stream(*messages: Any) -> bytes:
    return b"".join(map(msgpack.packb, messages))


def reasons(space: spool.Space) -> list[str]:
    return [finding.detail for finding in space.quarantined()]


def test_any_file_is_one_message_with_its_bytes_and_its_name(space: spool.Space) -> None:
    content = bytes(range(256)) * 100
    (folder(space) / "a file.bin").write_bytes(content)
    (folder(space) / "empty").touch()
    counts = Intake(space).run(once=True)
    assert (counts.files, counts.messages, counts.quarantined) == (2, 2, 0)
    found = {m.headers["filename"]: m.body for m in space.browse("orders")}
    assert found == {"a file.bin": content, "empty": b""}
    assert list(folder(space).iterdir()) == []
    assert list(Path(space.path, "active").iterdir()) == []


def test_a_msgpack_file_is_a_stream_of_puts(space: spool.Space) -> None:
    (folder(space) / "two.msgpack").write_bytes(
        stream(
            {"body": "first", "priority": 9, "correlation_id": "c", "headers": {"k": "v"}},
            {"body": {"a": [1, None]}, "user_code": 3},
        )
    )
    Intake(space).run(once=True)
    first, second = space.browse("orders")
    assert (first.body, first.priority, first.correlation_id, dict(first.headers)) == ("first", 9, "c", {"k": "v"})
    assert (second.body, second.user_code) == ({"a": [1, None]}, 3)
    assert first.position.number == second.position.number, "one file, one transaction"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xc1", "not msgpack"),
        (b"", "holds no message"),
        (b"plain text", "not a map"),
        (stream({"body": 1})[:-1], "ends within a message"),
        (stream({"body": 1}, {"priority": 1}), "message 2 has no body"),
        (stream({"body": 1}, {"body": 1, "priority": 1000}), "message 2: priority is a whole number"),
        (stream({"body": 1, "prioritty": 1}), "unknown keys prioritty"),
        (stream({"body": 1, "transaction": 1}), "unknown keys transaction"),
        (stream({"body": 1, 7: 1}), "unknown keys 7"),
        (b"\xdf\xff\xff\xff\xff", "exceeds max_map_len"),
        (b"\x81\xa4body\x81\x91\x01\x01", "unhashable"),
        (b"\x81\xa4body" + b"\x91" * 5000, "not msgpack"),
        (stream({"body": msgpack.Timestamp(2**62, 0)}), "too large"),
        (stream({"body": "x", "content_type": "x" * 300}), "content_type is a text of 1 to 255"),
        (stream({"body": "x", "content_type": 7}), "content_type is a text of 1 to 255"),
    ],
)
def test_an_unacceptable_file_moves_to_quarantine_whole_with_the_reason(space: spool.Space, data: bytes, reason: str):
    (folder(space) / "bad.msgpack").write_bytes(data)
    (folder(space) / "good.txt").write_bytes(b"good")
    assert Intake(space).run(once=True).quarantined == 1
    (text,) = reasons(space)
    assert reason in text
    assert [m.body for m in space.browse("orders")] == ["good"], "the rest goes on, and half a file is nothing"
    kept = [p for p in Path(space.path, "quarantine").iterdir() if not p.name.endswith(".reason.txt")]
    assert [p.read_bytes() for p in kept] == [data]


def test_unfinished_names_and_irregular_files_are_not_touched_and_reported_once(
    space: spool.Space, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    drop = folder(space)
    for name in (".hidden", "a.tmp", "b.part"):
        (drop / name).write_bytes(b"x")
    (drop / "directory").mkdir()
    (drop / "link").symlink_to("/etc/hostname")
    os.mkfifo(drop / "pipe")
    folder(space, "nobody").mkdir()
    intake = Intake(space)
    intake.run(once=True)
    intake.run(once=True)
    assert list(space.browse("orders")) == []
    assert len(list(drop.iterdir())) == 6
    told = Counter(record.getMessage().split(":")[0] for record in caplog.records)
    assert told == {f"drop/orders/{name}": 1 for name in ("directory", "link", "pipe")} | {"drop/nobody": 1}


def test_a_file_that_is_too_large_moves_to_quarantine(tmp_path: Path) -> None:
    with spool.create(tmp_path / "small", max_body_bytes=100) as space:
        space.create_queue("orders")
        (folder(space) / "large.reason.txt").write_bytes(b"x" * 101)
        (folder(space) / "fits").write_bytes(b"x" * 100)
        Intake(space).run(once=True)
        assert "max_body_bytes is 100" in reasons(space)[0]
        assert [len(m.body) for m in space.browse("orders")] == [100]


def test_a_file_that_someone_still_writes_waits_for_its_writer(space: spool.Space) -> None:
    intake = Intake(space)
    with (folder(space) / "growing").open("wb") as file:
        file.write(b"half")
        file.flush()
        intake.take_all()
        assert list(space.browse("orders")) == []
        file.write(b" and half")
    intake.take_all()
    assert [m.body for m in space.browse("orders")] == [b"half and half"]


def test_arrivals_wake_a_running_intake(space: spool.Space) -> None:
    with running(space):
        for turn in range(3):
            (folder(space) / ".new").write_bytes(b"%d" % turn)
            (folder(space) / ".new").rename(folder(space) / "new")
            assert space.get("orders", timeout=30).body == b"%d" % turn, "the same name again is a new file"


def test_names_of_any_bytes_are_taken(space: spool.Space) -> None:
    for name in ("n" * 255, os.fsdecode(b"caf\xe9"), "\N{SNOWMAN}", "a\nb"):
        (folder(space) / name).write_bytes(b"x")
    assert Intake(space).run(once=True).files == 4
    names = {m.headers["filename"] for m in space.browse("orders")}
    assert names == {"n" * 255, "caf\\xe9", "\N{SNOWMAN}", "a\nb"}


def test_a_file_that_cannot_be_read_waits_and_does_not_hold_up_the_others(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder(space) / "bad").write_bytes(b"bad")
    (folder(space) / "good").write_bytes(b"good")
    read = Intake._read

    def broken(self: Intake, taken: CapturedFile) -> bytes:
        if taken.name == "bad":
            raise OSError(5, "Input/output error")
        return read(self, taken)

    monkeypatch.setattr(Intake, "_read", broken)
    intake = Intake(space)
    assert intake.run(once=True).files == 1
    assert "Input/output error" in caplog.text
    monkeypatch.undo()
    intake.run(once=True)
    assert [m.body for m in space.browse("orders")] == [b"good", b"bad"]


class Died(BaseException):
    """The process ends here; nothing of it runs any more."""


class MortalDisk(Disk):
    """Ends its process at the n-th change of the disk."""

    lives = 10**9

    def _step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            if threading.current_thread() is not threading.main_thread():  # the housekeeper: it passes over an OSError
                raise OSError(errno.EIO, "the process died")
            raise Died


def _mortal(name: str) -> Any:
    original = getattr(Disk, name)

    def call(self: MortalDisk, *arguments: Any, **options: Any) -> Any:
        self._step()
        return original(self, *arguments, **options)

    return call


for _name in ("create", "rename", "rename_new", "unlink", "write_at", "flush", "make_directory", "remove_directory"):
    setattr(MortalDisk, _name, _mortal(_name))


def intake_dies_at(path: Path, step: int) -> bool:
    """Run an intake that dies before its n-th change; False if it got through."""
    disk = MortalDisk(str(path))
    space = spool.open(disk)
    disk.lives = step
    try:
        Intake(space).run(once=True)
    except Died:
        return True
    finally:
        door.store(space).guard.close_at_once("it died")  # as the kernel does for a dead process
    return False


def test_each_dropped_file_is_taken_exactly_once_wherever_the_intake_dies(tmp_path: Path) -> None:
    step, deaths = 0, 0
    while True:
        path = tmp_path / f"space-{step}"
        with spool.create(path) as space:
            space.create_queue("orders")
            for name in ("a", "b"):
                (folder(space) / name).write_bytes(name.encode())
            (folder(space) / "c.msgpack").write_bytes(stream({"body": b"c1"}, {"body": b"c2"}))
        died = intake_dies_at(path, step)
        deaths += died
        with spool.open(path) as space:
            Intake(space).run(once=True)
            bodies = sorted(m.body for m in space.browse("orders"))
            assert bodies == [b"a", b"b", b"c1", b"c2"], f"died before change {step}"
            assert space.quarantined() == []
            assert not [f for f in space.check() if f.kind == "damaged"]
        with spool.open(path) as space:
            assert sorted(m.body for m in space.browse("orders")) == bodies
            assert Intake(space).run(once=True).files == 0
        if not died:
            break
        step += 1
    assert deaths > 15


def test_a_full_disk_loses_nothing(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder(space) / "a").write_bytes(b"a")
    intake = Intake(space)
    monkeypatch.setattr(Disk, "write_at", no_room)
    with pytest.raises(spool.DiskFailure, match="free space"):
        intake.run(once=True)
    monkeypatch.undo()
    Intake(space).run(once=True)
    assert [m.body for m in space.browse("orders")] == [b"a"]


def test_on_a_disk_with_little_room_files_are_committed_apart(space: spool.Space) -> None:
    def commit(transaction: spool.Transaction) -> None:
        if len(door.batch(transaction).tables[0].lengths) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        committed(transaction)

    for name in "abcde":
        (folder(space) / name).write_bytes(name.encode())
    committed = spool.Transaction.commit
    with mock.patch.object(spool.Transaction, "commit", commit):
        assert Intake(space).run(once=True).files == 5
    assert [m.body for m in space.browse("orders")] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(("flush", "at"), [("ordered", "drop/q"), ("strict", "drop/q"), ("ordered", "drop")])
def test_a_taken_file_cannot_come_back_after_its_commit_on_any_file_system(flush: str, at: str, tmp_path: Path) -> None:
    """btrfs counts as ordered, and yet a commit's flush covers no other file's rename. If renames are ordered, a flush
    of the folder that a file left makes both names durable. If that folder is removed, the flush is of its parent."""
    calls: list[tuple[str, str]] = []

    class Recording(Disk):
        def flush_directory(self, name: str) -> None:
            super().flush_directory(name)
            calls.append(("flush", name))

        def rename_new(self, source: str, target: str) -> None:
            calls.append(("rename", target))
            super().rename_new(source, target)
            if (source, at) == ("drop/q/one", "drop"):
                (tmp_path / "space/drop/q").rmdir()

    spool.create(tmp_path / "space", sync_method=flush).close()
    with spool.open(Recording(str(tmp_path / "space"))) as space:
        space.create_queue("q")
        (tmp_path / "space" / "drop" / "q" / "one").write_bytes(b"one")
        calls.clear()
        Intake(space).run(once=True)
    commit = next(place for place, (_, name) in enumerate(calls) if name.startswith("committed/"))
    flushed = {name.partition(".")[0] for call, name in calls[:commit] if call == "flush"}
    assert flushed == {at, "active"} | ({"active/drop"} if flush == "strict" else set())


def test_an_irregular_capture_directory_stops_no_intake(tmp_path: Path) -> None:
    """A power cut on a file system without a journal can make a file of a new directory."""
    with spool.create(tmp_path / "space") as space:
        space.create_queue("q")
        (tmp_path / "space" / "active" / "drop.q.0123456789abcdef").write_bytes(b"")
        (tmp_path / "space" / "drop" / "q" / "one").write_bytes(b"one")
        Intake(space).run(once=True)
        assert space.get("q").body == b"one"


def test_a_file_that_a_power_cut_shows_in_drop_and_taken_is_one_file(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("q")
        taking = tmp_path / "space" / "active" / "drop.q.0123456789abcdef"
        taking.mkdir()
        (taking / "one").write_bytes(b"one")
        os.link(taking / "one", tmp_path / "space" / "drop" / "q" / "one")
        Intake(space).run(once=True)
        assert [message.body for message in space.browse("q")] == [b"one"]


def test_an_error_of_the_progress_callback_is_raised(space: spool.Space) -> None:
    (folder(space) / "a").write_bytes(b"a")
    with pytest.raises(BrokenPipeError):
        Intake(space, mock.Mock(side_effect=BrokenPipeError)).run(once=True)
    assert space.get("orders").body == b"a"


def test_closing_the_space_ends_an_intake_and_its_watch(space: spool.Space) -> None:
    before = descriptors()
    taken, ended = threading.Event(), []
    other = spool.open(space.path)

    def run() -> None:
        with pytest.raises(spool.NotOpen):
            Intake(other, lambda counts: taken.set()).run()
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    (folder(space) / "one").write_bytes(b"one")
    assert taken.wait(30)
    other.close()
    thread.join(30)
    assert ended == [True]
    assert not [one for one in threading.enumerate() if isinstance(one, inotify_c.InotifyFD)]
    assert not {name for name in descriptors() - before if "inotify" in name}


def test_an_earlier_rename_is_no_evidence_after_events_were_lost(space: spool.Space) -> None:
    intake = Intake(space)
    intake._watch()
    (folder(space) / ".one").write_bytes(b"one")
    (folder(space) / ".one").rename(folder(space) / "one")
    assert intake._watcher.is_renamed("orders", "one")
    intake._watcher.on_queue_overflow()
    assert not intake._watcher.is_renamed("orders", "one")
    intake._release_folders()


def test_an_intake_without_watches_opens_no_further_descriptors_in_each_round(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(inotify_c, "inotify_add_watch", refuse)
    before = len(os.listdir("/proc/self/fd"))
    intake = Intake(space)
    intake._watch()
    opened = len(os.listdir("/proc/self/fd"))
    intake._watch()
    assert len(os.listdir("/proc/self/fd")) == opened
    intake._release_folders()
    assert len(os.listdir("/proc/self/fd")) == before
