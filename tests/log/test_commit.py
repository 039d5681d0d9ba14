"""The steps of a commit: their order, and the files that remain after a failure of each."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool
from spool.coordination.locks import NUMBER
from spool.disk.disk import Disk, FlushFailed
from spool.model import layout
from spool.store.store import WAIT_SECONDS
from tests import door
from tests.at_once import AT_ONCE
from tests.clocks import SimulatedClock, timed
from tests.machine import NO_FILES, Machine
from tests.shown import bodies
from tests.simdisk import SimulatedDisk

_CHANGES = frozenset(("create", "write_at", "rename", "store", "rename_new", "flush", "unlink", "lock", "unlock"))

# The changes of files and locks by a put after its batch is complete. (The process holds the name in active/ since its
# last put.)
STEPS = (
    "create active",
    "write_at active",
    "lock control",
    "lock numbers",
    "rename_new active",
    "store feed",
    "store feed",
    "store counters",
    "store counters",
    "unlock control",
    "write_at committed",
    "flush committed",
    "write_at counters",
    "unlock numbers",
)


def put_one(space: spool.Space) -> object:
    return space.put("orders", "one")


def put_large(space: spool.Space) -> object:
    return space.put("orders", "one", deduplication_key="one")


class WatchedDisk(SimulatedDisk):
    """Names the calls that change something, while it is asked to, and lets one of them fail."""

    seen: list[str] | None = None
    fails_at = -1

    def _step(self, call: str, *args: object) -> None:
        if self.seen is not None and call in _CHANGES and args[0] is not None:
            self.seen.append(f"{call} {self._about(args[0])}")
            if len(self.seen) - 1 == self.fails_at:
                error = FlushFailed if call == "flush" else OSError
                raise error(errno.EIO, "it fails")
        super()._step(call, *args)

    def _about(self, what: object) -> str:
        """The directory of the file, or its name if that lies in run/."""
        name = what if isinstance(what, str) else self.name_of(self.machine.handles[what].inode)  # type: ignore[index]
        directory, _, base = name.partition("/")
        return base if directory == "run" else directory

    def name_of(self, inode: object) -> str:
        names = [f"{d}/{n}" for d in (layout.ACTIVE, layout.COMMITTED, layout.RUN) for n in self.names(d)]
        return next(name for name in names if self.machine.lookup(name) is inode)


@pytest.fixture
def watched() -> Iterator[tuple[spool.Space, WatchedDisk]]:
    machine = Machine(NO_FILES, ordered=True)
    disk = WatchedDisk(machine)
    with spool.create(disk, defaults=AT_ONCE) as space:
        space.create_queue("orders")
        door.store(space).files.recycler.clear(everything=True)
        space.put("orders", "first")
        yield space, disk


def recorded(disk: WatchedDisk, step: Callable[[], object]) -> list[str]:
    disk.seen = seen = []
    try:
        step()
    finally:
        disk.seen = None
        disk.fails_at = -1
    return seen


def held(space: spool.Space) -> list[set[int]]:
    """The held bytes of each file except run/xids, where the byte of a name in active/ remains held."""
    shared = door.store(space).shared
    return [set(file._held) for file in (shared.control, shared.numbers)]


def test_each_step_is_made_once_and_in_order(watched: tuple[spool.Space, WatchedDisk]) -> None:
    space, disk = watched
    assert recorded(disk, lambda: space.put("orders", "second")) == list(STEPS)


@pytest.mark.parametrize("step", [n for n, name in enumerate(STEPS) if not name.startswith("unlock")])
def test_a_failure_of_any_step_leaves_nothing_and_invents_no_outcome(
    watched: tuple[spool.Space, WatchedDisk], step: int
) -> None:
    """Before the number is issued nothing has happened; afterwards the file remains, and CommitUnknown is raised."""
    space, disk = watched
    before = held(space)
    disk.fails_at = step
    error: BaseException | None = None

    def put() -> None:
        nonlocal error
        try:
            space.put("orders", "second")
        except spool.SpoolError as raised:
            error = raised

    recorded(disk, put)
    noted = STEPS[step] != "store feed"  # otherwise other processes read the commit's file
    named = step > STEPS.index("rename_new active") or not noted
    issued = step > STEPS.index("unlock control") or not noted
    stamped = issued and STEPS[step] != "write_at committed"
    assert [layout.parse_xid(name) for name in disk.names(layout.ACTIVE)] == []
    assert len(disk.names(layout.COMMITTED)) == 1 + named
    assert held(space) == before
    if noted:
        assert isinstance(error, spool.CommitUnknown if issued else spool.DiskFailure), error
    else:
        assert error is None
    if STEPS[step].startswith("flush"):
        with pytest.raises(spool.SpaceStopped):
            space.put("orders", "third")
        return
    space.put("orders", "third")
    assert bodies(space) == ["first", *(["second"] if stamped else []), "third"]
    assert space.check() == []


def test_a_superseding_record_is_written_after_the_last_check(watched: tuple[spool.Space, WatchedDisk]) -> None:
    """The record is true at its own number: no other commit is numbered between its last check and that number."""
    space, disk = watched
    for n in range(100):
        space.put("orders", n)
    seen = recorded(disk, lambda: sum(door.housekeeper(space)._compactor.steps()))
    locked = seen[seen.index("lock control") : seen.index("rename_new active")]
    assert locked.count("write_at active") == 1, "the header"
    assert seen.index("write_at active") < seen.index("lock control"), "the bulk comes before"
    assert "unlink active" not in seen


@pytest.mark.parametrize("put", [put_one, put_large], ids=["in a group", "alone"])
def test_the_time_limit_of_a_commit_begins_when_its_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[spool.Space], object]
) -> None:
    """A slow write leaves a put all its time to wait for the number lock, which another process holds."""
    clock, create = SimulatedClock(), Disk.create

    def slowly(disk: Disk, name: str) -> int:
        clock.time += 60.0
        return create(disk, name)

    with spool.create(timed(tmp_path / "space", clock)) as space, spool.open(tmp_path / "space") as other:
        space.create_queue("orders")
        monkeypatch.setattr(Disk, "create", slowly)
        door.store(other).shared.control.lock(NUMBER, door.deadline(other), "the number lock")
        begun = clock.time
        with pytest.raises(spool.TransactionTimeout):
            put(space)
        assert clock.time - begun > 60.0 + WAIT_SECONDS - 1.0
        door.store(other).shared.control.unlock(NUMBER)
        assert space.stats("orders").ready == 0
