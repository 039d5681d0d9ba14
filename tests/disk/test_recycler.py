"""The pool of consumed files: a file is found once it is durable there, and overwritten only if it has one name."""

import errno
import subprocess
from pathlib import Path

import pytest

from spool.disk import Disk
from spool.disk.durability import durability_of
from spool.disk.recycler import AHEAD_AFTER_MISSES, AHEAD_AT_MOST, MAX_BYTES, QUIET_BYTES, STOCK, Recycler
from spool.disk.stat import Guarantees
from spool.model import layout
from tests.machine import Machine
from tests.simdisk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    machine = Machine()
    disk = SimulatedDisk(machine)
    for name in (layout.FREE, layout.COMMITTED, layout.ACTIVE):
        disk.make_directory(name)
    return disk


def write(disk: SimulatedDisk, name: str, size: int) -> None:
    handle = disk.create(name)
    disk.write_at(handle, 0, bytes(size))
    disk.close(handle)


def taken(pool: Recycler, size: int = 10) -> bool:
    if (found := pool.take(f"{layout.ACTIVE}/taken", size)) is not None:
        pool.disk.close(found[0])
        pool.disk.unlink(f"{layout.ACTIVE}/taken")
    return found is not None


def test_a_new_process_finds_the_files_that_others_gave(disk: SimulatedDisk) -> None:
    write(disk, f"{layout.FREE}/10-00000000000000ab", 10)
    assert taken(Recycler(disk))


def test_files_that_others_give_later_are_found_after_some_misses(disk: SimulatedDisk) -> None:
    pool = Recycler(disk)
    write(disk, f"{layout.FREE}/10-00000000000000ab", 10)
    assert any(taken(pool) for _ in range(100))


def test_a_process_lists_the_pool_again_if_others_took_the_files_that_it_knew(disk: SimulatedDisk) -> None:
    for name in ("10-000000000000000a", "10-000000000000000b", "10-000000000000000c", "10-000000000000000d"):
        write(disk, f"{layout.FREE}/{name}", 10)
    pool = Recycler(disk)
    for name in disk.names(layout.FREE):
        disk.unlink(f"{layout.FREE}/{name}")
    write(disk, f"{layout.FREE}/10-000000000000000e", 10)
    assert not taken(pool)
    assert taken(pool)


def test_a_given_file_can_be_taken_once_it_is_released(disk: SimulatedDisk) -> None:
    pool = Recycler(disk)
    write(disk, f"{layout.COMMITTED}/x", 10)
    given = pool.give(f"{layout.COMMITTED}/x", pool.room())
    assert given is not None
    assert not taken(pool)
    assert not taken(Recycler(disk)), "its new name is not durable yet"
    pool.release([given])
    assert taken(pool)


def test_an_empty_pool_is_stocked_and_its_files_can_be_taken(disk: SimulatedDisk) -> None:
    pool = Recycler(disk)
    pool.stock()
    assert [taken(pool) for _ in range(STOCK + 1)] == [True] * STOCK + [False]


@pytest.fixture
def growing(disk: SimulatedDisk) -> Recycler:
    """The pool of a process whose commits found no file until now, where names follow."""
    disk.durability = durability_of(Guarantees(orders_renames=True, names_follow=True))
    pool = Recycler(disk)
    assert not any(taken(pool) for _ in range(AHEAD_AFTER_MISSES - 1))
    return pool


def test_a_queue_that_grows_finds_files_made_ahead_at_most_so_many_at_once(growing: Recycler) -> None:
    most = 0
    for _ in range(3 * AHEAD_AT_MOST):
        assert taken(growing)
        most = max(most, 1 + len(growing.disk.names(layout.FREE)))
    assert most == AHEAD_AT_MOST


def test_files_have_the_sizes_of_the_last_commits_unless_those_are_large(growing: Recycler) -> None:
    for size in (100, 200, 1 << 20):
        taken(growing, size)
    sizes = [layout.parse_free(name).size for name in growing.disk.names(layout.FREE)]
    assert set(sizes) == {10}
    while len(growing.disk.names(layout.FREE)):
        taken(growing, 200)
    assert taken(growing, 200)
    assert {layout.parse_free(name).size for name in growing.disk.names(layout.FREE)} == {200}


def test_killed_makers_leave_a_bounded_number_of_files(growing: Recycler) -> None:
    """Only the first opener may remove such files, because their makers may live."""
    for place in range(AHEAD_AT_MOST):
        write(growing.disk, f"{layout.FREE}/10-{place:016x}.new", 10)
    assert not any(taken(growing) for _ in range(3 * AHEAD_AFTER_MISSES))
    assert len(growing.disk.names(layout.FREE)) == AHEAD_AT_MOST


def test_no_file_is_made_ahead_after_others_were_given(growing: Recycler) -> None:
    assert taken(growing)
    growing.trim(0)
    write(growing.disk, f"{layout.COMMITTED}/x", 10)
    growing.release([growing.give(f"{layout.COMMITTED}/x", growing.room())])
    assert [taken(growing) for _ in range(2)] == [True, False]


def test_a_full_disk_has_no_files_made_ahead(growing: Recycler, monkeypatch: pytest.MonkeyPatch) -> None:
    write_at, left = SimulatedDisk.write_at, [5]

    def full(disk: SimulatedDisk, handle: int, offset: int, data: bytes) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "full")
        write_at(disk, handle, offset, data)

    monkeypatch.setattr(SimulatedDisk, "write_at", full)
    assert not taken(growing)
    assert not growing.disk.names(layout.FREE)
    assert not taken(growing)
    assert not growing.disk.names(layout.FREE), "the next commits need the room"


@pytest.mark.parametrize("guarantees", [Guarantees(orders_renames=True), Guarantees(orders_renames=False)])
def test_no_file_is_made_ahead_where_a_new_file_costs_no_more(disk: SimulatedDisk, guarantees: Guarantees) -> None:
    disk.durability = durability_of(guarantees)
    pool = Recycler(disk)
    assert not any(taken(pool) for _ in range(3 * AHEAD_AFTER_MISSES))


def test_the_stock_in_a_copy_without_holes_for_zeros_still_has_its_room(tmp_path: Path) -> None:
    """A file with holes cannot be overwritten on a full disk."""
    (tmp_path / layout.FREE).mkdir()
    Recycler(Disk(str(tmp_path))).stock()
    subprocess.run(["cp", "-r", "--sparse=always", tmp_path / layout.FREE, tmp_path / "copy"], check=True)
    copies = [path.stat() for path in (tmp_path / "copy").iterdir()]
    assert [copy.st_blocks * 512 >= copy.st_size for copy in copies] == [True] * STOCK


@pytest.mark.parametrize(
    ("ordered", "power_cut", "kept"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_a_power_cut_empties_the_pool_where_renames_are_not_ordered(
    disk: SimulatedDisk, ordered: bool, power_cut: bool, kept: bool
) -> None:
    disk.durability = durability_of(Guarantees(orders_renames=ordered))
    write(disk, f"{layout.FREE}/10-00000000000000ab", 10)
    pool = Recycler(disk)
    pool.recover(after_power_cut=power_cut)
    assert taken(pool) is kept


def test_a_cleared_pool_is_stocked_again(disk: SimulatedDisk) -> None:
    for name in ("10-00000000000000ab", "20-00000000000000cd"):
        write(disk, f"{layout.FREE}/{name}", 10)
    pool = Recycler(disk)
    pool.clear(everything=True)
    pool.stock()
    assert len(disk.names(layout.FREE)) == STOCK


def test_a_file_with_another_name_is_neither_given_nor_taken(disk: SimulatedDisk) -> None:
    """The file's bytes may still be in use under the other name."""
    write(disk, f"{layout.COMMITTED}/x", 10)
    disk.link(f"{layout.COMMITTED}/x", f"{layout.COMMITTED}/y")
    pool = Recycler(disk)
    assert pool.give(f"{layout.COMMITTED}/x", pool.room()) is None
    disk.rename(f"{layout.COMMITTED}/x", f"{layout.FREE}/10-00000000000000ab")
    assert not taken(Recycler(disk))
    assert disk.names(layout.COMMITTED) == ["y"]


def test_the_pool_takes_no_more_than_its_bytes(disk: SimulatedDisk) -> None:
    write(disk, f"{layout.COMMITTED}/x", 100)
    assert Recycler(disk).give(f"{layout.COMMITTED}/x", 99) is None
    write(disk, f"{layout.FREE}/{MAX_BYTES + 1}-00000000000000ab", 10)
    assert Recycler(disk).room() < 0


def test_a_quiet_space_keeps_its_smallest_spare_files(disk: SimulatedDisk) -> None:
    large = [f"{QUIET_BYTES + more}-00000000000000cd" for more in range(5)]
    for name in ("10-00000000000000ab", *large, "20-00000000000000ef", "30-00000000000000ab.new"):
        write(disk, f"{layout.FREE}/{name}", 10)
    pool = Recycler(disk)
    pool.trim()
    assert sorted(disk.names(layout.FREE)) == ["10-00000000000000ab", "20-00000000000000ef", "30-00000000000000ab.new"]
    assert taken(pool, QUIET_BYTES)
