"""C06: commits of queues without durability: which are flushed, when the others are, and that a process may die."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import spool
from spool.disk import Disk
from spool.disk.disk import FlushFailed
from spool.disk.durability import durability_of
from spool.disk.stat import Guarantees
from spool.log import unflushed
from spool.log.sequence import flush_published
from spool.maintenance import triggers
from spool.model import layout
from spool.store.edits import notice_edits
from spool.store.settings_reader import read_settings_text, write_settings
from tests import door
from tests.at_once import AT_ONCE
from tests.machine import NO_FILES, Machine
from tests.meanwhile import Meanwhile
from tests.simdisk import SimulatedDisk

PUTS_AND_DIES = """
import os, signal, sys
import spool

space = spool.open(sys.argv[1])
space.put("lossy", "one")
space.put("lossy", "two")
assert space.get("lossy").body == "one"
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        for queue in ("lossy", "lossy2"):
            space.create_queue(queue, durability="none")
        space.create_queue("safe")
        space.put("safe", "there")
        space.put("lossy", "there")
        yield space


def taken_and_put(space: spool.Space, source: str, target: str) -> None:
    with spool.Transaction(door.core(space), counted=False) as tx:
        tx.put(target, tx.get(source).body)


STEPS: dict[str, tuple[Callable[[spool.Space], object], int]] = {
    "put": (lambda space: space.put("lossy", "one"), 0),
    "get": (lambda space: space.get("lossy"), 0),
    "transaction": (lambda space: taken_and_put(space, "lossy", "lossy2"), 0),
    "move": (lambda space: space.move(next(space.browse("lossy")).id, "lossy2"), 0),
    "group": (lambda space: space.submit("lossy", "one").result(30), 0),
    "put safe": (lambda space: space.put("safe", "one"), 1),
    "get safe": (lambda space: space.get("safe"), 1),
    "to safe": (lambda space: taken_and_put(space, "lossy", "safe"), 1),
    "from safe": (lambda space: taken_and_put(space, "safe", "lossy"), 1),
    "move to safe, with the message": (lambda space: space.move(next(space.browse("lossy")).id, "safe"), 2),
    "with a key": (lambda space: space.put("lossy", "one", deduplication_key="order 1"), 1),
}


@pytest.mark.parametrize(("step", "least"), STEPS.values(), ids=STEPS)
def test_c06_a_commit_is_flushed_if_any_part_of_it_needs_that(
    space: spool.Space, step: Callable[[spool.Space], object], least: int
) -> None:
    before = door.disk(space).flushes
    step(space)
    flushes = door.disk(space).flushes - before
    assert flushes >= least
    assert bool(flushes) is bool(least)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another process"])
def test_c06_the_death_of_a_process_takes_nothing(tmp_path: Path, beside: bool) -> None:
    """SIGKILL right after the put: all other processes see its put and its get."""
    with spool.create(tmp_path / "space") as space:
        space.create_queue("lossy", durability="none")
    other = spool.open(tmp_path / "space") if beside else None
    died = subprocess.run([sys.executable, "-c", PUTS_AND_DIES, tmp_path / "space"], capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with other or spool.open(tmp_path / "space") as space:
        assert [message.body for message in space.get_many("lossy", 10)] == ["two"]
        assert space.check() == []


def _of_a_machine() -> tuple[Machine, Meanwhile, spool.Space]:
    machine = Machine(NO_FILES)
    with spool.create(SimulatedDisk(machine)) as made:
        made.create_queue("q", durability="none")
    disk = Meanwhile(machine)
    return machine, disk, spool.open(disk)


def test_c06_a_commit_is_flushed_whose_queue_became_durable_before_it_had_its_number() -> None:
    machine, disk, space = _of_a_machine()
    other = spool.open(SimulatedDisk(machine))
    before = disk.flushes
    disk.before("lock", lambda: other.change_queue("q", durability="flush"), spare=1)
    space.put("q", "one")
    assert not disk.waits_for("lock")
    assert disk.flushes == before + 1


@pytest.mark.parametrize(("call", "spare"), [("rename_new", 0), ("write_at", 1)], ids=["no number yet", "no stamp yet"])
def test_c06_a_queue_becomes_durable_when_all_that_was_begun_before_is(call: str, spare: int) -> None:
    """A put under the settings before that is under way is waited for."""
    machine, disk, space = _of_a_machine()
    other = spool.open(SimulatedDisk(machine))

    def change() -> None:
        with pytest.raises(spool.TransactionTimeout, match=r"which did not .*; change it once more"):
            other.change_queue("q", durability="flush")

    disk.before(call, change, spare=spare)
    space.put("q", "one")
    assert not disk.waits_for(call)


def test_c06_the_durable_mark_never_goes_back() -> None:
    """Two processes flush at once, and the process with the lower number is later."""
    machine, disk, space = _of_a_machine()
    other = spool.open(SimulatedDisk(machine))
    space.put("q", "one")

    def more() -> None:
        other.put("q", "two")
        flush_published(door.store(other))

    disk.before("lock", more)
    flush_published(door.store(space))
    assert not disk.waits_for("lock")
    assert door.counters(space).durable == 2


def test_c06_no_flush_counts_after_a_failed_flush_in_another_process() -> None:
    """The kernel may have reported the error to that process only."""
    machine, disk, space = _of_a_machine()
    other = spool.open(SimulatedDisk(machine))
    space.put("q", "one")
    before = door.counters(space).durable
    disk.before("lock", door.store(other).stop)
    with pytest.raises(spool.SpaceStopped):
        flush_published(door.store(space))
    assert door.counters(space).durable == before


def test_c06_the_commits_that_wait_for_a_flush_are_bounded() -> None:
    """A put after so many unflushed commits waits until they are flushed."""
    _, _, space = _of_a_machine()
    with mock.patch.object(unflushed, "MOST_UNFLUSHED", 4):
        for number in range(9):
            space.put("q", str(number))
            page = door.counters(space)
            assert page.published - page.durable <= 4
    assert page.durable >= 5


def test_c06_the_housekeeper_flushes_unflushed_commits() -> None:
    _, _, space = _of_a_machine()
    space.put("q", "one")
    door.steps(space)
    page = door.counters(space)
    assert page.durable == page.published
    assert not door.index(space).unflushed


def test_c06_a_reclaiming_process_flushes_the_commits_that_the_housekeeper_leaves() -> None:
    machine, _, space = _of_a_machine()
    space.put("q", "one")
    with SimulatedDisk(machine).exclusively(layout.RECLAIM_LOCK):
        door.steps(space)
    page = door.counters(space)
    assert page.durable < page.published
    space.create_queue("durable")
    space.put_many("durable", ["two", "three"])
    space.put("durable", "four")
    assert space.metrics().unflushed == 1, "a power cut loses no durable commit"


def test_c06_the_housekeeper_flushes_once_more_when_an_edit_has_taken_the_last_such_queue() -> None:
    _, _, space = _of_a_machine()
    space.put("q", "one")
    door.steps(space, due=False)
    disk = door.disk(space)
    write_settings(disk, read_settings_text(disk).replace('durability = "none"', ""))
    notice_edits(door.store(space))
    door.steps(space)
    page = door.counters(space)
    assert page.durable == page.published
    assert not door.housekeeper(space)._may_lose


def test_c06_everything_is_flushed_at_once_only_where_the_kernel_says_whether_it_was(tmp_path: Path) -> None:
    for is_ordered in (False, True):
        with mock.patch("spool.disk.stat.renames_are_ordered", return_value=is_ordered):
            disk = Disk(str(tmp_path))
        with mock.patch.object(disk, "flush_everything") as flushed:
            assert disk.durability.flush_all(disk, 3) is is_ordered
        assert flushed.called is is_ordered


def test_c06_commits_that_another_process_has_flushed_are_forgotten() -> None:
    machine, _, space = _of_a_machine()
    other = spool.open(SimulatedDisk(machine))
    other.put("q", "one")
    assert space.get("q").body == "one"
    assert door.index(space).unflushed
    flush_published(door.store(other))
    door.housekeeper(space)._look_again()
    space.stats()
    assert door.index(space).unflushed <= {2}


@pytest.mark.parametrize(("unflushed", "due", "flushes"), [(0, True, False), (1, True, True), (1, False, False)])
def test_c06_many_are_flushed_at_once_and_few_every_few_seconds(unflushed: int, due: bool, flushes: bool) -> None:
    assert triggers.is_flush_due(unflushed, due=due) is flushes
    assert triggers.is_flush_due(triggers.FLUSH_COMMITS, due=False)


def test_c06_the_last_process_that_closes_the_space_flushes(space: spool.Space) -> None:
    other = spool.open(space.path)
    disk, counters = door.disk(space), door.store(space).shared.counters
    other.put("lossy", "one")
    other.close()
    assert counters.read().durable < counters.read().published
    with mock.patch.object(disk, "make_durable", wraps=disk.make_durable) as flushed:
        space.close()
    assert flushed.call_count


@pytest.mark.parametrize("at_once", [True, False])
def test_c06_a_close_takes_no_seconds_for_flushes(space: spool.Space, at_once: bool) -> None:
    disk = door.disk(space)
    disk.durability = durability_of(Guarantees(orders_renames=True, flushes_all=at_once))
    for number in range(4):
        space.put("lossy", str(number))
    with (
        mock.patch.object(triggers, "FLUSHED_AT_THE_END", 3),
        mock.patch.object(disk, "flush_everything", wraps=disk.flush_everything) as all_at_once,
        mock.patch.object(disk, "make_durable", wraps=disk.make_durable) as one_by_one,
    ):
        space.close()
    assert (bool(all_at_once.call_count), one_by_one.call_count) == (at_once, 0)


@pytest.mark.parametrize("count", [2, 20], ids=["one by one", "all at once"])
def test_c06_a_flush_that_fails_later_stops_the_space(space: spool.Space, count: int) -> None:
    for number in range(count):
        space.put("lossy", str(number))
    with (
        mock.patch.object(os, "fsync", side_effect=OSError(5, "Input/output error"), __name__="fsync"),
        mock.patch("spool.disk.kernel.syncfs", side_effect=OSError(5, "Input/output error"), __name__="syncfs"),
        mock.patch.object(unflushed, "MOST_UNFLUSHED", 1),
        pytest.raises(spool.DiskFailure, match="nothing was lost"),
    ):
        space.put("lossy", "too much")
    with pytest.raises(spool.SpaceStopped):
        space.put("lossy", "more")
    path = space.path
    space.close()
    with spool.open(path) as again:
        assert [message.body for message in again.browse("lossy")] == ["there", *map(str, range(count))]


def test_everything_is_flushed_by_one_call_whose_failure_is_raised(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    handle = disk.open_directory("")
    disk.flush_everything(handle)
    assert disk.flushes == 1
    with (
        mock.patch("spool.disk.kernel._libc.syncfs", return_value=-1),
        mock.patch("ctypes.get_errno", return_value=5),
        pytest.raises(FlushFailed, match="syncfs"),
    ):
        disk.flush_everything(handle)
