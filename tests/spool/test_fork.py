"""A forked child cannot use its parent's open space, and does the parent no harm, however it ends."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        yield space


def in_a_child(action: Callable[[], object]) -> str:
    """What the action returned or raised in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = repr(action())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize(
    "call",
    [
        lambda space: space.put("orders", b"one"),
        lambda space: space.get("orders"),
        lambda space: space.transaction(),
        lambda space: space.stats(),
        lambda space: list(space.browse("orders")),
    ],
    ids=["put", "get", "transaction", "stats", "browse"],
)
def test_a_forked_child_is_told_to_open_the_space_itself(
    space: spool.Space, call: Callable[[spool.Space], object]
) -> None:
    said = in_a_child(lambda: call(space))
    assert said == "NotOpen: the space was opened before this process was forked: open it again in the child"


def test_a_transaction_that_was_open_at_the_fork_is_closed_in_the_child_only(space: spool.Space) -> None:
    space.put("orders", b"one")
    with space.transaction() as transaction:
        transaction.get("orders")
        assert in_a_child(transaction.commit).startswith("NotOpen: ")
        assert in_a_child(lambda: space.put("orders", b"two")).startswith("NotOpen: ")
        space.put("orders", b"three")
    assert [message.body for message in space.browse("orders")] == [b"three"]


def test_a_child_does_not_let_go_of_what_its_parent_holds(space: spool.Space) -> None:
    space.put("orders", b"one")
    with spool.open(space.path) as other, space.transaction() as transaction:
        transaction.get("orders")
        in_a_child(space.close)
        with pytest.raises(spool.Empty):
            other.get("orders")
    assert space.stats("orders").dequeued == 1


def test_a_child_that_is_killed_leaves_the_parent_as_it_was(space: spool.Space) -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    space.put("orders", b"one")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert space.get("orders").body == b"one"


def test_a_child_that_outlives_its_parents_claims_does_not_keep_them(space: spool.Space) -> None:
    space.put("orders", b"one")
    with spool.open(space.path) as other:
        transaction = other.transaction()
        transaction.get("orders")
        ready, started = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(started, b".")
            signal.pause()
            os._exit(0)
        try:
            os.read(ready, 1)
            other.close()
            assert space.get("orders").attempts == 1
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_child_opens_the_space_for_itself(space: spool.Space) -> None:
    def put_in_the_child() -> str:
        with spool.open(space.path) as own:
            return own.put("orders", b"from the child")

    said = in_a_child(put_in_the_child)
    message = space.get("orders")
    assert (repr(message.id), message.body) == (said, b"from the child")
