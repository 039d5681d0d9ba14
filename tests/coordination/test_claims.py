"""Claims: no process gets a message that another holds, and each gets the free messages around held ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.coordination.locks import ClaimLocks
from spool.disk import Disk
from spool.policies.attempt_journal import clean_up_after_dead
from tests import door
from tests.at_once import AT_ONCE


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("claims")
    (path / "run").mkdir()
    return str(path)


ranges = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 8)), max_size=12)


@given(ranges, st.integers(0, 20), st.integers(1, 40))
def test_a_range_is_claimed_around_everything_that_others_hold(
    root: str, theirs: list[tuple[int, int, int]], first: int, count: int
) -> None:
    others = [ClaimLocks(Disk(root), make=True) for _ in range(3)]
    ours = ClaimLocks(Disk(root), make=True)
    try:
        held: set[int] = set()
        for owner, start, length in theirs:
            for got, size in others[owner].claim(7, start, length):
                held.update(range(got, got + size))
        got = [ordinal for start, size in ours.claim(7, first, count) for ordinal in range(start, start + size)]
        assert got == [ordinal for ordinal in range(first, first + count) if ordinal not in held]
        seen = {o for number, start, size in ours.claims_elsewhere() for o in range(start, start + size) if number == 7}
        assert seen == held
    finally:
        for claims in (*others, ours):
            claims.disk.close_all()


def test_a_live_process_cleans_up_after_a_dead_one(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("q")
        wanted = space.put("q", b"x")
        doomed = spool.open(tmp_path / "space")
        tx = doomed.transaction()
        tx.get("q")
        tx.put_many("q", [bytes(1 << 20)] * 20)
        assert len(list((tmp_path / "space" / "active").iterdir())) == 2, "a claim journal, and a branch that streams"
        clean_up_after_dead(door.store(space), door.deadline(space))
        assert space.show(wanted).attempts == 0, "it lives"
        door.store(doomed).guard.close_at_once("it died")  # as the kernel does for a killed process
        door.reclaim(space)
        assert list((tmp_path / "space" / "active").iterdir()) == []
        assert space.show(wanted).attempts == 1
        assert space.get("q").id == wanted
