"""Simultaneous commits share one file and one flush, and nothing else (A01-A06)."""

import errno
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from itertools import product
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spool
from spool.disk.disk import FlushFailed
from spool.format.reader import contents_of
from spool.log import leader as gathered
from spool.model import layout
from tests import door
from tests.at_once import AT_ONCE
from tests.compaction import small_compactions
from tests.conftest import in_memory
from tests.held import PATIENT_SECONDS, Gathering, committed_here
from tests.machine import NO_FILES, Machine
from tests.shown import bodies, numbers
from tests.simdisk import SimulatedDisk, repeatable
from tests.survivors import Rules, survivors

# -- sharing ----------------------------------------------------------------------------------------------------------


def test_threads_that_commit_during_a_flush_share_the_next(gathering: Gathering) -> None:
    space, disk = gathering.space, gathering.disk
    before = disk.flushes
    space.put("replies", "alone")
    alone = disk.flushes - before
    with gathering.held():
        before = disk.flushes
        callers = [gathering.join(lambda n=n: space.put("orders", n)) for n in range(6)]
    assert [caller.error for caller in callers] == [None] * 6
    first, *others = numbers(space)
    assert others == [first + 1] * 6
    assert disk.flushes - before == 2 * alone  # the held one, and theirs
    assert [space.show(caller.result).body for caller in callers] == list(range(6))


def test_transactions_share_a_file_and_keep_their_branches(gathering: Gathering) -> None:
    space = gathering.space
    space.put_many("orders", ["a", "b"])

    transactions = [space.transaction() for _ in range(2)]
    for tx in transactions:
        tx.put("replies", f"reply to {tx.get('orders').body}")
    with gathering.held():
        for tx in transactions:
            gathering.join(tx.commit)
    assert transactions[0].number == transactions[1].number
    header = contents_of(door.disk(space), layout.committed(transactions[0].number)).header
    assert [entry.xid for entry in header.branches] == [tx.xid for tx in transactions]
    assert [(entry.first, entry.count) for entry in header.branches] == [(0, 1), (1, 1)]
    assert bodies(space, "replies") == ["reply to a", "reply to b"]
    assert bodies(space) == ["first"]
    path = space.path
    space.close()
    with spool.open(path) as again:
        assert bodies(again, "replies") == ["reply to a", "reply to b"]
        assert bodies(again) == ["first"]
        assert again.check() == []


@pytest.mark.parametrize("order", [("fifo",), ("lifo",)], ids=["fifo", "lifo"])
def test_messages_of_transactions_that_share_a_file_keep_the_ids_that_put_returned(
    gathering: Gathering, order: tuple[str, ...]
) -> None:
    """X01: also when they are claimed together, rolled back, changed, and compacted."""
    space = gathering.space
    space.create_queue("same", order=order)
    ids = {}
    with committed_here(space):
        for turn in range(3):
            tx = space.transaction()
            for n in range(2):
                ids[tx.put("same", f"{turn}.{n}")] = f"{turn}.{n}"
            tx.commit_async()

    def seen() -> dict[str, str]:
        return {message.id: message.body for message in space.browse("same")}

    assert seen() == ids
    with space.transaction() as tx:
        assert {message.id: message.body for message in tx.get_many("same", 6)} == ids
        tx.set_rollback_only()
    assert seen() == ids, "each was tried once"
    last = list(ids)[-1]
    space.change(last, priority=70)
    assert space.get("same", message_id=last).body == ids.pop(last)
    with small_compactions():
        assert door.compact(space)
    assert seen() == ids
    assert [space.get("same", message_id=one).body for one in ids] == list(ids.values())


def test_requests_are_committed_in_order_of_arrival(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        futures: list[Future] = [space.submit("orders", "a")]
        with space.transaction() as tx:
            tx.put("orders", "b")
            futures.append(tx.commit_async())
        futures.append(space.submit("orders", "c", priority=60))
        futures.append(space.submit("orders", "d", priority=60))
    wait(futures, PATIENT_SECONDS)
    assert bodies(space) == ["first", "a", "b", "c", "d"]
    assert len(set(numbers(space)[1:])) == 1


def test_the_only_caller_leads_at_once_in_its_own_thread(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer, no hand-over, no thread but the caller's."""
    threads = set[int]()
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("a lone caller does not wait for others"))
    with door.before_attempts(lambda _: threads.add(threading.get_ident())):
        for n in range(5):
            gathering.space.put("orders", n)
            gathering.space.get("orders")
    assert threads == {threading.get_ident()}
    assert door.commit_thread(gathering.space) is None


@pytest.mark.unled("the request that fails for its leader is committed by its owner")
def test_on_a_full_disk_the_gets_of_a_group_are_committed_without_its_puts(gathering: Gathering) -> None:
    space = gathering.space
    space.put_many("orders", ["a", "b"])
    taking = space.transaction()
    taking.get("orders")
    with gathering.held():
        tries = iter([OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full")])
        gathering.disk.write_fails = lambda name: next(tries, None) if name.startswith("active/") else None
        put = gathering.join(lambda: space.put("replies", "no room"))
        get = gathering.join(taking.commit)
    assert isinstance(put.error, spool.DiskFailure)
    assert put.error.errno == errno.ENOSPC
    assert get.error is None
    assert bodies(space) == ["b", "first"]
    assert bodies(space, "replies") == []


@pytest.mark.parametrize("count", [2, 3])
def test_each_caller_of_a_commit_has_its_own_ids_or_its_own_refusal(gathering: Gathering, count: int) -> None:
    """A queue is deleted before the commit. The others are then committed in a second attempt."""
    space = gathering.space
    for queues in product(("orders", "gone", "orders in a transaction", "gone in a transaction"), repeat=count):
        space.create_queue("gone")
        found = list[Future[str]]()
        with committed_here(space):
            for place, (queue, *in_transaction) in enumerate(map(str.split, queues)):
                tx = space.transaction() if in_transaction else None
                found.append(space.submit(queue, place, transaction=tx))
                tx and tx.commit_async()
            space.delete_queue("gone")
        is_there = [future.exception(PATIENT_SECONDS) is None for future in found]
        assert is_there == [queue.startswith("orders") for queue in queues]
        accepted = [(future.result(), place) for place, future in enumerate(found) if is_there[place]]
        assert [(message.id, message.body) for message in space.browse("orders")] == accepted
        space.purge("orders")


def test_a_transaction_that_does_not_fit_leaves_the_room_to_a_smaller_one(gathering: Gathering) -> None:
    space, outcomes = gathering.space, list[Future]()
    space.create_queue("small", max_messages=3)
    with committed_here(space):
        for size in (2, 2, 1):
            with space.transaction() as tx:
                for _ in range(size):
                    tx.put("small", size)
                outcomes.append(tx.commit_async())
    assert [type(outcome.exception(PATIENT_SECONDS)) for outcome in outcomes] == [type(None), spool.Full, type(None)]
    assert bodies(space, "small") == [2, 2, 1]


@pytest.mark.unled("the request that fails for its leader is committed by its owner")
def test_a_get_whose_commit_fails_is_no_attempt(gathering: Gathering) -> None:
    """Otherwise one failure of the disk would move a message of a queue without retries to its error queue."""
    space = gathering.space
    space.create_queue("once", retries=0)
    id_ = space.put("once", "here")
    rename = gathering.disk.rename_new
    fails = iter([OSError(errno.EIO, "for a moment")])

    def renamed(old: str, new: str) -> None:
        for error in fails:
            raise error
        rename(old, new)

    with mock.patch.object(gathering.disk, "rename_new", renamed), pytest.raises(spool.DiskFailure):
        space.get("once")
    assert space.show(id_).attempts == 0
    assert space.get("once").id == id_


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.unled("the request that fails for its leader is committed by its owner")
def test_a_failed_flush_is_unknown_to_each_caller_with_its_own_ids(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        gathering.disk.flush_fails = FlushFailed(errno.EIO, "fsync: broken")
        puts = [gathering.join(lambda n=n: space.put("orders", n)) for n in range(2)]
        submitted = space.submit("orders", "submitted")
        with space.transaction() as tx:
            tx_id = tx.put("orders", "in a transaction")
            done = tx.commit_async()
    errors = [*(put.error for put in puts), submitted.exception(PATIENT_SECONDS), done.exception(PATIENT_SECONDS)]
    assert [type(error) for error in errors] == [spool.CommitUnknown] * 4
    assert len({id for error in errors for id in error.ids}) == 4
    assert errors[3].ids == (tx_id,)
    assert tx.state.value == "in an unknown state"
    with pytest.raises(spool.SpaceStopped):
        space.put("orders", "more")


# -- futures ----------------------------------------------------------------------------------------------------------


def test_a01_submit_returns_while_the_disk_is_busy_and_its_future_waits_for_durability(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        futures = [space.submit("orders", n) for n in range(100)]
        assert not any(future.done() for future in futures)
    ids = [future.result(PATIENT_SECONDS) for future in futures]
    assert len(set(ids)) == 100
    assert [space.show(id).body for id in ids] == list(range(100))
    assert len(set(numbers(space)[1:])) == 1


def test_a03_many_acknowledgements_are_one_command_and_complete_after_the_removal(gathering: Gathering) -> None:
    space = gathering.space
    space.put_many("orders", range(50))
    tx = space.transaction()
    assert [message.body for message in tx.get_many("orders", 50)] == list(range(50))
    with gathering.held():
        future = tx.commit_async()
        assert not future.done()
        with pytest.raises(spool.ProtocolError, match="being committed"):
            tx.get("orders")
        with pytest.raises(spool.ProtocolError):
            tx.rollback()
        assert door.store(space).shared.claims.held[1], (
            "a04: no other process may take them before the removal is durable"
        )
    assert future.result(PATIENT_SECONDS) is None
    table = contents_of(door.disk(space), layout.committed(tx.number)).tables[0]
    assert [command[:4] for command in table.commands] == [("remove", 1, 0, 50)]
    assert bodies(space) == ["first"]
    assert not door.store(space).shared.claims.held


def test_a03_a_get_returns_when_its_removal_is_durable(gathering: Gathering) -> None:
    space = gathering.space
    space.put("orders", "a")
    gathering.disk.go_on.clear()
    gathering.disk.holding = True
    get = gathering.join(lambda: space.get("orders").body)
    assert gathering.disk.arrived.wait(PATIENT_SECONDS)
    assert get.is_alive()
    gathering.disk.go_on.set()
    gathering.end()
    assert get.result == "a"


def test_a_future_may_be_cancelled_until_its_commit_begins(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        kept, dropped = space.submit("orders", "kept"), space.submit("orders", "dropped")
        assert dropped.cancel()
    assert space.show(kept.result(PATIENT_SECONDS)).body == "kept"
    assert not kept.cancel()
    with pytest.raises(CancelledError):
        dropped.result(PATIENT_SECONDS)
    assert bodies(space) == ["first", "kept"]


@pytest.mark.parametrize("how", ["joined", "named"])
def test_a_submit_in_a_transaction_is_done_when_that_has_committed(gathering: Gathering, how: str) -> None:
    space = gathering.space
    with space.transaction() as tx:
        future = space.submit("orders", "a") if how == "joined" else space.submit("orders", "a", transaction=tx)
        assert not future.done()
        assert bodies(space) == []
    assert space.show(future.result(0)).body == "a"


def test_a_submit_in_a_transaction_that_rolls_back_fails(gathering: Gathering) -> None:
    with gathering.space.transaction() as tx:
        future = gathering.space.submit("orders", "a")
        tx.set_rollback_only("no luck")
    with pytest.raises(spool.TransactionRolledBack, match="no luck"):
        future.result(0)
    assert bodies(gathering.space) == []


def test_a_submit_in_a_prepared_branch_names_the_owner_of_its_outcome(gathering: Gathering) -> None:
    with door.branch(gathering.space) as tx:
        future = gathering.space.submit("orders", "a")
        tx.prepare()
    with pytest.raises(spool.ProtocolError, match="coordinator"):
        future.result(0)


def test_bad_arguments_are_refused_at_once(gathering: Gathering) -> None:
    with pytest.raises(spool.QueueNotFound):
        gathering.space.submit("nowhere", "a")
    with pytest.raises(spool.InvalidArgument):
        gathering.space.submit("orders", "a", priority=1000)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["submit", "cancel", "put", "transaction", "rollback", "get"]), max_size=25))
def test_a02_each_future_is_done_exactly_once_and_all_counts_add_up(calls: list[str]) -> None:
    """Two threads do the same; each acknowledged message exists once, and no other message."""
    told: list[Future] = []
    with in_memory() as directory, spool.create(directory / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        taken: list[str] = []

        def run(name: str) -> list[tuple[Future, bool]]:
            made = []
            for n, call in enumerate(calls):
                if call in ("submit", "cancel"):
                    future = space.submit("orders", f"{name}{n}")
                    future.add_done_callback(told.append)
                    made.append((future, future.cancel() if call == "cancel" else False))
                elif call == "put":
                    space.put("orders", f"{name}{n}")
                elif call == "get":
                    try:
                        taken.append(space.get("orders").body)
                    except spool.Empty:
                        continue
                else:
                    tx = space.transaction()
                    tx.put("orders", f"{name}{n}")
                    if call == "rollback":
                        tx.rollback()
                    else:
                        made.append((tx.commit_async(), False))
                        made[-1][0].add_done_callback(told.append)
            return made

        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(run, "ab", timeout=PATIENT_SECONDS))
        made = [pair for result in results for pair in result]
        wait([future for future, _ in made], PATIENT_SECONDS)
        assert all(future.cancelled() == cancelled for future, cancelled in made)
        assert all(future.exception() is None for future, cancelled in made if not cancelled)
        cancelled = sum(cancelled for _, cancelled in made)
        puts = 2 * sum(call in ("submit", "cancel", "put", "transaction") for call in calls) - cancelled
        left = bodies(space)
        assert len(left) + len(taken) == len({*left, *taken}) == puts
        assert space.check() == []
    assert len(told) == len(set(map(id, told))) == len(made)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "most"), [("MOST_WAITING", 4), ("MOST_WAITING_BYTES", 4 * 65)])
def test_a_producer_that_outruns_the_disk_is_held_back(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    space = gathering.space
    monkeypatch.setattr(gathered, bound, most)
    blocked = threading.Event()
    wait_for_room = gathered.threading.Condition.wait

    def waiting(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is producer and door.waiting_requests(space) == 4:
            blocked.set()
        return wait_for_room(condition, timeout)

    monkeypatch.setattr(gathered.threading.Condition, "wait", waiting)
    producer = threading.Thread(target=lambda: [space.submit("orders", b"x") for n in range(50)])
    with gathering.held():
        producer.start()
        assert blocked.wait(PATIENT_SECONDS)
        assert producer.is_alive()
        assert door.waiting_requests(space) == 4
    producer.join(PATIENT_SECONDS)
    assert not producer.is_alive()
    door.drain(space)
    assert len(bodies(space)) == 51


def test_a_request_larger_than_room_is_committed_alone(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "MOST_WAITING_BYTES", 10)
    monkeypatch.setattr(gathered, "MOST_TOGETHER_BYTES", 10)
    futures = [gathering.space.submit("orders", bytes([n]) * 30) for n in range(5)]
    assert len({future.result(PATIENT_SECONDS) for future in futures}) == 5
    assert len(set(numbers(gathering.space))) == 5


def test_a_stop_ends_the_wait_for_room(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed flush the waiting requests fail, so the queue has room, and the next request gets the reason."""
    monkeypatch.setattr(gathered, "MOST_WAITING", 2)
    space = gathering.space
    futures: list[Future] = []

    def produce() -> None:
        while True:
            futures.append(space.submit("orders", "x"))

    with gathering.held():
        gathering.disk.flush_fails = FlushFailed(errno.EIO, "fsync: broken")
        producer = gathering.join(produce)
    assert isinstance(producer.error, spool.SpaceStopped)
    wait(futures, PATIENT_SECONDS)
    assert {type(future.exception(0)) for future in futures} <= {spool.CommitUnknown, spool.SpaceStopped}


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
def test_a06_a_queue_is_durable_when_its_creation_returns(rules: Rules) -> None:
    machine = Machine(NO_FILES, **rules.told)
    with repeatable(1):
        space = spool.create(SimulatedDisk(machine), defaults=AT_ONCE)
        space.create_queue("orders", retries=3)
    left = list(survivors(machine, rules, limit=50, seed=1))
    assert left
    for survivor in left:
        after = Machine(survivor.image, boot=2, **rules.told)
        with spool.open(SimulatedDisk(after)) as again:
            assert again.queues()["orders"].retries == 3
