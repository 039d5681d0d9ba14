"""The directory of the logs: its creation, its refusals, and the files that killed writers leave."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from spool.decisions import DecisionLog, LogContents, LogDirectory, open_directory
from spool.decisions.directory import log_name
from spool.disk.disk import Disk
from spool.errors import CorruptedFile, DiskFailure, InvalidArgument, NotOpen, UnsafeFileSystem
from tests.children import at_once, exit_code_of
from tests.decisions.waiting import read_dead
from tests.users import OWNER, directory_of, in_a_process_of


@pytest.fixture
def path(memory: Path) -> Path:
    return memory / "log"


def new_log(path: Path) -> DecisionLog:
    return DecisionLog(open_directory(str(path)))


def a_log(path: Path) -> Path:
    """Let a coordinator die with a decision in the directory; return the file of its log."""
    return path / log_name(closed_log(path).coordinator)


def closed_log(path: Path) -> DecisionLog:
    log = new_log(path)
    log.register("space /a")
    log.record(1)
    log.close(remove=False)
    return log


# -- creating --------------------------------------------------------------------------------------------------------


def test_x03_the_directory_keeps_its_id(path: Path) -> None:
    directory = open_directory(str(path))
    assert len(directory.id) == 12
    assert open_directory(str(path)).id == directory.id
    assert open_directory(os.path.relpath(path)).id == directory.id
    assert sorted(os.listdir(path)) == ["manager", "place"]


def test_x03_only_the_owner_may_read_the_logs(path: Path) -> None:
    before = os.umask(0)
    try:
        a_log(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


@pytest.mark.every(5)
@pytest.mark.parametrize("times", range(5))
def test_x03_processes_that_create_the_directory_at_once_agree(path: Path, times: int) -> None:
    at_once(lambda _: new_log(path).record(1), 4)
    directory = open_directory(str(path))
    assert len(directory.coordinators()) == 4
    for coordinator in directory.coordinators():
        assert read_dead(directory, coordinator).committed == {1}
    assert sorted(name for name in os.listdir(path) if not name.endswith(".log")) == ["manager", "place"]


@pytest.mark.parametrize("is_there", [False, True], ids=["new directory", "the directory of a process that was killed"])
def test_x03_the_name_of_the_directory_is_durable_before_the_directory_is_used(path: Path, is_there: bool) -> None:
    flushed = []
    flush_directory = Disk.flush_directory

    def flush(disk: Disk, name: str) -> None:
        flushed.append((disk.path(name), sorted(os.listdir(path))))
        flush_directory(disk, name)

    if is_there:
        path.mkdir()
    with mock.patch.object(Disk, "flush_directory", flush):
        open_directory(str(path))
        assert flushed == [(str(path.parent), []), (str(path), ["manager", "place"])]
        flushed.clear()
        open_directory(str(path))
        assert flushed == [(str(path), ["manager", "place"])], "the process that created the file may have been killed"


@pytest.mark.root
def test_x03_an_administrator_prepares_the_directory_for_a_user() -> None:
    with directory_of(0) as parent:
        os.chmod(parent, 0o711)  # others may pass, but not list or flush it
        (parent / "log").mkdir()
        os.chown(parent / "log", OWNER, OWNER)
        in_a_process_of(OWNER, lambda: new_log(parent / "log").record(1))
        assert len(open_directory(str(parent / "log")).coordinators()) == 1
        assert {file.stat().st_uid for file in (parent / "log").iterdir()} == {OWNER}


@pytest.mark.root
def test_x03_logs_of_root_belong_to_the_owner_of_the_directory() -> None:
    with directory_of(OWNER) as path:
        a_log(path)
        assert {file.stat().st_uid for file in path.iterdir()} == {OWNER}
        in_a_process_of(OWNER, lambda: new_log(path).close(remove=True))


# -- refusals --------------------------------------------------------------------------------------------------------


def test_x03_a_damaged_file_manager_is_told(path: Path) -> None:
    log = a_log(path)
    manager = path / "manager"
    data = manager.read_bytes()
    assert len(data) == 39
    flipped = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(39)]
    for found in (*flipped, *(data[:at] for at in range(39)), data + b"\0", data + bytes(39)):
        manager.write_bytes(found)
        with pytest.raises(CorruptedFile, match=r"restore it from a backup; .* spool-admin transaction"):
            open_directory(str(path))
        assert manager.read_bytes() == found
    manager.write_bytes(data)
    assert open_directory(str(path)).read_dead(bytes.fromhex(log.stem)) is not None


def test_x03_logs_without_the_file_manager_are_refused_and_kept(path: Path) -> None:
    """A new id would make the branches of these logs foreign, and no process would recover them."""
    log = a_log(path)
    (path / "manager").unlink()
    with pytest.raises(InvalidArgument, match=log.name):
        open_directory(str(path))
    assert sorted(os.listdir(path)) == [log.name, "place"]


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "manager.toml"])
def test_x03_a_directory_with_other_files_is_refused_and_kept(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).touch()
    with pytest.raises(InvalidArgument, match="has other files"):
        open_directory(str(path))
    assert os.listdir(path) == [name]


def test_x03_files_that_are_added_later_do_not_matter(path: Path) -> None:
    log = a_log(path)
    names = ("notes.txt", f"{log.stem}.txt", f"{log.stem.upper()}.LOG", f"x{log.name}", f"{log.name}.1", "12.log")
    for name in names:
        (path / name).touch()
    assert open_directory(str(path)).coordinators() == [bytes.fromhex(log.stem)]
    assert set(names) < set(os.listdir(path))


def test_x03_a_file_is_no_directory(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(DiskFailure):
        open_directory(str(path))
    assert path.read_text() == "mine"


def test_x03_a_missing_parent_is_not_created(path: Path) -> None:
    with pytest.raises(DiskFailure, match="opening the decision logs"):
        open_directory(str(path / "below"))
    assert not path.exists()


def test_x03_a_symlink_leads_to_the_directory(path: Path, memory: Path) -> None:
    log = a_log(path)
    (memory / "link").symlink_to("log")
    through = open_directory(str(memory / "link"))
    assert through.id == open_directory(str(path)).id
    assert through.coordinators() == [bytes.fromhex(log.stem)]
    second = DecisionLog(through)
    assert open_directory(str(path)).is_alive(second.coordinator)
    second.close(remove=True)


def test_x03_a_symlink_to_nothing_is_refused(path: Path) -> None:
    path.symlink_to("nowhere")
    with pytest.raises(DiskFailure):
        open_directory(str(path))
    assert not (path.parent / "nowhere").exists()


@pytest.mark.parametrize("kind", ["directory", "symlink", "fifo"])
def test_x03_a_file_manager_of_another_kind_is_refused(path: Path, memory: Path, kind: str) -> None:
    path.mkdir()
    manager = path / "manager"
    if kind == "directory":
        manager.mkdir()
    elif kind == "symlink":
        open_directory(str(memory / "other"))
        manager.symlink_to(memory / "other" / "manager")
    else:
        os.mkfifo(manager)
    with pytest.raises(DiskFailure):
        open_directory(str(path))


@pytest.mark.root
def test_x03_a_read_only_directory_is_refused() -> None:
    def act() -> None:
        with pytest.raises(DiskFailure):
            open_directory(str(path))

    with directory_of(OWNER) as path:
        os.chmod(path, 0o500)
        in_a_process_of(OWNER, act)
        assert os.listdir(path) == []


@pytest.mark.root
def test_x03_a_directory_that_became_read_only_takes_no_coordinator() -> None:
    def act() -> None:
        directory = open_directory(str(path))
        assert directory.coordinators() == [bytes.fromhex(log.stem)]
        with pytest.raises(PermissionError):
            DecisionLog(directory)
        with pytest.raises(PermissionError):
            directory.read_dead(bytes.fromhex(log.stem))  # it could not be made durable

    with directory_of(OWNER) as path:
        log = a_log(path)
        os.chmod(path, 0o500)
        before = log.read_bytes()
        in_a_process_of(OWNER, act)
        assert log.read_bytes() == before


def test_x03_a_network_file_system_is_refused(path: Path) -> None:
    class Remote(Disk):
        def network_file_system(self) -> str:
            return "nfs4"

    with pytest.raises(UnsafeFileSystem, match="nfs4"):
        LogDirectory(Remote(str(path)))
    assert os.listdir(path) == []


def test_x03_a_full_disk_is_told(path: Path) -> None:
    class Full(Disk):
        def write_at(self, handle: int, offset: int, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFailure, match="free space"):
        open_directory(Full(str(path)))
    log = new_log(path)  # (the unfinished file does not matter)
    assert sorted(os.listdir(path)) == sorted([log_name(log.coordinator), "manager", "place"])
    log.close(remove=True)


# -- the end of a log ------------------------------------------------------------------------------------------------


def test_x03_a_log_without_branches_in_doubt_is_removed(path: Path) -> None:
    log = new_log(path)
    log.register("space /a")
    log.record(1)
    log.end(1)
    log.close(remove=True)
    assert sorted(os.listdir(path)) == ["manager", "place"]


def test_x03_a_log_remains_if_the_caller_keeps_it_or_a_branch_has_not_ended(path: Path) -> None:
    kept, doubtful = new_log(path), new_log(path)
    doubtful.record(1)
    kept.close(remove=False)
    doubtful.close(remove=True)
    assert open_directory(str(path)).coordinators() == sorted([kept.coordinator, doubtful.coordinator])


@pytest.mark.parametrize("remove", [True, False])
def test_x03_a_second_close_does_nothing(path: Path, remove: bool) -> None:
    log, other = new_log(path), new_log(path)
    log.close(remove=remove)
    before = sorted(os.listdir(path))
    log.close(remove=not remove)
    log.close(remove=remove)
    assert sorted(os.listdir(path)) == before
    assert open_directory(str(path)).is_alive(other.coordinator)


def test_x03_a_closed_log_takes_no_calls(path: Path) -> None:
    log = closed_log(path)
    calls: list[Callable[[], object]] = [
        log.check, lambda: log.record(2), lambda: log.register("space /a"), lambda: log.register("space /b"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotOpen, match="closed: create another one"):
            call()
    log.end(1)  # (a branch may end late)


def test_x03_a_closed_log_holds_no_file_open(path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    log = new_log(path)
    log.register("space /a")
    log.close(remove=False)
    assert os.listdir("/proc/self/fd") == before


def test_x03_a_close_that_cannot_remove_the_log_releases_it(path: Path) -> None:
    class Kept(Disk):
        def unlink(self, name: str) -> None:
            if name.endswith(".log"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            super().unlink(name)

    others = open_directory(str(path))
    log = DecisionLog(LogDirectory(Kept(str(path))))
    with pytest.raises(OSError, match="Input/output"):
        log.close(remove=True)
    assert others.coordinators() == [log.coordinator]
    assert not others.is_alive(log.coordinator)
    log.close(remove=True)


# -- files that killed writers leave ---------------------------------------------------------------------------------


class Dying(Disk):
    """Once it is armed, it ends the process before a file gets its name."""

    is_armed = False

    def rename(self, source: str, target: str) -> None:
        if self.is_armed:
            os._exit(0)
        super().rename(source, target)


def test_x03_an_unfinished_rewrite_does_not_matter_and_is_removed(path: Path) -> None:
    open_directory(str(path))

    def act() -> None:
        disk = Dying(str(path))
        log = DecisionLog(LogDirectory(disk))
        log.record(1)
        disk.is_armed = True
        log.register("space /a")

    assert exit_code_of(act) == 0
    directory = open_directory(str(path))
    [coordinator] = directory.coordinators()
    assert {*os.listdir(path)} == {log_name(coordinator), f"{log_name(coordinator)}.new", "manager", "place"}
    assert not directory.is_alive(coordinator)
    found = read_dead(directory, coordinator)
    assert found._replace(writer={}) == LogContents(found.directory, coordinator, (), frozenset([1]), {})
    assert sorted(os.listdir(path)) == sorted([log_name(coordinator), "manager", "place"])
    (path / f"{log_name(coordinator)}.new").touch()
    directory.remove(coordinator)
    assert sorted(os.listdir(path)) == ["manager", "place"]
    directory.remove(coordinator)
