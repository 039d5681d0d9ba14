"""A space with three messages, and no transaction before and after each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE

pytest.importorskip("transaction")

import transaction

import xa.zope


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("in")
        space.create_queue("out")
        space.put_many("in", ["1", "2", "3"])
        yield space


@pytest.fixture(autouse=True)
def _no_transaction(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends outside of a transaction, and a repeated commit follows soon."""
    monkeypatch.setattr(xa.zope.repetition, "_FIRST_PAUSE_SECONDS", 0.001)
    transaction.abort()
    yield
    transaction.abort()
