"""Two processes at once: one makes a call just before each disk call of the other, and keys, limits, groups, times and
queues remain correct. The other process stands still meanwhile; if it holds a lock, the first may get a timeout. If a
process dies before any of its disk calls, the other can go on."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import pytest

import spool
from spool.model import layout
from spool.model.xid import Xid
from spool.policies import capacity
from spool.runtime.clock import LockTimeout, WaitExpired
from spool.transactions.coordinated import CoordinatedTransaction
from tests import door
from tests.at_once import AT_ONCE
from tests.machine import NO_FILES, Machine, PowerCut
from tests.meanwhile import elsewhere
from tests.simdisk import SimulatedDisk, repeatable
from tests.strides import Stride

WAITED = (spool.TransactionTimeout, spool.CommitUnknown, LockTimeout, WaitExpired)

_MOST_CALLS = 10_000

Action = Callable[[spool.Space], Any]


class AtCall(SimulatedDisk):
    """Before the call ``at`` (from 1, counted since ``watch``) something happens, once."""

    calls = at = 0
    happens: Callable[[], object] = staticmethod(lambda: None)

    def watch(self, at: int, happens: Callable[[], object]) -> None:
        self.calls, self.at, self.happens = 0, at, happens

    def _step(self, *about: Any) -> None:
        self.calls += 1
        if self.calls == self.at:
            with elsewhere():
                self.happens()
        super()._step(*about)


class Two:
    """Two processes that have a simulated space open."""

    def __init__(self, prepare: Action) -> None:
        self.machine = Machine(NO_FILES, ordered=True)
        spool.create(SimulatedDisk(self.machine), defaults=AT_ONCE).close()
        self.disk = AtCall(self.machine)
        self.one, self.other = (spool.open(disk) for disk in (self.disk, SimulatedDisk(self.machine)))
        prepare(self.other)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except spool.SpoolError as error:
        return type(error)


Meanwhile = Callable[[Action, Action, Action], Iterator[tuple[Two, Any, Any]]]
Killed = Callable[[Action, Action], Iterator[Two]]


@pytest.fixture
def meanwhile(stride: Stride) -> Meanwhile:
    return partial(_meanwhile, range(1, _MOST_CALLS, stride(3)))


@pytest.fixture
def killed(stride: Stride) -> Killed:
    return partial(_killed, range(1, _MOST_CALLS, stride(3)))


def _meanwhile(places: range, prepare: Action, one: Action, other: Action) -> Iterator[tuple[Two, Any, Any]]:
    """Yield (the two, the one's result, the other's result) for these disk calls of the one, before which the other
    acts."""
    for at in places:
        two, found = Two(prepare), []
        two.disk.watch(at, lambda two=two, found=found: found.append(outcome(lambda: other(two.other))))
        mine = outcome(lambda two=two: one(two.one))
        two.disk.at = 0
        if not found:
            assert at > 5
            return
        yield two, mine, found[0]
    raise AssertionError("the call has no end")


def _killed(places: range, prepare: Action, one: Action) -> Iterator[Two]:
    """Yield the two after the one died before each of these disk calls of its own."""
    for at in places:
        two = Two(prepare)
        two.disk.watch(at, lambda two=two: two.machine.kill(two.disk))
        try:
            one(two.one)
        except PowerCut:
            yield two
            continue
        assert at > 5
        return
    raise AssertionError("the call has no end")


def bodies(space: spool.Space, queue: str = "q") -> list[Any]:
    return [message.body for message in space.browse(queue)]


def create(space: spool.Space) -> None:
    space.create_queue("q")


def create_with_limit(space: spool.Space) -> None:
    space.create_queue("q", max_messages=2)
    space.put("q", 0)


def test_x08_two_puts_of_one_key_at_once_add_one_message(meanwhile: Meanwhile, killed: Killed) -> None:
    def put(space: spool.Space) -> str:
        return space.put("q", 1, deduplication_key="k")

    for two, mine, theirs in meanwhile(create, put, put):
        (message,) = two.other.browse("q")
        assert mine == message.id
        assert theirs in (message.id, spool.MessageInUse, *WAITED)
    for two in killed(create, put):
        assert len({put(two.other), put(two.other), *(message.id for message in two.other.browse("q"))}) == 1


def test_q11_two_puts_at_the_limit_do_not_exceed_it(meanwhile: Meanwhile, killed: Killed) -> None:
    def put_in_transaction(space: spool.Space) -> None:
        with space.transaction() as tx:
            tx.put("q", 1)

    for one in (lambda space: space.put("q", 1), put_in_transaction):
        for two, mine, theirs in meanwhile(create_with_limit, one, lambda space: space.put("q", 2)):
            assert len(bodies(two.other)) == 2
            assert sum(one in (spool.Full, *WAITED) for one in (mine, theirs)) == 1, (mine, theirs)
        for two in killed(create_with_limit, one):
            with suppress(spool.Full):
                two.other.put("q", 2)
            assert len(bodies(two.other)) == 2


def _vote(space: spool.Space, name: bytes = b"one") -> None:
    branch = door.branch(space, xid=Xid(7, name, b""))
    branch.put("q", 1)
    branch.prepare()


def test_q11_a_vote_and_a_put_at_the_limit_do_not_exceed_it(meanwhile: Meanwhile) -> None:
    def put(space: spool.Space) -> None:
        space.put("q", 1)

    for one, other in ((_vote, lambda space: _vote(space, b"two")), (put, _vote), (_vote, put)):
        for two, mine, theirs in meanwhile(create_with_limit, one, other):
            stats = two.other.stats("q")
            assert stats.ready + stats.in_doubt == 2
            assert sum(one in (spool.Full, *WAITED) for one in (mine, theirs)) == 1, (mine, theirs)


def test_q14_no_branch_votes_for_a_message_of_a_deleted_queue(meanwhile: Meanwhile) -> None:
    def delete(space: spool.Space) -> None:
        space.delete_queue("q")

    for one, other in ((_vote, delete), (delete, _vote)):
        for two, *outcomes in meanwhile(create, one, other):
            if "q" in two.other.queues():
                assert any(found in (spool.QueueNotEmpty, *WAITED) for found in outcomes), outcomes
            else:
                assert SimulatedDisk(two.machine).names(layout.PREPARED) == []
                assert any(found in (spool.QueueNotFound, *WAITED) for found in outcomes), outcomes


def test_x09_two_gets_from_a_group_at_once_take_in_order(meanwhile: Meanwhile, killed: Killed) -> None:
    def prepare(space: spool.Space) -> None:
        space.create_queue("q")
        space.put("q", 1, group="g")
        space.put("q", 2, group="g")

    def take(space: spool.Space) -> Any:
        with space.transaction() as tx:
            return tx.get("q").body

    for two, mine, theirs in meanwhile(prepare, take, take):
        assert mine == (2 if theirs == 1 else 1) or (mine in WAITED and theirs in WAITED), (mine, theirs)
        assert theirs in (1, 2, spool.Empty, *WAITED)
        assert bodies(two.other) == [n for n in (1, 2) if n not in (mine, theirs) and theirs is not spool.CommitUnknown]
    for two in killed(prepare, take):
        assert take(two.other) in (1, 2)
        assert bodies(two.other) in ([2], [])


def test_x09_a_message_that_returns_to_a_group_comes_before_the_rest_of_it(meanwhile: Meanwhile) -> None:
    def prepare(space: spool.Space) -> None:
        space.create_queue("q", retry_delay=100)
        space.put("q", 1, group="g")
        space.put("q", 2, group="g")

    def take_both(space: spool.Space) -> list[Any]:
        return [message.body for message in space.get_many("q", 2)]

    def give_back(space: spool.Space) -> None:
        tx = space.transaction()
        tx.get("q")
        tx.rollback()

    for _, mine, theirs in meanwhile(prepare, take_both, give_back):
        assert mine in ([1, 2], spool.Empty)
        assert theirs in (None, spool.Empty, *WAITED)


def test_x07_a_message_expires_once(meanwhile: Meanwhile, killed: Killed) -> None:
    def prepare(space: spool.Space) -> None:
        space.create_queue("errors")
        space.create_queue("q", error_queue="errors")
        space.put("q", 1, time_to_live=1)
        door.clock(space).sleep(2)

    def let_go(space: spool.Space) -> int:
        return space.stats("q").expired

    def take(space: spool.Space) -> Any:
        return space.get("q")

    for one, other in ((let_go, let_go), (let_go, take), (take, let_go)):
        for two, _, _ in meanwhile(prepare, one, other):
            assert (bodies(two.other), bodies(two.other, "errors")) == ([], [1])
            assert two.other.stats("q").expired == 1
    for two in killed(prepare, let_go):
        assert two.other.stats("q").expired == 1
        assert bodies(two.other, "errors") == [1]


@pytest.mark.parametrize("act", ["expire", "purge", "redrive"])
def test_q14_x07_expiry_purge_and_redrive_leave_a_branch_its_message(act: str, meanwhile: Meanwhile) -> None:
    branches: list[CoordinatedTransaction] = []

    def prepare(space: spool.Space) -> None:
        space.create_queue("q")
        space.create_queue("other")
        space.put("q", 1, time_to_live=1)
        branches[:] = [door.branch(space, xid=Xid(7, b"one", b""))]
        branches[0].get("q")
        if act == "expire":
            door.clock(space).sleep(2)

    def do(space: spool.Space) -> Any:
        if act == "expire":
            return space.stats("q").expired
        return space.purge("q") if act == "purge" else space.redrive("q", "other")

    for two, _, voted in meanwhile(prepare, do, lambda space: branches[0].prepare()):
        if voted is True:
            assert two.other.stats("q").in_doubt == 1
            two.other.engine.commit_branch(branches[0].xid, vote_known=True)
            stats = two.other.stats("q")
            assert (stats.dequeued, stats.expired, stats.ready, bodies(two.other, "other")) == (1, 0, 0, [])


def test_q14_no_message_is_left_in_a_queue_that_is_gone(meanwhile: Meanwhile, killed: Killed) -> None:
    def put(space: spool.Space) -> str:
        return space.put("q", 1)

    def delete(space: spool.Space) -> None:
        space.delete_queue("q")

    for one, other in ((put, delete), (delete, put)):
        for two, *outcomes in meanwhile(create, one, other):
            waited = any(found in WAITED for found in outcomes)
            if "q" in two.other.queues():
                assert waited or bodies(two.other) == [1], outcomes
            else:
                assert waited or spool.QueueNotFound in outcomes, outcomes
            assert two.other.check() == []
    for two in killed(create, delete):
        if "q" in two.other.queues():
            put(two.other)
            assert bodies(two.other) == [1]


def test_q14_a_message_is_moved_or_taken_and_never_both(meanwhile: Meanwhile, killed: Killed) -> None:
    def prepare(space: spool.Space) -> str:
        space.create_queue("q")
        space.create_queue("other")
        return space.put("q", 1)

    def take(space: spool.Space) -> Any:
        return space.get("q").body

    ids: list[str] = []

    def remembered(space: spool.Space) -> str:
        ids[:] = [prepare(space)]
        return ids[0]

    def move(space: spool.Space) -> str:
        return space.move(ids[0], "other").queue

    for one, other in ((move, take), (take, move)):
        for two, *outcomes in meanwhile(remembered, one, other):
            left = bodies(two.other) + bodies(two.other, "other")
            assert left == [1] or (left == [] and (1 in outcomes or spool.CommitUnknown in outcomes)), outcomes
            assert not (left and 1 in outcomes), outcomes
    for two in killed(remembered, move):
        assert sorted(bodies(two.other) + bodies(two.other, "other")) == [1]


def test_q10_the_command_is_run_by_one_of_two(meanwhile: Meanwhile, killed: Killed) -> None:
    def prepare(space: spool.Space) -> None:
        space.create_queue("q", capacity_high="1 message", capacity_command="page")
        space.put("q", 1)

    def look(space: spool.Space) -> None:
        assert space.queues()
        with door.store(space).guard:
            capacity.check_marks(door.store(space))

    with mock.patch.object(capacity, "run_command") as run:
        for _ in meanwhile(prepare, look, look):
            assert run.call_count == 1
            run.reset_mock()
        run.reset_mock()
        for two in killed(prepare, look):
            look(two.other)
            assert run.call_count <= 1
            run.reset_mock()


@pytest.fixture(autouse=True)
def _repeatable(quiet) -> Iterator[None]:
    """Use the same ids in each run and few claim files, and turn off logging."""
    with repeatable(1):
        yield
