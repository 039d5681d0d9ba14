"""With any umask, all files of the engine have mode 0600, and all directories 0700, during the whole life of a
space."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool
import xa
from spool.coordination.locks import coordinator_byte
from spool.intake import Intake
from spool.model.xid import FORMAT_ROUND, Xid
from spool.remote.remote_branch import RemoteBranch
from tests import door
from tests.children import exit_code_of
from tests.users import directory_of

NOBODY = 65534
DROPPED_MODE = 0o644


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in which root and an ordinary user may create a space."""
    with directory_of(NOBODY) as made:
        yield made


def live(root: Path, flush: str, look: Callable[[], None]) -> None:
    """A whole life; ``look`` is called after each step of it."""
    space = spool.create(root, sync_method=flush)
    for name, options in {"b": {}, "a": {"retries": 1, "retry_delay": 0, "error_queue": "b"}}.items():
        space.create_queue(name, **options)
        look()
    space.put_many("a", ["one", "two", "three", b"x" * 100_000])
    look()
    with space.transaction() as tx:
        tx.get("a")
        look()  # a journal of the claim
        tx.rollback()
    manager = xa.ResourceManager(space)
    for outcome in (manager.commit, manager.rollback):
        xid = xa.Xid(7, outcome.__name__.encode(), b"")
        manager.start(xid)
        space.put("b", "voted")
        manager.end(xid)
        manager.prepare(xid)
        look()
        outcome(xid)
        look()
    _task(space)
    look()
    for turn in range(30):
        space.put("b", "x" * turn)
        space.get("b")
    door.reclaim(space)
    look()
    for name, data in (("good", b"good"), ("bad.msgpack", b"\xc1")):
        (root / "drop/a" / name).write_bytes(data)
        (root / "drop/a" / name).chmod(DROPPED_MODE)
    Intake(space).run(once=True)
    look()
    space.create_queue("c")
    newest = max((root / "committed").iterdir())
    space.close()
    newest.write_bytes(newest.read_bytes()[:-3])
    with spool.open(root) as space:  # something goes to quarantine
        space.check(repair=True)
        look()
        space.put("a", "last")
    shutil.rmtree(root / "run")
    with spool.open(root):
        look()


def _task(space: spool.Space) -> None:
    """A forwarder's effects, written by a process that has not opened the space."""
    store, xid = door.store(space), Xid(FORMAT_ROUND, b"round", b"1")
    assert store.shared.xids.try_lock(coordinator_byte(xid.gtrid))
    branch = RemoteBranch(space.path, xid)
    door.add(branch, ("put", "b", [b"reply"], {}))
    assert branch.prepare() is not None
    branch.close()
    store.shared.xids.unlock(coordinator_byte(xid.gtrid))


def open_to_others(root: Path) -> list[str]:
    """Return the files and directories with a wrong mode. A dropped file keeps its mode, because its directory is
    closed to other users."""
    wrong = []
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        dropped = path.name in ("good", "bad.msgpack", "active.bad.msgpack")
        if mode != (0o700 if path.is_dir() else DROPPED_MODE if dropped else 0o600):
            wrong.append(f"{path.relative_to(root)} {mode:04o}")
    return wrong


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("umask", "flush"),
    [(0, "ordered"), (0o022, "strict"), (0o177, "ordered"), (0o777, "strict"), (0o777, "ordered")],
    ids=lambda value: f"umask {value:04o}" if isinstance(value, int) else value,
)
def test_files_of_a_space_are_closed_to_other_users(umask: int, flush: str, directory: Path, record_property) -> None:
    root, looks = directory / "space", []

    def look() -> None:
        looks.append(open_to_others(root))

    before = os.umask(umask)
    try:
        live(root, flush, look)
    finally:
        os.umask(before)
    assert [found for found in looks if found] == []
    record_property("modes: looks at every file of a space", len(looks))


@pytest.mark.root
@pytest.mark.every(2)
@pytest.mark.parametrize("umask", [0o177, 0o777], ids=lambda umask: f"umask {umask:04o}")
def test_an_ordinary_user_can_use_a_space_that_the_same_user_made(umask: int, directory: Path) -> None:
    """The test runs as an ordinary user, because root may open files of any mode."""
    live(directory / "warmed up", "strict", lambda: None)  # so that everything is imported

    def act() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.umask(umask)
        live(directory / "space", "strict", lambda: None)

    assert exit_code_of(act) == 0
    assert open_to_others(directory / "space") == []
