"""A put with a deduplication key returns an id that tells whether the message had been put before."""

import asyncio
import copy
import json
import pickle
from collections.abc import Callable

import msgpack
import pytest

import spool
import spool.aio
from tests.spaces import space_with

Put = Callable[[spool.Space], str]


space = space_with("orders", defaults={})


def in_a_transaction(space: spool.Space) -> str:
    with space.transaction() as tx:
        return tx.put("orders", "tea", deduplication_key="k")


def by_a_task(space: spool.Space) -> str:
    async def main() -> str:
        async with spool.aio.open(space.path) as tasks:
            return await tasks.put("orders", "tea", deduplication_key="k")

    return asyncio.run(main())


WAYS = [
    lambda space: space.put("orders", "tea", deduplication_key="k"),
    lambda space: space.put_many("orders", ["tea"], deduplication_key="k")[0],
    lambda space: space.submit("orders", "tea", deduplication_key="k").result(),
    in_a_transaction,
    by_a_task,
]


@pytest.mark.parametrize("put", WAYS, ids=["put", "put_many", "submit", "transaction", "task"])
def test_a_message_id_tells_a_new_message_from_a_duplicate(space: spool.Space, put: Put) -> None:
    for duplicate in (False, True, True):
        id = put(space)
        assert isinstance(id, spool.MessageId)
        assert id.duplicate is duplicate
        assert space.show(id).id == id
    assert space.stats("orders").enqueued == 1


def test_within_one_transaction_too(space: spool.Space) -> None:
    with space.transaction() as tx:
        ids = [tx.put("orders", "tea", deduplication_key="k") for _ in range(2)]
    assert [id.duplicate for id in ids if isinstance(id, spool.MessageId)] == [False, True]


def test_a_message_id_is_otherwise_a_plain_str(space: spool.Space) -> None:
    id = space.put("orders", "tea", deduplication_key="k")
    assert isinstance(id, spool.MessageId)
    for call in (str, hash, json.dumps, msgpack.packb):
        assert call(id) == call(str(id))
    copies = [copy.copy(id), copy.deepcopy(id), *(pickle.loads(pickle.dumps(id, protocol)) for protocol in range(6))]
    assert {(type(one), one, one.duplicate) for one in copies} == {(spool.MessageId, id, False)}
    space.put("orders", id)
    assert [message.body for message in space.browse("orders")] == ["tea", id]
    assert type(space.put("orders", "tea")) is str, "without a key there is nothing to tell"
