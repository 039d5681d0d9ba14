"""A release of a byte lock wakes the threads that wait for the byte; a thread that is not woken polls."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spool
from spool.coordination.counters import Counters
from spool.coordination.locks import NUMBER, LockFile
from spool.disk import Disk, memory
from spool.disk import stat as file_stat
from spool.model import layout
from spool.runtime.clock import Clock, Deadline, WaitExpired
from tests.at_once import AT_ONCE
from tests.clocks import LONG, PatientClock, timed
from tests.held import HeldDisk


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / layout.RUN).mkdir()
    started(str(tmp_path))
    LockFile(Disk(str(tmp_path)), layout.CONTROL, make=True)
    return str(tmp_path)


def started(root: str) -> None:
    """Initialise the counters, as the first opener does."""
    Counters(Disk(root), make=True).start(issued=0, published=0, durable=0)


def control(root: str) -> LockFile:
    """The lock file in another process, with separate counters, lock file and memory."""
    disk = Disk(root)
    Counters(disk, make=False)
    return LockFile(disk, layout.CONTROL, make=False)


def deadline(seconds: float, clock: Clock) -> Deadline:
    return Deadline(clock, seconds, clock.monotonic() + seconds)


def test_a_thread_that_releases_a_byte_wakes_all_waiters_for_it(root: str, pool: ThreadPoolExecutor) -> None:
    ours, clocks = control(root), [PatientClock(), PatientClock()]
    assert ours.try_lock(NUMBER)

    def lock_and_unlock(clock: Clock) -> None:
        theirs = control(root)
        theirs.lock(NUMBER, deadline(LONG, clock), "the byte")
        theirs.unlock(NUMBER)

    waiters = [pool.submit(lock_and_unlock, clock) for clock in clocks]
    for clock in clocks:
        assert clock.waits.wait(LONG)
    ours.unlock(NUMBER)
    for waiter in waiters:
        waiter.result(LONG / 2)


@pytest.mark.parametrize("apart", [0, 1])
def test_a_thread_that_expects_a_byte_again_takes_no_wake_from_another(root: str, apart: int) -> None:
    """Two threads wait for one byte, or for two bytes with the same futex; one was woken and expects the byte again
    before the other sleeps."""
    futexes = control(root).disk.futexes
    first, second = futexes.expect(NUMBER), futexes.expect(NUMBER + apart * futexes.count)
    futexes.wake(NUMBER)
    assert first(0.0)
    assert second(0.0)
    assert not second(0.0)


def test_a_commit_wakes_those_that_wait_for_its_number(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
    clock, disk = PatientClock(), HeldDisk(str(tmp_path / "space"))
    with spool.open(disk) as slow, spool.open(timed(tmp_path / "space", clock)) as space:
        disk.go_on.clear()
        disk.holding = True
        first = pool.submit(slow.put, "orders", 1)
        assert disk.arrived.wait(LONG)
        second = pool.submit(space.put, "orders", 2)
        assert clock.waits.wait(LONG)
        disk.go_on.set()
        first.result(LONG / 2)
        second.result(LONG / 2)
        assert space.stats("orders").ready == 2


def test_a_holder_that_wakes_no_thread_is_noticed_all_the_same(root: str, pool: ThreadPoolExecutor) -> None:
    """The holder closes its handle without a wake, as the death of its process would."""
    ours, theirs = control(root), control(root)
    assert ours.try_lock(NUMBER)
    waiter = pool.submit(theirs.lock, NUMBER, deadline(LONG, Clock()), "the byte")
    ours.disk.close(ours.handle)
    waiter.result(LONG / 2)


def test_a_wait_ends_at_its_deadline(root: str) -> None:
    ours, theirs = control(root), control(root)
    assert ours.try_lock(NUMBER)
    with pytest.raises(WaitExpired, match=r"the byte is held by process \d+ .* did not release it within 0.05 s"):
        theirs.lock(NUMBER, deadline(0.05, Clock()), "the byte")


@pytest.mark.parametrize("why", ["files are not mapped", "the kernel wakes nobody"])
def test_without_futexes_a_thread_polls(root: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, why: str):
    if why == "files are not mapped":
        monkeypatch.setattr(file_stat, "overwrites_in_place", lambda path: False)
    else:
        monkeypatch.setattr(memory.Mapped, "wakes", False)
    ours, theirs = control(root), control(root)
    assert ours.disk.futexes is None
    assert ours.try_lock(NUMBER)
    waiter = pool.submit(theirs.lock, NUMBER, deadline(LONG, Clock()), "the byte")
    ours.unlock(NUMBER)
    waiter.result(LONG / 2)


def test_a_kernel_that_refuses_to_let_threads_sleep_costs_pauses(
    root: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_FUTEX", 1 << 20)  # no system call: ENOSYS
    ours, theirs = control(root), control(root)
    assert ours.try_lock(NUMBER)
    with pytest.raises(WaitExpired):
        theirs.lock(NUMBER, deadline(0.02, Clock()), "the byte")
    ours.unlock(NUMBER)
    theirs.lock(NUMBER, deadline(LONG, Clock()), "the byte")


def test_counters_that_have_no_room_for_futexes_get_it_from_an_opener_that_is_alone(root: str) -> None:
    disk = Disk(root)
    disk.truncate(disk.open(layout.COUNTERS, write=True), 320)
    assert control(root).disk.futexes is None
    started(root)
    assert control(root).disk.futexes is not None
