"""``replace`` leaves one message for each correlation id, whatever other transactions and processes do meanwhile."""

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import spool
import spool.aio
import xa
from spool.log import write_set
from tests import alarms, door
from tests.branches import voting
from tests.clocks import LONG
from tests.compaction import fill, small_compactions, tidy
from tests.meanwhile import Processes
from tests.spaces import opened_again, space_with

ROOT = Path(__file__).parents[2]
XID = xa.Xid(7, b"order", b"1")

space = space_with("orders", "other", errors={}, counted={"retries": 0, "error_queue": "errors"})
other = opened_again()


def bodies(space: spool.Space, key: str = "c", queue: str = "orders") -> list[object]:
    return [message.body for message in space.browse(queue, correlation_id=key)]


def test_the_new_message_takes_the_place_of_all_old_ones(space: spool.Space, other: spool.Space) -> None:
    first = space.replace("orders", "one", correlation_id="c")
    assert bodies(space) == bodies(other) == ["one"]
    other.put_many("orders", ["two", "three"], correlation_id="c", delay=1000)
    other.put("orders", "another key's", correlation_id="d")
    other.put("other", "another queue's", correlation_id="c")
    last = other.replace("orders", {"four": 4}, correlation_id="c", priority=70, time_to_live=1000)
    assert last != first
    assert bodies(space) == bodies(other) == [{"four": 4}]
    assert (bodies(space, "d"), bodies(space, "c", "other")) == (["another key's"], ["another queue's"])
    found = space.find("orders", correlation_id="c")
    assert found is not None
    assert (found.id, found.priority, found.attempts) == (last, 70, 0)
    assert [(figures.ready, figures.dequeued) for figures in [space.stats("orders")]] == [(2, 0)]


def test_compacted_messages_are_replaced(space: spool.Space) -> None:
    with small_compactions():
        for n in range(100):
            space.put("orders", "old", correlation_id=str(n))
        fill(space)
        assert tidy(space)
        for n in range(100):
            space.replace("orders", n, correlation_id=str(n))
        assert [bodies(space, str(n)) for n in range(100)] == [[n] for n in range(100)]


def test_a_damaged_old_message_is_replaced(space: spool.Space) -> None:
    space.put("orders", b"old" * 99, correlation_id="c")
    for file in Path(space.path, "committed").iterdir():
        file.write_bytes(file.read_bytes().replace(b"old" * 99, b"bad" * 99))
    space.replace("orders", "new", correlation_id="c")
    assert bodies(space) == ["new"]


def test_a_replacement_fits_into_a_full_queue_and_a_further_message_does_not(space: spool.Space) -> None:
    space.change_queue("orders", max_messages=1)
    for n in range(3):
        space.replace("orders", n, correlation_id="c")
    with pytest.raises(spool.Full):
        space.replace("orders", 3, correlation_id="d")
    with space.transaction():
        space.replace("orders", 4, correlation_id="c")
    assert (bodies(space), bodies(space, "d")) == ([4], [])
    assert space.state(space.replace("orders", 5, correlation_id="c")) == "ready", "nothing remained held"


# -- in a transaction -------------------------------------------------------------------------------------------------


def test_a_replacement_is_a_part_of_the_callers_transaction(space: spool.Space, other: spool.Space) -> None:
    space.put("orders", "old", correlation_id="c")
    with space.transaction() as tx:
        space.replace("orders", "lost", correlation_id="c")
        assert bodies(space) == bodies(other) == ["old"]
        space.replace("orders", "its own", correlation_id="d", transaction=None)
        tx.set_rollback_only()
    assert (bodies(other), bodies(other, "d")) == (["old"], ["its own"])
    with space.transaction() as tx:
        tx.replace("orders", "new", correlation_id="c")
        space.put("orders", "more")
    assert bodies(other) == ["new"]
    assert other.stats("orders").ready == 3


def test_two_replacements_in_one_transaction_leave_one_message(space: spool.Space, other: spool.Space) -> None:
    space.put("orders", "old", correlation_id="c")
    with space.transaction() as tx:
        assert [tx.put("orders", n, correlation_id="c") for n in ()] == []
        first = tx.replace("orders", "text", correlation_id="c")
        tx.put("orders", "between", correlation_id="d")
        assert tx.replace("orders", b"bytes" * 100, correlation_id="c", priority=60) == first
        other.put("orders", "meanwhile", correlation_id="c")
        assert tx.replace("orders", {"a": "map"}, correlation_id="c", headers={"a": "b"}) == first
        tx.replace("orders", "x", correlation_id="d")
        tx.replace("orders", "y", correlation_id="d")
    assert bodies(other) == [{"a": "map"}]
    found = other.find("orders", correlation_id="c")
    assert found is not None
    assert (found.id, found.priority, found.headers) == (first, 50, {"a": "b"})
    assert bodies(other, "d") == ["between", "y"], "a put of the same transaction is not replaced"
    assert other.check() == []


def test_many_replacements_in_one_transaction_end_as_a_map_of_keys_and_values(space: spool.Space) -> None:
    chosen, kept = random.Random(7), dict[str, object]()
    with space.transaction(timeout=None) as tx:
        for n in range(10_000):
            key, body = str(chosen.randrange(300)), chosen.choice((n, f"{n}", b"%d" % n * chosen.randrange(1, 50)))
            options = chosen.choice(({}, {"priority": 60}, {"user_code": n}))
            tx.replace("orders", body, correlation_id=key, **options)  # type: ignore[arg-type]
            kept[key] = body
    assert {m.correlation_id: m.body for m in space.browse("orders")} == kept
    assert space.stats("orders").ready == len(kept)
    assert space.check() == []


def test_a_message_on_the_disk_is_not_replaced_by_its_own_transaction(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_set, "SECTION_BYTES", 1000)
    with space.transaction() as tx:
        tx.replace("orders", "a", correlation_id="c")
        tx.replace("orders", b"a" * 2000, correlation_id="c")
        with pytest.raises(spool.ProtocolError, match="commit the transaction, and replace the message in a new one"):
            tx.replace("orders", "b", correlation_id="c")
        tx.replace("orders", "d", correlation_id="d")
    assert (bodies(space), bodies(space, "d")) == ([b"a" * 2000], ["d"])
    space.replace("orders", "b", correlation_id="c")
    assert bodies(space) == ["b"]


def test_a_rollback_and_the_death_of_a_process_count_no_attempt(space: spool.Space) -> None:
    """Otherwise the old message would move to the error queue."""
    space.put("counted", "old", correlation_id="c")
    for _ in range(3):
        with space.transaction() as tx:
            tx.replace("counted", "lost", correlation_id="c")
            tx.rollback()
    code = (
        "import os, sys, spool; space = spool.open(sys.argv[1]); tx = space.transaction().__enter__();"
        "space.replace('counted', 'lost', correlation_id='c'); print(); os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code, space.path], check=False).returncode == -signal.SIGKILL
    [message] = space.browse("counted", correlation_id="c")
    assert (message.body, message.attempts) == ("old", 0)
    assert space.get("counted").body == "old"


def test_a_failed_call_of_a_worker_replaces_nothing_and_holds_nothing(space: spool.Space, other: spool.Space) -> None:
    space.put("counted", "value", correlation_id="c")
    space.put("orders", "task")

    def handle(_: spool.Message) -> None:
        spool.current_space().replace("counted", "lost", correlation_id="c")
        raise spool.Reject("no")

    space.work("orders", handle, once=True)
    [message] = other.browse("counted", correlation_id="c")
    assert (message.body, message.attempts) == ("value", 0)
    assert other.replace("counted", "new", correlation_id="c", timeout=0)


# -- two-phase commit -------------------------------------------------------------------------------------------------


def test_a_prepared_replacement_is_in_doubt_until_its_decision(space: spool.Space, other: spool.Space) -> None:
    manager = xa.ResourceManager(space)
    with voting(manager, XID):
        space.replace("orders", "new", correlation_id="c")
    with pytest.raises(spool.MessageInUse):
        other.replace("orders", "another", correlation_id="c", timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.replace, "orders", "another", correlation_id="c")
        manager.commit(XID)
        waiting.result(LONG)
    assert bodies(space) == ["another"]


def test_the_rollback_of_a_prepared_replacement_counts_no_attempt(space: spool.Space) -> None:
    space.put("counted", "old", correlation_id="c")
    manager = xa.ResourceManager(space)
    with voting(manager, XID):
        space.replace("counted", "lost", correlation_id="c")
    manager.rollback(XID)
    [message] = space.browse("counted", correlation_id="c")
    assert (message.body, message.attempts) == ("old", 0)


# -- other transactions -----------------------------------------------------------------------------------------------


def commits(tx: spool.Transaction) -> None:
    tx.commit()


def rolls_back(tx: spool.Transaction) -> None:
    tx.rollback()


@pytest.mark.parametrize("ends", [commits, rolls_back])
@pytest.mark.parametrize("holds", ["old", "key"])
def test_a_replacement_waits_for_the_transaction_that_holds_the_message_or_the_key(
    space: spool.Space, other: spool.Space, holds: str, ends: Callable[[spool.Transaction], None]
) -> None:
    if holds == "old":
        other.put("orders", "old", correlation_id="c")
    tx = other.transaction()
    tx.get("orders") if holds == "old" else tx.replace("orders", "theirs", correlation_id="c")
    for timeout in (0, 0.01):
        with pytest.raises(spool.MessageInUse, match="try again later"):
            space.replace("orders", "new", correlation_id="c", timeout=timeout)
    space.replace("orders", "free", correlation_id="d", timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(space.replace, "orders", "new", correlation_id="c", timeout=LONG)
        ends(tx)
        waiting.result(LONG)
    assert bodies(space) == bodies(other) == ["new"]


def test_a_refused_replacement_leaves_its_transaction_as_it_was(space: spool.Space, other: spool.Space) -> None:
    other.put_many("orders", ["held", "free"], correlation_id="c")
    with other.transaction() as holder, space.transaction() as tx:
        holder.get("orders")
        with pytest.raises(spool.MessageInUse):
            tx.replace("orders", "new", correlation_id="c", timeout=0)
        with pytest.raises(spool.InvalidArgument):
            tx.replace("orders", "new", correlation_id="c", priority=101)
        assert other.get("orders", transaction=None).body == "free", "it is not held"
        tx.put("orders", "put")
    assert [message.body for message in space.browse("orders")] == ["put"]


def test_two_transactions_that_wait_for_each_other_end_with_their_timeouts(space: spool.Space, other: spool.Space):
    with space.transaction() as one, other.transaction() as two:
        one.replace("orders", 1, correlation_id="a")
        two.replace("orders", 2, correlation_id="b")
        with pytest.raises(spool.MessageInUse):
            one.replace("orders", 1, correlation_id="b", timeout=0.01)
        with pytest.raises(spool.MessageInUse):
            two.replace("orders", 2, correlation_id="a", timeout=0.01)
    assert (bodies(space, "a"), bodies(space, "b")) == ([1], [2])


def test_a_commit_of_a_process_that_died_before_its_publication_is_replaced() -> None:
    processes = Processes()
    dying, disk = processes.open()
    disk.dies_before("make_durable", lambda: dying.replace("orders", "theirs", correlation_id="c"), "committed")
    with processes.space() as space:
        space.replace("orders", "new", correlation_id="c")
        assert bodies(space) == ["new"]


# -- real processes ---------------------------------------------------------------------------------------------------

REPLACER = """
import sys, spool
path, name, times, keys = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with spool.open(path) as space:
    print(flush=True)
    sys.stdin.readline()
    for n in range(times):
        space.replace("orders", f"{name} {n}", correlation_id=str(n % keys))
"""


def replacer(path: str, name: str, times: int, keys: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", REPLACER, path, name, str(times), str(keys)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def begin(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("keys", [1, 1000])
def test_two_processes_that_replace_the_same_keys_leave_one_message_of_each(space: spool.Space, keys: int) -> None:
    """Meanwhile a reader finds a value of each key from its first commit on."""
    processes = [replacer(space.path, name, 1000, keys) for name in "ab"]
    for process in processes:
        begin(process)
    seen, missed = False, 0
    while any(process.poll() is None for process in processes):
        found = space.find("orders", correlation_id="0")
        missed += seen and found is None
        seen |= found is not None
    assert [process.wait(LONG) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    assert not missed
    assert sorted(str(m.correlation_id) for m in space.browse("orders")) == sorted(map(str, range(keys)))
    assert {str(m.body).split()[1] for m in space.browse("orders")} <= {str(1000 - keys + n) for n in range(keys)}


def test_processes_that_are_killed_in_the_middle_leave_at_most_one_message_of_each_key(space: spool.Space) -> None:
    chosen, keys = random.Random(3), 5
    for _ in range(12):
        processes = [replacer(space.path, name, 100_000, keys) for name in "ab"]
        for process in processes:
            begin(process)
        time.sleep(chosen.uniform(0.01, 0.15))
        for process in processes:
            process.kill()
            process.communicate()
        for key in map(str, range(keys)):
            assert len(bodies(space, key)) <= 1
            space.replace("orders", "mine", correlation_id=key, timeout=LONG)
            assert bodies(space, key) == ["mine"]
    assert space.check() == []


def test_threads_that_replace_the_same_keys_leave_one_message_of_each(space: spool.Space) -> None:
    barrier = threading.Barrier(8)

    def replace(name: int) -> None:
        barrier.wait(LONG)
        for n in range(100):
            space.replace("orders", (name, n), correlation_id=str(n % 3))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(replace, name) for name in range(8)]:
            done.result(LONG)
    assert [len(bodies(space, key)) for key in "012"] == [1, 1, 1]


def test_a_signal_in_the_middle_leaves_one_message(space: spool.Space) -> None:
    """A handler that raises ends a call that waits; each other call has replaced the message before."""

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with alarms.handled(stop):
        for n in range(300):
            with suppress(Stop):
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + n % 30 * 0.0001)
                space.replace("orders", n, correlation_id="c")
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert len(bodies(space)) <= 1
    space.replace("orders", "last", correlation_id="c", timeout=0)
    assert bodies(space) == ["last"]


# -- tasks ------------------------------------------------------------------------------------------------------------


async def test_tasks_replace(space: spool.Space) -> None:
    async with asyncio.timeout(LONG), spool.aio.open(space.path) as own:
        await asyncio.gather(*(own.replace("orders", n, correlation_id="c") for n in range(20)))
        assert len(bodies(space)) == 1
        async with own.transaction() as tx:
            first = await own.replace("orders", "one", correlation_id="c")
            assert await tx.replace("orders", "two", correlation_id="c") == first
            with pytest.raises(spool.MessageInUse):
                await own.replace("orders", "three", correlation_id="c", transaction=None, timeout=0)
        assert bodies(space) == ["two"]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument, match="correlation_id is a text of 1 to 255 characters"):
        space.replace("orders", "a")
    with pytest.raises(spool.InvalidArgument, match="replace takes no deduplication_key"):
        space.replace("orders", "a", correlation_id="c", deduplication_key="k")
    with pytest.raises(spool.InvalidArgument, match="timeout is 0, a number of seconds"):
        space.replace("orders", "a", correlation_id="c", timeout=-1)
    with pytest.raises(spool.QueueNotFound):
        space.replace("ordres", "a", correlation_id="c")
    with pytest.raises(spool.InvalidArgument, match="priority"):
        space.replace("orders", "a", correlation_id="c", priority=0)
    assert door.index(space).messages.queue("orders").live == 0
