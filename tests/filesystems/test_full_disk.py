"""A file system of 16 MB is filled to the last byte: errors are clear, nothing is lost, and there is a way out."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool
import xa
from spool.model import layout
from tests.at_once import AT_ONCE
from tests.branches import voting
from tests.filesystems.volume import EXT4, EXT4_WITHOUT_JOURNAL, Kind, Volume, boot_anew, missing, run

BALLAST_BYTES = 4 << 20
SIZES = (100, 5_000, 70_000, 300_000)


@pytest.fixture(params=[EXT4, EXT4_WITHOUT_JOURNAL], ids=lambda kind: kind.name)
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Volume]:
    kind: Kind = request.param
    if reason := missing(kind.make[0]):
        pytest.skip(reason)
    with Volume(kind, tmp_path) as volume:
        yield volume.make(megabytes=16).mount()


@pytest.fixture
def space(volume: Volume) -> Iterator[spool.Space]:
    with spool.create(volume.path / "space", defaults=AT_ONCE) as space:
        for queue in ("q", "replies"):
            space.create_queue(queue)
        (volume.path / "ballast").write_bytes(b"x" * BALLAST_BYTES)
        yield space


def make_room(volume: Volume) -> None:
    """Remove the ballast; ext4 frees the blocks of a removed file when its journal commits next."""
    (volume.path / "ballast").unlink()
    os.sync()


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * SIZES[number % len(SIZES)]


def number_of(found: object) -> int:
    assert isinstance(found, bytes)
    assert found == body(int(found.split()[0])), "another body"
    return int(found.split()[0])


def until_full(act: Callable[[], object]) -> spool.DiskFailure:
    """Call ``act`` until it raises DiskFailure because the disk is full."""
    for _ in range(100_000):
        try:
            act()
        except spool.DiskFailure as error:
            return full(error)
    raise AssertionError("the disk does not fill")


def full(error: spool.DiskFailure) -> spool.DiskFailure:
    assert error.errno == errno.ENOSPC
    assert not isinstance(error, spool.CommitUnknown)
    assert "free space on the disk, then try again (spool-admin queue purge works without room)" in str(error)
    return error


def fill(space: spool.Space, first: int = 0) -> list[int]:
    """Put messages until not even a small one fits; returns the numbers of those that were acknowledged."""
    put: list[int] = []
    number = first

    def put_one() -> None:
        nonlocal number
        number += 1
        space.put("q", body(number))
        put.append(number)

    def put_small() -> None:
        space.put("q", body(0))
        put.append(0)

    for _ in SIZES:  # each time one size fits no more
        until_full(put_one)
    until_full(put_small)
    return put


def take_all(space: spool.Space) -> list[int]:
    found = []
    while True:
        try:
            found += [number_of(message.body) for message in space.get_many("q", 10)]
        except spool.Empty:
            return found


@pytest.mark.every(2)
def test_e15_a_full_disk_refuses_puts_loses_nothing_and_serves_again(volume: Volume, space: spool.Space) -> None:
    put = fill(space)
    assert [number_of(message.body) for message in space.browse("q")] == put
    try:  # a get needs a little room itself
        taken = [number_of(space.get("q").body)]
    except spool.DiskFailure as error:
        full(error)
        taken = []
    assert [number_of(message.body) for message in space.browse("q")] == put[len(taken) :]
    assert space.check() == []
    make_room(volume)
    taken += take_all(space)
    assert taken == put
    space.put("q", body(1))
    assert take_all(space) == [1]
    assert space.check() == []


@pytest.mark.every(2)
def test_e15_a_transaction_on_a_full_disk_rolls_back_and_succeeds_later(volume: Volume, space: spool.Space) -> None:
    put = fill(space)

    def move() -> None:
        with space.transaction() as transaction:
            transaction.put("replies", b"x" * 300_000)
            transaction.get("q")

    until_full(move)
    assert list(space.browse("replies")) == []
    assert [number_of(message.body) for message in space.browse("q")] == put
    make_room(volume)
    move()
    assert take_all(space) == put[1:]
    assert space.check() == []


def outcome_of(manager: xa.ResourceManager, xid: xa.Xid) -> int:
    try:
        manager.commit(xid)
    except xa.XAError as refused:
        return refused.code
    return xa.XA_OK


@pytest.mark.every(2)
def test_branches_that_voted_can_be_finished_at_once_or_when_there_is_room(volume: Volume, space: spool.Space) -> None:
    """The room that is kept takes the first dozens of decisions. XA_RETRY means still in doubt, never rolled back."""
    manager, xids = xa.ResourceManager(space), [xa.Xid(7, b"full", b"%d" % number) for number in range(120)]
    for xid in xids:
        with voting(manager, xid):
            space.put("replies", body(0))
    put = fill(space)
    waiting = []
    for xid in xids:
        if outcome_of(manager, xid) == xa.XA_RETRY:
            waiting.append(xid)
    assert 0 < len(waiting) < len(xids)
    make_room(volume)
    assert set(manager.recover(xa.TMSTARTRSCAN | xa.TMENDRSCAN)) == set(waiting)
    for xid in waiting:
        manager.commit(xid)
    assert [number_of(message.body) for message in space.browse("replies")] == [0] * len(xids)
    assert take_all(space) == put
    assert space.check() == []


@pytest.mark.every(2)
def test_a_full_disk_whose_power_goes_has_everything_when_there_is_room(volume: Volume) -> None:
    """Opening it copies the last commits, which takes a little room; without, it says so and changes nothing."""
    root = volume.path / "space"
    with spool.create(root, defaults=AT_ONCE) as space:
        space.create_queue("q")
        (volume.path / "ballast").write_bytes(b"x" * BALLAST_BYTES)
        put = fill(space)
        if volume.kind is EXT4:
            volume.cut()
    volume.unmount()
    volume.mount()
    boot_anew(root)
    for _ in range(3):
        try:
            spool.open(root).close()
        except spool.DiskFailure as error:
            full(error)
    make_room(volume)
    for _ in range(2):
        with spool.open(root) as space:
            assert [number_of(message.body) for message in space.browse("q")] == put
            assert space.check() == []
    with spool.open(root) as space:
        assert take_all(space) == put


_USE_A_COPY = """
import os, sys, spool
from contextlib import suppress
from spool.store.feed import SLOTS
with spool.open(sys.argv[1]) as space:
    for size in 4096, 1:
        with open(sys.argv[2], "ab", buffering=0) as filler, suppress(OSError):
            while filler.write(b"x" * size):
                pass
            os.fsync(filler.fileno())
    for number in range(1_000, 1_000 + SLOTS):  # each slot: the kernel has a few blocks in reserve
        space._store.shared.feed.retract(number)  # as a commit stores its note
    print(space.get("q").body.decode().split()[0])
"""


@pytest.mark.every(2)
def test_a_sparse_copy_of_a_space_is_used_on_a_full_disk(volume: Volume) -> None:
    """cp --sparse, rsync -S and tar -S leave holes where a file has zeros, e.g. in files that processes map."""
    with spool.create(volume.path / "space", defaults=AT_ONCE) as space:
        for queue in ("q", "replies"):
            space.create_queue(queue)
        for number in range(9):
            space.put("q", body(number * len(SIZES)))
        space.get("q")
    run("cp", "-a", "--sparse=always", str(volume.path / "space"), str(volume.path / "copy"))
    for name in (layout.FEED, layout.REQUESTS):  # the worst copy: the original had no commit in its last life
        path = volume.path / "copy" / name
        size = path.stat().st_size
        os.truncate(path, 0)
        os.truncate(path, size)
    command = [sys.executable, "-c", _USE_A_COPY, str(volume.path / "copy"), str(volume.path / "filler")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode >= 0, f"the kernel killed the process: signal {-done.returncode}"
    assert done.stdout == f"{len(SIZES)}\n", done.stderr


@pytest.mark.every(3)
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "with keys that are remembered"])
def test_e15_a_purge_empties_a_full_disk_without_any_other_program(volume: Volume, keys: bool) -> None:
    """Every program has ended, and another program has taken the last byte."""
    path = volume.path / "space"
    with spool.create(path, defaults=AT_ONCE) as space:
        space.create_queue("q")
        for size in (100_000, 1_000):
            numbers = iter(range(100_000))
            until_full(lambda s=size, n=numbers: put_with_key(space, s, next(n) if keys else None))  # type: ignore[misc]
    with open(volume.path / "other", "wb", buffering=0) as other, pytest.raises(OSError, match="No space") as refused:
        while True:
            other.write(bytes(4096))
    assert refused.value.errno == errno.ENOSPC
    with spool.open(path) as space:
        waiting = space.stats("q").ready
        assert space.purge("q") == waiting > 50
        left = [file.stat().st_size for stage in (layout.COMMITTED, layout.FREE) for file in (path / stage).iterdir()]
        assert sum(left) < 5 << 20
        space.put("q", bytes(2_000_000))
        assert len(space.get("q").body) == 2_000_000
        assert space.check() == []


def put_with_key(space: spool.Space, size: int, number: int | None) -> None:
    space.put("q", os.urandom(size), deduplication_key=None if number is None else f"{size} {number}")
