"""A descriptor becomes readable in each way in which a message can become free, and no message is missed."""

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from spool.coordination.wakeup import Wakeups
from spool.disk import kernel
from spool.transactions import arrivals as watching
from tests import alarms, children, door
from tests.clocks import LONG
from tests.spaces import opened_again, space_with

ROOT = Path(__file__).parents[2]
Way = Callable[[spool.Space], Callable[[], object]]  # it returns the act by which a message arrives
A_MOMENT = 0.5  # longer than the checks of held messages are apart

space = space_with("orders", "mail", "elsewhere")
other = opened_again()


@pytest.fixture(autouse=True)
def _no_idle_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no check come to the aid of a notification that is missing."""
    monkeypatch.setattr(watching, "_IDLE_SECONDS", 10 * LONG)


@pytest.fixture
def arrivals(space: spool.Space) -> Iterator[spool.QueueArrivals]:
    with space.arrivals(["orders", "mail"]) as arrivals:
        assert wait(arrivals) == {"orders", "mail"}, "a program first looks into each queue"
        yield arrivals


def readable(arrivals: spool.QueueArrivals, seconds: float = 0) -> bool:
    return bool(select.select([arrivals], [], [], seconds)[0])


def wait(arrivals: spool.QueueArrivals) -> set[str]:
    """Return the queues that may have messages, as a program does that only waits for the descriptor."""
    assert readable(arrivals, LONG)
    found = arrivals.ready()
    assert not readable(arrivals)
    return found


# -- each way in which a message becomes free -------------------------------------------------------------------------

# Each function does the part before the wait, and returns the part during the wait.


def put(other: spool.Space) -> Callable[[], object]:
    return lambda: other.put("orders", "new")


def put_in_a_transaction(other: spool.Space) -> Callable[[], object]:
    def act() -> None:
        with other.transaction() as tx:
            tx.put("elsewhere", "another")
            tx.put("orders", "new")

    return act


def move(other: spool.Space) -> Callable[[], object]:
    id = other.put("elsewhere", "new")
    return lambda: other.move(id, "orders")


def become_due(other: spool.Space) -> Callable[[], object]:
    return lambda: other.put("orders", "new", delay=0.3)


def held(other: spool.Space) -> spool.Transaction:
    other.put("orders", "new")
    holder = other.transaction()
    holder.get("orders")
    return holder


def roll_back(other: spool.Space) -> Callable[[], object]:
    return held(other).rollback


def abandon(other: spool.Space) -> Callable[[], object]:
    return held(other).abandon


def close_the_holder(other: spool.Space) -> Callable[[], object]:
    holder = spool.open(other.path)
    held(holder)
    return holder.close


IDLE = (put, put_in_a_transaction, move, become_due)  # before the act, the queue is empty
WAYS = [put, put_in_a_transaction, move, become_due, roll_back, abandon, close_the_holder]


def expect_arrival(space: spool.Space, other: spool.Space, way: Way, act: Callable[[], object] | None = None) -> None:
    act = act or way(other)
    with space.arrivals(["orders", "mail"]) as arrivals:
        wait(arrivals)
        with pytest.raises(spool.Empty):
            space.get("orders")
        while way in IDLE and door.next_check(arrivals) < time.monotonic() + LONG:
            time.sleep(0.01)  # so that only a notification can lead to the next check
        act()
        while True:  # (a hint may be wrong, also about the queue)
            if "orders" not in wait(arrivals):
                continue
            try:
                assert space.get("orders").body == "new"
            except spool.Empty:
                continue
            return


@pytest.mark.parametrize("way", WAYS)
def test_the_descriptor_is_readable_once_a_message_is_free(space: spool.Space, other: spool.Space, way: Way) -> None:
    expect_arrival(space, other, way)


@pytest.mark.parametrize("way", [put, roll_back, abandon])
def test_a_message_of_the_same_opener_arrives(space: spool.Space, way: Way) -> None:
    expect_arrival(space, space, way)


def no_notifications(*_: spool.Space) -> Any:
    return mock.patch.object(kernel, "new_notifier", side_effect=OSError)


def no_announcements(*_: spool.Space) -> Any:
    """A process dies before it announces its messages."""
    return mock.patch.multiple(Wakeups, announce=mock.DEFAULT, announce_all=mock.DEFAULT)


def no_shared_memory(*spaces: spool.Space) -> Any:
    for one in spaces:
        door.store(one).shared.counters.wakeups.wakes = False
    return nullcontext()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", [no_notifications, no_announcements, no_shared_memory])
def test_messages_arrive_in_spite_of_a_fault(
    space: spool.Space, other: spool.Space, way: Way, fault: Callable[..., Any]
) -> None:
    act = way(other)
    with fault(space, other):
        expect_arrival(space, other, way, act)


def test_a_commit_is_announced_without_a_check_of_the_queue(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_HELD_SECONDS", 10 * LONG)
    with space.arrivals(["orders", "mail"]) as arrivals:
        wait(arrivals)
        for n in range(20):
            other.put("orders", n)
            assert wait(arrivals) == {"orders"}


# -- hints ------------------------------------------------------------------------------------------------------------


def test_only_the_queues_with_new_messages_are_named(arrivals: spool.QueueArrivals, other: spool.Space) -> None:
    other.put("mail", "new")
    assert wait(arrivals) == {"mail"}
    other.put_many("elsewhere", range(50))
    other.get("mail")
    assert not readable(arrivals, A_MOMENT)
    other.put("orders", "new")
    other.put("mail", "new")
    names = wait(arrivals)
    while names != {"orders", "mail"}:
        names |= wait(arrivals)


def test_a_message_that_was_not_taken_is_named_again(arrivals: spool.QueueArrivals, other: spool.Space) -> None:
    other.put("orders", "new")
    for _ in range(3):
        assert wait(arrivals) == {"orders"}


def test_any_thread_can_let_the_program_look_into_all_queues_again(arrivals: spool.QueueArrivals) -> None:
    assert not readable(arrivals)
    for _ in range(2):
        with ThreadPoolExecutor(4) as threads:
            for _ in range(100):
                threads.submit(arrivals.wake)
        assert wait(arrivals) == {"orders", "mail"}
        assert not readable(arrivals)
    arrivals.close()
    arrivals.wake()  # has no effect


def test_messages_that_others_hold_are_not_named_meanwhile(arrivals: spool.QueueArrivals, other: spool.Space) -> None:
    other.put_many("orders", range(50))
    with other.transaction() as holder:
        holder.get_many("orders", 50)
        while readable(arrivals, A_MOMENT):
            arrivals.ready()
        holder.set_rollback_only()
    assert "orders" in wait(arrivals) or "orders" in wait(arrivals)  # (another queue may be named a moment before)


def test_the_next_due_time_is_that_of_these_queues(
    space: spool.Space, arrivals: spool.QueueArrivals, other: spool.Space
) -> None:
    assert arrivals.next_due() is None
    other.put("elsewhere", "another queue's", delay=5)
    assert arrivals.next_due() is None
    other.put("orders", "later", delay=1000)
    other.put("mail", "sooner", delay=500)
    due = arrivals.next_due()
    assert due is not None
    assert 400 < due <= 500
    space.purge("mail")
    due = arrivals.next_due()
    assert due is not None
    assert due > 500


# -- real processes ---------------------------------------------------------------------------------------------------

HOLDER = """
import sys, spool
with spool.open(sys.argv[1]) as space, space.transaction(timeout=None) as tx:
    print(len(tx.get_many("orders", 50)), flush=True)
    sys.stdin.read()
"""

PUTTER = """
import sys, spool
name, times = sys.argv[2], int(sys.argv[3])
with spool.open(sys.argv[1]) as space:
    for n in range(times):
        space.put("orders" if n % 3 else "mail", f"{name} {n}")
"""


def program(code: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def take_all(space: spool.Space, queue: str) -> list[object]:
    try:
        return [message.body for message in space.get_many(queue, 1000)]
    except spool.Empty:
        return []


def test_all_messages_of_a_killed_holder_arrive(space: spool.Space, arrivals: spool.QueueArrivals) -> None:
    space.put_many("orders", range(50))
    with program(HOLDER, space.path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "50\n"
        while readable(arrivals, A_MOMENT):
            assert not [body for queue in arrivals.ready() for body in take_all(space, queue)]
        holder.kill()
        found: list[object] = []
        while len(found) < 50:
            found += [body for queue in wait(arrivals) for body in take_all(space, queue)]
    assert sorted(map(str, found)) == sorted(map(str, range(50)))


def test_no_message_of_ten_thousand_is_missed(space: spool.Space, arrivals: spool.QueueArrivals) -> None:
    """Four processes put; the program takes only what a descriptor announces, and holds nothing back."""
    found: list[object] = []
    with ExitStack() as stack:
        for name in "abcd":
            stack.enter_context(program(PUTTER, space.path, name, "2500"))
        while len(found) < 10_000:
            assert readable(arrivals, LONG)
            for queue in arrivals.ready():
                while got := take_all(space, queue):
                    found += got
    assert sorted(map(str, found)) == sorted(f"{name} {n}" for name in "abcd" for n in range(2500))


def test_consumers_beside_each_other_take_all(space: spool.Space) -> None:
    """Each message becomes free again once, because its first consumer rolls back; another opener takes it then."""
    found, seen = list[object](), set[object]()
    with ExitStack() as stack:
        openers = [stack.enter_context(spool.open(space.path)) for _ in range(3)]
        watched = {one: stack.enter_context(one.arrivals(["orders"])) for one in openers}
        process = stack.enter_context(program(PUTTER, space.path, "a", "300"))
        process.communicate()
        while len(found) < 200:
            assert select.select(list(watched.values()), [], [], LONG)[0]
            for one, arrivals in watched.items():
                for queue in arrivals.ready():
                    for _ in range(5):
                        tx = one.transaction()
                        try:
                            message = tx.get(queue)
                        except spool.Empty:
                            tx.abandon()
                            break
                        if message.body in seen:
                            tx.commit()
                            found.append(message.body)
                        else:
                            seen.add(message.body)
                            tx.abandon()
    assert len(set(found)) == 200


# -- one watcher ------------------------------------------------------------------------------------------------------


def notifiers() -> int:
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link) == "anon_inode:inotify" for link in links if link.is_symlink())


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "spool-arrivals"]


def test_one_thread_and_one_notifier_serve_all_spaces_of_a_process(tmp_path: Path) -> None:
    before = notifiers()
    with ExitStack() as stack:
        spaces = [stack.enter_context(spool.create(tmp_path / str(n))) for n in range(10)]
        for one in spaces:
            one.create_queue("orders")
        watched = [stack.enter_context(one.arrivals(["orders"])) for one in spaces for _ in range(5)]
        for arrivals in watched:
            wait(arrivals)
        for n, one in enumerate(spaces):
            one.put("orders", n)
            for arrivals in watched[5 * n : 5 * n + 5]:
                assert wait(arrivals) == {"orders"}
            one.get("orders")
        [thread] = watchers()
        assert notifiers() == before + 1  # (the thread has one once it has noticed a put)
    thread.join(LONG)
    assert not thread.is_alive()
    assert notifiers() == before


def test_arrivals_that_are_dropped_or_closed_leave_nothing(space: spool.Space) -> None:
    handles = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        kept = [space.arrivals(["orders"]) for _ in range(10)]
        kept[0].close()
        kept[0].close()
        threads = watchers()
        del kept
        gc.collect()
        watching._watcher.wake()
        for thread in threads:
            thread.join(LONG)
    assert not watchers()
    assert len(os.listdir("/proc/self/fd")) <= handles + 1  # (claim files are opened when they are needed)


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["close", "stop"])
def test_the_end_of_the_space_is_noticed(space: spool.Space, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may notify the thread of the last commit of a close before the space is closed."""
    waits, waiting = threading.Semaphore(0), watching._Watcher._wait
    if ending == "close":
        monkeypatch.setattr(kernel, "add_watch", lambda *_: 1)
        monkeypatch.setattr(watching._Watcher, "_wait", lambda *args: waits.release() or waiting(*args))
    with spool.open(space.path) as own, own.arrivals(["orders"]) as arrivals:
        wait(arrivals)
        if ending == "close":
            assert all(waits.acquire(timeout=LONG) for _ in range(2)), "the first wait ends at once"
        {"close": own.close, "stop": door.store(own).stop}[ending]()
        assert readable(arrivals, LONG)
        with pytest.raises(spool.NotOpen if ending == "close" else spool.SpaceStopped):
            arrivals.ready()


def test_a_space_that_was_moved_is_noticed(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_IDLE_SECONDS", 0.01)
    with space.arrivals(["orders"]) as arrivals:
        wait(arrivals)
        door.store(space).misplaced = "the directory was moved"  # as the housekeeper has found
        assert readable(arrivals, LONG)
        with pytest.raises(spool.SpaceStopped):
            arrivals.ready()


def test_closed_arrivals_say_so(arrivals: spool.QueueArrivals) -> None:
    arrivals.close()
    for call in (arrivals.fileno, arrivals.ready, arrivals.next_due):
        with pytest.raises(spool.NotOpen, match="the arrivals are closed"):
            call()


def test_in_a_forked_child_arrivals_are_closed_and_those_of_the_parent_are_not(
    space: spool.Space, arrivals: spool.QueueArrivals, other: spool.Space
) -> None:
    handle = arrivals.fileno()
    path = space.path

    def act() -> None:
        for call in (arrivals.fileno, arrivals.ready):
            with pytest.raises(spool.NotOpen):
                call()
        arrivals.wake()  # has no effect
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.eventfd_read(handle)
        signal.alarm(int(LONG))
        with spool.open(path) as own, own.arrivals(["mail"]) as mine:
            assert wait(mine) == {"mail"}
            own.put("mail", "the child's")
            assert wait(mine) == {"mail"}

    for _ in range(20):
        assert children.exit_code_of(act) == 0
        other.purge("mail")
    other.put("orders", "new")
    while "orders" not in wait(arrivals):
        pass


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(arrivals: spool.QueueArrivals) -> None:
    def act() -> None:
        signal.alarm(int(LONG))
        arrivals.wake()
        arrivals.close()

    with arrivals._mutex:  # as while the thread that watches announces a message
        assert children.exit_code_of(act) == 0


def test_a_signal_in_the_middle_loses_no_arrival(space: spool.Space, arrivals: spool.QueueArrivals) -> None:
    class Stop(Exception):
        pass

    armed = False

    def stop(*_: object) -> None:
        if armed:
            raise Stop

    taken = 0
    with alarms.handled(stop):
        for n in range(300):
            space.put("orders", n)
            seconds = 0.0001 + n % 20 * 0.0001
            while taken <= n:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, seconds)
                    seconds *= 2  # (on a slow machine, each attempt could take longer than the first one may)
                    assert readable(arrivals, LONG)
                    names = arrivals.ready()
                    armed = False
                except Stop:
                    continue
                taken += len(take_all(space, "orders")) if "orders" in names else 0


def test_an_event_loop_waits_for_it(space: spool.Space, other: spool.Space) -> None:
    async def main() -> list[object]:
        found, done = list[object](), asyncio.Event()

        def on_readable() -> None:
            for queue in arrivals.ready():
                found.extend(take_all(space, queue))
            if len(found) == 100:
                done.set()

        with space.arrivals(["orders"]) as arrivals:
            loop = asyncio.get_running_loop()
            loop.add_reader(arrivals, on_readable)
            putting = asyncio.gather(*(asyncio.to_thread(other.put, "orders", n) for n in range(100)))
            async with asyncio.timeout(LONG):
                await asyncio.gather(putting, done.wait())
            loop.remove_reader(arrivals)
        return found

    assert sorted(map(str, asyncio.run(main()))) == sorted(map(str, range(100)))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "error", "text"),
    [
        ("orders", spool.InvalidArgument, "names of queues, e.g. .'orders'., not one text"),
        ([], spool.InvalidArgument, "name at least one"),
        (["orders", "ordres"], spool.QueueNotFound, "ordres"),
    ],
)
def test_wrong_arguments_are_refused(space: spool.Space, queues: Any, error: type[Exception], text: str) -> None:
    for thread in watchers():  # of an earlier test
        thread.join(LONG)
    with pytest.raises(error, match=text):
        space.arrivals(queues)
    assert not watchers()
