"""A file of any kind and name that another program planted in a space does no harm. The engine reads, writes, moves and
removes nothing outside the space, and waits for no planted file. A check names the file, or an error refuses it with
the reason."""

import logging
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spool
import xa
from spool.disk import Disk
from spool.disk.durability import durability_of
from spool.disk.stat import Guarantees
from spool.errors import CommitUnknown, SpaceStopped, SpoolError
from spool.intake import Intake
from spool.model.xid import Xid
from tests import alarms, door
from tests.at_once import AT_ONCE

PATIENCE_SECONDS = 20
STRANGER = Xid(4711, b"planted", b"1")
OURS = xa.Xid(4711, b"voted", b"1")
SECRET = b"nobody may see or change this"


# -- the planted files ------------------------------------------------------------------------------------------------


def _socket(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _directory(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"inside")


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "symlink to a file": lambda path, outside: path.symlink_to(outside / "secret"),
    "symlink to a directory": lambda path, outside: path.symlink_to(outside / "secrets"),
    "symlink to nothing": lambda path, outside: path.symlink_to(outside / "made"),
    "symlink to itself": lambda path, outside: path.symlink_to(path),
    "hard link": lambda path, outside: os.link(outside / "secret", path),
    "fifo": lambda path, outside: os.mkfifo(path),
    "socket": _socket,
    "endless device": lambda path, outside: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)),
    "directory": _directory,
}

ANYWHERE = (
    "drop/a/planted", "drop/a/planted.msgpack", "drop/b", "drop/nobody",
    f"active/{STRANGER}.msgpack", f"active/{STRANGER}.claims", f"active/{STRANGER}.copy",
    "active/drop.a.0123456789abcdef", "active/stranger",
    f"prepared/{STRANGER}.msgpack", f"prepared/{OURS}.msgpack", "prepared/stranger",
    "committed/0000000000000005.msgpack", "committed/0000000000000009.msgpack", "committed/0000000000000003-1.msgpack",
    "committed/stranger",
    "free/100-0123456789abcdef", "free/100-0123456789abcdef.new", "free/stranger",
    "quarantine/stranger", "quarantine/stranger.reason.txt",
    "space.toml.tmp", "stranger", "run/stranger",
)  # fmt: skip
# A directory at one of these places is a folder for dropped files, even if another program made the directory.
WELCOME = (("drop/b", "directory"), ("active/drop.a.0123456789abcdef", "directory"))
IN_RUN = ("run/control", "run/counters", "run/feed", "run/numbers", "run/xids", "run/claims-05", "run/reclaim.lock")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    (outside / "secrets").mkdir(parents=True)
    (outside / "secret").write_bytes(SECRET)
    (outside / "secrets" / "another").write_bytes(SECRET)
    return outside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    with spool.create(root, defaults=AT_ONCE) as space:
        for queue in ("a", "b"):
            space.create_queue(queue)
        space.put_many("a", ["first", "second"])
        space.put("a", "third")
    return root


def _plant(kind: str, path: Path, outside: Path) -> None:
    if kind == "endless device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    if path.is_dir():
        os.rmdir(path)
    elif path.exists():
        path.unlink()
    KINDS[kind](path, outside)


def _state(outside: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Return the names, modes, times of change and bytes of the files. The number of names is left out, because
    planting a hard link changes it."""
    found = []
    for path in sorted(outside.rglob("*")):
        about = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found.append((str(path), about.st_mode, about.st_mtime_ns, about.st_size, data))
    return found


# -- the use of the space ---------------------------------------------------------------------------------------------


class Session:
    """All calls of an application, an intake and an administrator. ``told``: the texts of all findings and errors."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failed: list[SpoolError] = []
        self.bodies: list[object] = []
        self.put: list[object] = ["first", "second", "third"]

    def use(self, space: spool.Space) -> None:
        self.told += map(str, space.recovery.findings)
        for step in (
            self._put, self._put, self._get, self._roll_back, self._vote, lambda space: door.reclaim(space),
            self._take_in, self._put, self._get, lambda space: space.stats(), lambda space: space.create_queue("c"),
            lambda space: door.reclaim(space), self._look,
        ):  # fmt: skip
            try:
                step(space)
            except SpoolError as error:
                self.failed.append(error)
                self.told.append(str(error))

    def _put(self, space: spool.Space) -> None:
        body = f"put-{len(self.put)}"
        space.put("a", body)
        self.put.append(body)

    def _get(self, space: spool.Space) -> None:
        self.bodies.append(space.get("a").body)

    def _roll_back(self, space: spool.Space) -> None:
        with space.transaction() as tx:
            tx.get("a")
            tx.put("b", "never")
            tx.rollback()

    def _vote(self, space: spool.Space) -> None:
        manager = xa.ResourceManager(space)
        try:
            manager.start(OURS)
            space.put("b", "voted")
            manager.end(OURS)
            manager.prepare(OURS)
            manager.commit(OURS)
        except xa.XAError as error:
            if error.code not in (xa.XAER_DUPID, xa.XA_RBROLLBACK, xa.XAER_RMFAIL):
                raise
            self.told.append(str(error))

    def _take_in(self, space: spool.Space) -> None:
        Intake(space).run(once=True)

    def _look(self, space: spool.Space) -> None:
        self.told += map(str, [*space.check(), *space.quarantined()])

    def drain(self, space: spool.Space) -> None:
        self.told += map(str, space.recovery.findings)
        while True:
            try:
                self._get(space)
            except spool.Empty:
                return


@contextmanager
def _nothing_hangs() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"it waited for more than {PATIENCE_SECONDS} s")

    with alarms.handled(stop):
        signal.alarm(PATIENCE_SECONDS)
        yield


@pytest.mark.every(7)
@pytest.mark.parametrize("moment", ["closed", "in use"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ANYWHERE)
def test_a_planted_file_leads_nowhere_and_stops_no_process(
    place: str, kind: str, moment: str, root: Path, outside: Path, caplog: pytest.LogCaptureFixture, record_property
) -> None:
    caplog.set_level(logging.WARNING, logger="spool")
    session = Session()
    before = _state(outside)
    with _nothing_hangs():
        if moment == "closed":
            _plant(kind, root / place, outside)
        with spool.open(root) as space:
            if moment == "in use":
                _plant(kind, root / place, outside)
            session.use(space)
        with spool.open(root) as space:
            session.drain(space)
            session._look(space)
    assert _state(outside) == before
    assert session.failed == [] or place == "space.toml.tmp"
    assert [body for body in session.bodies if body not in (SECRET, b"inside")] == session.put
    if (place, kind) in WELCOME:
        return
    told = "\n".join([*session.told, *caplog.messages])
    assert os.path.basename(place) in told or not os.path.lexists(root / place), told
    record_property("planted: links, pipes, devices and directories", 1)


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", IN_RUN)
def test_a_file_planted_in_run_while_the_space_is_closed_is_set_aside(place: str, kind: str, root: Path, outside: Path):
    before = _state(outside)
    _plant(kind, root / place, outside)
    session = Session()
    with _nothing_hangs():
        with spool.open(root) as space:
            session.use(space)
        with spool.open(root) as space:
            session.drain(space)
    assert _state(outside) == before
    assert (session.failed, session.bodies) == ([], session.put)
    assert os.path.basename(place) in "\n".join(session.told)


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", IN_RUN[:-1])
def test_a_file_planted_in_run_while_the_space_is_in_use_is_refused_by_name(
    place: str, kind: str, root: Path, outside: Path
) -> None:
    before = _state(outside)
    session = Session()
    with _nothing_hangs():
        with spool.open(root) as space:
            session._put(space)
            _plant(kind, root / place, outside)
            with pytest.raises(
                SpoolError,
                match=f"{place} was replaced by something that is not a plain file.*close the space in every process",
            ):
                _use_all_claim_files(root)
            session.use(space)
            assert {type(error) for error in session.failed} <= {SpaceStopped, CommitUnknown}
        with spool.open(root) as space:
            session.drain(space)
    assert _state(outside) == before
    assert sorted(map(str, session.bodies)) == sorted(map(str, session.put))


def _use_all_claim_files(root: Path) -> None:
    with spool.open(root) as space, space.transaction() as tx:
        tx.get("a")  # its journal names an owner, which holds a byte in each


# -- files that change while a process looks at them ------------------------------------------------------------------


class Changing(Disk):
    """A disk that replaces a dropped file just after the intake's last look at the file."""

    kind: str
    outside: Path

    def has_writer(self, handle: int) -> bool | None:
        found = super().has_writer(handle)
        if (path := Path(f"/proc/self/fd/{handle}").readlink()).name == "planted" and path.parent.name == "a":
            _plant(self.kind, path, self.outside)
        return found


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "strict"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_file_that_turns_into_something_else_leads_nowhere(
    kind: str, ordered: bool, root: Path, outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "drop/a/planted").write_bytes(b"a harmless file")
    disk = Changing(str(root))
    disk.kind, disk.outside = kind, outside
    disk.durability = durability_of(Guarantees(orders_renames=ordered))
    before = _state(outside)
    with _nothing_hangs():
        with spool.open(disk) as space:
            Intake(space).run(once=True)
            bodies = [message.body for message in space.browse("a")]
        with spool.open(root) as space:
            Intake(space).run(once=True)
            door.reclaim(space)
    assert _state(outside) == before
    assert bodies == ["first", "second", "third", *([SECRET] if kind == "hard link" else [])]
    assert "planted" in caplog.text or kind == "hard link"


def test_a_dropped_file_with_two_names_is_taken_and_one_name_left_alone(root: Path, outside: Path) -> None:
    """The engine recycles files afterwards, but never a dropped file."""
    os.link(outside / "secret", root / "drop/a/planted")
    before = _state(outside)
    with spool.open(root) as space:
        Intake(space).run(once=True)
        bodies = [space.get("a").body for _ in range(4)]
        for turn in range(40):
            space.put("b", "x" * turn)
            space.get("b")
            door.reclaim(space)
        assert space.check() == []
    assert bodies[-1] == SECRET
    assert _state(outside) == before
    assert (outside / "secret").stat().st_nlink == 1


def test_a_committed_file_that_got_another_name_is_not_recycled_under_it(root: Path, tmp_path: Path) -> None:
    """A backup that consists of hard links does not change."""
    with spool.open(root) as space:
        space.get_many("a", 3)
        copies = {}
        for file in (root / "committed").iterdir():
            os.link(file, tmp_path / file.name)
            copies[tmp_path / file.name] = file.read_bytes()
        space.put("a", "next")
        assert door.reclaim(space) > 0
        for turn in range(40):
            space.put("b", "x" * turn)
            space.get("b")
            door.reclaim(space)
    assert {path: path.read_bytes() for path in copies} == copies


def test_a_spare_file_that_got_another_name_is_not_written_under_it(root: Path, tmp_path: Path) -> None:
    with spool.open(root) as space:
        for turn in range(40):
            space.put("b", "x" * turn)
            space.get("b")
        door.reclaim(space)
        spares = list((root / "free").iterdir())
        for spare in spares:
            os.link(spare, tmp_path / spare.name)
        copies = {tmp_path / spare.name: spare.read_bytes() for spare in spares}
        assert len(copies) > 10
        for _ in range(40):
            space.put("b", "new")
    assert {path: path.read_bytes() for path in copies} == copies
