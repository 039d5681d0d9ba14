"""Histories of branches that are prepared: votes, decisions by this process and by others, adoptions."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import spool
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.transaction import Transaction
from spool.transactions.two_phase import commit_prepared, rollback_prepared
from tests import door
from tests.histories.contents import XID, Contents
from tests.histories.history import Expectation, History, did
from tests.histories.messages import FIRST_REPLACED, THREE, TWO, three_messages, two_keys
from xa import TMONEPHASE, XA_HEURRB, XA_OK, XAER_NOTA, ResourceManager, XAError

T = TypeVar("T", bound=Transaction)


def branch(space: spool.Space) -> CoordinatedTransaction:
    """A transaction that can be prepared."""
    return door.branch(space, xid=XID)


@contextmanager
def abandoned(transaction: T) -> Iterator[T]:
    """Undo the transaction at the end of the block, unless it has ended."""
    try:
        yield transaction
    finally:
        transaction.abandon()


def reply(space: spool.Space) -> None:
    """Take a message and put its reply, in a branch or a transaction."""
    space.put("b", f"reply to {space.get('a').body}"[:5])


@contextmanager
def worked(space: spool.Space, work: Callable[[spool.Space], object]) -> Iterator[ResourceManager]:
    """A transaction manager with the work of a branch. After an error in the block it rolls back the branch, as all
    managers do."""
    rm = ResourceManager(space)
    try:
        rm.start(XID)
        work(space)
        rm.end(XID)
        yield rm
    except BaseException:
        for call in (rm.end, rm.rollback):
            with suppress(XAError):
                call(XID)
        raise


def prepare(
    space: spool.Space,
    expected: Expectation,
    work: Callable[[spool.Space], object] = reply,
    *,
    replies: int = 1,
    meanwhile: Iterable[Contents] = (),
) -> ResourceManager:
    """Prepare a branch that takes a message of queue a and puts replies into b."""
    contents = expected.contents.doubting("a", 1).doubting("b", 0, added=replies)
    with expected.becoming(contents, meanwhile=meanwhile), worked(space, work) as rm:
        assert rm.prepare(XID) == XA_OK
    return rm


def in_doubt(before: Contents) -> Contents:
    """The contents after the vote of a branch that takes a message of queue a and puts a reply into b."""
    return before.doubting("a", 1).doubting("b", 0, added=1)


def decide(space: spool.Space, outcome: str, *, told: bool = False) -> None:
    """Commit or roll back the branch in doubt, as a coordinator that got its vote (``told``), or did not."""
    if outcome == "commit":
        commit_prepared(door.core(space), XID, vote_known=told)
    else:
        rollback_prepared(door.store(space), XID, door.deadline(space))


def end_branches(space: spool.Space, outcome: str) -> None:
    """Decide each listed branch. A coordinator that asks again takes "no such branch" for "done"."""
    rm = ResourceManager(space)
    for xid in rm.recover():
        try:
            (rm.commit if outcome == "commit" else rm.rollback)(xid)
        except XAError as error:
            if error.code == XA_HEURRB:
                rm.forget(xid)
            elif error.code != XAER_NOTA:
                raise


IN_DOUBT = in_doubt(THREE)
COMMITTED = THREE.got("a").put("b", "reply")
DECIDED = {IN_DOUBT: {"commit": COMMITTED, "rollback": THREE}}


def _two_phase_commit(space: spool.Space, expected: Expectation) -> None:
    rm = prepare(space, expected)
    with expected.becoming(COMMITTED, decides=True):
        rm.commit(XID)


def _two_phase_rollback(space: spool.Space, expected: Expectation) -> None:
    """A rolled-back branch may be there again after a power cut; its coordinator rolls it back again."""
    rm = prepare(space, expected)
    with expected.becoming(THREE, surely=False, decides=True):
        rm.rollback(XID)


def _voted(space: spool.Space) -> None:
    """A branch in doubt, of a process that has ended."""
    three_messages(space)
    prepare(space, Expectation(THREE))


def _committed_later(space: spool.Space, expected: Expectation) -> None:
    rm = ResourceManager(space)
    assert list(rm.recover()) == [XID]
    with expected.becoming(COMMITTED, decides=True):
        rm.commit(XID)


def _rolled_back_later(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(THREE, surely=False, decides=True):
        ResourceManager(space).rollback(XID)


def _one_phase(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(COMMITTED), worked(space, reply) as rm:
        rm.commit(XID, TMONEPHASE)


def _administrator(space: spool.Space, expected: Expectation) -> None:
    """An administrator rolls the branch back: after the call has returned, no power cut restores the branch."""
    prepare(space, expected)
    with expected.becoming(THREE):
        ResourceManager(space).decide_heuristically(XID, commit=False)


# The branch holds its reply; the message that it would take was taken.
BACK_AFTER_TAKEN = THREE.got("a").doubting("b", 0, added=1)


def _rolled_back_then_taken(space: spool.Space, expected: Expectation) -> None:
    """If the branch is back after a power cut, the message that it held stays taken."""
    _two_phase_rollback(space, expected)
    with expected.becoming(THREE.got("a"), meanwhile={IN_DOUBT, BACK_AFTER_TAKEN}):
        assert space.get("a").body == "one"
    expected.allowed |= {BACK_AFTER_TAKEN}


def _adoption(space: spool.Space, expected: Expectation) -> None:
    """A transaction commits a prepared branch together with its own messages."""
    prepare(space, expected)
    with expected.becoming(THREE.got("a", 2).put("b", "own", "reply")), abandoned(door.branch(space)) as tx:
        tx.put("b", "own")
        assert tx.get("a").body == "two"
        tx.commit(adopt=[XID])


def _adopted_and_reclaimed(space: spool.Space, expected: Expectation) -> None:
    """The branch's file goes before its head."""
    _two_phase_commit(space, expected)
    with expected.becoming(expected.contents.got("b")):
        assert space.get("b").body == "reply"
    with expected.becoming(expected.contents.got("a", 2)):
        space.get_many("a", 2)
    did(door.reclaim(space))
    with expected.becoming(expected.contents.put("a", "last")):
        space.put("a", "last")
    door.reclaim(space)


HELD = THREE.doubting("a", 1)


def _adopted_get_and_reclaimed(space: spool.Space, expected: Expectation) -> None:
    """A branch that only takes a message is adopted and reclaimed."""
    rm = prepare(space, expected, lambda space: space.get("a"), replies=0)
    with expected.becoming(THREE.got("a"), decides=True):
        rm.commit(XID)
    with expected.becoming(THREE.got("a", 3)):
        space.get_many("a", 2)
    did(door.reclaim(space))
    door.reclaim(space)


REPLACED_IN_DOUBT = TWO.doubting("a", 1, added=1)


def _replace_in_two_phases(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(REPLACED_IN_DOUBT), abandoned(branch(space)) as tx:
        tx.replace("a", "two", correlation_id="key")
        assert tx.prepare()
    with expected.becoming(FIRST_REPLACED, decides=True):
        ResourceManager(space).commit(XID)


BRANCHES = (
    History("prepare", three_messages, THREE, prepare, DECIDED),
    History("two-phase commit", three_messages, THREE, _two_phase_commit, DECIDED),
    History("two-phase rollback", three_messages, THREE, _two_phase_rollback, DECIDED, frozenset([IN_DOUBT])),
    History("one phase", three_messages, THREE, _one_phase),
    History("committed by another process", _voted, IN_DOUBT, _committed_later, DECIDED, outcome="commit"),
    History("rolled back by another process", _voted, IN_DOUBT, _rolled_back_later, DECIDED, frozenset([IN_DOUBT])),
    History(
        "rolled back, then taken",
        three_messages,
        THREE,
        _rolled_back_then_taken,
        {**DECIDED, BACK_AFTER_TAKEN: {"rollback": THREE.got("a")}},
        frozenset([IN_DOUBT, BACK_AFTER_TAKEN]),
    ),
    History("an administrator's rollback", three_messages, THREE, _administrator, DECIDED),
    History("adoption", three_messages, THREE, _adoption, DECIDED),
    History("adopted and reclaimed", three_messages, THREE, _adopted_and_reclaimed, DECIDED),
    History(
        "adopted get and reclaimed",
        three_messages,
        THREE,
        _adopted_get_and_reclaimed,
        {HELD: {"commit": THREE.got("a"), "rollback": THREE}},
    ),
    History(
        "replace in two phases",
        two_keys,
        TWO,
        _replace_in_two_phases,
        {REPLACED_IN_DOUBT: {"commit": FIRST_REPLACED, "rollback": TWO}},
    ),
)
