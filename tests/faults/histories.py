"""Short histories of all calls that touch a space's files, in steps with their promises.

A step that returns has happened. A step that raises has not, unless the error says that the outcome is unknown
(CommitUnknown, XA_RETRY, XAER_RMFAIL): then the step has happened whole, or not at all.
"""

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from unittest import mock

import spool
from spool.coordination.locks import coordinator_byte
from spool.disk import recycler
from spool.errors import DiskFailure
from spool.intake import Intake
from spool.model.xid import FORMAT_ROUND, Xid
from spool.remote.remote_branch import RemoteBranch
from tests import door
from tests.crash.contents import EMPTY, XID, Contents
from tests.held import committed_here
from xa import TMFAIL, TMSUCCESS, XA_OK, XAER_NOTA, ResourceManager, XAError


@dataclass
class Actor:
    """The process under test."""

    space: spool.Space
    rm: ResourceManager = field(init=False)

    def __post_init__(self) -> None:
        self.rm = ResourceManager(self.space)


Effect = Callable[[Contents], Contents]


@dataclass(frozen=True)
class Step:
    """One call of a history. ``effect``: the contents after a step that returned. ``or_else``: other contents that are
    allowed after a step that returned (an attempt that could not be counted). ``unsure``: the step may have happened
    after any error. ``decides``: the second phase, which never raises XAER_RMERR, because that code tells the
    coordinator that the branch was rolled back."""

    act: Callable[[Actor], object]
    effect: Effect
    or_else: Callable[[Contents], Iterable[Contents]] = lambda contents: ()
    unsure: bool = False
    decides: bool = False


def _same(contents: Contents) -> Contents:
    return contents


@dataclass(frozen=True)
class History:
    """A healthy process runs ``setup``, after which the contents are ``begin``. A coordinator or the next intake runs
    ``finish`` later on a healthy disk; the contents must then be one of ``finished``. ``may_return``: the contents
    if a power cut brings back a branch whose file was removed without a flush, or takes a branch that is to be
    rolled back. ``by_task``: a task that reads and writes the space itself takes part."""

    name: str
    setup: Callable[[spool.Space], None]
    begin: Contents
    steps: tuple[Step, ...]
    finish: Callable[[Actor], None] = lambda actor: None
    finished: frozenset[Contents] = frozenset()
    may_return: frozenset[Contents] = frozenset()
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    by_task: bool = False

    def __str__(self) -> str:
        return self.name


# -- setups -----------------------------------------------------------------------------------------------------------


def nothing(space: spool.Space) -> None:
    pass


def three(space: spool.Space) -> None:
    space.put("a", "one")
    space.put_many("a", ["two", "three"])


THREE = EMPTY.put("a", "one", "two", "three")


def consumed(space: spool.Space) -> None:
    three(space)
    space.get_many("a", 3)
    space.put("b", "stays")


CONSUMED = THREE.got("a", 3).put("b", "stays")


def dropped(space: spool.Space, marker: str | None = None) -> None:
    """Files from outside."""
    disk = door.disk(space)
    for name, data in (("a/1", b"one"), ("a/2", b"two"), ("b/3", b"three")):
        handle = disk.create(f"drop/{name}")
        disk.write_at(handle, 0, data)
        disk.close(handle)
        if marker is not None:
            disk.close(disk.create(f"drop/{name}{marker}"))


def dropped_with_markers(space: spool.Space) -> None:
    for queue in ("a", "b"):
        space.change_queue(queue, drop_marker=".ok")
    dropped(space, ".ok")


# -- plain puts and gets ----------------------------------------------------------------------------------------------


def put(*bodies: str) -> Step:
    return Step(lambda actor: actor.space.put_many("a", bodies), lambda contents: contents.put("a", *bodies))


def get(count: int = 1) -> Step:
    return Step(lambda actor: actor.space.get_many("a", count), lambda contents: contents.got("a", count))


def _forward(actor: Actor) -> None:
    with actor.space.transaction() as tx:
        tx.put("b", f"reply to {tx.get('a').body}"[:5])


FORWARD = Step(_forward, lambda contents: contents.got("a").put("b", "reply"))


def _roll_back(actor: Actor) -> None:
    tx = actor.space.transaction()
    try:
        tx.put("b", "reply")
        tx.get_many("a", 2)
    finally:
        tx.rollback()


def _large(actor: Actor) -> None:
    """Sections stream into the file while the transaction goes on."""
    with actor.space.transaction() as tx:
        for body in LARGE:
            tx.put("b", body)
        tx.get("a")


LARGE = ("first", "second", "third", "fourth")


def _put_and_reclaim(actor: Actor) -> None:
    actor.space.put("a", "one")
    door.housekeeper(actor.space).committed(every=0)


def _close(actor: Actor) -> None:
    with mock.patch("spool.maintenance.triggers.TIDY_FROM", 0):
        actor.space.close()


def _look_around(actor: Actor) -> None:
    """Make all calls that only read."""
    space = actor.space
    first = next(space.browse("a"))
    assert space.show(first.id).body == "one"
    assert space.stats("a").ready == 3
    assert set(space.stats()) == {"a", "b", "after"}
    space.check()  # it names a file that it cannot read
    assert not space.quarantined()


def _create_queue(actor: Actor) -> None:
    actor.space.create_queue("late", retries=3)
    actor.space.put("late", "x")
    assert actor.space.get("late").body == "x"


# -- two phases -------------------------------------------------------------------------------------------------------


def _vote(actor: Actor) -> None:
    rm, space = actor.rm, actor.space
    rm.start(XID)
    try:
        space.get("a")
        space.put("b", "reply")
    except BaseException:
        rm.end(XID, TMFAIL)
        rm.rollback(XID)
        raise
    rm.end(XID, TMSUCCESS)
    assert rm.prepare(XID) == XA_OK


IN_DOUBT = THREE.doubting("a", 1).doubting("b", 0, added=1)
COMMITTED = THREE.got("a").put("b", "reply")


def voted(space: spool.Space) -> None:
    """A branch in doubt, by a process that is gone."""
    three(space)
    _vote(Actor(space))


def _commit(actor: Actor) -> None:
    actor.rm.commit(XID)


def _rollback(actor: Actor) -> None:
    actor.rm.rollback(XID)


def _one_phase(actor: Actor) -> None:
    rm, space = actor.rm, actor.space
    rm.start(XID)
    try:
        space.put("b", f"reply to {space.get('a').body}"[:5])
    except BaseException:
        rm.end(XID, TMFAIL)
        rm.rollback(XID)
        raise
    rm.end(XID, TMSUCCESS)
    rm.commit(XID, 0x40000000)


COMMIT = Step(_commit, lambda contents: COMMITTED, decides=True)
ROLLBACK = Step(_rollback, lambda contents: THREE, decides=True)


def _again(decide: Callable[[Actor], object]) -> Callable[[Actor], None]:
    """After XA_RETRY a coordinator asks again, and takes "no such branch" for "done"."""

    def finish(actor: Actor) -> None:
        try:
            decide(actor)
        except XAError as error:
            if error.code != XAER_NOTA:
                raise

    return finish


def _roll_back_listed_branches(actor: Actor) -> None:
    """Presumed abort: a coordinator without a decision rolls back each listed branch."""
    for xid in actor.rm.recover():
        actor.rm.rollback(xid)


VOTE = Step(_vote, lambda contents: IN_DOUBT)


def _adopt(actor: Actor) -> None:
    try:
        _round(actor)
    except OSError as error:  # the forwarder reports both kinds alike
        raise error if isinstance(error, DiskFailure) else DiskFailure(error.errno, str(error)) from error


def _round(actor: Actor) -> None:
    """Forward as a round does: claim, let a task write and prepare its branch, commit the branch."""
    space = actor.space
    store = door.store(space)
    gtrid = os.urandom(16)
    assert store.shared.xids.try_lock(coordinator_byte(gtrid))
    tx = door.branch(space, counted=False)
    try:
        held = tx.hold("a", 2)
        disk = copy.copy(store.files.disk)
        disk._handles, disk._memory = {}, []  # (otherwise the end of the task would unmap the memory of the space)
        with mock.patch("spool.remote.remote_branch.Disk", return_value=disk):
            votes = [_task(space.path, gtrid, held)]
        tx.commit(adopt=votes)
    finally:
        tx.abandon()
        store.shared.xids.unlock(coordinator_byte(gtrid))


def _task(path: str, gtrid: bytes, held: list) -> Xid:
    branch = RemoteBranch(path, Xid(FORMAT_ROUND, gtrid, b"0"))
    try:
        for run in held:
            replies = [body[:3] for _, body, _ in branch.messages([run])]
            removed = (*run.position, run.length, "dequeued")
            door.add(branch, ("put", "b", replies, {"codec": "text"}), ("remove", *removed))
        vote = branch.prepare()
        return vote.xid
    finally:
        branch.close()


def _spares(space: spool.Space) -> None:
    """Consumed files, which the votes overwrite where names follow."""
    consumed(space)
    space.put_many("a", ["one", "two", "three"])
    assert door.reclaim(space) > 0


SPARES = CONSUMED.put("a", "one", "two", "three")
SPARES_IN_DOUBT = SPARES.doubting("a", 1).doubting("b", 0, added=1)
SPARES_COMMITTED = SPARES.got("a").put("b", "reply")
SPARES_VOTE = Step(_vote, lambda contents: SPARES_IN_DOUBT)


def _grow(actor: Actor) -> None:
    """Where names follow, the file of this put and a further one are made ahead."""
    few = {"AHEAD_AFTER_MISSES": 1, "AHEAD_AT_FIRST": 2, "AHEAD_AT_MOST": 2}
    with mock.patch.multiple(recycler, **few):
        actor.space.put("a", "one")


# -- files from outside -----------------------------------------------------------------------------------------------


def _intake(actor: Actor) -> None:
    Intake(actor.space).run(once=True)


def _some_of(contents: Contents) -> list[Contents]:
    """A file that cannot be read now waits for the next intake."""
    a = ("b'one'", "b'two'")
    return [
        contents.put("a", *first).put("b", *second) for first in (a, a[:1], a[1:], ()) for second in (("b'three'",), ())
    ]


TAKEN = EMPTY.put("a", "b'one'", "b'two'").put("b", "b'three'")
TAKEN_LATE = EMPTY.put("a", "b'two'", "b'one'").put("b", "b'three'")

RECLAIM = Step(lambda actor: door.reclaim(actor.space), _same)


def _fail(actor: Actor) -> None:
    tx = actor.space.transaction()
    try:
        tx.get("a")
    finally:
        tx.rollback("no luck")


def _moved(contents: Contents) -> Contents:
    """The second try too many: the message is in the error queue."""
    if len(contents.queues[0]) < 3:
        return contents
    a, b, after = contents.queues
    counts = (contents.counts[0], (contents.counts[1][0] + 1, contents.counts[1][1]), contents.counts[2])
    return replace(contents, queues=(a[1:], (*b, a[0]), after), counts=counts)


def _perhaps_moved(contents: Contents) -> list[Contents]:
    return [contents, _moved(contents)] if len(contents.queues[0]) == 3 else [contents]


def _group(actor: Actor) -> None:
    """Several branches and plain messages in one file; the first error is the caller's."""
    space = actor.space
    transactions = [spool.Transaction(door.core(space), counted=False) for _ in range(2)]
    try:
        for tx in transactions:
            tx.get("a")
        transactions[1].put("b", "reply")
        with committed_here(space):
            futures = [space.submit("a", "x"), *(tx.commit_async() for tx in transactions), space.submit("b", "y")]
    finally:
        for tx in transactions:
            tx.abandon()
    errors = [error for error in (future.exception(0) for future in futures) if error is not None]
    if errors:
        raise errors[0]


def _grouped(contents: Contents) -> Contents:
    return contents.got("a", 2).put("a", "x").put("b", "reply", "y")


def _partly(contents: Contents) -> list[Contents]:
    """Requests accepted before the failing call are committed; on a full disk those that put nothing may succeed."""
    submitted = contents.put("a", "x")
    return [submitted, submitted.got("a"), submitted.got("a", 2).put("b", "reply"), contents.got("a")]


# An attempt that cannot be recorded is not counted, and one whose journal cannot be removed may count twice; nothing
# else.
FAIL = Step(_fail, _same, _perhaps_moved, unsure=True)
FAIL_AGAIN = Step(_fail, _moved, _perhaps_moved, unsure=True)

HISTORIES = (
    History("put", nothing, EMPTY, (put("one"), put("two", "three"))),
    History("get", three, THREE, (get(), get(2))),
    History("recycled put", consumed, CONSUMED, (RECLAIM, put("one"))),
    History("put into a growing queue", nothing, EMPTY,
            (Step(_grow, lambda contents: contents.put("a", "one")), put("two"), put("three"))),
    History("transaction", three, THREE, (FORWARD, FORWARD)),
    History("rollback", three, THREE, (Step(_roll_back, _same), get())),
    History("group", three, THREE, (Step(_group, _grouped, _partly, unsure=True), get())),
    History("large", three, THREE, (Step(_large, lambda contents: contents.got("a").put("b", *LARGE)), get(2))),
    History("retries", three, THREE, (FAIL, FAIL_AGAIN), options={"a": {"retries": 1, "error_queue": "b"}}),
    History("look", three, THREE, (Step(_look_around, _same),)),
    History("create queue", nothing, EMPTY, (Step(_create_queue, _same),)),
    History("put and reclaim", consumed, CONSUMED, (Step(_put_and_reclaim, lambda found: found.put("a", "one")),)),
    History("reclaim", consumed, CONSUMED, (RECLAIM, put("one"))),
    History("close", consumed, CONSUMED, (Step(_close, _same),)),
    History("prepare", three, THREE, (VOTE,), _roll_back_listed_branches, frozenset([THREE]),
            frozenset([IN_DOUBT])),
    History("second phase", three, THREE, (VOTE, COMMIT), _roll_back_listed_branches, frozenset([THREE, COMMITTED]),
            frozenset([IN_DOUBT])),
    History("second phase, later", voted, IN_DOUBT, (COMMIT,), _again(_commit),
            frozenset([COMMITTED])),
    History("rollback of a vote", voted, IN_DOUBT, (ROLLBACK,), _again(_rollback),
            frozenset([THREE]), frozenset([IN_DOUBT])),
    History("vote in a consumed file", _spares, SPARES,
            (SPARES_VOTE, Step(_commit, lambda contents: SPARES_COMMITTED, decides=True)), _roll_back_listed_branches,
            frozenset([SPARES, SPARES_COMMITTED]), frozenset([SPARES_IN_DOUBT])),
    History("second vote in a consumed file", _spares, SPARES,
            (SPARES_VOTE, Step(_rollback, lambda contents: SPARES, decides=True), SPARES_VOTE),
            # (a rollback writes to the file, so a branch that is to be rolled back may be lost)
            _roll_back_listed_branches, frozenset([SPARES]), frozenset([SPARES_IN_DOUBT, SPARES])),
    History("count and reclaim", three, THREE, (Step(_roll_back, _same), RECLAIM, put("more"), RECLAIM, get())),
    History("one phase", three, THREE, (Step(_one_phase, lambda contents: COMMITTED),)),
    History("recover", voted, IN_DOUBT, (Step(lambda actor: actor.rm.recover(), _same),), _again(_commit),
            frozenset([COMMITTED])),
    History("adoption", three, THREE, (Step(_adopt, lambda contents: contents.got("a", 2).put("b", "one", "two")),),
            by_task=True),
    History("intake", dropped, EMPTY, (Step(_intake, lambda contents: TAKEN, _some_of, unsure=True),), _intake,
            frozenset([TAKEN, TAKEN_LATE])),
    History("intake of marked files", dropped_with_markers, EMPTY,
            (Step(_intake, lambda contents: TAKEN, _some_of, unsure=True),), _intake, frozenset([TAKEN, TAKEN_LATE])),
)  # fmt: skip
