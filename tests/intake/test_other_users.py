"""Files of other users: each comes once and whole, from an intake that is not root."""

import grp
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import spool
from spool.disk import Disk
from spool.intake.intake import Intake, IntakeCounts
from spool.runtime.clock import Clock
from tests import door
from tests.clocks import MovedClock, timed
from tests.intake.test_intake import running
from tests.users import DROPPER, GROUP, OWNER, acting_as, directory_of, in_a_process_of

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import the modules that a program imports late, because the other users may not be able to read Python's own
    files."""
    with directory_of(0) as directory, spool.create(directory / "space") as space:
        space.create_queue("q")
        (directory / "space/drop/q/one").write_bytes(b"one")
        (directory / "space/drop/q/bad.msgpack").write_bytes(b"bad")
        intake = Intake(space)
        intake._watch()
        intake.run(once=True)
        space.quarantined()


@pytest.fixture(params=["ordered", "strict"])
def path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A space of OWNER's, whose queue ``q`` takes files of DROPPER's."""
    with directory_of(OWNER) as directory:
        with acting_as(OWNER), spool.create(directory / "space", sync_method=request.param) as space:
            space.create_queue("q")
            space.change_queue("q", drop_group=grp.getgrgid(GROUP).gr_name)
        yield directory / "space"


def drop(path: Path, name: str, data: bytes, umask: int = 0o022) -> None:
    """Write the file under a hidden name and rename it, as careful writers do."""
    with acting_as(DROPPER, umask):
        (path / "drop/q" / f".{name}").write_bytes(data)
        (path / "drop/q" / f".{name}").rename(path / "drop/q" / name)


def take(path: Path, clock: Clock) -> IntakeCounts:
    with acting_as(OWNER), spool.open(timed(path, clock)) as space:
        return Intake(space).run(once=True)


def opened_by_another(path: Path, name: str) -> IO[bytes]:
    """A dropped file that DROPPER writes in place; open, as in its process."""
    with acting_as(DROPPER):
        return (path / "drop/q" / name).open("wb", buffering=0)


def bodies(path: Path) -> list[bytes]:
    with acting_as(OWNER), spool.open(path) as space:
        return [message.body for message in space.browse("q")]


def kept(path: Path) -> dict[str, bytes]:
    """Return the bytes of the quarantined files by reason."""
    with acting_as(OWNER), spool.open(path) as space:
        return {finding.detail: (path / finding.name).read_bytes() for finding in space.quarantined()}


def test_a_file_that_another_user_writes_in_place_is_not_taken_half(path: Path, clock: MovedClock) -> None:
    file = opened_by_another(path, "slow")
    file.write(b"part 1, ")
    clock.later = 59
    assert take(path, clock) == IntakeCounts(left=1)
    file.write(b"part 2")
    file.close()
    clock.later = 61
    assert take(path, clock).files == 1
    assert bodies(path) == [b"part 1, part 2"]


def test_bytes_written_after_a_long_pause_are_kept_and_named(
    path: Path, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = opened_by_another(path, "slow")
    file.write(b"part 1, ")
    clock.later = 61
    assert take(path, clock).files == 1
    file.write(b"part 2, ")
    counts = take(path, clock)
    assert (counts.quarantined, counts.messages) == (1, 0)
    assert "slow was moved to quarantine/active.slow: " in caplog.text
    assert "they have its first 8 bytes" in caplog.text
    file.write(b"part 3")  # its writer goes on: also that is not lost
    file.close()
    assert bodies(path) == [b"part 1, "]
    ((reason, data),) = kept(path).items()
    assert data == b"part 1, part 2, part 3"
    assert "the 8 bytes after those are only in this file" in reason


def test_a_quarantined_file_that_its_owner_made_unreadable_hinders_nothing(path: Path, clock: MovedClock) -> None:
    """A program that keeps the file open can do so."""
    drop(path, "bad.msgpack", b"\xc1")
    clock.later = 61
    assert take(path, clock).quarantined == 1
    (path / "quarantine/active.bad.msgpack").chmod(0)
    with acting_as(OWNER), spool.open(path) as space:
        assert space.quarantined_file("active.bad.msgpack").beginning == b""
        with open(path / "export", "wb") as file:
            assert space.export(file).left_out == {"quarantine/active.bad.msgpack": "this user may not read it"}
        space.delete_quarantined("active.bad.msgpack")
        assert space.quarantined() == []


def test_a_file_without_late_writes_is_removed_after_ten_minutes(path: Path, clock: MovedClock) -> None:
    drop(path, "one", b"one")
    clock.later = 61
    assert take(path, clock).files == 1
    assert list((path / "active").rglob("one")) != []
    clock.later = 700
    assert take(path, clock) == IntakeCounts()
    assert list((path / "active").iterdir()) == []
    assert (bodies(path), kept(path)) == ([b"one"], {})


@pytest.mark.parametrize("killed", [False, True], ids=["", "an intake was killed while the file had two names"])
def test_a_folder_whose_files_cannot_be_removed_holds_up_no_other(path: Path, killed: bool) -> None:
    with acting_as(OWNER), spool.open(path) as space:
        space.create_queue("other")
        for name in ("q", "other"):
            (path / "drop" / name / "a").write_bytes(name.encode())
        if killed:
            (path / "active/drop.q.0123456789abcdef").mkdir()
            (path / "active/drop.q.0123456789abcdef/a").hardlink_to(path / "drop/q/a")
        (path / "drop/q").chmod(0o555)
        assert (take(path, Clock()).files, take(path, Clock()).left) == (1, 1)
        (path / "drop/q").chmod(0o770)
        assert (take(path, Clock()).files, bodies(path)) == (1, [b"q"])


def test_a_file_that_was_renamed_into_place_is_taken_at_once(path: Path) -> None:
    folder = path / "drop/q"

    def dropping() -> None:
        (folder / "in place").write_bytes(b"half")
        (folder / ".new").write_bytes(b"whole")
        (folder / ".new").rename(folder / "new")

    with acting_as(OWNER), spool.open(path) as space, running(space):
        (folder / "own").write_bytes(b"it runs")
        space.get("q", timeout=30)
        in_a_process_of(DROPPER, dropping)
        assert space.get("q", timeout=30).body == b"whole"
    assert (folder / "in place").read_bytes() == b"half"


@pytest.mark.parametrize("end", ["removed", "renamed away"])
def test_a_rename_says_nothing_of_the_next_file_of_that_name(path: Path, end: str) -> None:
    """The intake may have read of the rename before; it reads of the next file before it judges that file."""
    file = path / "drop/q/x"

    def rename() -> None:
        file.with_name(".x").write_bytes(b"first")
        file.with_name(".x").rename(file)

    def write_in_place() -> None:
        file.unlink() if end == "removed" else file.rename(file.with_name(".y"))
        file.write_bytes(b"half")

    with acting_as(OWNER), spool.open(path) as space:
        intake = Intake(space)
        intake._watcher.watch("q")
        in_a_process_of(DROPPER, rename)
        assert intake._watcher.is_renamed("q", "x")
        in_a_process_of(DROPPER, write_in_place)
        intake.take_all()
        assert intake.counts == IntakeCounts(left=1)


class WrittenOn(Disk):
    """A disk on which a program, just before the commit, appends to a file that it has open since before the rename."""

    file: IO[bytes] | None = None

    def flush_directory(self, name: str) -> None:
        super().flush_directory(name)
        if name == "drop/q" and self.file is not None:
            self.file.write(b"2")


def test_bytes_added_after_a_rename_are_kept_and_named(path: Path) -> None:
    with acting_as(OWNER):
        disk = WrittenOn(str(path))
    with acting_as(OWNER), spool.open(disk) as space:
        intake = Intake(space)
        intake._watcher.watch("q")
        disk.file = opened_by_another(path, ".x")
        disk.file.write(b"1")
        in_a_process_of(DROPPER, lambda: (path / "drop/q/.x").rename(path / "drop/q/x"))
        intake.take_all()
        assert intake.counts == IntakeCounts(files=1, messages=1, quarantined=1)
    disk.file.close()
    assert bodies(path) == [b"1"]
    assert list(kept(path).values()) == [b"12"]


OTHER_MEMBER = 1235


@pytest.mark.parametrize("mode", [None, 0o2770], ids=["new", "of an earlier version"])
def test_a_member_of_the_group_can_neither_remove_nor_replace_the_file_of_another(
    path: Path, clock: MovedClock, mode: int | None
) -> None:
    if mode is not None:
        (path / "drop/q").chmod(mode)
        with acting_as(OWNER), spool.open(path) as space:
            Intake(space).take_all()
    drop(path, "one", b"one")
    with acting_as(OTHER_MEMBER):
        (path / "drop/q/.mine").write_bytes(b"other")
        for change in (
            lambda: (path / "drop/q/one").unlink(),
            lambda: (path / "drop/q/one").rename(path / "drop/q/.one"),
            lambda: (path / "drop/q/.mine").rename(path / "drop/q/one"),
        ):
            with pytest.raises(PermissionError):
                change()
        (path / "drop/q/.mine").rename(path / "drop/q/two")
    clock.later = 61
    assert take(path, clock) == IntakeCounts(files=2, messages=2)
    assert sorted(bodies(path)) == [b"one", b"other"]


def sparse(path: Path, name: str, size: int) -> None:
    with acting_as(DROPPER):
        with (path / "drop/q" / f".{name}").open("wb") as file:
            file.truncate(size)
        (path / "drop/q" / f".{name}").rename(path / "drop/q" / name)


@pytest.mark.parametrize("name", ["huge", "huge.msgpack", "huge.json", "huge.txt"])
def test_a_file_of_another_user_too_large_is_neither_read_nor_copied(path: Path, clock: MovedClock, name: str) -> None:
    sparse(path, name, 1 << 40)
    drop(path, "one", b"one")
    clock.later = 61
    with acting_as(OWNER), spool.open(timed(path, clock)) as space:
        intake, disk, read = Intake(space), door.disk(space), list[int]()
        original = disk.read_at

        def read_at(handle: int, offset: int, length: int) -> bytes:
            read.append(length)
            return original(handle, offset, length)

        disk.read_at = read_at  # type: ignore[method-assign]
        assert intake.run(once=True) == IntakeCounts(files=1, messages=1, quarantined=1)
    assert sum(read) < 10 << 20
    assert bodies(path) == [b"one"]
    [reason] = kept_reasons(path)
    assert "larger than max_body_bytes" in reason


def kept_reasons(path: Path) -> list[str]:
    with acting_as(OWNER), spool.open(path) as space:
        return [finding.detail for finding in space.quarantined()]


def test_a_file_that_grows_before_it_is_copied_waits(path: Path, clock: MovedClock, monkeypatch: pytest.MonkeyPatch):
    """Its writer enlarges it after the intake has looked at its size."""
    sparse(path, "grows", 10)
    clock.later = 61
    create, grown = Disk.create, list[str]()

    def grow_and_create(self: Disk, name: str) -> int:
        if ".part." in name:
            grown.append(name)
            file.truncate(1 << 40)
        return create(self, name)

    monkeypatch.setattr(Disk, "create", grow_and_create)
    with (path / "drop/q/grows").open("r+b") as file:
        counts = take(path, clock)
    if grown:  # (only if renames are not ordered, a file is copied)
        assert (counts.messages, counts.left) == (0, 1)
        assert list((path / "active").rglob("grows")) == []


def test_the_holes_of_a_file_take_no_room_in_its_copy(path: Path, clock: MovedClock, monkeypatch: pytest.MonkeyPatch):
    sparse(path, "holes", 20 << 20)
    with (path / "drop/q/holes").open("r+b") as file:
        file.seek(10 << 20)
        file.write(b"middle")
    clock.later = 61
    rename, taken = Disk.rename, list[int]()

    def measured(self: Disk, source: str, target: str) -> None:
        if ".part." in source:
            [copy] = (path / source).iterdir()
            taken.append(copy.stat().st_blocks * 512)
            assert copy.read_bytes() == (path / "drop/q/holes").read_bytes()
        rename(self, source, target)

    monkeypatch.setattr(Disk, "rename", measured)
    assert take(path, clock).files == 1
    assert all(size <= 2 << 20 for size in taken)
    [body] = bodies(path)
    assert body == bytes(10 << 20) + b"middle" + bytes((10 << 20) - 6)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_a_group_drops_files_with_any_usual_umask(path: Path, clock: MovedClock, umask: int) -> None:
    """The kernel refuses a second name for a file that this user neither owns nor may write."""
    for name in ("a", "b"):
        drop(path, name, name.encode(), umask)
    clock.later = 61
    assert take(path, clock) == IntakeCounts(files=2, messages=2)
    assert bodies(path) == [b"a", b"b"]


def test_a_folder_that_the_intake_may_not_list_is_told_with_the_way_to_give_it_to_the_owner(
    path: Path, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(path / "drop/q", 0, 0)
    (path / "drop/q").chmod(0o700)
    take(path, clock)
    assert "drop/q: it cannot be listed: Permission denied: that directory belongs to user root, and the" in caplog.text
    assert f"sudo chown -R nobody {path}" in caplog.text


def test_a_file_that_the_intake_may_not_read_is_left_with_advice(
    path: Path, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    drop(path, "secret", b"x", umask=0o077)
    clock.later = 61
    assert take(path, clock) == IntakeCounts(left=1)
    assert "drop/q/secret: it belongs to user 1234" in caplog.text
    assert "chmod g+r" in caplog.text
    assert (path / "drop/q/secret").exists()
