"""If a flush of bytes does not flush the name, recovery restores names that a power cut took (Rule 13).

The histories have enough consumed files to overwrite; one of them fails for each rule that is left out.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

import spool
from spool.admin import in_doubt as decisions
from spool.admin.findings import Kind
from spool.disk import recycler
from spool.disk.content import new_file
from spool.disk.content import opened as opened_file
from spool.disk.recycler import Recycler
from spool.format.header import VOTE, stamp
from spool.intake import Intake, capture
from spool.log import vote, write
from spool.maintenance import reclaim as reclaiming
from spool.model import layout
from spool.recovery import branch_files, numbers, scan
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.contents import EMPTY, QUEUES, XID, Contents, Expectation, History, branch, decide, in_doubt, prepare
from tests.crash.harness import Explorer, Violation
from tests.crash.planted import Bug, planted
from tests.crash.test_every_crash_point import record
from tests.machine import NO_FILES, Image, Machine
from tests.simdisk import SimulatedDisk
from tests.strides import Stride
from tests.survivors import Rules, survivors

# Larger than the commit that takes them: so the file with their removals is overwritten first.
OLD = tuple(f"old {n}".ljust(3000) for n in range(5))


@contextmanager
def growing_soon() -> Iterator[None]:
    """Make files ahead for the second commit that finds none."""
    few = {"AHEAD_AFTER_MISSES": 2, "AHEAD_AT_FIRST": 2, "AHEAD_AT_MOST": 2}
    with mock.patch.multiple(recycler, **few):
        yield


def _with_spares(space: spool.Space) -> None:
    """Consumed files, each with the number that it had, and two messages. Reclaim's last record does not name them."""
    for body in OLD:
        space.put("a", body)
    space.get_many("a", len(OLD))
    space.put_many("a", ["one", "two"])
    assert door.reclaim(space) > len(OLD)
    space.put("b", "passing")
    space.get("b")
    assert door.reclaim(space) > 0


BEGIN: Contents = EMPTY.put("a", *OLD).got("a", len(OLD)).put("a", "one", "two").put("b", "passing").got("b")


def _overwritten(space: spool.Space, expected: Expectation) -> None:
    """Puts, takes and an adoption; consumed files are used again."""
    with expected.becoming(expected.contents.put("b", "three")):
        space.put("b", "three")
    for queue in ("a", "b"):
        with expected.becoming(expected.contents.got(queue)):
            space.get(queue)
    with expected.becoming(expected.contents.put("b", "four", "five", "six")):
        space.put_many("b", ["four", "five", "six"])
    door.store(space).files.recycler.clear(everything=True)  # so that the files reclaimed now are used again
    assert door.reclaim(space) > 0
    with door.no_spare_is_left_for_others():
        for queue in ("a", "b", "b"):
            with expected.becoming(expected.contents.got(queue)):
                space.get(queue)
    with expected.becoming(expected.contents.put("b", "four")):
        space.put("b", "four")


IN_DOUBT = in_doubt(BEGIN)
COMMITTED = BEGIN.got("a").put("b", "reply")


def _adopted(space: spool.Space, expected: Expectation) -> None:
    prepare(space, expected)
    with expected.becoming(COMMITTED):
        decide(space, "commit", told=True)
    with expected.becoming(COMMITTED.got("a")):
        space.get("a")


def _decided_and_forgotten(space: spool.Space, expected: Expectation) -> None:
    """Once the decision is forgotten nothing says that a branch that comes back was rolled back."""
    prepare(space, expected)
    with expected.becoming(BEGIN):
        decisions.decide_heuristically(door.core(space), XID, door.deadline(space), commit=False)
    assert decisions.forget(door.store(space), XID, door.deadline(space))


AGAIN = BEGIN.doubting("a", 1).doubting("b", 0, added=2)


def _voted_again(space: spool.Space, expected: Expectation) -> None:
    """After a rollback, the coordinator uses the xid for another branch."""
    prepare(space, expected)
    with expected.becoming(BEGIN, surely=False):
        decide(space, "rollback")
    with expected.becoming(AGAIN, or_else=[IN_DOUBT]):
        tx = branch(space)
        tx.get("a")
        tx.put("b", "again")
        tx.put("b", "again")
        assert tx.prepare()


# Larger than every other file: so the second branch overwrites the file of the first, unless a rule forbids it.
LARGE = "large".ljust(5000)
LATER = BEGIN.got("a", 2).put("b", LARGE).got("b").put("a", "later")


def _prepare_large(space: spool.Space, expected: Expectation) -> None:
    with expected.becoming(in_doubt(expected.contents)):
        tx = branch(space)
        tx.get("a")
        tx.put("b", LARGE)
        assert tx.prepare()


def _reclaimed_and_voted_again(space: spool.Space, expected: Expectation) -> None:
    """A committed branch is consumed, and the coordinator uses the xid for another branch."""
    _prepare_large(space, expected)
    with expected.becoming(BEGIN.got("a").put("b", LARGE)):
        decide(space, "commit", told=True)
    for queue in ("b", "a"):
        with expected.becoming(expected.contents.got(queue)):
            space.get(queue)
    with expected.becoming(LATER):
        space.put("a", "later")
    assert door.reclaim(space) > 0
    _prepare_large(space, expected)


DECIDED = {
    IN_DOUBT: {"commit": COMMITTED, "rollback": BEGIN},
    AGAIN: {"commit": BEGIN.got("a").put("b", "again", "again"), "rollback": BEGIN},
}
LARGE_DECIDED = {
    in_doubt(contents): {"commit": contents.got("a").put("b", LARGE), "rollback": contents}
    for contents in (BEGIN, LATER)
}


def _nothing(space: spool.Space) -> None:
    """No file was consumed."""


def _grown(space: spool.Space, expected: Expectation) -> None:
    """A queue grows, so files are made ahead. A get is in one of them, too."""
    with growing_soon():
        for body in ("one", "two", "three", "large".ljust(5000), "five"):
            with expected.becoming(expected.contents.put("a", body)):
                space.put("a", body)
        with expected.becoming(expected.contents.got("a")), door.no_spare_is_left_for_others():
            space.get("a")


OVERWRITTEN = History("overwritten", _with_spares, BEGIN, _overwritten)
ADOPTED = History("adopted", _with_spares, BEGIN, _adopted, DECIDED)
FORGOTTEN = History("decided by hand and forgotten", _with_spares, BEGIN, _decided_and_forgotten, DECIDED)


def _spares_and_dropped(space: spool.Space) -> None:
    _with_spares(space)
    space.get_many("a", 2)
    disk = door.disk(space)
    for name in ("one", "two"):
        with new_file(disk, f"{layout.DROP}/a/{name}") as handle:
            disk.write_at(handle, 0, name.encode())
            disk.flush(handle)
    disk.flush_directory(f"{layout.DROP}/a")


TAKEN, OTHERWISE = (BEGIN.got("a", 2).put("a", *bodies) for bodies in (("b'one'", "b'two'"), ("b'two'", "b'one'")))


def _take_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def _taken_in(space: spool.Space, expected: Expectation) -> None:
    """Files that a power cut puts back into drop/ must not have become messages."""
    expected.allowed |= {OTHERWISE}
    _take_in(space)


TAKEN_IN = History("taken in", _spares_and_dropped, TAKEN, _taken_in, finish=_take_in)
VOTED_AGAIN = History("voted again", _with_spares, BEGIN, _voted_again, DECIDED, frozenset([IN_DOUBT]))
RECLAIMED = History("reclaimed and voted again", _with_spares, BEGIN, _reclaimed_and_voted_again, LARGE_DECIDED)
GROWN = History("grown", _nothing, EMPTY, _grown)
HISTORIES = (OVERWRITTEN, GROWN, ADOPTED, FORGOTTEN, VOTED_AGAIN, RECLAIMED, TAKEN_IN)


@pytest.mark.every(4)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_commits_in_overwritten_files_survive_every_power_cut(
    history: History, stride: Stride, record_property
) -> None:
    # (with a few survivors of each cut, no test misses the flush of a removed mark)
    per_cut = 3 if stride(2) > 1 else 40
    explorer = Explorer(history, Rules.NAMES_FOLLOW, every=stride(8), per_cut=per_cut, again=60)
    record(explorer.explore(), record_property)


def test_a_live_process_takes_over_commits_in_overwritten_files(stride: Stride, record_property) -> None:
    tally = Explorer(OVERWRITTEN, Rules.NAMES_FOLLOW, every=stride(8), per_recovery_cut=2).explore_takeovers()
    record(tally, record_property)


# -- each rule, left out ----------------------------------------------------------------------------------------------

_ABOVE = "highest < number <= highest + MAX_GAP"
_CONSUMED = " and (free is None or free.origin != origin_of(number))"
_MOVES_ARE_DURABLE = "        gone.append(number)\n    files.disk.flush_directory(layout.COMMITTED)\n"

BUGS = (
    Bug("recovery believes names alone", numbers._unnamed, ((_ABOVE, "False"),), OVERWRITTEN.name),
    Bug("any stamp counts", numbers._unnamed, ((_ABOVE, "0 < number"), (_CONSUMED, "")), OVERWRITTEN.name),
    Bug("a file is used again before it lies in free/ durably", reclaiming._remove,
        ((_MOVES_ARE_DURABLE, "        gone.append(number)\n"),), OVERWRITTEN.name),
    Bug("a file that was made ahead is used before its name is durable", Recycler._make_ahead,
        (("self.disk.flush_directory(layout.FREE)", "pass"),), GROWN.name),
    Bug("names are given from the highest number down", numbers.decide,
        (("sorted(evidence.unnamed.items())", "sorted(evidence.unnamed.items(), reverse=True)"),), OVERWRITTEN.name),
    Bug("free/ is cleared before", scan._Scan.run,
        (("    disk, xids = ", "    self._store.files.recycler.clear(everything=False)\n    disk, xids = "),),
        OVERWRITTEN.name),
    Bug("a dropped file's commit comes before its capture is durable", capture.Capture.make_durable,
        (("disk.flush_directory(folder)", "pass"),), TAKEN_IN.name),
    Bug("votes count by their names alone", branch_files.unnamed_votes, (("header.number >= VOTE", "False"),),
        ADOPTED.name),
    Bug("any mark is a vote", branch_files.unnamed_votes,
        (("(free is not None and header.number == VOTE | free.origin)", "free is not None"),), RECLAIMED.name),
    Bug("a vote is not marked", write.Prepared.name, (("if file.recycled", "if False"),), ADOPTED.name),
    Bug("a rollback leaves the mark", vote.unmark, (("number >= VOTE", "number < 0"),), VOTED_AGAIN.name),
    Bug("a mark is removed without a flush", vote.unmark,
        (("disk.make_durable(handle, layout.PREPARED, stamped=True)", "pass"),), VOTED_AGAIN.name),
    Bug("a half-written mark stays", scan._Scan.run,
        (("branch_files.decide_marks(prepared) if self._alone else []", "[]"),), VOTED_AGAIN.name),
    Bug("a branch overwrites a file of an earlier one", Recycler.take,
        (("unlike and unlike in", "False and unlike in"),), RECLAIMED.name),
    Bug("a decision is forgotten before its rollback is durable", decisions.forget,
        (("store.files.disk.flush_directory(layout.PREPARED)", "pass"),), FORGOTTEN.name),
)  # fmt: skip

_RENAMES = "        try:\n            store.files.disk.rename_new("
STAMPED_BEFORE = Bug(
    "a file is stamped before its rename", write.Committed.name,
    ((_RENAMES, f"        store.files.disk.write_at(file.handle, *stamp(number))\n{_RENAMES}"),),
    OVERWRITTEN.name,
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
@pytest.mark.slow
def test_a_rule_that_is_left_out_is_missed(bug: Bug, record_property) -> None:
    record_property("planted bugs", 1)
    (history,) = (history for history in HISTORIES if history.name == bug.noticed_by)
    with planted(bug), pytest.raises(Violation):
        for per_cut, again in ((8, 0), (4, 20), (4, 5), (40, 0)):
            Explorer(history, Rules.NAMES_FOLLOW, per_cut=per_cut, again=again).explore()


def test_a_stamp_before_the_rename_is_missed(record_property) -> None:
    """A killed writer leaves a second file with the next writer's number."""
    record_property("planted bugs", 1)
    with planted(STAMPED_BEFORE), pytest.raises(Violation):
        Explorer(OVERWRITTEN, Rules.NAMES_FOLLOW, per_recovery_cut=4).explore_takeovers()


# -- files that recovery finds ----------------------------------------------------------------------------------------


def _opened(image: Image) -> tuple[Machine, spool.Space]:
    """Start the machine with this disk, and open the space."""
    machine = Machine(image, boot=2, **Rules.NAMES_FOLLOW.told)
    return machine, spool.open(SimulatedDisk(machine))


@pytest.fixture
def opened() -> tuple[Machine, spool.Space]:
    machine = Machine(NO_FILES, **Rules.NAMES_FOLLOW.told)
    with spool.create(SimulatedDisk(machine), defaults=AT_ONCE) as space:
        for queue in QUEUES:
            space.create_queue(queue)
        _with_spares(space)
    return _opened(machine.image())


def _numbers(space: spool.Space) -> set[int]:
    names = map(layout.parse_committed, door.disk(space).names(layout.COMMITTED))
    return {name.number for name in names if name is not None}


def test_a_commit_that_has_lost_its_name_is_told_of_and_found(opened: tuple[Machine, spool.Space]) -> None:
    machine, space = opened
    space.put("b", "three")
    (*_, oldest) = survivors(machine, Rules.NAMES_FOLLOW, limit=1000)
    lost = max(_numbers(space))
    _, again = _opened(oldest.image)
    (moved,) = (finding for finding in again.recovery.findings if finding.kind is Kind.MOVED)
    assert moved.name.startswith(f"{layout.FREE}/"), "where it lay when the journal was committed last"
    assert (moved.detail, moved.action) == (f"a power cut took the name of commit {lost}", "given its name")
    assert [message.body for message in again.browse("b")] == ["three"]


def test_a_dry_run_tells_of_a_commit_that_has_lost_its_name(opened: tuple[Machine, spool.Space]) -> None:
    _, space = opened
    name = door.disk(space).names(layout.FREE)[0]
    handle = door.disk(space).open(f"{layout.FREE}/{name}", write=True)
    door.disk(space).write_at(handle, *stamp(max(_numbers(space)) + 1))
    report = scan.plan(door.store(space))
    assert [finding.name for finding in report.findings if finding.kind is Kind.MOVED] == [f"{layout.FREE}/{name}"]


def test_a_dry_run_reports_no_damage_for_durable_commits_that_have_lost_their_names(
    opened: tuple[Machine, spool.Space],
) -> None:
    _, space = opened
    space.put("b", "three")
    space.put("b", "four")
    disk = door.disk(space)
    for number in sorted(_numbers(space))[-2:]:
        disk.rename(layout.committed(number), f"{layout.FREE}/{layout.FreeName(number, 1)}")
    assert {finding.kind for finding in scan.plan(door.store(space)).findings} == {Kind.MOVED}


def test_a_consumed_file_is_no_commit_though_the_newest_were_deleted_by_hand(
    opened: tuple[Machine, spool.Space],
) -> None:
    """The name of the consumed file has its former number."""
    machine, space = opened
    disk = door.disk(space)
    consumed = {free.origin >> layout.ORDINAL_BITS for free in map(layout.parse_free, disk.names(layout.FREE)) if free}
    for number in _numbers(space):
        disk.unlink(layout.committed(number))
    _, again = _opened(machine.image())
    assert len(consumed) > 3
    assert not consumed & _numbers(again)


def test_a_commit_in_a_file_kept_for_a_full_disk_survives_a_power_cut(opened: tuple[Machine, spool.Space]) -> None:
    machine, space = opened
    door.store(space).files.recycler.clear(everything=True)
    door.store(space).files.recycler.stock()
    assert space.get("a").body == "one"
    for survivor in survivors(machine, Rules.NAMES_FOLLOW, limit=50):
        _, again = _opened(survivor.image)
        assert [message.body for message in again.browse("a")] == ["two"], survivor.story


def test_a_vote_whose_mark_a_power_cut_interrupted_needs_no_mark(opened: tuple[Machine, spool.Space]) -> None:
    """Otherwise each check would report damage until a repair."""
    machine, space = opened
    prepare(space, Expectation(BEGIN))
    disk = door.disk(space)
    offset, data = stamp(VOTE)
    with opened_file(disk, layout.prepared(XID), write=True) as handle:
        disk.write_at(handle, offset, data[: len(data) // 2])
        disk.flush(handle)
    disk.flush_directory(layout.PREPARED)
    _, again = _opened(machine.image())
    assert [finding.reason for finding in again.recovery.findings if finding.kind is Kind.TORN] == ["damaged mark"]
    assert not [finding for finding in again.check() if finding.kind is Kind.DAMAGED]
    decide(again, "commit")
    assert [message.body for message in again.browse("b")] == ["reply"]


def test_a_vote_whose_name_cannot_be_given_back_is_not_overwritten(
    opened: tuple[Machine, spool.Space], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opening fails, and the next one finds the vote."""
    machine, space = opened
    prepare(space, Expectation(BEGIN))
    (*_, oldest) = survivors(machine, Rules.NAMES_FOLLOW, limit=1000)
    again = Machine(oldest.image, boot=2, **Rules.NAMES_FOLLOW.told)
    rename = SimulatedDisk.rename

    def broken(disk: SimulatedDisk, source: str, target: str) -> None:
        if target == layout.prepared(XID):
            raise OSError(errno.EIO, "broken")
        rename(disk, source, target)

    monkeypatch.setattr(SimulatedDisk, "rename", broken)
    with pytest.raises(spool.SpoolError):
        spool.open(SimulatedDisk(again))
    monkeypatch.undo()
    _, found = _opened(again.image())
    assert found.recovery.in_doubt == [str(XID)]
    assert any(finding.reason == "lost name of a vote" for finding in found.recovery.findings)
