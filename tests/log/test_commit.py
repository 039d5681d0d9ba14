"""The steps of a commit: their order, and the files that remain after a failure of each."""

import errno
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import spool
from spool.coordination.locks import NUMBER
from spool.disk.disk import Disk, FlushFailed
from spool.engine import Engine
from spool.model import layout
from spool.model.xid import Xid
from spool.store.store import WAIT_SECONDS
from tests import door
from tests.at_once import AT_ONCE
from tests.clocks import SimulatedClock, timed
from tests.machine import NO_FILES, Machine
from tests.shown import bodies
from tests.simdisk import SimulatedDisk

pytestmark = pytest.mark.unled("the steps are those of a commit of this process")

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
        names = [
            f"{d}/{n}" for d in (layout.ACTIVE, layout.PREPARED, layout.COMMITTED, layout.RUN) for n in self.names(d)
        ]
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


def test_each_step_is_made_once_and_in_order(watched: tuple[spool.Space, WatchedDisk]) -> None:
    space, disk = watched
    assert recorded(disk, lambda: space.put("orders", "second")) == list(STEPS)


ONE = Xid(7, b"one", b"branch")


class Act:
    """A space in which one write is about to happen, perhaps beside the put of another caller."""

    def __init__(self, kind: str, beside: bool) -> None:
        self.kind, self.disk = kind, WatchedDisk(Machine(NO_FILES, ordered=True))
        self.space = spool.create(self.disk, defaults=AT_ONCE)
        for queue in ("orders", "replies"):
            self.space.create_queue(queue)
        self.space.put("orders", "first")
        self._act: Callable[[], object] = lambda: self.space.put("replies", "first")
        engine, self.other = Engine(door.core(self.space)), door.put_of("orders", b"other") if beside else None
        if kind == "move":
            moved = self.space.transaction()
            moved.put("replies", moved.get("orders").body)
            self._act = moved.commit
        elif kind != "put":
            branch = engine.begin_branch(ONE)
            branch.put("replies", branch.get("orders").body)
            self._act = branch.prepare
        if kind == "adoption":
            self._act()
            self._act = lambda: engine.commit_branch(ONE, vote_known=True)
        door.store(self.space).files.recycler.clear(everything=True)
        self.error: BaseException | None = None

    def run(self, fails_at: int = -1) -> list[str]:
        self.disk.fails_at = fails_at
        with door.beside(self.space, self.other):
            return recorded(self.disk, self._try)

    def _try(self) -> None:
        try:
            self._act()
        except (spool.SpoolError, OSError) as error:
            self.error = error

    def outcomes(self) -> list[tuple[BaseException | None, bool]]:
        """Return the error of each write, and whether it has happened, as another process finds the space."""
        self.space.close()
        with spool.open(SimulatedDisk(self.disk.machine)) as space:
            in_doubt, replies = Engine(door.core(space)).in_doubt(), bodies(space, "replies")
            assert len(space.check()) == len(in_doubt)
            found = [(self.error, bool(in_doubt if self.kind == "vote" else replies))]
            return found if self.other is None else [*found, (self.other.error, b"other" in bodies(space))]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("kind", ["put", "move", "vote", "adoption"])
def test_a_failure_of_any_step_means_the_same_for_each_kind_of_write(kind: str, beside: bool) -> None:
    """Before the number is issued nothing has happened; afterwards the outcome is unknown. A vote is withdrawn."""
    steps = Act(kind, beside).run()
    name = steps.index("rename_new active")
    flush = next(at for at, step in enumerate(steps) if step.startswith("flush"))
    own = (
        flush if kind == "vote" else steps.index("rename_new prepared" if kind == "adoption" else "unlock numbers") - 1
    )
    for at, step in enumerate(steps):
        if step.startswith("unlock"):
            continue
        case = Act(kind, beside)
        case.run(at)
        issued, error = at > steps.index("unlock control", name), case.error
        fails = at <= own and step != "store feed"  # (without a note, other processes read the commit's file)
        assert isinstance(error, OSError) == fails, (step, error)
        assert isinstance(error, spool.CommitUnknown) == (fails and issued and kind != "vote"), step
        if case.other is not None:
            other = case.other.error
            same = isinstance(other, spool.CommitUnknown) == isinstance(error, spool.CommitUnknown)
            assert (same and (other is None) == (error is None)) or (kind == "vote" and (other is None) == (at < flush))
        with pytest.raises(spool.SpaceStopped) if step.startswith("flush") else nullcontext():
            case.space.put("orders", "later")
        for told, happened in case.outcomes():
            assert isinstance(told, spool.CommitUnknown) or happened == (told is None), step


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
