"""If a flush of bytes does not flush the name, recovery restores names that a power cut took (Rule 13).

The histories have enough consumed files to overwrite; one of them fails for each rule that is left out.
"""

import errno

import pytest

import spool
import xa
from spool.admin import in_doubt as decisions
from spool.admin.findings import Kind
from spool.disk.content import opened as opened_file
from spool.disk.recycler import Recycler
from spool.format.header import VOTE, stamp
from spool.intake import capture
from spool.log import vote, write
from spool.maintenance import reclaim as reclaiming
from spool.model import layout
from spool.recovery import branch_files, numbers, scan
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.harness import Explorer, Violation
from tests.crash.planted import Bug, planted
from tests.crash.test_every_crash_point import record
from tests.histories import overwriting
from tests.histories.branches import decide, prepare
from tests.histories.contents import QUEUES, XID
from tests.histories.history import Expectation, History
from tests.machine import NO_FILES, Image, Machine
from tests.simdisk import SimulatedDisk
from tests.strides import Stride
from tests.survivors import Rules, survivors


@pytest.mark.every(4)
@pytest.mark.parametrize("history", overwriting.OVERWRITING, ids=str)
def test_commits_in_overwritten_files_survive_every_power_cut(history: History, stride: Stride, record_property):
    # (with a few survivors of each cut, no test misses the flush of a removed mark)
    per_cut = 3 if stride(2) > 1 else 40
    explorer = Explorer(history, Rules.NAMES_FOLLOW, every=stride(8), per_cut=per_cut, again=60)
    record(explorer.explore(), record_property)


@pytest.mark.every(4, first=1)
@pytest.mark.parametrize("history", overwriting.OVERWRITING, ids=str)
def test_a_live_process_takes_over_commits_in_overwritten_files(history: History, stride: Stride, record_property):
    tally = Explorer(history, Rules.NAMES_FOLLOW, every=stride(8), per_recovery_cut=2).explore_takeovers()
    record(tally, record_property)


# -- each rule, left out ----------------------------------------------------------------------------------------------

_ABOVE = "highest < number <= highest + MAX_GAP"
_CONSUMED = " and (free is None or free.origin != origin_of(number))"
_MOVES_ARE_DURABLE = "        gone.append(number)\n    files.disk.flush_directory(layout.COMMITTED)\n"

BUGS = (
    Bug("recovery believes names alone", numbers._unnamed, ((_ABOVE, "False"),), overwriting.OVERWRITTEN.name),
    Bug("any stamp counts", numbers._unnamed, ((_ABOVE, "0 < number"), (_CONSUMED, "")), overwriting.OVERWRITTEN.name),
    Bug("a file is used again before it lies in free/ durably", reclaiming._remove,
        ((_MOVES_ARE_DURABLE, "        gone.append(number)\n"),), overwriting.OVERWRITTEN.name),
    Bug("a file that was made ahead is used before its name is durable", Recycler._make_ahead,
        (("self.disk.flush_directory(layout.FREE)", "pass"),), overwriting.GROWN.name),
    Bug("names are given from the highest number down", numbers.decide,
        (("sorted(evidence.unnamed.items())", "sorted(evidence.unnamed.items(), reverse=True)"),),
        overwriting.OVERWRITTEN.name),
    Bug("free/ is cleared before", scan._Scan.run,
        (("    disk, xids = ", "    self._store.files.recycler.clear(everything=False)\n    disk, xids = "),),
        overwriting.OVERWRITTEN.name),
    Bug("a dropped file's commit comes before its capture is durable", capture.Capture.make_durable,
        (("disk.flush_directory(folder)", "pass"),), overwriting.TAKEN_IN.name),
    Bug("votes count by their names alone", branch_files.unnamed_votes, (("header.number >= VOTE", "False"),),
        overwriting.ADOPTED.name),
    Bug("any mark is a vote", branch_files.unnamed_votes,
        (("(free is not None and header.number == VOTE | free.origin)", "free is not None"),),
        overwriting.RECLAIMED.name),
    Bug("a vote is not marked", write.Prepared.name, (("if file.recycled", "if False"),), overwriting.ADOPTED.name),
    Bug("a rollback leaves the mark", vote.unmark, (("number >= VOTE", "number < 0"),), overwriting.VOTED_AGAIN.name),
    Bug("a mark is removed without a flush", vote.unmark,
        (("disk.make_durable(handle, layout.PREPARED, stamped=True)", "pass"),), overwriting.VOTED_AGAIN.name),
    Bug("a half-written mark stays", scan._Scan.run,
        (("branch_files.decide_marks(prepared) if self._alone else []", "[]"),), overwriting.VOTED_AGAIN.name),
    Bug("a branch overwrites a file of an earlier one", Recycler.take,
        (("unlike and unlike in", "False and unlike in"),), overwriting.RECLAIMED.name),
    Bug("a decision is forgotten before its rollback is durable", decisions.forget,
        (("store.files.disk.flush_directory(layout.PREPARED)", "pass"),), overwriting.FORGOTTEN.name),
)  # fmt: skip

_RENAMES = "        try:\n            store.files.disk.rename_new("
STAMPED_BEFORE = Bug(
    "a file is stamped before its rename", write.Committed.name,
    ((_RENAMES, f"        store.files.disk.write_at(file.handle, *stamp(number))\n{_RENAMES}"),),
    overwriting.OVERWRITTEN.name,
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
@pytest.mark.slow
def test_a_rule_that_is_left_out_is_missed(bug: Bug, record_property) -> None:
    record_property("planted bugs", 1)
    (history,) = (history for history in overwriting.OVERWRITING if history.name == bug.noticed_by)
    with planted(bug), pytest.raises(Violation):
        for per_cut, again in ((8, 0), (4, 20), (4, 5), (40, 0)):
            Explorer(history, Rules.NAMES_FOLLOW, per_cut=per_cut, again=again).explore()


def test_a_stamp_before_the_rename_is_missed(record_property) -> None:
    """A killed writer leaves a second file with the next writer's number."""
    record_property("planted bugs", 1)
    with planted(STAMPED_BEFORE), pytest.raises(Violation):
        Explorer(overwriting.OVERWRITTEN, Rules.NAMES_FOLLOW, per_recovery_cut=4).explore_takeovers()


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
        overwriting.with_spares(space)
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


def test_a_vote_with_two_names_does_not_come_back_after_its_rollback(opened: tuple[Machine, spool.Space]) -> None:
    """On btrfs, a power cut can leave the former name of a vote in ``free/``. The coordinator's question copies it."""
    machine, space = opened
    spares = set(door.disk(space).names(layout.FREE))
    prepare(space, Expectation(overwriting.BEGIN))
    [spare] = spares.difference(door.disk(space).names(layout.FREE))
    door.disk(space).link(layout.prepared(XID), f"{layout.FREE}/{spare}")
    _, again = _opened(machine.image())
    assert again.recovery.in_doubt == [str(XID)]
    manager = xa.ResourceManager(again)
    for xid in manager.recover():
        manager.rollback(xid)
    again.close()
    assert spool.open(door.disk(again)).recovery.in_doubt == []


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


def test_a_consumed_file_is_no_commit_though_newest_were_deleted_by_hand(opened: tuple[Machine, spool.Space]) -> None:
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
    prepare(space, Expectation(overwriting.BEGIN))
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
    prepare(space, Expectation(overwriting.BEGIN))
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
