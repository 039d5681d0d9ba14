"""Q02, Q03: queues with any order criteria, and with messages put out of order, have the order of a sorted list."""

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import spool
from tests import door
from tests.clocks import MovedClock, timed
from tests.compaction import small_compactions
from tests.conftest import in_memory
from tests.features.conftest import Reopen, drained, seen

ORDERS = [
    (*criteria, last)
    for count in range(3)
    for criteria in permutations(("priority", "time"), count)
    for last in ("fifo", "lifo")
]


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
def test_q02_every_combination_of_criteria_orders_the_queue(space: spool.Space, order: tuple[str, ...]) -> None:
    space.create_queue("q", order=order)
    puts = [(50, 30), (50, 10), (90, 20), (90, 10), (10, 10), (50, 10), (90, 20)]
    for place, (priority, time) in enumerate(puts):
        space.put("q", place, priority=priority, not_before=time)

    def key(place: int) -> tuple[int, ...]:
        value = {"priority": -puts[place][0], "time": puts[place][1], "fifo": place, "lifo": -place}
        return tuple(value[criterion] for criterion in order)

    expected = sorted(range(len(puts)), key=key)
    assert seen(space, "q") == expected
    assert drained(space, "q") == expected


@pytest.mark.parametrize(
    "order", ["fifo,lifo", "lifo,fifo", "fifo,priority", "priority,priority,fifo", "size", "", ","]
)
def test_q02_other_criteria_are_refused_when_the_queue_is_made(space: spool.Space, order: str) -> None:
    with pytest.raises(spool.InvalidArgument, match="order is priority and time"):
        space.create_queue("q", order=tuple(order.split(",")))
    assert space.queues() == {}


def test_q02_priority_is_1_to_100_and_50_if_not_given(space: spool.Space) -> None:
    space.create_queue("q", order=("priority",))
    assert space.queues()["q"].order == ("priority", "fifo")
    for priority in (1, 100, None, 51, 49):
        space.put("q", priority, **({} if priority is None else {"priority": priority}))
    assert [message.priority for message in space.get_many("q", 9)] == [100, 51, 50, 49, 1]
    for wrong in (0, 101, 1.5, True):
        with pytest.raises(spool.InvalidArgument, match="priority is a whole number from 1 to 100"):
            space.put("q", b"", priority=wrong)


def test_q02_lifo_takes_the_last_message_of_one_commit_first(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q", order="lifo")
    space.put_many("q", range(5))
    space.put_many("q", range(5, 8))
    assert [message.body for message in again().get_many("q", 4)] == [7, 6, 5, 4]
    assert drained(space, "q") == [3, 2, 1, 0]


def test_q02_a_change_of_a_queue_s_order_is_seen_at_once_by_all_processes(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    other = again()
    for body, priority in ((0, 10), (1, 90), (2, 50)):
        other.put("q", body, priority=priority)
    assert seen(other, "q") == [0, 1, 2]
    space.change_queue("q", order=("priority", "lifo"))
    assert seen(other, "q") == seen(space, "q") == [1, 2, 0]


def test_q03_top_and_before_stand_where_they_were_put(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q", order="priority", out_of_order=("top", "before"))
    ids = space.put_many("q", [0, 1, 2])
    space.put("q", "high", priority=99)
    space.put("q", "top", priority=1, top=True)
    space.put("q", "higher top", top=True)
    first = space.put("q", "before 1", before=ids[1])
    space.put("q", "next before 1", before=ids[1])
    space.put("q", "before before", before=first)
    expected = ["higher top", "top", "high", 0, "before before", "before 1", "next before 1", 1, 2]
    assert seen(space, "q") == seen(again(), "q") == expected
    space.get("q", message_id=ids[1])
    expected.remove(1)
    assert drained(again(), "q") == expected


def test_q03_several_at_the_top_in_one_transaction_are_as_if_put_one_by_one(space: spool.Space) -> None:
    space.create_queue("q", out_of_order=("top",))
    with space.transaction() as tx:
        tx.put("q", 1, top=True)
        tx.put("q", 2, top=True)
        tx.put("q", 3)
    assert drained(space, "q") == [2, 1, 3]


@pytest.mark.parametrize("allowed", [(), ("top",), ("before",)])
def test_q03_only_where_the_queue_allows_it(space: spool.Space, allowed: tuple[str, ...]) -> None:
    space.create_queue("q", out_of_order=allowed)
    target = space.put("q", 0)
    for way, options in (("top", {"top": True}), ("before", {"before": target})):
        with space.transaction() as tx:
            if way in allowed:
                tx.put("q", 1, **options)
            else:
                with pytest.raises(spool.InvalidArgument, match=f"not allow {way} .*leave {way} out, or allow it"):
                    tx.put("q", 1, **options)


def test_q03_before_and_top_exclude_each_other_and_a_message_that_is_gone(space: spool.Space) -> None:
    space.create_queue("q", out_of_order=("top", "before"))
    space.create_queue("other", out_of_order=("before",))
    target = space.put("q", 0)
    with pytest.raises(spool.InvalidArgument, match="top and before exclude each other"):
        space.put("q", 1, top=True, before=target)
    with pytest.raises(spool.BadMessageId):
        space.put("other", 1, before=target)
    with pytest.raises(spool.BadMessageId):
        space.put("q", 1, before="no id")
    space.get("q")
    with pytest.raises(spool.BadMessageId):
        space.put("q", 1, before=target)
    assert space.stats("q").enqueued == 1


def test_q03_a_chain_of_messages_put_before_others_is_limited(space: spool.Space) -> None:
    space.create_queue("q", out_of_order=("before",))
    last = space.put("q", 0)
    for body in range(1, 66):
        last = space.put("q", body, before=last)
    with pytest.raises(spool.InvalidArgument, match="64 messages in a row"):
        space.put("q", 66, before=last)
    assert drained(space, "q") == list(range(65, -1, -1))


# -- random histories -------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """A message as the model knows it; one that was put before another has that one's key, and stands there."""

    id: str
    body: int
    key: tuple[float, ...]


def test_q03_a_message_put_before_another_stands_there_also_when_both_are_compacted(space: spool.Space) -> None:
    """The two messages are in files of two compactions; a look reads both messages and moves neither."""
    space.create_queue("q", order=("fifo",), out_of_order=("before",))
    ids = space.put_many("q", ["0", "1", "2"])
    third = space.put("q", "3", before=ids[0])
    with small_compactions():
        door.compact(space)
        space.put("q", "4", before=ids[2])
        space.put("q", "5", before=third)
        door.compact(space)
    assert seen(space, "q") == ["5", "3", "0", "1", "4", "2"]
    path = space.path
    space.close()
    with spool.open(path) as again:
        assert seen(again, "q") == ["5", "3", "0", "1", "4", "2"]
        assert drained(again, "q") == ["5", "3", "0", "1", "4", "2"]


class OrderModel(RuleBasedStateMachine):
    """Two openers of one space, compactions, reclaim and restarts; ``line`` is each queue as it must be delivered."""

    @initialize(orders=st.lists(st.sampled_from(ORDERS), min_size=2, max_size=2))
    def open(self, orders: list[tuple[str, ...]]) -> None:
        self.memory = ExitStack()
        self.path = self.memory.enter_context(in_memory()) / "space"
        self.clock = MovedClock()
        first = spool.create(timed(self.path, self.clock))
        self.orders = {f"q{place}": order for place, order in enumerate(orders)}
        for queue, order in self.orders.items():
            first.create_queue(queue, order=order, out_of_order=("top", "before"))
        self.spaces = [first, spool.open(timed(self.path, self.clock))]
        self.line: dict[str, list[Expected]] = {queue: [] for queue in self.orders}
        self.count = 0

    def teardown(self) -> None:
        for space in getattr(self, "spaces", []):
            space.close()
        getattr(self, "memory", ExitStack()).close()

    queues = st.sampled_from(("q0", "q1"))
    who = st.integers(0, 1)

    def insert(self, queue: str, one: Expected) -> None:
        line = self.line[queue]
        line.insert(next((place for place, other in enumerate(line) if other.key > one.key), len(line)), one)

    @rule(who=who, queue=queues, many=st.integers(1, 5), priority=st.integers(1, 3), time=st.none() | st.integers(1, 3))
    def put(self, who: int, queue: str, many: int, priority: int, time: int | None) -> None:
        bodies = list(range(self.count, self.count + many))
        options: dict[str, Any] = {} if time is None else {"not_before": time}
        ids = self.spaces[who].put_many(queue, bodies, priority=priority, **options)
        at = self.spaces[who].show(ids[0]).enqueued_at if time is None else time
        for body, message_id in zip(bodies, ids, strict=True):
            value = {"priority": -priority, "time": at, "fifo": body, "lifo": -body}
            self.insert(queue, Expected(message_id, body, tuple(value[c] for c in self.orders[queue])))
        self.count += many

    @rule(who=who, queue=queues)
    def put_top(self, who: int, queue: str) -> None:
        message_id = self.spaces[who].put(queue, self.count, top=True)
        self.line[queue].insert(0, Expected(message_id, self.count, (float("-inf"), -self.count)))
        self.count += 1

    @precondition(lambda self: any(self.line.values()))
    @rule(who=who, data=st.data())
    def put_before(self, who: int, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from([queue for queue, line in self.line.items() if line]))
        place = data.draw(st.integers(0, len(self.line[queue]) - 1))
        target = self.line[queue][place]
        message_id = self.spaces[who].put(queue, self.count, before=target.id)
        self.line[queue].insert(place, Expected(message_id, self.count, target.key))
        self.count += 1

    @rule(who=who, queue=queues, many=st.integers(1, 6))
    def get(self, who: int, queue: str, many: int) -> None:
        expected = self.line[queue][:many]
        try:
            found = self.spaces[who].get_many(queue, many)
        except spool.Empty:
            found = []
        assert [message.body for message in found] == [one.body for one in expected]
        del self.line[queue][:many]

    @precondition(lambda self: any(self.line.values()))
    @rule(who=who, data=st.data())
    def get_by_id(self, who: int, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from([queue for queue, line in self.line.items() if line]))
        one = data.draw(st.sampled_from(self.line[queue]))
        assert self.spaces[who].get(queue, message_id=one.id).body == one.body
        self.line[queue].remove(one)

    @rule(who=who)
    def compact(self, who: int) -> None:
        with small_compactions():
            door.compact(self.spaces[who])

    @rule(who=who)
    def reclaim(self, who: int) -> None:
        door.reclaim(self.spaces[who])

    @rule(who=who)
    def reopen(self, who: int) -> None:
        self.spaces[who].close()
        self.spaces[who] = spool.open(timed(self.path, self.clock))

    @invariant()
    def each_process_sees_the_line(self) -> None:
        for space in getattr(self, "spaces", []):
            for queue, line in self.line.items():
                assert seen(space, queue) == [one.body for one in line]


TestQ02AndQ03AgainstASortedList = OrderModel.TestCase
TestQ02AndQ03AgainstASortedList.settings = settings(
    max_examples=settings.default.max_examples // 4, stateful_step_count=25, suppress_health_check=list(HealthCheck)
)
