"""Reads while other programs put, take and move messages and reclaim files, between plan and read and within a read."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import spool
from spool.reading import message_reader as message_reader
from tests import door
from tests.compaction import small_compactions
from tests.forwarder.dataframes.rows import reader


class Others:
    """Random calls of other programs on the queue. Each message has a different body."""

    def __init__(self, space: spool.Space, seed: int) -> None:
        self._space = space
        self._chance = random.Random(seed)
        self._put = 0

    def act(self) -> None:
        acts: tuple[Callable[[], None], ...] = (self.put, self.put, self.get, self.move, self.change, self.sweep)
        self._chance.choice(acts)()

    def put(self) -> None:
        count = self._chance.choice((1, 1, 1, 5))
        bodies = [b"%d" % (self._put + place) for place in range(count)]
        self._space.put_many("orders", bodies, priority=self._chance.choice((50, 50, 90)))
        self._put += count

    def get(self) -> None:
        with suppress(spool.Empty):
            self._space.get_many("orders", self._chance.randint(1, 4))

    def move(self) -> None:
        if some := [message.id for message in self._space.browse("orders")]:
            self._space.move(self._chance.choice(some), "errors")

    def change(self) -> None:
        if some := [message.id for message in self._space.browse("orders")]:
            self._space.change(self._chance.choice(some), priority=self._chance.randint(1, 100))

    def sweep(self) -> None:
        door.compact(self._space)
        while door.reclaim(self._space):
            pass


def bodies_by_id(space: spool.Space) -> dict[str, bytes]:
    return {message.id: message.body for message in space.browse("orders")}


def read_beside(space: spool.Space, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Plan and read some times; returns how often a task had to look where a message lies now."""
    relocated = 0
    as_it_is = message_reader.locate

    def counted(*args: Any) -> Any:
        nonlocal relocated
        relocated += 1
        return as_it_is(*args)

    monkeypatch.setattr(message_reader, "_BATCH_ROWS", 4)
    monkeypatch.setattr(message_reader, "locate", counted)
    others = Others(space, seed)
    with small_compactions():
        for _ in range(40):
            others.act()
        for _ in range(4):
            planned = reader(space, queue="orders", partitionBytes="2k")
            there, found = bodies_by_id(space), list[tuple[str, bytes]]()
            for part in planned.partitions():
                for batch in planned.read(part):
                    found += zip(batch.column("id").to_pylist(), batch.column("body").to_pylist(), strict=True)
                    others.act()
                others.act()
            assert len(found) == len(dict(found))
            assert dict(found).items() <= there.items()
            assert there.keys() & bodies_by_id(space).keys() <= dict(found).keys()
    return relocated


def test_x05_a_message_that_exists_from_plan_to_read_is_read_once_beside_a_sweep(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_beside(space, 1, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_the_same_in_many_ways(space: spool.Space, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read_beside(space, seed, monkeypatch)
