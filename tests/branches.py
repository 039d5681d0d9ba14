"""Xids, branches that have ended or voted, the codes of refused calls, and an exception of an application."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import xa


class Mistake(Exception):
    """An application's own."""


def xid(name: bytes = b"transaction") -> xa.Xid:
    return xa.Xid(7, name, b"branch")


def begun(rm: xa.ResourceManager, one: xa.Xid, body: object = "hello", queue: str = "replies") -> None:
    """A branch with one put, whose work has ended."""
    rm.start(one)
    rm.space.put(queue, body)
    rm.end(one)


def voted(rm: xa.ResourceManager, one: xa.Xid, queue: str = "replies") -> None:
    """A branch with one put, which has voted."""
    begun(rm, one, one.gtrid, queue)
    assert rm.prepare(one) == xa.XA_OK


@contextmanager
def voting(rm: xa.ResourceManager, one: xa.Xid) -> Iterator[None]:
    """The work of the block is a branch, which votes at the end of the block."""
    rm.start(one)
    yield
    rm.end(one)
    assert rm.prepare(one) == xa.XA_OK


def code_of(call: Callable[..., object], *arguments: object) -> int:
    """Call a function that is refused, and return the code of its error."""
    with pytest.raises(xa.XAError) as caught:
        call(*arguments)
    return caught.value.code
