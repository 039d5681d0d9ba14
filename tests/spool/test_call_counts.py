"""How many functions a put, a get and a transaction call: what adds a layer to each of them is seen here."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import spool

# A little more than what they are, for other versions of Python and other file systems.
MOST = {"put": 270, "get": 420, "transaction": 560}


def _put(space: spool.Space) -> None:
    space.put("orders", b"one")


def _get(space: spool.Space) -> None:
    space.get("orders")


def _transaction(space: spool.Space) -> None:
    with space.transaction() as transaction:
        transaction.get("orders")
        transaction.put("orders", b"another")


def _calls(step: Callable[[], object]) -> int:
    """Of Python functions, in this thread."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("name", "step"), [("put", _put), ("get", _get), ("transaction", _transaction)])
def test_a_step_calls_no_more_functions_than_it_did(
    tmp_path: Path, name: str, step: Callable[[spool.Space], None]
) -> None:
    with spool.create(tmp_path) as space:
        space.create_queue("orders")
        space.put_many("orders", [b"one"] * 20)
        step(space)  # what is made at first use is made
        assert 100 < min(_calls(lambda: step(space)) for _ in range(3)) <= MOST[name]
