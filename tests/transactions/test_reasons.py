"""The reason of a rollback: the text of an exception is recorded, and never prevents the rollback."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

import spool
import xa
from spool.model.text import LONGEST_REASON, class_name
from tests.branches import xid
from tests.spaces import space_with
from tests.unspeakable import Unspeakable

FILE = os.fsdecode(b"caf\xe9.txt")


class NoText(Exception):
    def __str__(self) -> Any:
        return 7


class Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Ending(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class HidesItsName(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("it has no name")


class Nameless(Exception, metaclass=HidesItsName):
    pass


CASES = [
    (ValueError(f"cannot read {FILE}"), r"ValueError: cannot read caf\udce9.txt"),
    (ValueError(FILE * 10**3), "ValueError: " + r"caf\udce9.txt"),
    (Unspeakable(), "Unspeakable"),
    (NoText(), "NoText"),
    (Interrupting(), "Interrupting"),
    (Ending(), "Ending"),
    (Nameless("tea"), "Nameless: tea"),
]
IDS = ["a surrogate", "a long one", "raises", "no text", "interrupts", "ends the program", "hides its name"]


space = space_with("errors", orders={"retries": 2, "error_queue": "errors"}, messages={"orders": ["tea"]})


def by_a_transaction(space: spool.Space, error: Exception) -> None:
    with space.transaction() as tx:
        tx.get("orders")
        raise error


def by_rolling_back(space: spool.Space, error: Exception) -> None:
    tx = space.transaction()
    tx.get("orders")
    name = class_name(error)
    said = name if isinstance(error, Unspeakable | NoText | Interrupting | Ending) else f"{name}: {error}"
    tx.rollback(said)
    raise error


def by_a_branch(space: spool.Space, error: Exception) -> None:
    with xa.ResourceManager(space).branch(xid()):
        space.get("orders")
        raise error


def by_consuming(space: spool.Space, error: Exception) -> None:
    for _ in space.consume("orders", timeout=0):
        raise error


def in_asyncio(space: spool.Space, error: Exception) -> None:
    async def fail() -> None:
        async with spool.aio.open(space.path) as other, other.transaction() as tx:
            await tx.get("orders")
            raise error

    asyncio.run(fail())


@pytest.mark.every(3)
@pytest.mark.parametrize(("error", "reason"), CASES, ids=IDS)
@pytest.mark.parametrize("fail", [by_a_transaction, by_rolling_back, by_a_branch, by_consuming, in_asyncio])
def test_a_failure_with_any_exception_is_counted(
    space: spool.Space, fail: Callable[[spool.Space, Exception], None], error: Exception, reason: str
) -> None:
    """The caller gets its exception, and the message comes to the error queue after its last attempt."""
    for attempt in (1, 2, 3):
        with pytest.raises(type(error)) as caught:
            fail(space, error)
        assert caught.value is error
        if attempt < 3:
            assert [message.attempts for message in space.browse("orders")] == [attempt]
    [message] = space.browse("errors")
    assert message.failure_reason is not None
    assert len(message.failure_reason) <= LONGEST_REASON
    if fail in (by_a_transaction, by_rolling_back, in_asyncio):
        assert message.failure_reason.startswith(reason)


@pytest.mark.every(3)
@pytest.mark.parametrize(("error", "reason"), CASES, ids=IDS)
def test_a_worker_records_the_reason_from_its_function_s_exception(space: spool.Space, error: Exception, reason: str):
    def fail(message: spool.Message) -> None:
        raise error

    async def fail_later(message: spool.Message) -> None:
        raise error

    async def work() -> None:
        async with spool.aio.open(space.path) as other:
            await other.work("orders", fail_later, once=True)

    for _ in range(3):
        space.work("orders", fail, once=True)
    [message] = space.browse("errors")
    assert message.failure_reason.startswith(reason)
    space.redrive("errors")
    for _ in range(3):
        asyncio.run(work())
    [message] = space.browse("errors")
    assert message.failure_reason.startswith(reason)


def test_a_codec_whose_exception_cannot_be_printed_raises_an_invalid_argument(space: spool.Space) -> None:
    class Odd:
        pass

    def encode(value: object) -> bytes:
        raise Unspeakable

    spool.register_codec("odd", spool.Codec("application/x-odd", encode, lambda raw: raw), Odd)
    with pytest.raises(spool.InvalidArgument, match="Unspeakable"):
        space.put("orders", Odd())
