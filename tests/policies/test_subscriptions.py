"""Subscriptions as another process left them a moment ago: registered, read on, deleted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from spool.policies.subscriptions import advance, register


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space") as space:
        yield space


@pytest.fixture
def other(space: spool.Space) -> Iterator[spool.Space]:
    with spool.open(space.path) as other:
        yield other


def test_x05_a_subscription_that_another_process_registered_keeps_its_start(
    space: spool.Space, other: spool.Space
) -> None:
    since = register(space._store, "seen", [], 60.0)
    assert register(other._store, "seen", [], 60.0) == since


def test_x05_a_subscription_that_another_process_registered_is_read_on(space: spool.Space, other: spool.Space) -> None:
    since = register(space._store, "seen", [], 60.0)
    assert advance(other._store, "seen", since, since, 60.0)
    space.delete_subscription("seen")
    assert not advance(other._store, "seen", since, since, 60.0)
