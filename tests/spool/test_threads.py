"""One space object, many threads: nothing lost, nothing doubled, and a transaction is one even across threads."""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.runtime import context
from tests import door
from tests.spaces import space_with

PUTTERS = GETTERS = 4
MESSAGES_PER_PUTTER = 60


space = space_with("orders", "replies")


def put_all(space: spool.Space, name: int) -> None:
    for place in range(0, MESSAGES_PER_PUTTER, 3):
        space.put("orders", f"{name}-{place}")
        space.put_many("orders", [f"{name}-{place + 1}", f"{name}-{place + 2}"])


def get_all(space: spool.Space, name: int, got: list[spool.Message], done: threading.Event) -> None:
    """Get messages until the end: half of the getters use transactions, of which every third fails at first."""
    tries = 0
    while True:
        ended = done.is_set()  # before the get, which finds all messages put until now
        try:
            if name % 2:
                got.append(space.get("orders", timeout=0.05))
            else:
                tries += 1
                with space.transaction() as transaction:
                    message = transaction.get("orders", timeout=0.05)
                    if tries % 3 == 0 and message.attempts == 0:
                        transaction.set_rollback_only()
                    else:
                        transaction.put("replies", message.body)
                if not transaction.rollback_only:
                    got.append(message)
        except spool.Empty:
            if ended:
                return


def test_eight_threads_lose_and_double_nothing(space: spool.Space) -> None:
    done = threading.Event()
    got: list[list[spool.Message]] = [[] for _ in range(GETTERS)]
    with ThreadPoolExecutor(PUTTERS + GETTERS) as pool:
        getters = [pool.submit(get_all, space, name, got[name], done) for name in range(GETTERS)]
        putters = [pool.submit(put_all, space, name) for name in range(PUTTERS)]
        for putter in putters:
            putter.result()
        done.set()
        for getter in getters:
            getter.result()
    bodies = Counter(message.body for messages in got for message in messages)
    assert bodies == Counter(f"{name}-{n}" for name in range(PUTTERS) for n in range(MESSAGES_PER_PUTTER))
    replies = Counter(message.body for message in space.browse("replies"))
    assert replies == Counter(message.body for messages in got[::2] for message in messages)
    assert space.check() == []
    assert door.store(space).view.own_commits == {}  # nothing piles up


def test_each_threads_messages_keep_their_order(space: spool.Space) -> None:
    with ThreadPoolExecutor(PUTTERS) as pool:
        list(pool.map(lambda name: put_all(space, name), range(PUTTERS)))
    messages = space.get_many("orders", PUTTERS * MESSAGES_PER_PUTTER)
    assert [message.position for message in messages] == sorted(message.position for message in messages)
    for name in range(PUTTERS):
        own = [message.body for message in messages if message.body.startswith(f"{name}-")]
        assert own == [f"{name}-{place}" for place in range(MESSAGES_PER_PUTTER)]


def test_a_message_that_one_thread_holds_is_not_another_threads(space: spool.Space) -> None:
    space.put("orders", "one")
    with space.transaction() as transaction, ThreadPoolExecutor(1) as pool:
        transaction.get("orders")
        other = pool.submit(space.get, "orders")
        assert isinstance(other.exception(), spool.Empty)


def test_another_thread_does_not_join_a_transaction_by_itself(space: spool.Space) -> None:
    with space.transaction() as transaction, ThreadPoolExecutor(1) as pool:
        pool.submit(space.put, "orders", "on its own").result()
        transaction.rollback()
    assert [message.body for message in space.browse("orders")] == ["on its own"]


def test_a_copied_context_joins_the_transaction_while_it_is_active(space: spool.Space) -> None:
    with ThreadPoolExecutor(4) as pool, space.transaction():
        contexts = [contextvars.copy_context() for _ in range(8)]
        futures = [pool.submit(context.run, space.put, "orders", n) for n, context in enumerate(contexts)]
        for future in futures:
            future.result()
        assert space.stats("orders").ready == 0
    messages = list(space.browse("orders"))
    assert sorted(message.body for message in messages) == list(range(8))
    assert len({message.position.number for message in messages}) == 1


@pytest.mark.parametrize("end", [spool.Transaction.commit, spool.Transaction.rollback])
def test_a_copied_context_never_commits_on_its_own_once_the_transaction_has_ended(
    space: spool.Space, end: Callable[[spool.Transaction], None]
) -> None:
    space.put("orders", "one")
    with space.transaction() as transaction:
        context = contextvars.copy_context()
        end(transaction)
    for call in (lambda: space.put("orders", "two"), lambda: space.get("orders")):
        with pytest.raises(spool.ProtocolError):
            context.run(call)
    assert [message.body for message in space.browse("orders")] == ["one"]


def test_x18_a_block_that_ends_in_another_thread_of_a_pool_leaves_the_first_thread_free(space: spool.Space) -> None:
    """A framework advances a generator in a pool: the block begins in one thread and ends in another one."""

    def steps() -> Iterator[None]:
        with space.transaction() as outer:
            outer.put("orders", "outer")
            with space.transaction() as tx:
                tx.put("orders", "inner")
                yield
            yield

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        generator = steps()
        first.submit(next, generator).result()
        second.submit(next, generator).result()
        assert space.stats("orders").ready == 1, "the inner block has committed in the second thread"
        first.submit(space.put, "orders", "joins the outer transaction").result()
        assert space.stats("orders").ready == 1
        second.submit(next, generator, None).result()
        for n in range(3):
            first.submit(space.put, "orders", f"free {n}").result()
            second.submit(space.put, "orders", f"free {n}").result()
    assert space.stats("orders").ready == 9


def test_x18_generators_that_end_in_any_order_leave_their_thread_free(space: spool.Space) -> None:
    """A framework advances generators with blocks in turns, in one thread."""

    def put(body: str) -> Iterator[None]:
        with space.transaction():
            space.put("orders", body)
            yield

    first, second = put("first"), put("second")
    next(first)
    next(second)
    assert list(first) == list(second) == []
    space.put("orders", "later")
    assert [space.get("orders").body for _ in range(3)] == ["first", "second", "later"]


class Fake:
    """A transaction of a fake store."""

    is_active = True
    ended_elsewhere: context.Block | None = None


@pytest.mark.parametrize("is_task", [False, True])
@given(moves=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=24))
def test_x18_a_call_joins_the_newest_block_of_its_space_that_has_not_ended(is_task: bool, moves: list[tuple[str, int]]):
    """Each move begins a block of one of two spaces, or ends any block that is open."""

    def move() -> None:
        stores = {"a": object(), "b": object()}
        open_blocks: list[tuple[str, Fake, context.Block]] = []
        for name, at in moves:
            if at < len(open_blocks):
                ended, transaction, block = open_blocks.pop(at)
                if not context.dissociate(stores[ended], transaction, block):
                    transaction.ended_elsewhere = block
            else:
                transaction = Fake()
                open_blocks.append((name, transaction, context.associate(stores[name], transaction)))
            for each, store in stores.items():
                newest = [one for name, one, _ in open_blocks if name == each]
                assert context.associated(store) is (newest[-1] if newest else None)

    async def task() -> None:
        move()

    if is_task:
        asyncio.run(task())
    else:
        contextvars.copy_context().run(move)


def test_a_context_that_was_copied_outside_is_free(space: spool.Space) -> None:
    context = contextvars.copy_context()
    with space.transaction():
        context.run(space.put, "orders", "on its own")
        assert [message.body for message in space.browse("orders")] == ["on its own"]
