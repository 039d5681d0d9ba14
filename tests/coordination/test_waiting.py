"""A commit of any process wakes a waiting get; a get that is not woken polls."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from unittest import mock

import pytest

import spool
import xa
from spool.coordination.wakeup import Wakeups
from spool.disk import Disk
from spool.disk.memory import ALL_THREADS, ByCalls, Mapped, SharedBytes
from spool.disk.stat import overwrites_in_place
from spool.model.options import PutOptions
from spool.model.position import PositionRanges
from spool.runtime.clock import POLL_MAX_SECONDS, POLL_MIN_SECONDS, Clock
from spool.transactions import hold
from spool.transactions.hold import Hold
from spool.transactions.waiting import BUSY_SECONDS, IDLE_SECONDS, LONGEST_SECONDS, pauses
from tests import door
from tests.at_once import AT_ONCE
from tests.branches import voting
from tests.children import exit_code_of, living
from tests.clocks import LONG, PatientClock, SimulatedClock, timed, until
from tests.environment.pressed import descriptors
from tests.machine import NO_FILES, Machine
from tests.meanwhile import Processes, elsewhere
from tests.simdisk import SimulatedDisk
from tests.spaces import path_with

PUT = "import sys, spool\nwith spool.open(sys.argv[1]) as space: space.put(sys.argv[2], sys.argv[3])"


path = path_with("orders", "replies", "more")


def put_elsewhere(path: Path, queue: str = "orders", body: str = "new") -> None:
    """Put a message in another process."""
    subprocess.run([sys.executable, "-c", PUT, str(path), queue, body], check=True, timeout=LONG)


def test_a_commit_of_another_process_wakes_a_waiting_get(path: Path, pool: ThreadPoolExecutor) -> None:
    clock = PatientClock()
    with spool.open(timed(path, clock)) as space:
        found = pool.submit(space.get, "orders", timeout=LONG / 2)
        assert clock.waits.wait(LONG)
        put_elsewhere(path)
        assert found.result(LONG).body == "new"
        assert clock.was_woken
        assert all(clock.was_woken)


in_shared_memory = pytest.mark.skipif(not overwrites_in_place(gettempdir()), reason="no memory is shared here")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that commits asked the kernel to wake."""
    asked, change = list[int](), Mapped.change

    def record(memory: Mapped, at: int, value: bytes, threads: int = ALL_THREADS) -> int:
        asked.append(threads)
        return change(memory, at, value, threads)

    monkeypatch.setattr(Mapped, "change", record)
    return asked


@in_shared_memory
def test_a_commit_wakes_one_waiting_get_per_message(path: Path, pool: ThreadPoolExecutor, asked: list[int]) -> None:
    clocks = [PatientClock() for _ in range(4)]
    with ExitStack() as opened:
        spaces = [opened.enter_context(spool.open(timed(path, clock))) for clock in clocks]
        found = [pool.submit(space.get, "orders", timeout=LONG) for space in spaces]
        for clock in clocks:
            assert clock.waits.wait(LONG)
        with spool.open(path) as other:
            other.put("replies", "nobody waits for it")
            assert asked == []
            other.put_many("orders", ["one", "two"])
            assert asked == [2]
            done, rest = wait(found, LONG, FIRST_COMPLETED)
            other.put_many("orders", ["three", "four"])
        assert {one.result(LONG).body for one in (*done, *rest)} == {"one", "two", "three", "four"}


@in_shared_memory
@pytest.mark.parametrize("options", [{"delay": 0.01}, {"group": "one"}])
def test_a_message_that_not_every_call_can_take_wakes_all(
    path: Path, pool: ThreadPoolExecutor, asked: list[int], options: PutOptions
) -> None:
    clock = PatientClock()
    with spool.open(timed(path, clock)) as space, spool.open(path) as other:
        found = pool.submit(space.get, "orders", timeout=LONG)
        assert clock.waits.wait(LONG)
        other.put("orders", "new", **options)
        assert asked[0] == ALL_THREADS  # (the get may have released its group already)
        other.put("orders", "another")
        assert found.result(LONG).body in ("new", "another")


@in_shared_memory
def test_a_rollback_of_a_prepared_branch_wakes_a_waiting_get(path: Path, pool: ThreadPoolExecutor) -> None:
    clock = PatientClock()
    with spool.open(timed(path, clock)) as space, spool.open(path) as other:
        other.put("orders", "new")
        manager, xid = xa.ResourceManager(other), xa.Xid(7, b"1", b"")
        with voting(manager, xid):
            other.get("orders")
        woken = door.store(space).shared.counters.wakeups.expect("orders")
        found = pool.submit(clock.wait, woken, LONG)
        assert clock.waits.wait(LONG)
        manager.rollback(xid)
        assert found.result(LONG)
        assert space.get("orders").body == "new"


def test_queues_that_share_a_bucket_wake_each_other(asked: list[int]) -> None:
    """The kernel could otherwise wake the call that waits for the other queue, and no call takes the message."""
    wakeups = Wakeups(Mapped(-1, 4096), 0, 1)
    for queue, threads in (("one", 1), ("two", ALL_THREADS), ("one", ALL_THREADS)):
        wakeups.expect(queue)
        wakeups.announce({"one": 1})
        assert asked[-1] == threads


class Unshared(Disk):
    """A disk without shared memory: inotify wakes the calls that wait."""

    def map(self, handle: int, length: int) -> SharedBytes:
        return ByCalls(self, handle)


def test_a_notification_of_one_thread_wakes_all_waiting_threads(path: Path, pool: ThreadPoolExecutor) -> None:
    """A thread that ends leaves the listening to the next thread."""
    queues = ("orders", "replies", "more")
    clock = PatientClock(len(queues))
    with spool.open(path) as other, spool.open(timed(Unshared(str(path)), clock)) as space:
        found = {queue: pool.submit(space.get, queue, timeout=LONG / 2) for queue in queues}
        assert clock.waits.wait(LONG)
        for queue in queues:
            other.put(queue, queue)
            assert found[queue].result(LONG).body == queue
        assert all(clock.was_woken)


def test_a_message_put_without_a_listener_is_seen_by_the_next_waiting_get(path: Path) -> None:
    clock = PatientClock()
    with spool.open(timed(path, clock)) as space, spool.open(path) as other:
        for n in range(3):
            other.put("orders", str(n))
            assert space.get("orders", timeout=LONG / 2).body == str(n)
        with pytest.raises(spool.Empty):
            space.get("orders")


def test_a_put_between_the_search_and_the_watch_is_not_missed(path: Path) -> None:
    class Late(Unshared):
        def watch(self, name: str) -> int:
            with elsewhere():
                other.put("orders", "new")
            return super().watch(name)

    clock = PatientClock()
    with spool.open(path) as other, spool.open(timed(Late(str(path)), clock)) as space:
        assert space.get("orders", timeout=LONG / 2).body == "new"
        assert clock.was_woken == [], "the get searched again before it waited"


def test_a_get_that_does_not_wait_watches_nothing(path: Path) -> None:
    with spool.open(path) as space:
        before = descriptors()
        with pytest.raises(spool.Empty):
            space.get("orders")
        assert descriptors() == before


# -- processes that get no events -------------------------------------------------------------------------------------


class Deaf(Unshared):
    """A disk that loses events."""

    heard = 0

    def wait_for_change(self, handle: int, seconds: float) -> bool:
        self.heard += super().wait_for_change(handle, seconds)
        return False


class NoWatch(Unshared):
    """A disk that has no more inotify watches."""

    def __init__(self, root: str, code: int) -> None:
        super().__init__(root)
        self._code = code

    def watch(self, name: str) -> int:
        raise OSError(self._code, os.strerror(self._code))


def test_a_message_without_an_event_is_found_all_the_same(path: Path, pool: ThreadPoolExecutor) -> None:
    disk = Deaf(str(path))
    with spool.open(disk) as space, spool.open(path) as other:
        found = pool.submit(space.get, "orders", timeout=LONG / 2)
        other.put("orders", "new")
        assert found.result(LONG).body == "new"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.ENOSYS])
def test_without_a_watch_a_get_polls_as_often_as_ever(path: Path, pool: ThreadPoolExecutor, code: int) -> None:
    slept = threading.Event()

    class Counting(Clock):
        longest = 0.0

        def sleep(self, seconds: float) -> None:
            self.longest = max(self.longest, seconds)
            slept.set()
            super().sleep(seconds)

        def wait(self, woken: Callable[[float], bool], seconds: float) -> bool:
            raise AssertionError("there is nothing to wait for")

    clock, disk = Counting(), NoWatch(str(path), code)
    with spool.open(timed(disk, clock)) as space:
        found = pool.submit(space.get, "orders", timeout=LONG / 2)
        assert slept.wait(LONG)
        space.put("orders", "new")
        assert found.result(LONG).body == "new"
    assert 0 < clock.longest <= POLL_MAX_SECONDS


# -- the length of each wait ------------------------------------------------------------------------------------------


class Recorded(SimulatedClock):
    """A clock that records the requested length of each wait, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, woken: Callable[[float], bool], seconds: float) -> bool:
        self.waits.append(seconds)
        return super().wait(woken, seconds)


@pytest.fixture
def simulated() -> Iterator[tuple[spool.Space, Recorded, Machine]]:
    machine, clock = Machine(NO_FILES), Recorded()
    with spool.create(timed(SimulatedDisk(machine), clock), defaults=AT_ONCE) as space:
        space.create_queue("orders")
        yield space, clock, machine


def test_only_a_publication_adds_a_message_to_an_empty_queue(simulated: tuple[spool.Space, Recorded, Machine]) -> None:
    space, clock, _ = simulated
    with pytest.raises(spool.Empty):
        space.get("orders", timeout=10 * IDLE_SECONDS)
    assert len(clock.waits) <= 11
    assert max(clock.waits) == LONGEST_SECONDS


def test_a_delayed_message_is_delivered_at_its_time(simulated: tuple[spool.Space, Recorded, Machine]) -> None:
    space, clock, _ = simulated
    space.put("orders", "later", delay=3.7)
    begun = clock.now()
    assert space.get("orders", timeout=LONG).body == "later"
    assert clock.now() - begun == pytest.approx(3.7, abs=POLL_MAX_SECONDS)
    assert max(clock.waits) == LONGEST_SECONDS


def test_a_claimed_message_is_attempted_within_a_second(
    simulated: tuple[spool.Space, Recorded, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The get looks now and then because the holder of the message may die, and a dead process publishes nothing."""
    space, clock, machine = simulated
    space.put("orders", "held")
    disk = SimulatedDisk(machine)
    other = spool.open(timed(disk, clock))
    other.transaction().get("orders")
    attempts, attempt = list[float](), Hold.claim

    def record(*args: Any) -> PositionRanges:
        attempts.append(clock.monotonic())
        return attempt(*args)

    monkeypatch.setattr(Hold, "claim", record)
    with pytest.raises(spool.Empty):
        space.get("orders", timeout=10.0)
    assert len(attempts) < 20, "a process that waits leaves the processor to others"
    assert max(second - first for first, second in pairwise(attempts)) <= 1.0
    machine.kill(disk)
    assert space.get("orders", timeout=1.0).body == "held"


def test_the_pauses_of_a_get_grow_until_a_message_arrives_and_end_with_its_time(
    simulated: tuple[spool.Space, Recorded, Machine],
) -> None:
    space, clock, _ = simulated
    steps = pauses(door.store(space), "orders", lambda: False, door.deadline(space, 9.0), longest=0.2)
    found = [steps.send(None), *(steps.send(False) for _ in range(3))]
    assert found == [(0, 0.1, True), (0, 0.1 * 1.5, True), (0, 0.2, True), (0, 0.2, True)]
    assert steps.send(True) == (BUSY_SECONDS, 0.1, True), "another call took the message that arrived"
    clock.sleep(8.9375)
    assert steps.send(False) == (0, 0.0625, False), "the last attempt is no poll, so no other call makes it"
    clock.sleep(1.0)
    assert steps.send(True) == (0, 0, False)


@pytest.mark.parametrize(("head", "expected"), [("orders", (0, POLL_MIN_SECONDS)), (None, (POLL_MIN_SECONDS, 0))])
def test_a_get_whose_message_is_held_pauses_for_a_moment(
    simulated: tuple[spool.Space, Recorded, Machine], head: str | None, expected: tuple[float, float]
) -> None:
    store = door.store(simulated[0])
    steps = pauses(store, head, lambda: True, store.deadline(None))
    assert steps.send(None) == (*expected, False)
    assert sum(steps.send(False)) == 1.5 * POLL_MIN_SECONDS


@in_shared_memory
@pytest.mark.parametrize("options", [{}, {"group": "one"}], ids=["plain", "of a group"])
def test_a_message_given_back_wakes_a_waiting_get(path: Path, pool: ThreadPoolExecutor, options: PutOptions) -> None:
    clock = PatientClock()
    with spool.open(timed(path, clock)) as space, spool.open(path) as other:
        other.put_many("orders", ["first", "second"], **options)
        with other.transaction() as transaction:
            transaction.get_many("orders", 1 if options else 2)
            found = pool.submit(space.get, "orders", timeout=LONG)
            assert clock.waits.wait(LONG)
            if not options:
                transaction.abandon()
        assert found.result(LONG).body == ("second" if options else "first")
        assert clock.was_woken == [True] * len(clock.was_woken)


class Acting(Clock):
    """A clock with an action in place of each wait."""

    def __init__(self, act: Callable[[Callable[[float], bool], float], bool]) -> None:
        self.wait = act  # type: ignore[assignment]


@in_shared_memory
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_message_reaches_another_call_if_the_woken_process_is_killed_or_stopped(
    path: Path, pool: ThreadPoolExecutor, number: int
) -> None:
    def get(ready: Callable[[], object]) -> None:
        clock = Acting(lambda woken, _: ready() and woken(LONG) and os.kill(os.getpid(), number))  # type: ignore
        spool.open(timed(path, clock)).get("orders", timeout=None)

    asleep = threading.Event()
    clock = Acting(lambda woken, seconds: bool(asleep.set()) or woken(seconds))  # type: ignore[func-returns-value]
    with living(get) as child, spool.open(timed(path, clock)) as space, spool.open(path) as other:
        until(lambda: state_of(child) == "S")
        found = pool.submit(space.get, "orders", timeout=None)
        assert asleep.wait(LONG)
        other.put("orders", "new")
        until(lambda: state_of(child) in "ZT")
        assert found.result(LONG).body == "new"


def state_of(process: int) -> str:
    """Return the state of a process, e.g. S: it sleeps, T: it is stopped, Z: it has ended."""
    return Path(f"/proc/{process}/stat").read_text().split()[2]


@in_shared_memory
def test_a_poll_that_finds_nothing_counts_for_a_moment_for_all_calls_that_wait_for_the_queue() -> None:
    search = mock.Mock(return_value=[(1, 0, 1)])

    def searches(queue: str, now: float) -> bool:
        search.reset_mock()
        arrivals.poll(queue, search, now)
        return search.called

    with Mapped(-1, 4096) as memory:
        arrivals = Wakeups(memory, 0, 1)
        assert [searches("orders", 1.0), searches("orders", 1.0)] == [True, True], "the queue may have more messages"
        search.return_value = []
        assert [searches("orders", now) for now in (1.1, 1.34, 1.36, 0.5)] == [True, False, True, True]
        assert [searches("more", 0.5), searches("orders", 0.5)] == [True, True], "they share the words"


@pytest.mark.parametrize(("most_behind", "attempts"), [(512, 3), (0, 7)])
def test_other_processes_poll_for_a_call_unless_it_is_far_behind(
    simulated: tuple[spool.Space, Recorded, Machine], monkeypatch: pytest.MonkeyPatch, most_behind: int, attempts: int
) -> None:
    """Otherwise reclaim would remove the files of the next commits, and the process would have to list the others."""
    monkeypatch.setattr(Wakeups, "poll", lambda *_: [])
    monkeypatch.setattr(hold, "RETAINED_FOR_READERS", most_behind)
    claims = mock.patch.object(Hold, "claim", autospec=True, side_effect=Hold.claim)
    with claims as claim, pytest.raises(spool.Empty):
        simulated[0].get("orders", timeout=1.0)
    assert claim.call_count == attempts


class Sleepers(Mapped):
    """Memory on which so many threads seem to sleep."""

    sleepers = 0

    def change(self, at: int, value: bytes, threads: int = ALL_THREADS) -> int:
        super().change(at, value)
        return min(threads, self.sleepers)


@pytest.mark.parametrize(
    ("messages", "sleepers", "searches"), [(1, 1, False), (2, 2, False), (2, 1, True), (1, 0, True)]
)
def test_a_get_about_to_sleep_searches_only_for_messages_that_no_woken_get_takes(
    messages: int, sleepers: int, searches: bool
) -> None:
    """Otherwise each of many waiting processes applies each commit, and finds that the message was taken."""
    memory = Sleepers(-1, 4096)
    arrivals, memory.sleepers = Wakeups(memory, 0, 1), sleepers
    waits = arrivals.expect("orders")
    arrivals.announce({"orders": messages})
    assert waits(0.0) is searches
    assert not waits(0.0), "it has searched"
    arrivals.announce_all()
    assert waits(0.0)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_the_watch_ends_with_the_space_and_a_forked_child_closes_its_copy(path: Path, pool: ThreadPoolExecutor) -> None:
    before = descriptors()
    space = spool.open(Unshared(str(path)))
    while not any(
        "inotify" in name for name in descriptors() - before
    ):  # no get waits while a first search takes longer
        with pytest.raises(spool.Empty):
            space.get("orders", timeout=0.02)

    def look() -> None:
        assert not any("inotify" in name for name in descriptors() - before), "the child has no watch"

    assert exit_code_of(look) == 0
    space.close()
    assert descriptors() == before


@pytest.mark.parametrize("ending", ["close", "stop"])
def test_a_closed_or_stopped_space_ends_the_wait(path: Path, pool: ThreadPoolExecutor, ending: str) -> None:
    with spool.open(path) as space:
        found = pool.submit(space.get, "orders", timeout=None)
        if ending == "close":
            space.close()
        else:
            door.store(space).stop()
        assert isinstance(found.exception(LONG), spool.NotOpen | spool.SpaceStopped)


def test_a_message_published_during_a_search_is_delivered_at_once() -> None:
    """A get that does not wait finds it, and one that waits need not sleep first."""
    there = Processes()
    space, (other, disk) = there.space(), there.open()
    disk.before("look", lambda: space.put("orders", "new"), spare=1)  # (at the second reading of the counters)
    assert other.get("orders").body == "new"
