"""``spool-admin doctor``, ``spool.create`` and ``open`` name the defects of a file system before the space uses it."""

import ctypes
import errno
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

import spool
from spool.admin.doctor import Outcome, examine
from spool.disk import Disk, kernel
from spool.disk.disk import FlushFailed
from spool.disk.durability import Ordered, Strict
from spool.disk.stat import FileIdentity, FileSystem, Guarantees
from spool.errors import UnsafeFileSystem
from spool.model import layout
from tests.clocks import MovedClock, timed
from tests.filesystems import volume
from tests.filesystems.volume import KINDS, Kind, Volume
from tests.spaces import path_with
from tests.users import GROUP, OWNER, directory_of, in_a_process_of
from xaspool_scripts.admin import main

FINE, WARNING, REFUSED = Outcome


root = path_with("a", messages={"a": ["there"]})


def found(disk: Disk) -> dict[str, Outcome]:
    return {proof.what: proof.outcome for proof in examine(disk)}


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


# -- a good file system -----------------------------------------------------------------------------------------------


def test_a_good_file_system_passes_before_there_is_a_space_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert set(found(Disk(str(tmp_path))).values()) <= {FINE, WARNING}
    assert everything(tmp_path) == []


def test_a_space_in_use_passes_and_does_not_notice(root: Path) -> None:
    with spool.open(root) as space, space.transaction() as tx:
        tx.get("a")
        before = everything(root)
        assert set(found(Disk(str(root))).values()) <= {FINE, WARNING}
        assert everything(root) == before
        tx.put("a", "more")
        tx.commit()
        assert (space.check(), space.get("a", transaction=None).body) == ([], "more")


# -- bad file systems, simulated by disks -----------------------------------------------------------------------------


class NoLocks(Disk):
    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        raise kernel.Unsupported(errno.ENOLCK, os.strerror(errno.ENOLCK))


class GrantsBoth(Disk):
    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        return True


class GrantsOtherProcesses(Disk):
    """A file system on which other processes, or other machines, do not see a lock."""

    maker = os.getpid()

    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        return os.getpid() != self.maker or super().lock(handle, start, length, shared=shared)


class LocksLookFree(Disk):
    def some_lock(self, handle: int, start: int, length: int) -> None:
        return None


class LocksStay(Disk):
    """A file system on which locks outlive their process, such as a server that does not notice a client's death."""

    def close(self, handle: int) -> None:
        os.set_inheritable(handle, False)  # (it must be open) and stays so


class HoldsBoth(Disk):
    def flock(self, handle: int) -> bool:
        return True


class AcrossDevices(Disk):
    def rename(self, source: str, target: str) -> None:
        raise kernel.Unsupported(errno.EXDEV, os.strerror(errno.EXDEV))


class RenameCopies(Disk):
    def rename(self, source: str, target: str) -> None:
        if self.exists(target):
            self.unlink(target)
        handle = self.create(target)
        self.write_at(handle, 0, b"new")
        self.close(handle)
        self.unlink(source)


class Replaces(Disk):
    def rename_new(self, source: str, target: str) -> None:
        self.rename(source, target)


class NoLinks(Disk):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.durability = Strict(Guarantees())

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


class LinkCopies(Disk):
    def link(self, source: str, target: str) -> None:
        self.close(self.create(target))


class NoSharing(Disk):
    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        return not shared and super().lock(handle, start, length)


class ShortLocks(Disk):
    """A file system on which the offsets of locks have 32 bits."""

    def lock(self, handle: int, start: int, length: int = 1, *, shared: bool = False) -> bool:
        return start < 2**31 and super().lock(handle, start, length, shared=shared)


class NoFlush(Disk):
    """A file system that cannot flush files."""

    def flush(self, handle: int, *, data_only: bool = False) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise _no_flush()
        super().flush(handle, data_only=data_only)


class NothingDurable(Disk):
    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        raise _no_flush()


class NoFlushOfDirectories(Disk):
    def flush_directory(self, name: str) -> None:
        raise _no_flush()


def _no_flush() -> FlushFailed:
    return FlushFailed(errno.EINVAL, os.strerror(errno.EINVAL))


class ReadOnly(Disk):
    def make_directory(self, name: str) -> bool:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def file_system(self) -> FileSystem:
        return super().file_system()._replace(read_only=True)


class Full(Disk):
    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def file_system(self) -> FileSystem:
        return super().file_system()._replace(free_bytes=0)


class NoInodes(Disk):
    def file_system(self) -> FileSystem:
        return super().file_system()._replace(free_inodes=0)


class Little(Disk):
    def file_system(self) -> FileSystem:
        return super().file_system()._replace(free_bytes=1 << 20)


class Nfs(Disk):
    def network_file_system(self) -> str:
        return "nfs"


class Fuse(Disk):
    def file_system(self) -> FileSystem:
        return super().file_system()._replace(kind="fuse")


class CaseBlind(Disk):
    def exists(self, name: str) -> bool:
        return super().exists(name) or name.lower() in {
            f"{os.path.dirname(name)}/{there}".lower() for there in self.names(os.path.dirname(name))
        }


class ShortNames(Disk):
    def create(self, name: str) -> int:
        if len(os.path.basename(name)) > 143:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return super().create(name)


class OpenToAll(Disk):
    """A file system such as vfat, on which all files have the same mode."""

    def identity(self, name: str) -> FileIdentity | None:
        there = super().identity(name)
        return there and there._replace(mode=there.mode | 0o777)


@pytest.mark.parametrize(
    ("disk", "what", "outcome"),
    [
        (NoLocks, "byte locks", REFUSED),
        (GrantsBoth, "byte locks", REFUSED),
        (GrantsOtherProcesses, "byte locks", REFUSED),
        (LocksLookFree, "byte locks", REFUSED),
        (LocksStay, "byte locks", REFUSED),
        (HoldsBoth, "directory locks", REFUSED),
        (LocksLookFree, "directory locks", REFUSED),
        (NoSharing, "directory locks", REFUSED),
        (AcrossDevices, "renames", REFUSED),
        (RenameCopies, "renames", REFUSED),
        (Replaces, "new names", REFUSED),
        (NoLinks, "hard links", REFUSED),
        (LinkCopies, "hard links", REFUSED),
        (NoSharing, "byte locks", REFUSED),
        (ShortLocks, "byte locks", REFUSED),
        (NoFlush, "flushes", REFUSED),
        (NothingDurable, "flushes", REFUSED),
        (NoFlushOfDirectories, "flushes", REFUSED),
        (ReadOnly, "room", REFUSED),
        (ReadOnly, "writing", REFUSED),
        (Full, "writing", REFUSED),
        (Full, "room", REFUSED),
        (NoInodes, "room", REFUSED),
        (Little, "room", WARNING),
        (Nfs, "kind", REFUSED),
        (Fuse, "kind", WARNING),
        (CaseBlind, "names", REFUSED),
        (ShortNames, "names", REFUSED),
        (OpenToAll, "modes", WARNING),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_doctor_names_each_missing_property_of_a_file_system(
    disk: Callable[[str], Disk], what: str, outcome: Outcome, tmp_path: Path
) -> None:
    (proof,) = (proof for proof in examine(disk(str(tmp_path))) if proof.what == what)
    assert proof.outcome is outcome
    assert ": " in proof.detail, "it says what to do"
    assert everything(tmp_path) == []


def test_a_file_in_quarantine_may_have_the_mode_of_a_dropped_file(tmp_path: Path) -> None:
    spool.create(tmp_path / "space").close()
    refused = tmp_path / "space" / "quarantine" / "active.b.json"
    refused.touch(0o644)
    assert found(Disk(str(tmp_path / "space")))["owner"] is FINE


def test_hard_links_are_not_needed_where_renames_are_ordered(tmp_path: Path) -> None:
    disk = NoLinks(str(tmp_path))
    disk.durability = Ordered(Guarantees(orders_renames=True))
    assert found(disk)["hard links"] is WARNING


@pytest.mark.parametrize("step", [-40 * 365 * 86400, -86400, 86400])
def test_a_clock_that_is_wrong_is_named(step: int, root: Path) -> None:
    assert found(timed(root, MovedClock(later=step)))["clocks"] is WARNING


def test_a_directory_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert found(Disk(str(tmp_path)))["owner"] is WARNING


@pytest.mark.root
def test_root_makes_files_in_the_name_of_a_directorys_owner() -> None:
    with directory_of(OWNER) as directory:
        proofs = {proof.what: proof for proof in examine(Disk(str(directory)))}
    assert (proofs["owner"].outcome, proofs["modes"].outcome) == (FINE, FINE)
    assert "user nobody, in whose name root makes files" in proofs["owner"].detail


def test_the_doctor_names_a_space_that_other_users_may_read(root: Path) -> None:
    (root / layout.COMMITTED).chmod(0o755)
    assert found(Disk(str(root)))["owner"] is WARNING


@pytest.mark.parametrize("flush", ["ordered", "strict"])
def test_the_flush_mode_that_a_space_will_use_is_told(flush: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("on-a-disk")
    spool.create(tmp_path / "space", sync_method=flush).close()
    (proof, *_) = examine(Disk(str(tmp_path / "space")))
    assert flush in proof.detail


# -- the disk names the defect, and so do create and open -------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("call", ["fcntl", "flock"])
def test_without_locks_no_space_is_opened_or_created(
    code: int, call: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = mock.Mock(side_effect=OSError(code, os.strerror(code)))

    monkeypatch.setattr(fcntl, call, refuse)
    for attempt in (lambda: spool.open(root), lambda: spool.create(tmp_path / "new")):
        with pytest.raises(UnsafeFileSystem, match=r"spool-admin doctor"):
            attempt()
    monkeypatch.undo()
    with spool.open(root) as space:
        assert space.get("a").body == "there"


def test_without_rename_noreplace_links_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spool.disk.disk.renameat2", _no_renameat2)
    with spool.open(root) as space:
        space.put("a", "more")
    assert found(Disk(str(root)))["new names"] is FINE


def test_without_rename_noreplace_and_links_nothing_is_committed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = mock.Mock(side_effect=OSError(errno.EPERM, os.strerror(errno.EPERM)))

    with spool.open(root) as space:
        with monkeypatch.context() as patch:
            patch.setattr("spool.disk.disk.renameat2", _no_renameat2)
            patch.setattr(os, "link", refuse)
            with pytest.raises(UnsafeFileSystem, match="nothing was lost"):
                space.put("a", "more")
            with pytest.raises(UnsafeFileSystem):
                space.get("a")
        assert [message.body for message in space.browse("a")] == ["there"]


def _no_renameat2(*_: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1


@pytest.mark.every(3)
@pytest.mark.parametrize("name", layout.DIRECTORIES)
def test_a_stage_that_is_a_symlink_is_refused(name: str, root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (root / name).rename(elsewhere)
    (root / name).symlink_to(elsewhere)
    before = everything(elsewhere)
    with pytest.raises(UnsafeFileSystem, match=f"{name} is a symlink"):
        spool.open(root)
    assert found(Disk(str(root)))[f"{name}/"] is REFUSED
    assert everything(elsewhere) == before


# -- a space that cannot be used --------------------------------------------------------------------------------------


def as_the_owner(act: Callable[[], None]) -> None:
    in_a_process_of(OWNER, act)


@pytest.mark.root
@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["run", "drop/orders", "committed", "drop"])
def test_the_doctor_refuses_a_space_with_a_directory_of_another_user(name: str) -> None:
    with directory_of(OWNER) as directory:
        root = directory / "space"
        root.mkdir(mode=0o700)
        os.chown(root, OWNER, GROUP)
        with spool.create(root) as space:
            space.create_queue("orders")
        (root / "drop" / "orders").mkdir(exist_ok=True)
        os.chown(root / "drop" / "orders", OWNER, GROUP)
        os.chown(root / name, 0, 0)
        (root / name).chmod(0o700)

        def examined() -> None:
            owner = {proof.what: proof for proof in examine(Disk(str(root)))}["owner"]
            assert owner.outcome is REFUSED
            assert f"{name} belongs to user root, and the space to user nobody" in owner.detail
            assert f"sudo chown -R nobody {root}" in owner.detail
            done = CliRunner().invoke(main, ["doctor", str(root)])
            assert (done.exit_code, f"{root} cannot be used: {owner.detail}" in done.stderr) == (1, True)
            assert "lose messages" not in done.stderr

        examined()
        as_the_owner(examined)


@pytest.mark.root
def test_a_directory_of_another_user_gets_one_advice() -> None:
    with directory_of(0) as directory:

        def examined() -> None:
            owner, writing = (
                proof.detail for proof in examine(Disk(str(directory))) if proof.what in ("owner", "writing")
            )
            advice = f"sudo -u root …, or give it to this user, sudo chown -R nobody {directory}"
            assert owner.endswith(advice)
            assert writing.endswith(advice)

        as_the_owner(examined)


def test_the_doctor_refuses_a_space_with_broken_settings(root: Path) -> None:
    (root / layout.SETTINGS).write_text("version = [")
    (space,) = (proof for proof in examine(Disk(str(root))) if proof.what == "space")
    assert (space.outcome, "space.toml" in space.detail) == (REFUSED, True)
    assert CliRunner().invoke(main, ["doctor", str(root)]).exit_code == 1


def test_the_doctor_tells_how_to_make_a_space(tmp_path: Path) -> None:
    def told() -> str:
        (space,) = (proof for proof in examine(Disk(str(tmp_path))) if proof.what == "space")
        assert space.outcome is FINE
        return space.detail

    assert told() == f"none here; spool-admin init {tmp_path} makes one"
    (tmp_path / "letter").touch()
    assert told() == f"none here, and the directory is not empty: spool-admin init {tmp_path}/NAME makes one below it"


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_and_its_exit_code_says_whether_it_will_do(root: Path, tmp_path: Path) -> None:
    good = CliRunner().invoke(main, ["doctor", str(root)])
    assert (good.exit_code, "good enough" in good.stderr) == (0, True)
    assert "byte locks" in good.stdout
    same = CliRunner().invoke(main, ["-s", str(root), "doctor", "--json"])
    assert '"what": "byte locks", "outcome": "fine"' in same.stdout
    shutil.rmtree(root / "free")
    (root / "free").symlink_to(tmp_path)
    bad = CliRunner().invoke(main, ["doctor", str(root)])
    assert (bad.exit_code, "refused: free/" in bad.stderr) == (1, True)
    nothing = CliRunner().invoke(main, ["doctor", str(tmp_path / "nothing")])
    assert (nothing.exit_code, "is no directory" in nothing.stderr) == (1, True)


# -- real file systems, mounted by root -------------------------------------------------------------------------------


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    mounted: list[str] = []

    def mount(*words: str) -> None:
        if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
            pytest.skip("mounting is not allowed here")
        mounted.append(words[-1])

    yield mount
    for path in reversed(mounted):
        subprocess.run(["umount", "-l", path], capture_output=True, check=False)  # the test may have done so


RENAMED = tuple(name for name in layout.DIRECTORIES if name not in (layout.DROP, layout.RUN))


@pytest.mark.root
@pytest.mark.every(3)
@pytest.mark.parametrize("name", RENAMED)
def test_a_stage_on_another_device_is_refused(name: str, root: Path, mount: Callable[..., None]) -> None:
    mount("-t", "tmpfs", "tmpfs", str(root / name))
    with pytest.raises(UnsafeFileSystem, match=f"{name} lies on another device"):
        spool.open(root)
    assert found(Disk(str(root)))[f"{name}/"] is REFUSED
    subprocess.run(["umount", str(root / name)], check=True)
    with spool.open(root) as space:
        assert space.get("a").body == "there"


@pytest.mark.root
@pytest.mark.every(3)
@pytest.mark.parametrize("name", RENAMED)
def test_a_stage_that_is_mounted_on_its_own_is_refused_when_it_is_met(
    name: str, root: Path, tmp_path: Path, mount: Callable[..., None]
) -> None:
    """A bind mount of the same device looks like a directory, until something is renamed into it."""
    mount("--bind", str(root / name), str(root / name))
    assert found(Disk(str(root)))[f"{name}/"] is REFUSED
    if name in (layout.ACTIVE, layout.COMMITTED):
        with spool.open(root) as space, pytest.raises(UnsafeFileSystem, match="nothing was lost"):
            space.put("a", "more")
    subprocess.run(["umount", str(root / name)], check=True)
    with spool.open(root) as space:
        assert [message.body for message in space.browse("a")] == ["there"]
        assert [finding for finding in space.check() if finding.kind == "damaged"] == []


@pytest.mark.root
def test_a_drop_folder_on_another_device_is_no_reason_to_refuse(root: Path, mount: Callable[..., None]) -> None:
    mount("-t", "tmpfs", "tmpfs", str(root / layout.DROP))
    assert found(Disk(str(root)))["drop/"] is WARNING
    with spool.open(root) as space:
        space.put("a", "more")


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_file_system_will_do_and_its_flush_mode_is_told(kind: Kind, tmp_path: Path) -> None:
    if lacking := volume.missing(kind.make[0]):
        pytest.skip(lacking)
    with Volume(kind, tmp_path).make().mount() as mounted:
        proofs = {proof.what: proof for proof in examine(Disk(str(mounted.path)))}
        assert [proof for proof in proofs.values() if proof.outcome is REFUSED] == []
        assert kind.name.split()[0] in proofs["kind"].detail
        assert ("ordered" if kind.ordered else "strict") in proofs["kind"].detail


@pytest.mark.root
def test_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    if lacking := volume.missing("mkfs.ext4"):
        pytest.skip(lacking)
    with Volume(KINDS["ext4"], tmp_path).make().mount() as mounted:
        with spool.create(mounted.path / "space") as space:
            space.create_queue("a")
        subprocess.run(["mount", "-o", "remount,ro", str(mounted.path)], check=True)
        proofs = {proof.what: proof for proof in examine(Disk(str(mounted.path / "space")))}
        assert (proofs["room"].outcome, proofs["writing"].outcome) == (REFUSED, REFUSED)
        with pytest.raises(spool.DiskFailure, match="mount the file system writable"):
            spool.open(mounted.path / "space")


@pytest.mark.root
def test_a_file_system_in_memory_is_told_from_one_that_lasts(tmp_path: Path, mount: Callable[..., None]) -> None:
    mount("-t", "tmpfs", "-o", "mode=700", "tmpfs", str(tmp_path))
    proofs = examine(Disk(str(tmp_path)))
    assert (proofs[0].outcome, "power cut" in proofs[0].detail) == (WARNING, True)
    assert [proof for proof in proofs if proof.outcome is REFUSED] == []
