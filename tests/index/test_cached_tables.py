"""The cache of tables has a limit for messages with different control fields, and gives the memory of a burst back."""

import pytest

import spool
from spool.index import body_files
from tests import door
from tests.spaces import space_with

COUNT = 100
space = space_with("results")


def cached(space: spool.Space) -> tuple[int, int]:
    """Return the number of cached tables, and of their runs."""
    cache = door.store(space).files.cache
    return len(cache._tables), cache._runs


def put(space: spool.Space, number: int) -> None:
    """Put results in one commit, and read them, so that their table is cached."""
    with space.transaction() as transaction:
        for place in range(COUNT):
            transaction.put("results", b"x", correlation_id=f"{number} {place}")
    assert len(list(space.browse("results"))) == COUNT * (number + 1)


def test_tables_of_messages_with_different_fields_have_a_limit(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body_files, "_MAX_RUNS", 3 * COUNT)
    for number in range(5):
        put(space, number)
        assert cached(space) == (min(number + 1, 3), COUNT * min(number + 1, 3))


def test_tables_that_are_not_used_any_more_are_dropped(space: spool.Space) -> None:
    look_again = door.housekeeper(space)._look_again
    put(space, 0)
    look_again()
    assert len(list(space.browse("results"))) == COUNT
    look_again()
    assert cached(space) == (1, COUNT), "it was used since the last round"
    look_again()
    assert cached(space) == (0, 0)
    assert len(list(space.browse("results"))) == COUNT
