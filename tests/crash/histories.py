"""Histories: the calls of one process before a power cut, and the contents that are allowed afterwards."""

from dataclasses import replace
from unittest import mock

import spool
from spool.admin.schedules import put_due
from spool.intake import Intake
from spool.log import checkpoint, write_set
from spool.maintenance import compaction
from spool.model import layout
from tests import door
from tests.compaction import small_compactions
from tests.crash.contents import EMPTY, XID, Contents, Expectation, History, branch, decide, in_doubt, prepare
from tests.crash.losses import LOSSES
from tests.crash.replacements import REPLACEMENTS
from tests.crash.translations import TRANSLATIONS
from tests.held import committed_here
from tests.machine import OF_ANOTHER


def _nothing(space: spool.Space) -> None:
    pass


def _put(space: spool.Space, expected: Expectation) -> None:
    for body in ("one", "two"):
        with expected.becoming(expected.contents.put("a", body)):
            space.put("a", body)


def _put_many(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(expected.contents.put("a", "one", "two", "three")):
        space.put_many("a", ["one", "two", "three"])


def _three_messages(space: spool.Space) -> None:
    space.put("a", "one")
    space.put_many("a", ["two", "three"])


THREE = EMPTY.put("a", "one", "two", "three")


def _get(space: spool.Space, expected: Expectation) -> None:
    for body in ("one", "two"):
        with expected.becoming(expected.contents.got("a")):
            assert space.get("a").body == body


def _transaction(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(expected.contents.got("a").put("b", "reply")):
        with space.transaction() as tx:
            tx.put("b", f"reply to {tx.get('a').body}"[:5])


def _rollback(space: spool.Space, expected: Expectation) -> None:
    tx = space.transaction()
    tx.put("b", "reply")
    assert tx.get("a").body == "one"
    tx.rollback()
    with expected.becoming(expected.contents.put("b", "later")):
        space.put("b", "later")


IN_DOUBT = in_doubt(THREE)
COMMITTED = THREE.got("a").put("b", "reply")
DECIDED = {IN_DOUBT: {"commit": COMMITTED, "rollback": THREE}}


def _two_phase_commit(space: spool.Space, expected: Expectation) -> None:
    prepare(space, expected)
    with expected.becoming(COMMITTED):
        decide(space, "commit", told=True)


def _two_phase_rollback(space: spool.Space, expected: Expectation) -> None:
    """A rolled-back branch may be there again after a power cut; its coordinator rolls it back again."""
    prepare(space, expected)
    with expected.becoming(THREE, surely=False):
        decide(space, "rollback")


def _administrator(space: spool.Space, expected: Expectation) -> None:
    """An administrator rolls the branch back: after the call has returned, no power cut restores the branch."""
    prepare(space, expected)
    with expected.becoming(THREE):
        space.engine.decide(XID, commit=False)


# The branch holds its reply; the message that it would take was taken.
BACK_AFTER_TAKEN = THREE.got("a").doubting("b", 0, added=1)


def _rolled_back_then_taken(space: spool.Space, expected: Expectation) -> None:
    """If the branch is back after a power cut, the message that it held stays taken."""
    _two_phase_rollback(space, expected)
    with expected.becoming(THREE.got("a"), or_else={IN_DOUBT, BACK_AFTER_TAKEN}):
        assert space.get("a").body == "one"
    expected.allowed |= {BACK_AFTER_TAKEN}


def _adoption(space: spool.Space, expected: Expectation) -> None:
    """A transaction commits a prepared branch together with its own messages."""
    prepare(space, expected)
    with expected.becoming(THREE.got("a", 2).put("b", "own", "reply")):
        tx = door.branch(space)
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
    assert door.reclaim(space) > 0
    with expected.becoming(expected.contents.put("a", "last")):
        space.put("a", "last")
    door.reclaim(space)


HELD = THREE.doubting("a", 1)


def _adopted_get_and_reclaimed(space: spool.Space, expected: Expectation) -> None:
    """A branch that only takes a message is adopted and reclaimed."""
    with expected.becoming(HELD):
        tx = branch(space)
        tx.get("a")
        assert tx.prepare()
    with expected.becoming(THREE.got("a")):
        decide(space, "commit", told=True)
    with expected.becoming(THREE.got("a", 3)):
        space.get_many("a", 2)
    assert door.reclaim(space) > 0
    door.reclaim(space)


def _consumed_messages(space: spool.Space) -> None:
    _three_messages(space)
    space.get_many("a", 3)
    space.put("b", "stays")


PAGES = "more than a page" + " " * 4096


def _reclaim(space: spool.Space, expected: Expectation) -> None:
    """Later commits overwrite removed files."""
    assert door.reclaim(space) > 0
    with expected.becoming(expected.contents.got("b")):
        space.get("b")
    with expected.becoming(expected.contents.put("b", PAGES)):
        space.put("b", PAGES)
    assert door.reclaim(space) > 0


CONSUMED: Contents = THREE.got("a", 3).put("b", "stays")


def _files_dropped(space: spool.Space) -> None:
    """Another program drops files before the space is used."""
    _drop(space, {"one": b"one", "two": b"two"})


def _marked_files(space: spool.Space) -> None:
    """Another program drops files with their markers. The file without a marker must never be taken."""
    space.change_queue("a", drop_marker=".ok")
    _drop(space, {"one": b"one", "one.ok": b"", "two": b"two", "two.ok": b"", "unmarked": b"unmarked"})


def files_of_another_user(space: spool.Space) -> None:
    """Drop files of another user: the kernel does not tell whether these files have a writer, and they get no second
    name."""
    _drop(space, {f"{OF_ANOTHER}-1": b"one", f"{OF_ANOTHER}-2": b"two"})


def _drop(space: spool.Space, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        handle = door.disk(space).create(f"{layout.DROP}/a/{name}")
        door.disk(space).write_at(handle, 0, data)
        door.disk(space).flush(handle)
        door.disk(space).flush_directory(f"{layout.DROP}/a")
        door.disk(space).close(handle)


TAKEN_IN = EMPTY.put("a", "b'one'", "b'two'")
THE_OTHER_FIRST = EMPTY.put("a", "b'two'", "b'one'")  # one that a dead intake had taken comes when it is finished


def _intake(space: spool.Space, expected: Expectation) -> None:
    """The next intake finishes the work of an interrupted one: each file becomes one message."""
    expected.allowed |= {THE_OTHER_FIRST}
    Intake(space).run(once=True)


def _finish_intake(space: spool.Space) -> None:
    Intake(space).run(once=True)


def _finish_intake_and_look_later(space: spool.Space) -> None:
    """A second intake checks the committed file that may still have a writer, and removes it. No simulated time passes
    after the file's last change, but the file counts as old enough."""
    for _ in range(2):
        Intake(space).run(once=True)


def _streamed(space: spool.Space, expected: Expectation) -> None:
    """A branch whose sections go to the disk while it is written: all of it or nothing."""
    with mock.patch.object(write_set, "SECTION_MESSAGES", 2), expected.becoming(THREE.got("a").put("b", *"1234567")):
        with space.transaction() as tx:
            tx.get("a")
            for body in "1234567":
                tx.put("b", body)


def _streamed_and_rolled_back(space: spool.Space, expected: Expectation) -> None:
    with mock.patch.object(write_set, "SECTION_MESSAGES", 2):
        tx = space.transaction()
        tx.put_many("b", list("1234567"))
        tx.rollback()
    with expected.becoming(expected.contents.put("b", "later")):
        space.put("b", "later")


def _singles(space: spool.Space) -> None:
    for body in "123456":
        space.put("a", body)
    assert space.get("a").body == "1"


SINGLES = EMPTY.put("a", *"123456").got("a")


def _compacted(space: spool.Space, expected: Expectation) -> None:
    """Compactions move messages repeatedly. The old files are removed, the removals of messages remain."""
    with small_compactions():
        assert door.compact(space) == 1
        assert door.reclaim(space) > 0
        with expected.becoming(expected.contents.got("a", 4)):
            space.get_many("a", 4)
        with expected.becoming(expected.contents.put("a", "last")):
            space.put("a", "last")
        with mock.patch.object(compaction, "MAX_WASTE", -1.0), mock.patch.object(compaction, "SEGMENT_BYTES", 2):
            assert door.compact(space) > 0
        door.reclaim(space)


def _checkpoint(space: spool.Space, expected: Expectation) -> None:
    """An opener uses a checkpoint that is older or newer than the files, or reads all files."""
    for _ in range(2):
        with small_compactions():
            door.compact(space)
        door.reclaim(space)
        checkpoint.save(door.disk(space), door.store(space).shared.counters, door.store(space).view)
        with expected.becoming(expected.contents.got("a")):
            space.get("a")
    with expected.becoming(expected.contents.put("a", "last")):
        space.put("a", "last")
    door.reclaim(space)
    assert checkpoint.save(door.disk(space), door.store(space).shared.counters, door.store(space).view)
    door.reclaim(space)


def _six_in_one(space: spool.Space) -> None:
    space.put_many("a", list("123456"))


SIX_IN_ONE = EMPTY.put("a", *"123456")


def _tombstones_merged(space: spool.Space, expected: Expectation) -> None:
    """One file repeats many removals. The other files are removed, and the removed messages do not return."""
    with small_compactions():
        with expected.becoming(expected.contents.got("a")):
            space.get("a")
        with expected.becoming(expected.contents.got("a")):
            space.get("a")
        assert door.compact(space) > 0
        assert door.reclaim(space) > 0
        with expected.becoming(expected.contents.got("a", 2)):
            space.get_many("a", 2)
        door.compact(space)
        door.reclaim(space)


def _half_compacted(space: spool.Space, expected: Expectation) -> None:
    """A compaction does not move claimed messages and messages in doubt."""
    with small_compactions():
        with expected.becoming(SINGLES_IN_DOUBT):
            tx = branch(space)
            tx.get("a")
            assert tx.prepare()
        with space.transaction() as held:
            assert held.get("a").body == "3"
            assert door.compact(space) == 1
            door.reclaim(space)
            with expected.becoming(SINGLES_IN_DOUBT.got("a")):
                held.commit()
        with expected.becoming(SINGLES.got("a", 2)):
            decide(space, "commit", told=True)
        door.reclaim(space)


SINGLES_IN_DOUBT = SINGLES.doubting("a", 1)
WITHOUT_THE_THIRD = replace(SINGLES.got("a"), queues=(tuple("2456"), (), ()))


def _group(space: spool.Space, expected: Expectation) -> None:
    """Several branches and plain messages in one file: all of them, or none."""
    acknowledged = spool.Transaction(door.core(space), counted=False)  # (without claim journals, for brevity)
    forwarded = spool.Transaction(door.core(space), counted=False)
    acknowledged.get("a")
    forwarded.get("a")
    forwarded.put("b", "reply")
    with expected.becoming(THREE.got("a", 2).put("a", "x", "z").put("b", "y", "reply")):
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
    with expected.becoming(expected.contents.put("b", *bodies)), committed_here(space):
        for body in bodies:
            space.submit("b", body)


def _claims(space: spool.Space, expected: Expectation) -> None:
    """Messages that are claimed outside of any transaction: removals in any order share a commit, and the rest is
    released."""
    claims = space.claims()
    one, two, three = claims.take("a", 3)
    claims.begin(one)
    with expected.becoming(expected.contents.got("a", 2)), committed_here(space):
        futures = [claims.remove([two]), claims.remove([one])]
    claims.begin(three)
    with expected.becoming(expected.contents.put("b", "later")):
        space.put("b", "later")
    claims.close()
    for future in futures:
        future.result(0)


def _claims_that_fail(space: spool.Space, expected: Expectation) -> None:
    """A counted failure and a rejection in one commit; the rejected message is dropped, because no error queue is
    set."""
    claims = space.claims()
    one, two = claims.take("a", 2)
    claims.begin(one)
    with expected.becoming(REJECTED), committed_here(space):
        claims.reject([one], "no")
        claims.fail(two, "it broke")
    claims.close()


REJECTED = replace(THREE, queues=(("two", "three"), (), ()))  # (a drop is not counted as dequeued)


def _a_schedule(space: spool.Space) -> None:
    space.create_schedule("nightly", "a", "tick", cron="0 0 * * *")


def _due_messages(space: spool.Space) -> None:
    door.clock(space).step = 20_000.0  # type: ignore[attr-defined]
    put_due(door.core(space))


def _put_due(space: spool.Space, expected: Expectation) -> None:
    """The next process that opens the space puts the message, unless it is there."""
    expected.contents = expected.contents.put("a", "tick")
    expected.allowed = frozenset([expected.contents])
    _due_messages(space)


HISTORIES = (
    History("a due message of a schedule", _a_schedule, EMPTY, _put_due, finish=_due_messages),
    History("put", _nothing, EMPTY, _put),
    History("put_many", _nothing, EMPTY, _put_many),
    History("get", _three_messages, THREE, _get),
    History("transaction", _three_messages, THREE, _transaction),
    History("rollback", _three_messages, THREE, _rollback),
    History("prepare", _three_messages, THREE, prepare, DECIDED),
    History("two-phase commit", _three_messages, THREE, _two_phase_commit, DECIDED),
    History("two-phase rollback", _three_messages, THREE, _two_phase_rollback, DECIDED, frozenset([IN_DOUBT])),
    History(
        "rolled back, then taken",
        _three_messages,
        THREE,
        _rolled_back_then_taken,
        {**DECIDED, BACK_AFTER_TAKEN: {"rollback": THREE.got("a")}},
        frozenset([IN_DOUBT, BACK_AFTER_TAKEN]),
    ),
    History("an administrator's rollback", _three_messages, THREE, _administrator, DECIDED),
    History("adoption", _three_messages, THREE, _adoption, DECIDED),
    History("adopted and reclaimed", _three_messages, THREE, _adopted_and_reclaimed, DECIDED),
    History(
        "adopted get and reclaimed",
        _three_messages,
        THREE,
        _adopted_get_and_reclaimed,
        {HELD: {"commit": THREE.got("a"), "rollback": THREE}},
    ),
    History("reclaim", _consumed_messages, CONSUMED, _reclaim),
    History("compaction", _singles, SINGLES, _compacted, survivors=1),
    History("checkpoint", _singles, SINGLES, _checkpoint, survivors=1),
    History("merged tombstones", _six_in_one, SIX_IN_ONE, _tombstones_merged, survivors=1),
    History(
        "compaction beside what is held",
        _singles,
        SINGLES,
        _half_compacted,
        {
            SINGLES_IN_DOUBT: {"commit": SINGLES.got("a"), "rollback": SINGLES},
            SINGLES_IN_DOUBT.got("a"): {
                "commit": SINGLES.got("a", 2),
                "rollback": WITHOUT_THE_THIRD,
            },
        },
        survivors=1,
    ),
    History("intake", _files_dropped, TAKEN_IN, _intake, finish=_finish_intake),
    History("intake of marked files", _marked_files, TAKEN_IN, _intake, finish=_finish_intake),
    History(
        "intake of another user's files",
        files_of_another_user,
        TAKEN_IN,
        _intake,
        finish=_finish_intake_and_look_later,
    ),
    History("a branch that streams", _three_messages, THREE, _streamed),
    History("a group of branches", _three_messages, THREE, _group),
    History("groups, consumed and reclaimed", _three_messages, THREE, _group_and_next_commit),
    History("claims", _three_messages, THREE, _claims),
    History("claims that fail", _three_messages, THREE, _claims_that_fail),
    History("a branch that streams, rolled back", _three_messages, THREE, _streamed_and_rolled_back),
    *TRANSLATIONS,
    *LOSSES,
    *REPLACEMENTS,
)
