"""The engine against a plain model: two openers of one space, transactions, reclaim and restarts, in any order."""

from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

import spool
from tests import door
from tests.at_once import AT_ONCE
from tests.compaction import small_compactions
from tests.conftest import in_memory

QUEUES = ("plain", "ranked")


class Model(RuleBasedStateMachine):
    """``expected`` holds, per queue, (priority, order, id, body) of every message that must be there."""

    transactions = Bundle("transactions")

    @initialize()
    def open(self) -> None:
        self.memory = ExitStack()
        self.memory.enter_context(patch("spool.transactions.hold.MANY_OWN", 0))  # (gets pass claims at once)
        self.path = self.memory.enter_context(in_memory()) / "space"
        first = spool.create(self.path, defaults=AT_ONCE)
        first.create_queue("plain")
        first.create_queue("ranked", order=("priority", "fifo"))
        self.spaces = [first, spool.open(self.path)]
        self.expected: dict[str, list[tuple[int, int, str, bytes]]] = {queue: [] for queue in QUEUES}
        self.commits = 0
        self.counter = 0
        self.held: set[str] = set()
        self.open_transactions: list[dict] = []
        self.dequeued = dict.fromkeys(QUEUES, 0)
        self.enqueued = dict.fromkeys(QUEUES, 0)

    def teardown(self) -> None:
        for space in getattr(self, "spaces", []):
            space.close()
        getattr(self, "memory", ExitStack()).close()

    # -- operations --

    def bodies(self, count: int) -> list[bytes]:
        self.counter += count
        return [b"%d" % n for n in range(self.counter - count, self.counter)]

    def committed(self, puts: list[tuple[str, int, str, bytes]]) -> None:
        for queue, priority, message_id, body in puts:
            rank = -priority if queue == "ranked" else 0
            self.commits += 1
            self.expected[queue].append((rank, self.commits, message_id, body))
            self.expected[queue].sort()
            self.enqueued[queue] += 1

    def free(self, queue: str) -> list[tuple[int, int, str, bytes]]:
        return [one for one in self.expected[queue] if one[2] not in self.held]

    def took(self, queue: str, found: list[spool.Message]) -> None:
        gone = {message.id for message in found}
        self.expected[queue] = [one for one in self.expected[queue] if one[2] not in gone]
        self.dequeued[queue] += len(found)

    @rule(who=st.integers(0, 1), queue=st.sampled_from(QUEUES), count=st.integers(1, 6), priority=st.integers(1, 100))
    def put(self, who: int, queue: str, count: int, priority: int) -> None:
        bodies = self.bodies(count)
        ids = self.spaces[who].put_many(queue, bodies, priority=priority)
        self.committed([(queue, priority, i, body) for i, body in zip(ids, bodies, strict=True)])

    @rule(who=st.integers(0, 1), queue=st.sampled_from(QUEUES), count=st.integers(1, 8))
    def get(self, who: int, queue: str, count: int) -> None:
        wanted = self.free(queue)[:count]
        try:
            found = self.spaces[who].get_many(queue, count)
        except spool.Empty:
            assert wanted == []
            return
        assert [(m.id, m.body) for m in found] == [(one[2], one[3]) for one in wanted]
        self.took(queue, found)

    @rule(who=st.integers(0, 1), queue=st.sampled_from(QUEUES), data=st.data())
    def get_by_id(self, who: int, queue: str, data: st.DataObject) -> None:
        if not self.free(queue):
            return
        one = data.draw(st.sampled_from(self.free(queue)))
        found = self.spaces[who].get(queue, message_id=one[2])
        assert found.body == one[3]
        self.took(queue, [found])

    @rule(who=st.integers(0, 1))
    def begin(self, who: int) -> None:
        if len(self.open_transactions) < 3:
            tx = self.spaces[who].transaction(timeout=None)
            self.open_transactions.append({"who": who, "tx": tx, "puts": [], "gets": []})

    @rule(which=st.integers(0, 2), queue=st.sampled_from(QUEUES), priority=st.integers(1, 100))
    def put_in_transaction(self, which: int, queue: str, priority: int) -> None:
        if which < len(self.open_transactions):
            one = self.open_transactions[which]
            (body,) = self.bodies(1)
            one["puts"].append((queue, priority, one["tx"].put(queue, body, priority=priority), body))

    @rule(which=st.integers(0, 2), queue=st.sampled_from(QUEUES), count=st.integers(1, 4))
    def get_in_transaction(self, which: int, queue: str, count: int) -> None:
        if which >= len(self.open_transactions):
            return
        one = self.open_transactions[which]
        wanted = self.free(queue)[:count]
        try:
            found = one["tx"].get_many(queue, count)
        except spool.Empty:
            assert wanted == []
            return
        assert [m.id for m in found] == [expected[2] for expected in wanted]
        one["gets"].append((queue, found))
        self.held |= {m.id for m in found}

    @rule(which=st.integers(0, 2), commit=st.booleans())
    def end(self, which: int, commit: bool) -> None:
        if which >= len(self.open_transactions):
            return
        one = self.open_transactions.pop(which)
        for queue, found in one["gets"]:
            self.held -= {m.id for m in found}
            if commit:
                self.took(queue, found)
        if commit:
            one["tx"].commit()
            self.committed(one["puts"])
        else:
            one["tx"].rollback()

    @rule(who=st.integers(0, 1))
    def reclaim(self, who: int) -> None:
        door.reclaim(self.spaces[who])

    @rule(who=st.integers(0, 1))
    def compact(self, who: int) -> None:
        """S01-S06: no caller notices that files are compacted and tombstones are merged."""
        with small_compactions():
            door.compact(self.spaces[who])

    @rule(who=st.integers(0, 1))
    def reopen(self, who: int) -> None:
        """A process ends with open transactions and opens the space again: the messages that they held are free."""
        for one in [one for one in self.open_transactions if one["who"] == who]:
            self.open_transactions.remove(one)
            self.held -= {m.id for _, found in one["gets"] for m in found}
        self.spaces[who].close()
        self.spaces[who] = spool.open(self.path)

    # -- invariants --

    @invariant()
    def both_openers_see_the_same_in_order(self) -> None:
        for space in getattr(self, "spaces", []):
            for queue in QUEUES:
                assert [(m.id, m.body) for m in space.browse(queue)] == [(o[2], o[3]) for o in self.expected[queue]]

    @invariant()
    def the_counts_agree(self) -> None:
        for space in getattr(self, "spaces", []):
            for queue, stats in space.stats().items():
                held = sum(1 for one in self.expected[queue] if one[2] in self.held)
                assert (stats.ready, stats.claimed) == (len(self.expected[queue]) - held, held)
                assert (stats.enqueued, stats.dequeued) == (self.enqueued[queue], self.dequeued[queue])

    @invariant()
    def nothing_is_damaged(self) -> None:
        for space in getattr(self, "spaces", []):
            assert not [finding for finding in space.check() if finding.kind == "damaged"]


TestEngineAgainstItsModel = Model.TestCase
TestEngineAgainstItsModel.settings = settings(
    max_examples=settings.default.max_examples // 5,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
