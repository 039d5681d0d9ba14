"""A space with three messages, and no transaction before and after each test."""

from collections.abc import Iterator

import pytest

pytest.importorskip("transaction")

import transaction

import xa.zope
from tests.spaces import space_with

space = space_with("in", "out", messages={"in": ["1", "2", "3"]})


@pytest.fixture(autouse=True)
def _no_transaction(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends outside of a transaction, and a repeated commit follows soon."""
    monkeypatch.setattr(xa.zope.repetition, "_FIRST_PAUSE_SECONDS", 0.001)
    transaction.abort()
    yield
    transaction.abort()
