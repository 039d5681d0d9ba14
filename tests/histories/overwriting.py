"""Histories with enough consumed files to overwrite, and of files that are made ahead, for file systems on which names
follow (Rule 13)."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import spool
from spool.disk import recycler
from tests import door
from tests.histories.branches import in_doubt, prepare
from tests.histories.contents import EMPTY, XID
from tests.histories.dropped import take_in, taken_in, two_files
from tests.histories.history import Expectation, History, did, housekeeping
from tests.histories.messages import nothing

# Larger than the commit that takes them: so the file with their removals is overwritten first.
OLD = tuple(f"old {n}".ljust(3000) for n in range(5))


@contextmanager
def growing_soon() -> Iterator[None]:
    """Make files ahead for the second commit that finds none."""
    few = {"AHEAD_AFTER_MISSES": 2, "AHEAD_AT_FIRST": 2, "AHEAD_AT_MOST": 2}
    with mock.patch.multiple(recycler, **few):
        yield


def with_spares(space: spool.Space) -> None:
    """Consumed files, each with the number that it had, and two messages. Reclaim's last record does not name them."""
    for body in OLD:
        space.put("a", body)
    space.get_many("a", len(OLD))
    space.put_many("a", ["one", "two"])
    assert door.reclaim(space) > len(OLD)
    space.put("b", "passing")
    space.get("b")
    assert door.reclaim(space) > 0


BEGIN = EMPTY.put("a", *OLD).got("a", len(OLD)).put("a", "one", "two").put("b", "passing").got("b")


def _overwritten(space: spool.Space, expected: Expectation) -> None:
    """Puts, takes and an adoption; consumed files are used again."""
    with expected.becoming(expected.contents.put("b", "three")):
        space.put("b", "three")
    for queue in ("a", "b"):
        with expected.becoming(expected.contents.got(queue)):
            space.get(queue)
    with expected.becoming(expected.contents.put("b", "four", "five", "six")):
        space.put_many("b", ["four", "five", "six"])
    with housekeeping(space):
        door.store(space).files.recycler.clear(everything=True)  # so that the files reclaimed now are used again
        did(door.reclaim(space))
    with door.no_spare_is_left_for_others():
        for queue in ("a", "b", "b"):
            with expected.becoming(expected.contents.got(queue)):
                space.get(queue)
    with expected.becoming(expected.contents.put("b", "four")):
        space.put("b", "four")


IN_DOUBT = in_doubt(BEGIN)
COMMITTED = BEGIN.got("a").put("b", "reply")


def _adopted(space: spool.Space, expected: Expectation) -> None:
    rm = prepare(space, expected)
    with expected.becoming(COMMITTED, decides=True):
        rm.commit(XID)
    with expected.becoming(COMMITTED.got("a")):
        space.get("a")


def _decided_and_forgotten(space: spool.Space, expected: Expectation) -> None:
    """Once the decision is forgotten nothing says that a branch that comes back was rolled back."""
    rm = prepare(space, expected)
    with expected.becoming(BEGIN):
        rm.decide_heuristically(XID, commit=False)
    rm.forget(XID)


AGAIN = BEGIN.doubting("a", 1).doubting("b", 0, added=2)


def _put_again(space: spool.Space) -> None:
    space.get("a")
    for _ in range(2):
        space.put("b", "again")


def _voted_again(space: spool.Space, expected: Expectation) -> None:
    """After a rollback, the coordinator uses the xid for another branch."""
    rm = prepare(space, expected)
    with expected.becoming(BEGIN, surely=False, decides=True):
        rm.rollback(XID)
    prepare(space, expected, _put_again, replies=2, meanwhile=[IN_DOUBT])


# Larger than every other file: so the second branch overwrites the file of the first, unless a rule forbids it.
LARGE = "large".ljust(5000)
LATER = BEGIN.got("a", 2).put("b", LARGE).got("b").put("a", "later")


def _reply_large(space: spool.Space) -> None:
    space.get("a")
    space.put("b", LARGE)


def _reclaimed_and_voted_again(space: spool.Space, expected: Expectation) -> None:
    """A committed branch is consumed, and the coordinator uses the xid for another branch."""
    rm = prepare(space, expected, _reply_large)
    with expected.becoming(BEGIN.got("a").put("b", LARGE), decides=True):
        rm.commit(XID)
    for queue in ("b", "a"):
        with expected.becoming(expected.contents.got(queue)):
            space.get(queue)
    with expected.becoming(LATER):
        space.put("a", "later")
    did(door.reclaim(space))
    prepare(space, expected, _reply_large)


DECIDED = {
    IN_DOUBT: {"commit": COMMITTED, "rollback": BEGIN},
    AGAIN: {"commit": BEGIN.got("a").put("b", "again", "again"), "rollback": BEGIN},
}
LARGE_DECIDED = {
    in_doubt(contents): {"commit": contents.got("a").put("b", LARGE), "rollback": contents}
    for contents in (BEGIN, LATER)
}


def _grown(space: spool.Space, expected: Expectation) -> None:
    """A queue grows, so files are made ahead. A get is in one of them, too."""
    with growing_soon():
        for body in ("one", "two", "three", "large".ljust(5000), "five"):
            with expected.becoming(expected.contents.put("a", body)):
                space.put("a", body)
        with expected.becoming(expected.contents.got("a")), door.no_spare_is_left_for_others():
            space.get("a")


def _spares_and_dropped(space: spool.Space) -> None:
    """Files that a power cut puts back into drop/ must not become messages twice."""
    with_spares(space)
    space.get_many("a", 2)
    two_files(space)


TAKEN = BEGIN.got("a", 2).put("a", "b'one'", "b'two'")

OVERWRITTEN = History("overwritten", with_spares, BEGIN, _overwritten)
ADOPTED = History("adopted", with_spares, BEGIN, _adopted, DECIDED)
FORGOTTEN = History("decided by hand and forgotten", with_spares, BEGIN, _decided_and_forgotten, DECIDED)
TAKEN_IN = History("taken in", _spares_and_dropped, TAKEN, taken_in, finish=take_in)
VOTED_AGAIN = History("voted again", with_spares, BEGIN, _voted_again, DECIDED, frozenset([IN_DOUBT]))
RECLAIMED = History("reclaimed and voted again", with_spares, BEGIN, _reclaimed_and_voted_again, LARGE_DECIDED)
GROWN = History("grown", nothing, EMPTY, _grown)
OVERWRITING = (OVERWRITTEN, GROWN, ADOPTED, FORGOTTEN, VOTED_AGAIN, RECLAIMED, TAKEN_IN)
