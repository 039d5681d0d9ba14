"""Another user's symlinks lead a running process nowhere: a program of root's that has the space open writes, moves,
reads and removes files in the space's own directories only."""

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
import xa
from spool.disk import descriptors
from spool.disk.disk import Disk
from spool.errors import CommitUnknown, DiskFailure, SpaceStopped
from spool.model import layout
from tests import door
from tests.at_once import AT_ONCE
from tests.environment import pressed
from xaspool_scripts.recover import main as spool_recover

STAGES = (layout.ACTIVE, layout.PREPARED, layout.COMMITTED, layout.FREE, layout.RUN, layout.QUARANTINE, layout.DROP)
XID = xa.Xid(7, b"other", b"branch")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    with spool.create(root, defaults=AT_ONCE) as space:
        space.create_queue("orders")
        for body in ("one", "two", "three"):
            space.put("orders", body)
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that the owner of the space may not write, with files that the space's would replace."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "0000000000000001.msgpack").write_bytes(b"somebody else's")
    return outside


def _work(space: spool.Space) -> None:
    """Put, get, prepare, commit and reclaim: each moves files between the stages."""
    manager = xa.ResourceManager(space)
    for step in (
        lambda: space.put("orders", "four"),
        lambda: space.get("orders"),
        lambda: manager.start(XID),
        lambda: space.put("orders", "five"),
        lambda: manager.end(XID),
        lambda: manager.prepare(XID),
        lambda: manager.commit(XID),
        lambda: door.reclaim(space),
        lambda: space.put("orders", "six"),
    ):
        with suppress(DiskFailure, CommitUnknown, SpaceStopped, xa.XAError):
            step()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_replaced_by_a_symlink_leads_a_running_process_nowhere(stage: str, root: Path, outside: Path) -> None:
    space = spool.open(root)
    (root / stage).rename(root / "aside")
    (root / stage).symlink_to(outside)
    try:
        _work(space)
    finally:
        space.close()
    assert [path.name for path in outside.iterdir()] == ["0000000000000001.msgpack"]
    assert (outside / "0000000000000001.msgpack").read_bytes() == b"somebody else's"


@pytest.mark.parametrize("replace", ["by a symlink", "by a copy", "by nothing"])
def test_a_put_into_a_moved_stage_is_refused_and_not_unknown(replace: str, root: Path, outside: Path) -> None:
    """No later process would find the message where the stage was."""
    with spool.open(root) as space:
        (root / layout.COMMITTED).rename(root / "aside")
        if replace == "by a symlink":
            (root / layout.COMMITTED).symlink_to(outside)
        elif replace == "by a copy":
            shutil.copytree(root / "aside", root / layout.COMMITTED)
        with pytest.raises(DiskFailure, match=r"moved, replaced or removed.*committed.*put .* back"):
            space.put("orders", "four")
        if replace == "by a symlink":
            (root / layout.COMMITTED).unlink()
        elif replace == "by a copy":
            shutil.rmtree(root / layout.COMMITTED)
        (root / "aside").rename(root / layout.COMMITTED)
        space.put("orders", "five")
    with spool.open(root) as space:
        assert [message.body for message in space.browse("orders")] == ["one", "two", "three", "five"]


@pytest.mark.parametrize("stage", sorted(descriptors.STAGES))
@pytest.mark.parametrize("replace", ["by a symlink", "by a directory", "by nothing"])
def test_a_check_of_an_open_space_names_a_moved_stage(stage: str, replace: str, root: Path, outside: Path) -> None:
    """Neither a repair nor another opener creates another stage, because it would be in the way of the moved stage."""
    moved = f"moved, replaced or removed .*{stage}.* put the directory back"
    with spool.open(root) as space:
        (root / stage).rename(root / "aside")
        if replace == "by a symlink":
            (root / stage).symlink_to(outside)
        elif replace == "by a directory":
            (root / stage).mkdir()
        for repair in (False, True):
            with pytest.raises(DiskFailure, match=moved):
                space.check(repair=repair)
        if replace == "by nothing":
            with pytest.raises(DiskFailure, match=f"{stage} is missing, and another process has the space open"):
                spool.open(root)
            assert not (root / stage).exists()
        elif replace == "by a symlink":
            (root / stage).unlink()
        else:
            (root / stage).rmdir()
        (root / "aside").rename(root / stage)
        assert space.check() == []
        space.put("orders", "four")
    with spool.open(root) as space:
        assert [message.body for message in space.browse("orders")] == ["one", "two", "three", "four"]


def test_a_stage_that_was_removed_and_made_again_is_named_until_the_space_is_opened_again(root: Path) -> None:
    with spool.open(root) as space:
        (root / layout.ACTIVE).rmdir()
        (root / layout.ACTIVE).mkdir()
        for _ in range(2):
            with pytest.raises(DiskFailure, match=r"moved, replaced or removed .*active.* open it again"):
                space.put("orders", "four")
    with spool.open(root) as space:
        space.put("orders", "five")
        assert [message.body for message in space.browse("orders")] == ["one", "two", "three", "five"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_a_symlink_is_refused_by_an_opener_and_by_a_look(stage: str, root: Path, outside: Path) -> None:
    (root / stage).rename(root / "aside")
    (root / stage).symlink_to(outside)
    text = f"{root}/{stage} is a symlink, and the space needs its own directory there"
    with pytest.raises(spool.UnsafeFileSystem, match=text):
        spool.open(root)
    told = CliRunner().invoke(spool_recover, ["-s", str(root), "--dry-run"])
    assert (told.exit_code, text in told.output) == (1, True)
    assert [path.name for path in outside.iterdir()] == ["0000000000000001.msgpack"]


def test_a_space_that_was_moved_stops_and_nothing_is_lost(root: Path, tmp_path: Path) -> None:
    with spool.open(root) as space:
        root.rename(tmp_path / "moved")
        with pytest.raises(SpaceStopped, match="the acknowledged messages are in the directory that was moved"):
            space.put("orders", "four")
    with spool.open(tmp_path / "moved") as space:
        assert [message.body for message in space.browse("orders")] == ["one", "two", "three"]


def test_every_method_of_the_disk_refuses_a_directory_that_is_a_symlink(tmp_path: Path) -> None:
    root, outside = tmp_path / "space", tmp_path / "outside"
    (root / "run").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_bytes(b"outside")
    (root / "own").write_bytes(b"own")
    (root / "link").symlink_to(outside)
    disk = Disk(str(root))
    calls = {
        "create": lambda: disk.create("link/new"),
        "open": lambda: disk.open("link/file"),
        "open for writing": lambda: disk.open("link/file", write=True),
        "rename out": lambda: disk.rename("link/file", "run/file"),
        "rename in": lambda: disk.rename("own", "link/own"),
        "rename_new out": lambda: disk.rename_new("link/file", "run/file"),
        "rename_new in": lambda: disk.rename_new("own", "link/own"),
        "link": lambda: disk.link("own", "link/own"),
        "unlink": lambda: disk.unlink("link/file"),
        "exists": lambda: disk.exists("link/file"),
        "identity": lambda: disk.identity("link/file"),
        "set_mode": lambda: disk.set_mode("link/file", 0o777),
        "names": lambda: disk.names("link"),
        "make_directory": lambda: disk.make_directory("link/new"),
        "remove_directory": lambda: disk.remove_directory("link/new"),
        "open_directory": lambda: disk.open_directory("link"),
        "flush_directory": lambda: disk.flush_directory("link"),
        "watch": lambda: disk.watch("link/file"),
        "descriptor_path": lambda: disk.descriptor_path("link").__enter__(),
        "exclusively": lambda: disk.exclusively("link/file").__enter__(),
    }
    for name, call in calls.items():
        with pytest.raises(OSError, match="link") as error:
            call()
        assert error.value.errno in (errno.ELOOP, errno.ENOTDIR), name
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("file", b"outside")]
    assert (root / "own").exists()


def test_the_mode_of_a_space_is_set_by_its_descriptor(tmp_path: Path) -> None:
    """The space's owner may replace a directory above the space, and root's repair must not change the mode of another
    directory."""
    (tmp_path / "above" / "space").mkdir(parents=True)
    (tmp_path / "other" / "space").mkdir(parents=True, mode=0o755)
    disk = Disk(str(tmp_path / "above" / "space"))
    assert disk.identity("")
    (tmp_path / "above").rename(tmp_path / "moved")
    (tmp_path / "above").symlink_to(tmp_path / "other")
    disk.set_mode("", 0o700)
    assert (tmp_path / "other" / "space").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "moved" / "space").stat().st_mode & 0o777 == 0o700
    disk.close_all()


def test_an_error_names_the_whole_path(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    disk = Disk(str(tmp_path))
    missing = str(tmp_path / "run" / "missing")
    for call in (disk.open, disk.unlink, disk.set_mode, disk.remove_directory, disk.watch):
        arguments = (0o600,) if call == disk.set_mode else ()
        with pytest.raises(FileNotFoundError) as error:
            call("run/missing", *arguments)
        assert error.value.filename == missing
    with pytest.raises(FileNotFoundError) as error:
        disk.rename("run/missing", "run/other")
    assert (error.value.filename, error.value.filename2) == (missing, str(tmp_path / "run" / "other"))


def test_no_descriptor_is_left_open(root: Path) -> None:
    with spool.open(root) as space:
        _work(space)
    assert not [name for name in pressed.descriptors() if str(root) in name]
