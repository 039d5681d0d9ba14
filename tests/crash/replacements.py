"""Histories of ``replace``: after a power cut, the old message or the new one exists, never both and never none."""

from dataclasses import replace

import spool
from tests import door
from tests.crash.contents import EMPTY, QUEUES, Contents, Expectation, History, branch, decide
from tests.held import committed_here


def _two_messages(space: spool.Space) -> None:
    space.put("a", "one", correlation_id="key")
    space.put("a", "stays", correlation_id="another key")


TWO = EMPTY.put("a", "one", "stays")


def _without_the_first(contents: Contents, queue: str = "a") -> Contents:
    """Return the contents without the first message of the queue, which is not counted as dequeued."""
    place, queues = QUEUES.index(queue), list(contents.queues)
    queues[place] = queues[place][1:]
    return replace(contents, queues=tuple(queues))


FIRST_REPLACED = _without_the_first(TWO).put("a", "two")


def _replace(space: spool.Space, expected: Expectation) -> None:
    """Messages are replaced again and again; the files of the old ones are removed and overwritten."""
    with expected.becoming(FIRST_REPLACED):
        space.replace("a", "two", correlation_id="key")
    with expected.becoming(_without_the_first(expected.contents).put("a", "still")):
        space.replace("a", "still", correlation_id="another key")
    assert door.reclaim(space) > 0
    with expected.becoming(_without_the_first(expected.contents).put("a", "three")):
        space.replace("a", "three", correlation_id="key")
    with expected.becoming(expected.contents.put("b", "new")):
        space.replace("b", "new", correlation_id="key")


def _replace_in_a_transaction(space: spool.Space, expected: Expectation) -> None:
    """Two queues change together. The second replacement in the transaction takes the place of the first."""
    with expected.becoming(FIRST_REPLACED.put("b", "beside")):
        with space.transaction() as tx:
            tx.replace("a", "never seen", correlation_id="key")
            tx.put("b", "beside")
            tx.replace("a", "two", correlation_id="key")


def _replace_in_a_group(space: spool.Space, expected: Expectation) -> None:
    """A replacement shares a commit with others. A replacement that is rolled back leaves the old message."""
    tx = space.transaction()
    tx.replace("a", "never seen", correlation_id="another key")
    tx.rollback()
    with expected.becoming(FIRST_REPLACED.put("a", "last")):
        replacing = spool.Transaction(door.core(space), counted=False)
        replacing.replace("a", "two", correlation_id="key")
        with committed_here(space):
            futures = [replacing.commit_async(), space.submit("a", "last")]
        for future in futures:
            future.result(0)


IN_DOUBT = TWO.doubting("a", 1, added=1)


def _replace_in_two_phases(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(IN_DOUBT):
        tx = branch(space)
        tx.replace("a", "two", correlation_id="key")
        assert tx.prepare()
    with expected.becoming(FIRST_REPLACED):
        decide(space, "commit", told=True)


REPLACEMENTS = (
    History("replace", _two_messages, TWO, _replace),
    History("replace in a transaction", _two_messages, TWO, _replace_in_a_transaction),
    History("replace in a group of commits", _two_messages, TWO, _replace_in_a_group),
    History(
        "replace in two phases",
        _two_messages,
        TWO,
        _replace_in_two_phases,
        {IN_DOUBT: {"commit": FIRST_REPLACED, "rollback": TWO}},
    ),
)
