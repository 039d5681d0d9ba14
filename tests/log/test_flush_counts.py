"""The flushes of each step, counted by the disk, and as system calls of the kernel."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spool
from spool.disk.durability import Journaled, Strict, durability_of
from spool.disk.stat import Guarantees
from spool.model.xid import Xid
from spool.transactions import two_phase
from spool.transactions.coordinated import CoordinatedTransaction
from tests import door

ROOT = Path(__file__).parents[2]
FOREIGN_FORMAT = 7

Step = Callable[[spool.Space], None]


def no_preparation(space: spool.Space) -> None:
    """The step needs nothing."""


def put(space: spool.Space) -> None:
    space.put("orders", b"one")


def get(space: spool.Space) -> None:
    space.get("orders")


def put_a_hundred(space: spool.Space) -> None:
    with space.transaction() as transaction:
        for place in range(100):
            transaction.put("orders", b"%d" % place)


def get_and_put(space: spool.Space) -> None:
    with space.transaction() as transaction:
        transaction.put("replies", transaction.get("orders").body)


def begin_branch(space: spool.Space) -> CoordinatedTransaction:
    xid = Xid(FOREIGN_FORMAT, b"one", b"")
    branch = door.branch(space, xid=xid, timeout=30.0)
    branch.put("orders", b"one")
    return branch


def prepare(space: spool.Space) -> None:
    begin_branch(space).prepare()


def commit_prepared(space: spool.Space) -> None:
    space.engine.commit_branch(Xid(FOREIGN_FORMAT, b"one", b""), vote_known=True)


def rollback_prepared(space: spool.Space) -> None:
    store = door.store(space)
    two_phase.rollback_prepared(store, Xid(FOREIGN_FORMAT, b"one", b""), store.deadline())


def nothing(space: spool.Space) -> None:
    with space.transaction():
        pass


def rollback_of_a_put(space: spool.Space) -> None:
    transaction = space.transaction()
    transaction.put("orders", b"one")
    transaction.rollback()


def rollback_of_a_get(space: spool.Space) -> None:
    transaction = space.transaction()
    transaction.get("orders")
    transaction.rollback()


def get_of_nothing(space: spool.Space) -> None:
    with pytest.raises(spool.Empty):
        space.get("orders")


# (the preparation, the step, flushes on an ordered file system, where a flush carries a new name, elsewhere)
COSTS = [
    pytest.param(no_preparation, put, 1, 1, 2, id="put"),
    pytest.param(put, get, 1, 1, 2, id="get"),
    pytest.param(no_preparation, put_a_hundred, 1, 1, 2, id="transaction of 100 puts"),
    pytest.param(put, get_and_put, 1, 1, 2, id="get and put in one transaction"),
    pytest.param(no_preparation, prepare, 1, 1, 2, id="prepare"),
    pytest.param(prepare, commit_prepared, 1, 2, 3, id="second phase"),
    pytest.param(prepare, rollback_prepared, 0, 0, 0, id="rollback of a prepared branch"),
    pytest.param(no_preparation, nothing, 0, 0, 0, id="empty transaction"),
    pytest.param(no_preparation, get_of_nothing, 0, 0, 0, id="get from an empty queue"),
    pytest.param(no_preparation, rollback_of_a_put, 0, 0, 0, id="rollback of a put"),
    pytest.param(put, rollback_of_a_get, 0, 0, 0, id="rollback of a get"),
]
BY_COST = pytest.mark.parametrize(("first", "step", "ordered", "carrying", "strict"), COSTS)


def new_space(path: Path, flush: str) -> spool.Space:
    space = spool.create(path, sync_method=flush)
    space.create_queue("orders")
    space.create_queue("replies")
    return space


def flushes_of(step: Step, space: spool.Space) -> int:
    before = door.disk(space).flushes
    step(space)
    return door.disk(space).flushes - before


@BY_COST
def test_a_step_costs_as_many_flushes_as_documented(
    tmp_path: Path, first: Step, step: Step, ordered: int, carrying: int, strict: int
) -> None:
    for flush, carries, expected in (
        ("ordered", True, ordered), ("strict", True, carrying), ("strict", False, strict),
    ):  # fmt: skip
        with new_space(tmp_path / f"{flush} {carries}", flush) as space:
            disk = door.disk(space)
            guarantees = Guarantees(orders_renames=flush == "ordered", carries_new_names=carries)
            disk.durability = durability_of(guarantees)
            first(space)
            assert flushes_of(step, space) == expected, (flush, carries)


# -- flushes as system calls of the kernel ----------------------------------------------------------------------------

PROGRAM = """
import os, sys
import spool
from tests.log import test_flush_counts as steps
with spool.open(sys.argv[1]) as space:
    getattr(steps, sys.argv[2])(space)
    os.path.exists("/the step begins")
    getattr(steps, sys.argv[3])(space)
    os.path.exists("/the step has ended")
"""


def flushes_seen_by_the_kernel(space: Path, first: Step, step: Step, trace: Path) -> int:
    """fsync and fdatasync calls between two marks in a subprocess."""
    command = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=fsync,fdatasync,sync_file_range,stat,newfstatat"]
    program = [sys.executable, "-c", PROGRAM, str(space), first.__name__, step.__name__]
    subprocess.run([*command, *program], cwd=ROOT, check=True, timeout=60)
    _, _, after_begin = trace.read_text().partition("/the step begins")
    during, mark, _ = after_begin.partition("/the step has ended")
    assert mark, "the step did not end"
    return len(re.findall(r"(?:fsync|fdatasync)\(", during))


@pytest.mark.every(11)
@pytest.mark.strace
@BY_COST
def test_the_kernel_sees_the_same_flushes(
    tmp_path: Path, first: Step, step: Step, ordered: int, carrying: int, strict: int
) -> None:
    for flush, expected in (("ordered", ordered), ("strict", strict)):
        new_space(tmp_path / flush, flush).close()
        assert flushes_seen_by_the_kernel(tmp_path / flush, first, step, tmp_path / "trace") == expected, flush


# -- on a file system that orders renames by itself -------------------------------------------------------------------


@contextmanager
def ext4(directory: Path, journal: str) -> Iterator[Path]:
    image, mount_point = directory / "image", directory / "mounted"
    mount_point.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", journal, image], check=True, capture_output=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, mount_point], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a loop device here: {mounted.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", mount_point], check=True)


@pytest.fixture
def ext4_with_a_journal(tmp_path: Path) -> Iterator[Path]:
    with ext4(tmp_path, "has_journal") as path:
        yield path


@pytest.fixture
def ext4_without_a_journal(tmp_path: Path) -> Iterator[Path]:
    with ext4(tmp_path, "^has_journal") as path:
        yield path


@pytest.mark.root
def test_ext4_with_a_journal_needs_one_flush_a_commit_by_default(ext4_with_a_journal: Path) -> None:
    with new_space(ext4_with_a_journal / "space", "auto") as space:
        assert isinstance(door.disk(space).durability, Journaled)
        assert [flushes_of(step, space) for step in (put, get, put_a_hundred, prepare, commit_prepared)] == [1] * 5
    for flush in ("ordered", "strict"):
        with new_space(ext4_with_a_journal / flush, flush) as space:
            assert not isinstance(door.disk(space).durability, Journaled), "a space that asks for it has names flushed"


@pytest.mark.root
@pytest.mark.strace
def test_the_kernel_sees_one_flush_a_put_on_ext4_with_a_journal(ext4_with_a_journal: Path, tmp_path: Path) -> None:
    path = ext4_with_a_journal / "space"
    new_space(path, "auto").close()
    assert flushes_seen_by_the_kernel(path, no_preparation, put, tmp_path / "trace") == 1


@pytest.mark.root
def test_ext4_without_a_journal_needs_one_flush_a_commit_and_a_vote_by_default(ext4_without_a_journal: Path) -> None:
    with new_space(ext4_without_a_journal / "space", "auto") as space:
        assert isinstance(door.disk(space).durability, Strict)
        assert [flushes_of(step, space) for step in (put, get, put_a_hundred, prepare)] == [1] * 4
    with new_space(ext4_without_a_journal / "strict", "strict") as space:
        assert flushes_of(put, space) == 2, "a space that asks for strict flushes twice"
