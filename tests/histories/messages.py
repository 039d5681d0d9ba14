"""Histories of puts, gets, transactions, claims and replacements."""

from collections.abc import Iterator
from contextlib import ExitStack
from unittest import mock

import spool
from spool.admin.schedules import put_due
from spool.log import write_set
from tests import door
from tests.held import committed_here
from tests.histories.contents import EMPTY, QUEUES, Contents
from tests.histories.history import Expectation, History, did, housekeeping


def nothing(space: spool.Space) -> None:
    pass


def _put(space: spool.Space, expected: Expectation) -> None:
    for body in ("one", "two"):
        with expected.becoming(expected.contents.put("a", body)):
            space.put("a", body)


def _put_many(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(expected.contents.put("a", "one", "two", "three")):
        space.put_many("a", ["one", "two", "three"])


def three_messages(space: spool.Space) -> None:
    space.put("a", "one")
    space.put_many("a", ["two", "three"])


THREE = EMPTY.put("a", "one", "two", "three")


def _get(space: spool.Space, expected: Expectation) -> None:
    for body in ("one", "two"):
        with expected.becoming(expected.contents.got("a")):
            assert space.get("a").body == body


def _transaction(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(expected.contents.got("a").put("b", "reply")), space.transaction() as tx:
        tx.put("b", f"reply to {tx.get('a').body}"[:5])


def _rollback(space: spool.Space, expected: Expectation) -> None:
    with space.transaction() as tx:
        tx.put("b", "reply")
        assert tx.get("a").body == "one"
        tx.set_rollback_only()
    with expected.becoming(expected.contents.put("b", "later")):
        space.put("b", "later")


def _counted_and_reclaimed(space: spool.Space, expected: Expectation) -> None:
    """The counts of attempts are facts of a file that is removed."""
    for body in ("more", "most"):
        with space.transaction() as tx:
            tx.get_many("a", 2)
            tx.set_rollback_only()
        door.reclaim(space)
        with expected.becoming(expected.contents.put("a", body)):
            space.put("a", body)


def _two_tries(space: spool.Space) -> None:
    space.change_queue("a", retries=1, error_queue="b")
    three_messages(space)


def _moved(contents: Contents) -> Contents:
    """The second try too many: the message is in the error queue."""
    if len(contents.queues[0]) < 3:
        return contents
    return contents.without("a", "one").put("b", "one")


def _perhaps_moved(contents: Contents) -> Iterator[Contents]:
    """An attempt that cannot be recorded is not counted, and one whose journal cannot be removed may count twice."""
    yield contents
    yield _moved(contents)


def _retries(space: spool.Space, expected: Expectation) -> None:
    """No attempt is flushed, and the attempt of a dead process is counted when another process finds its journal."""
    for effect in (lambda contents: contents, _moved):
        with expected.becoming(effect, surely=False, failing=_perhaps_moved, unsure=True):
            with space.transaction() as tx:
                tx.get("a")
                tx.set_rollback_only("no luck")


def _looked(space: spool.Space, expected: Expectation) -> None:
    """All calls that only read."""
    first = next(space.browse("a"))
    assert space.show(first.id).body == "one"
    assert space.stats("a").ready == 3
    assert set(space.stats()) == set(QUEUES)
    space.check()  # it names a file that it cannot read
    assert not space.quarantined()


def _queue_created(space: spool.Space, expected: Expectation) -> None:
    space.create_queue("late", retries=3)
    space.put("late", "x")
    assert space.get("late").body == "x"


# -- large transactions, and several in one commit --------------------------------------------------------------------


def _streamed(space: spool.Space, expected: Expectation) -> None:
    """A branch whose sections go to the disk while it is written: all of it or nothing."""
    with mock.patch.object(write_set, "SECTION_MESSAGES", 2), expected.becoming(THREE.got("a").put("b", *"1234567")):
        with space.transaction() as tx:
            tx.get("a")
            for body in "1234567":
                tx.put("b", body)


def _streamed_and_rolled_back(space: spool.Space, expected: Expectation) -> None:
    with mock.patch.object(write_set, "SECTION_MESSAGES", 2), space.transaction() as tx:
        tx.put_many("b", list("1234567"))
        tx.set_rollback_only()
    with expected.becoming(expected.contents.put("b", "later")):
        space.put("b", "later")


def _partly_grouped(contents: Contents) -> Iterator[Contents]:
    """Requests accepted before the failing call are committed; on a full disk those that put nothing may succeed."""
    submitted = contents.put("a", "x")
    accepted, forwarded = submitted.got("a"), submitted.got("a", 2)
    yield from (contents.got("a"), submitted, accepted, accepted.put("b", "y"))
    yield from (forwarded.put("b", "reply"), forwarded.put("b", "y", "reply"))


def _group(space: spool.Space, expected: Expectation) -> None:
    """Several branches and plain messages in one file: all of them, or none. The first error is the caller's."""
    grouped = THREE.got("a", 2).put("a", "x", "z").put("b", "y", "reply")
    with expected.becoming(grouped, failing=_partly_grouped, unsure=True), ExitStack() as ends:
        acknowledged, forwarded = (spool.Transaction(door.core(space), counted=False) for _ in range(2))
        for tx in (acknowledged, forwarded):  # (without claim journals, for brevity)
            ends.callback(tx.abandon)
            tx.get("a")
        forwarded.put("b", "reply")
        with committed_here(space):
            futures = [space.submit("a", "x"), acknowledged.commit_async(), space.submit("b", "y")]
            futures[2:2] = [forwarded.commit_async()]
            futures += [space.submit("a", "z")]
        for future in futures:
            future.result(0)


def _group_and_next_commit(space: spool.Space, expected: Expectation) -> None:
    """The file of a group is consumed, reclaimed and overwritten by another group."""
    _put_together(space, expected, "1", "2")
    with expected.becoming(expected.contents.got("b", 2)):
        space.get_many("b", 2)
    door.reclaim(space)
    _put_together(space, expected, "3", "4")


def _put_together(space: spool.Space, expected: Expectation, *bodies: str) -> None:
    with expected.becoming(expected.contents.put("b", *bodies), partly=[expected.contents.put("b", bodies[0])]):
        with committed_here(space):
            futures = [space.submit("b", body) for body in bodies]
        for future in futures:
            future.result(0)


def _claims(space: spool.Space, expected: Expectation) -> None:
    """Messages that are claimed outside of any transaction: removals in any order share a commit, and the rest is
    released."""
    with space.claims() as claims:
        one, two, three = claims.take("a", 3)
        claims.begin(one)
        second = THREE.ordered("a", "two", "one", "three").got("a")
        with expected.becoming(expected.contents.got("a", 2), partly=[second]):
            with committed_here(space):
                futures = [claims.remove([two]), claims.remove([one])]
            for future in futures:
                future.result(0)
        claims.begin(three)
        with expected.becoming(expected.contents.put("b", "later")):
            space.put("b", "later")


def _claims_that_fail(space: spool.Space, expected: Expectation) -> None:
    """A counted failure and a rejection in one commit; the rejected message is dropped, because no error queue is
    set."""
    with space.claims() as claims:
        one, two = claims.take("a", 2)
        claims.begin(one)
        with expected.becoming(expected.contents.without("a", "one")):
            with committed_here(space):
                futures = [claims.reject([one], "no"), claims.fail(two, "it broke")]
            for future in futures:
                future.result(0)


# -- replaced messages: the old one exists or the new one, never both and never none ----------------------------------


def two_keys(space: spool.Space) -> None:
    space.put("a", "one", correlation_id="key")
    space.put("a", "stays", correlation_id="another key")


TWO = EMPTY.put("a", "one", "stays")
FIRST_REPLACED = TWO.without("a", "one").put("a", "two")


def _replace(space: spool.Space, expected: Expectation) -> None:
    """Messages are replaced again and again; the files of the old ones are removed and overwritten."""
    with expected.becoming(FIRST_REPLACED):
        space.replace("a", "two", correlation_id="key")
    with expected.becoming(expected.contents.without("a", "stays").put("a", "still")):
        space.replace("a", "still", correlation_id="another key")
    did(door.reclaim(space))
    with expected.becoming(expected.contents.without("a", "two").put("a", "three")):
        space.replace("a", "three", correlation_id="key")
    with expected.becoming(expected.contents.put("b", "new")):
        space.replace("b", "new", correlation_id="key")


def _replace_in_a_transaction(space: spool.Space, expected: Expectation) -> None:
    """Two queues change together. The second replacement in the transaction takes the place of the first."""
    with expected.becoming(FIRST_REPLACED.put("b", "beside")), space.transaction() as tx:
        tx.replace("a", "never seen", correlation_id="key")
        tx.put("b", "beside")
        tx.replace("a", "two", correlation_id="key")


def _replace_in_a_group(space: spool.Space, expected: Expectation) -> None:
    """A replacement shares a commit with others. A replacement that is rolled back leaves the old message."""
    with space.transaction() as tx:
        tx.replace("a", "never seen", correlation_id="another key")
        tx.set_rollback_only()
    grouped = FIRST_REPLACED.put("a", "last")
    alone = (FIRST_REPLACED, TWO.put("a", "last"))
    with expected.becoming(grouped, failing=lambda _: alone, unsure=True), ExitStack() as ends:
        replacing = spool.Transaction(door.core(space), counted=False)
        ends.callback(replacing.abandon)
        replacing.replace("a", "two", correlation_id="key")
        with committed_here(space):
            futures = [replacing.commit_async(), space.submit("a", "last")]
        for future in futures:
            future.result(0)


# -- schedules --------------------------------------------------------------------------------------------------------


def _a_schedule(space: spool.Space) -> None:
    space.create_schedule("nightly", "a", "tick", cron="0 0 * * *")


def _due_messages(space: spool.Space) -> None:
    door.clock(space).later = 86_400.0  # type: ignore[attr-defined]
    with housekeeping(space):
        put_due(door.core(space))


def _put_due(space: spool.Space, expected: Expectation) -> None:
    """The next process that opens the space puts the message, unless it is there."""
    expected.contents = expected.contents.put("a", "tick")
    expected.allowed = frozenset([expected.contents])
    _due_messages(space)


MESSAGES = (
    History("a due message of a schedule", _a_schedule, EMPTY, _put_due, finish=_due_messages),
    History("put", nothing, EMPTY, _put),
    History("put_many", nothing, EMPTY, _put_many),
    History("get", three_messages, THREE, _get),
    History("transaction", three_messages, THREE, _transaction),
    History("rollback", three_messages, THREE, _rollback),
    History("counted and reclaimed", three_messages, THREE, _counted_and_reclaimed),
    History("retries", _two_tries, THREE, _retries, may_return=frozenset([THREE, _moved(THREE)])),
    History("look", three_messages, THREE, _looked),
    History("create a queue", nothing, EMPTY, _queue_created),
    History("a branch that streams", three_messages, THREE, _streamed),
    History("a branch that streams, rolled back", three_messages, THREE, _streamed_and_rolled_back),
    History("a group of branches", three_messages, THREE, _group),
    History("groups, consumed and reclaimed", three_messages, THREE, _group_and_next_commit),
    History("claims", three_messages, THREE, _claims),
    History("claims that fail", three_messages, THREE, _claims_that_fail),
    History("replace", two_keys, TWO, _replace),
    History("replace in a transaction", two_keys, TWO, _replace_in_a_transaction),
    History("replace in a group of commits", two_keys, TWO, _replace_in_a_group),
)
