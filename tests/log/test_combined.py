"""Processes that commit together: posted requests, their answers, and owners without an answer."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
import xa
from spool.coordination import request_slots
from spool.coordination.locks import request_slot_byte
from spool.coordination.request_slots import DONE, EMPTY, JOINED, POSTED, TAKEN, RequestSlots
from spool.errors import CommitUnknown, Full, NotOpen, QueueNotFound, SpaceStopped
from spool.log import ring
from spool.log.ring import _APART_COMMITS, _TRIAL_COMMITS
from spool.log.standing_requests import look_at_standing, settle, span_of
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.runtime.async_exceptions import mark_delivered
from spool.runtime.clock import Clock, Deadline, WaitExpired
from tests import door
from tests.at_once import AT_ONCE
from tests.branches import voting
from tests.clocks import until
from tests.held import PATIENT_SECONDS
from tests.shown import bodies

pytestmark = pytest.mark.unled("these tests play both processes")
A_MOMENT = Deadline(Clock(), None, None)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        space.create_queue("small", max_messages=2)
        yield space


@pytest.fixture
def owner(leader: spool.Space, tmp_path: Path) -> Iterator[spool.Space]:
    """A second opener of the space, which expects others."""
    with spool.open(tmp_path / "space") as space:
        yield space


def slots_of(space: spool.Space) -> RequestSlots:
    return door.store(space).shared.requests


def posted(space: spool.Space, count: int = 1) -> None:
    """Wait until so many requests stand."""
    until(lambda: len(slots_of(space).standing()) == count)


def posted_by_a_dead_process(slots: RequestSlots, *request: Any) -> int:
    slot = slots.own(A_MOMENT)
    slots.post(slot, *(request or (b"", span_of([]))))
    slots.disown(slot)
    return slot


@contextmanager
def posting(leader: spool.Space, pool: ThreadPoolExecutor, call: Callable[..., Any], *args: Any) -> Iterator[Future]:
    """The leader leads, and finds the request of this call."""
    with door.leading(leader):
        waits = pool.submit(call, *args)
        posted(leader)
        yield waits


def test_a_leader_commits_the_request_of_another_process(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor
) -> None:
    with posting(leader, pool, owner.put, "orders", "posted") as waits:
        pass
    name = waits.result(PATIENT_SECONDS)
    assert owner.show(name).body == leader.show(name).body == "posted"
    assert slots_of(leader).none_stand


def test_each_request_of_a_commit_gets_its_own_ids(leader: spool.Space, tmp_path: Path, pool: ThreadPoolExecutor):
    others = [spool.open(tmp_path / "space") for _ in range(4)]
    try:
        with door.leading(leader):
            waits = [pool.submit(one.put_many, "orders", [f"{n} a", f"{n} b"]) for n, one in enumerate(others)]
            posted(leader, 4)
            published = door.counters(leader).published
        ids = [one.result(PATIENT_SECONDS) for one in waits]
        assert [[leader.show(id).body for id in found] for found in ids] == [[f"{n} a", f"{n} b"] for n in range(4)]
        assert door.counters(leader).published == published + 1
    finally:
        for one in others:
            one.close()


def test_a_transaction_and_a_get_are_posted(
    leader: spool.Space, owner: spool.Space, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    leader.put_many("orders", ["one", "two"])
    tx = owner.transaction()
    tx.put("orders", f"reply to {tx.get('orders').body}", priority=7)
    with spool.open(tmp_path / "space") as third:
        with posting(leader, pool, tx.commit) as commits:
            gets = pool.submit(third.get, "orders")
            posted(leader, 2)
        commits.result(PATIENT_SECONDS)
        assert gets.result(PATIENT_SECONDS).body == "two"
    assert bodies(leader) == ["reply to one"]


def test_two_processes_that_commit_in_turns_do_not_commit_together(leader: spool.Space, owner: spool.Space) -> None:
    """The answer of a leader costs more than the flush that it saves, so two processes need not meet at the lead."""
    with door.leading(leader):
        pass
    for _ in range(100):  # (the owner has expected others since it opened the space)
        leader.put("orders", b"")
        owner.get("orders")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RequestSlots, "try_lead", lambda _: pytest.fail("tries to lead"))
        leader.put("orders", b"")
        owner.get("orders")


def test_a_process_beside_one_that_commits_more_often_soon_commits_alone(leader: spool.Space, owner: spool.Space):
    """Several commits since the last own commit may be those of two processes. Here they are those of one."""
    with pytest.MonkeyPatch.context() as patched:
        led, try_lead = list[RequestSlots](), RequestSlots.try_lead
        patched.setattr(RequestSlots, "try_lead", lambda slots: (led.append(slots), try_lead(slots))[1])
        for _ in range(_TRIAL_COMMITS + _APART_COMMITS + 2 * _TRIAL_COMMITS):
            for _ in range(3):
                leader.put("orders", b"")
            owner.get("orders")
    assert led.count(slots_of(owner)) == 2 * _TRIAL_COMMITS  # after the opening, and once more
    assert slots_of(leader) not in led


def test_a_process_that_meets_two_others_commits_together(
    leader: spool.Space, owner: spool.Space, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with spool.open(tmp_path / "space") as third:
        door.expect_others(owner, 0)
        door.expect_others(third, 0)
        owner.put("orders", b"")
        third.put("orders", b"")
        for _ in range(3):
            leader.put("orders", b"")
        with door.leading(leader):
            wait_together = [pool.submit(one.put, "orders", b"") for one in (owner, third)]
            posted(leader, 2)
        assert all(one.result(PATIENT_SECONDS) for one in wait_together)


def test_threads_of_one_process_are_posted_in_one_slot(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor
) -> None:
    with posting(leader, pool, owner.put, "orders", 0) as first:
        waits = [pool.submit(owner.put, "orders", n) for n in range(1, 6)]
        until(lambda: door.waiting(owner) == 5)
    ids = [one.result(PATIENT_SECONDS) for one in (first, *waits)]
    assert [leader.show(id).body for id in ids] == list(range(6))


def test_the_owner_of_a_request_that_fails_gets_the_error(
    leader: spool.Space, owner: spool.Space, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """The other requests of the commit succeed."""
    leader.put("small", "there")
    with spool.open(tmp_path / "space") as third, spool.open(tmp_path / "space") as fourth:
        with posting(leader, pool, owner.put, "small", "fits") as fits:
            full = pool.submit(third.put, "small", "too much")
            gone = pool.submit(fourth.put, "orders", "lost")
            posted(leader, 3)
            leader.delete_queue("orders")
        assert leader.show(fits.result(PATIENT_SECONDS)).body == "fits"
        with pytest.raises(Full, match="small holds 2 messages"):
            full.result(PATIENT_SECONDS)
        with pytest.raises(QueueNotFound, match="orders"):
            gone.result(PATIENT_SECONDS)
    assert bodies(leader, "small") == ["there", "fits"]


# -- without an answer -------------------------------------------------------------------------------------------------


def test_a_request_that_no_leader_joins_is_committed_by_its_owner(leader: spool.Space, owner: spool.Space) -> None:
    assert slots_of(leader).try_lead()  # ... and stops, as a process that is suspended
    name = owner.put("orders", "mine")
    assert leader.show(name).body == "mine"
    slots_of(leader).end_lead()


def test_a_closing_space_withdraws_its_request(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "_PATIENCE_SECONDS", PATIENT_SECONDS)
    assert slots_of(leader).try_lead()
    waits = pool.submit(owner.put, "orders", "withdrawn")
    posted(leader)
    owner.close()
    with pytest.raises(NotOpen):
        waits.result(PATIENT_SECONDS)
    slots_of(leader).end_lead()
    leader.put("orders", "behind")
    assert bodies(leader) == ["behind"]
    assert slots_of(leader).none_stand


def test_the_outcome_is_unknown_if_the_leader_does_not_end(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader commits the request."""
    monkeypatch.setattr(ring, "WAIT_SECONDS", 0.2)
    assert slots_of(leader).try_lead()
    waits = pool.submit(owner.put, "orders", "unknown")
    posted(leader)
    [slot] = slots_of(leader).standing()
    assert slots_of(leader).change_posted(slot, JOINED)
    with pytest.raises(CommitUnknown, match="another process"):
        waits.result(PATIENT_SECONDS)
    slots_of(leader).end_lead()
    owner.put("orders", "later")
    assert sorted(bodies(leader)) == ["later", "unknown"]
    assert slots_of(leader).none_stand


def test_a_request_whose_leader_failed_is_settled_by_its_owner(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor
) -> None:
    """The leader ends between the taking of the request and its commit: the number is an empty commit."""
    assert slots_of(leader).try_lead()
    waits = pool.submit(owner.put, "orders", "once")
    posted(leader)
    [slot] = slots_of(leader).standing()
    assert slots_of(leader).change_posted(slot, JOINED)
    number = door.counters(leader).issued + 1
    door.store(leader).shared.counters.store_issued(number)
    slots_of(leader).take(slot, number, b"")
    slots_of(leader).end_lead([slot])
    waits.result(PATIENT_SECONDS)
    assert bodies(leader) == ["once"]


def test_a_claim_cancels_the_request_of_a_dead_process(leader: spool.Space, owner: spool.Space) -> None:
    """Rule 20."""
    leader.put_many("orders", ["one", "two"])
    assert bodies(leader) == ["one", "two"]
    slots = slots_of(owner)
    run = next(iter(door.index(leader).messages.queues["orders"].in_order(time.time())))
    slot = posted_by_a_dead_process(slots, *door.posted_removal((run.number, run.first, 1)))
    assert leader.get("orders").body == "one"
    assert slots.state(slot) == EMPTY
    assert bodies(leader) == ["two"]


@pytest.mark.parametrize(("call", "option"), [("put", "deduplication_key"), ("replace", "correlation_id")])
def test_a_message_of_a_dead_process_does_not_remain_beside_its_repetition(
    leader: spool.Space, owner: spool.Space, call: str, option: str, tmp_path: Path
) -> None:
    """Rule 20: the dead process has posted a message with the key or id, and no leader has joined the request."""
    program = f"import spool, sys; spool.open(sys.argv[1]).{call}('orders', 'dead', {option}='k')"
    assert slots_of(leader).try_lead()
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "space")]) as process:
        posted(leader)
        process.kill()
    slots_of(leader).end_lead()
    getattr(leader, call)("orders", "again", **{option: "k"})
    owner.put("orders", "later")
    assert sorted(bodies(leader)) == ["again", "later"]


def test_a_process_that_looks_for_a_slot_owns_no_request_of_a_dead_process(
    leader: spool.Space, owner: spool.Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 20: the owner of a slot posts a key and dies while another process looks for a slot."""
    program = (
        "import spool, sys; space = spool.open(sys.argv[1]); space.put('orders', 'first'); sys.stdin.readline(); "
        "space.put('orders', 'dead', deduplication_key='k')"
    )
    slots, searching, standing = slots_of(leader), slots_of(owner), RequestSlots.standing
    put_again = list[str]()

    def put_the_key() -> None:
        put_again.append(leader.put("orders", "again", deduplication_key="k"))

    def stand(asked: RequestSlots) -> list[int]:
        found = standing(asked)
        if asked is searching and process.poll() is None:
            process.stdin.write(b"\n")
            process.stdin.flush()
            until(lambda: standing(slots))
            process.kill()
            process.wait()
            slots.end_lead()
        return found

    def try_lock(byte: int) -> bool:
        taken = lock(byte)
        if taken and byte == request_slot_byte(0):
            put_the_key()
        return taken

    command = [sys.executable, "-c", program, str(tmp_path / "space")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        with door.leading(leader):
            posted(leader)
        until(lambda: slots.none_stand)
        assert slots.try_lead()
        lock = searching._owners.try_lock
        monkeypatch.setattr(RequestSlots, "standing", stand)
        monkeypatch.setattr(searching._owners, "try_lock", try_lock)
        slot = searching.own(A_MOMENT)
        monkeypatch.undo()
    if not put_again:
        put_the_key()
    with door.leading(owner):
        pass
    assert sorted(bodies(leader)) == ["again", "first"]
    assert slot == 1


def test_a_call_that_is_interrupted_while_it_waits_gives_up_its_slot(leader: spool.Space, owner: spool.Space) -> None:
    """Rule 20: otherwise its request would seem to be that of a live process, which keeps the key."""
    slots, error = slots_of(leader), KeyboardInterrupt()
    mark_delivered(error)  # the space remains open

    def interrupt() -> None:
        assert slots.change_posted(*slots.standing(), JOINED)
        raise error

    assert slots.try_lead()
    with door.before_step(owner, "wait", interrupt), pytest.raises(KeyboardInterrupt):
        owner.put("orders", b"")
    [slot] = slots.standing()
    assert not slots.is_owned(slot)
    slots.end_lead()
    leader.put("orders", "again", deduplication_key="k")
    assert slots.none_stand
    assert bodies(leader) == ["again"]


def prepared(space: spool.Space, *names: bytes) -> xa.ResourceManager:
    """Vote for branches, each of which puts its name."""
    manager = xa.ResourceManager(space)
    for name in names:
        with voting(manager, xa.Xid(7, name, b"")):
            space.put("orders", name)
    return manager


def test_decisions_of_owners_share_a_head(leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor) -> None:
    """No owner gives its branch the committed name, although this leader seems to die before it does so: the owner does
    not hold the byte of the number (rule 9)."""
    manager = prepared(owner, b"one", b"two")
    with door.unmoved_branches():
        with posting(leader, pool, manager.commit, xa.Xid(7, b"one", b"")) as decides:
            again = pool.submit(manager.commit, xa.Xid(7, b"two", b""))
            until(lambda: door.waiting_requests(owner))
        assert decides.result(PATIENT_SECONDS) == again.result(PATIENT_SECONDS) == xa.XA_OK
    assert len(door.disk(owner).names(layout.PREPARED)) == 2
    assert sorted(bodies(leader)) == [b"one", b"two"]
    assert leader.check() == owner.check() == []


def test_a_leader_moves_others_branches(leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor) -> None:
    manager, decides = prepared(owner, b"one"), list[Future[int]]()

    def decide() -> None:
        decides.append(pool.submit(manager.commit, xa.Xid(7, b"one", b"")))
        posted(leader)

    door.expect_others(leader, 1)
    with door.before_step(leader, "join", decide):
        leader.put("orders", b"beside it")
    assert door.disk(leader).names(layout.PREPARED) == []
    assert decides[0].result(PATIENT_SECONDS) == xa.XA_OK
    assert sorted(bodies(owner)) == [b"beside it", b"one"]
    assert slots_of(leader).none_stand


def test_a_branch_that_was_rolled_back_meanwhile_is_refused_by_its_owner(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor
) -> None:
    manager = prepared(owner, b"one")
    with posting(leader, pool, manager.commit, xa.Xid(7, b"one", b"")) as decides:
        xa.ResourceManager(leader).rollback(xa.Xid(7, b"one", b""))
    with pytest.raises(xa.XAError) as refused:
        decides.result(PATIENT_SECONDS)
    assert refused.value.code == xa.XAER_NOTA
    assert bodies(leader) == []


def test_a_decision_about_a_branch_commits_no_later_branch_of_the_same_xid(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor
) -> None:
    manager, later, xid = prepared(owner, b"one"), xa.ResourceManager(leader), xa.Xid(7, b"one", b"")
    with posting(leader, pool, manager.commit, xid) as decides:
        later.rollback(xid)
        with voting(later, xid):
            leader.put("orders", b"later")
    with pytest.raises(xa.XAError) as refused:
        decides.result(PATIENT_SECONDS)
    assert refused.value.code == xa.XAER_NOTA
    assert (bodies(leader), later.recover()) == ([], [xid])


def test_a_decision_that_a_dead_process_has_posted_does_not_refuse_the_next_call(owner: spool.Space) -> None:
    """A coordinator decides again after a death of its process."""
    manager, xid, slots = prepared(owner, b"one"), xa.Xid(7, b"one", b""), slots_of(owner)
    posted_by_a_dead_process(slots, *door.posted_adoption(owner, xid))
    assert manager.commit(xid) == xa.XA_OK
    assert (bodies(owner), slots.none_stand) == ([b"one"], True)


def test_a_number_that_a_request_is_taken_for_is_kept(leader: spool.Space, owner: spool.Space) -> None:
    """Rule 21."""
    slots = slots_of(owner)
    slot = slots.own(A_MOMENT)
    leader.put("orders", "one")
    number = door.counters(leader).published
    slots.post(slot, b"", span_of([]))
    slots.change_posted(slot, JOINED)
    slots.take(slot, number, b"")
    name = layout.committed(number)
    with door.alone(leader):  # a leader would settle the slot
        leader.get("orders")
        leader.put("orders", "two")
        door.reclaim(leader)
        assert door.disk(leader).exists(name)
        slots.change(slot, (TAKEN,), DONE)
        door.reclaim(leader)
        assert not door.disk(leader).exists(name)


def test_reclaim_cancels_the_requests_of_dead_processes_and_waits_for_no_leader(
    leader: spool.Space, owner: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader whose disk is full reclaims in the middle of its commit, so a wait for the lead would never end."""
    slots = slots_of(owner)
    slot = posted_by_a_dead_process(slots)
    monkeypatch.setattr(RequestSlots, "lead", lambda *_: pytest.fail("reclaim waits for the lead"))
    assert slots_of(leader).try_lead()
    door.reclaim(leader)
    assert slots.state(slot) == POSTED
    slots_of(leader).end_lead()
    door.reclaim(leader)
    assert slots.state(slot) == EMPTY


def test_reclaim_keeps_all_of_the_newest_numbers_that_it_shall_keep(leader: spool.Space) -> None:
    for n in range(3):
        leader.put("orders", n)
        leader.get("orders")
    assert bodies(leader) == []
    store = door.store(leader)
    assert reclaim(store, behind=store.view.index.applied) == 0
    assert reclaim(store) > 0


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"nonsense"])
def test_a_damaged_request_is_left_to_its_owner(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, damaged: bytes
) -> None:
    with posting(leader, pool, owner.put, "orders", "whole") as waits:
        [slot] = slots_of(leader).standing()
        slots_of(leader).post(slot, damaged, span_of([]))
    waits.result(PATIENT_SECONDS)
    assert bodies(leader) == ["whole"]


def test_an_answer_that_was_overwritten_leaves_the_outcome_unknown(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestSlots, "answer", lambda *_: None)
    with posting(leader, pool, owner.put, "orders", "once") as waits:
        pass
    with pytest.raises(CommitUnknown):
        waits.result(PATIENT_SECONDS)
    assert bodies(leader) == ["once"]


def test_a_commit_that_its_leader_could_not_publish_is_published_before_its_owner_is_told(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 19."""

    fail = mock.Mock(side_effect=OSError(5, "planted"))

    with posting(leader, pool, owner.put, "orders", "once") as waits:
        monkeypatch.setattr(door.store(leader).shared.counters, "publish_next", fail)
    waits.result(PATIENT_SECONDS)
    assert bodies(leader) == ["once"]


def test_a_leader_that_finds_a_withdrawn_request_leaves_the_next_one(leader: spool.Space) -> None:
    """Otherwise the owner would not know the outcome of a request that is in no commit."""
    slots, state = slots_of(leader), RequestSlots.state
    slot = slots.own(A_MOMENT)

    def state_before_a_post(slots: RequestSlots, slot: int) -> int:
        found = state(slots, slot)
        slots.post(slot, *door.posted_put("orders", b"next"))
        return found

    with mock.patch.object(RequestSlots, "state", state_before_a_post):
        settle(door.store(leader), slot)
    assert slots.state(slot) == POSTED


def taken_of_a_dead_process(space: spool.Space, number: int) -> int:
    """A dead leader took the request of a dead process for a number. Return the slot."""
    slots = slots_of(space)
    slot = slots.own(A_MOMENT)
    slots.post(slot, *door.posted_put("orders", b"dead"))
    assert slots.change_posted(slot, JOINED)
    slots.take(slot, number, b"")
    slots.disown(slot)
    return slot


def test_a_request_whose_number_is_empty_is_cancelled_for_a_put_of_its_key(leader: spool.Space, owner: spool.Space):
    """Rule 20."""
    number = door.counters(leader).issued + 1
    door.store(leader).shared.counters.store_issued(number)
    taken_of_a_dead_process(leader, number)
    owner.put("orders", "again", deduplication_key="k")
    with door.leading(leader):
        pass
    assert bodies(leader) == ["again"]
    assert slots_of(leader).none_stand


def test_a_request_whose_commit_is_damaged_is_not_committed_again(leader: spool.Space, owner: spool.Space) -> None:
    leader.put("orders", "one")
    number = door.counters(leader).published
    taken_of_a_dead_process(leader, number)
    disk = door.disk(leader)
    handle = disk.open(layout.committed(number), write=True)
    disk.write_at(handle, 40, b"damaged")
    disk.close(handle)
    with door.leading(leader):
        pass
    assert bodies(leader) == ["one"]
    assert slots_of(leader).none_stand


def test_a_claim_waits_for_the_leader_that_may_commit_a_request(
    leader: spool.Space, owner: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 20."""
    slot = posted_by_a_dead_process(slots_of(leader))
    assert slots_of(leader).try_lead()
    clock = Clock()
    monkeypatch.setattr(door.store(owner), "deadline", lambda: Deadline(clock, 0.01, clock.monotonic() + 0.01))
    with pytest.raises(WaitExpired, match="the lead"):
        look_at_standing(door.store(owner))
    assert slots_of(leader).state(slot) == POSTED
    slots_of(leader).end_lead()


def test_one_process_at_a_time_looks_for_a_slot(leader: spool.Space, owner: spool.Space) -> None:
    """Rule 20."""
    assert slots_of(owner)._locks.try_lock(request_slots._SEARCH)
    clock = Clock()
    assert slots_of(leader).own(Deadline(clock, 0.01, clock.monotonic() + 0.01)) is None
    slots_of(owner)._locks.unlock(request_slots._SEARCH)
    assert slots_of(leader).own(A_MOMENT) == 0


def test_a_request_of_an_unknown_outcome_tells_that_run_was_deleted(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestSlots, "answer", lambda *_: None)
    with door.before_step(owner, "read", lambda: door.disk(owner).unlink(layout.CONTROL)):
        with posting(leader, pool, owner.put, "orders", "once") as waits:
            pass
        with pytest.raises(CommitUnknown, match="run/control was deleted"):
            waits.result(PATIENT_SECONDS)


def test_a_deleted_file_stops_the_space(leader: spool.Space, owner: spool.Space) -> None:
    door.disk(leader).unlink(layout.REQUESTS)
    with pytest.raises(SpaceStopped, match="run/requests was deleted"):
        owner.put("orders", "one")


def test_a_space_whose_memory_was_released_is_not_open(leader: spool.Space, owner: spool.Space) -> None:
    slots = slots_of(owner)
    owner.close()
    for use in (lambda: slots.none_stand, slots.standing, lambda: slots.state(0), lambda: slots.clear(0)):
        with pytest.raises(OSError, match="closed"):
            use()


def test_a_process_alone_takes_no_lead(leader: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = AssertionError("a process alone leads")
    monkeypatch.setattr(RequestSlots, "try_lead", mock.Mock(side_effect=alone))
    leader.put("orders", "one")
    leader.get("orders")


def test_all_owned_slots_are_left_out(leader: spool.Space) -> None:
    slots = slots_of(leader)
    assert [slots.own(A_MOMENT) for _ in range(request_slots.SLOTS)] == list(range(request_slots.SLOTS))
    assert slots.own(A_MOMENT) is None
    slots.disown(2)
    slots.post(3, b"", span_of([]))
    slots.disown(3)
    assert (slots.own(A_MOMENT), slots.own(A_MOMENT)) == (2, None)


@pytest.mark.parametrize("patience", [60.0, 0.05], ids=["the lead ends", "the leader is stopped"])
def test_a_process_without_a_slot_waits_for_the_lead_of_a_live_leader(
    leader: spool.Space, owner: spool.Space, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """If all such processes waited for the number lock, some would not get it in time."""
    asked, lead_within = threading.Event(), RequestSlots.lead_within

    def ask(slots: RequestSlots, deadline: Deadline) -> bool:
        asked.set()
        return lead_within(slots, deadline)

    monkeypatch.setattr(RequestSlots, "lead_within", ask)
    monkeypatch.setattr(ring, "_PATIENCE_SECONDS", patience)
    while slots_of(leader).own(A_MOMENT) is not None:
        pass
    with door.leading(leader):
        put = pool.submit(owner.put, "orders", "one")
        assert asked.wait(PATIENT_SECONDS)
        assert patience > 1 or put.result(PATIENT_SECONDS), "it commits without the lead"
    assert put.result(PATIENT_SECONDS)
    assert bodies(leader, "orders") == ["one"]


def test_slots_are_empty_again_when_no_process_has_the_space_open(tmp_path: Path, leader: spool.Space) -> None:
    slots = slots_of(leader)
    for slot in (3, 4):
        slots.post(slot, b"", span_of([]))
        assert slots.change_posted(slot, JOINED)
    slots.take(4, 1, b"")
    leader.close()
    with spool.open(tmp_path / "space") as again:
        assert slots_of(again).none_stand
