"""A step is durable before a later step relies on it: the repairs of an opener, the flushes and removals of reclaim.
Then the power fails again."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import spool
from spool.admin.findings import Kind
from spool.disk import Disk
from spool.format.header import stamp
from spool.format.reader import read_header
from spool.intake import Intake
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.by_rules import ALL_RULES
from tests.crash.programs import XID
from tests.machine import NO_FILES, Image, Machine, PowerCut
from tests.meanwhile import Meanwhile, prepare
from tests.simdisk import CHANGES, SimulatedDisk, repeatable
from tests.spaces import fail_one
from tests.survivors import Rules, survivors

MADE = {Kind.FINISHED, Kind.TORN, Kind.EMPTY_NUMBER}


def _opened(image: Image, rules: Rules, boot: int) -> tuple[Machine, spool.Space]:
    machine = Machine(image, boot=boot, **rules.told)
    return machine, spool.open(SimulatedDisk(machine))


def _bodies(space: spool.Space) -> list[object]:
    return [message.body for message in space.browse("a")]


def _with_one(rules: Rules) -> Image:
    machine = Machine(NO_FILES, **rules.told)
    with spool.create(SimulatedDisk(machine), defaults=AT_ONCE) as space:
        space.create_queue("a")
        space.put("a", "one")
    return machine.image()


def _cut_puts(image: Image, rules: Rules) -> Iterator[Machine]:
    """Yield a machine for each step of a put at which the power failed."""
    machine, space = _opened(image, rules, 1)
    begin = len(machine.trace)
    space.put("a", "two")
    steps = [n for n, (call, _) in enumerate(machine.trace, 1) if n > begin and call in CHANGES]
    for step in [*steps, len(machine.trace) + 1]:
        machine, space = _opened(image, rules, 1)
        machine.crash_at(step)
        with suppress(PowerCut):
            space.put("a", "two")
        machine.crash_at(None)
        yield machine


@pytest.mark.every(3)
@ALL_RULES
def test_a_number_that_an_opener_finished_stays_as_it_is(rules: Rules) -> None:
    """Whole, or empty in place of a torn one; the next commit says that all before it is durable."""
    kinds = set()
    seen = set()
    with repeatable(3):
        for step, machine in enumerate(_cut_puts(_with_one(rules), rules)):
            for survivor in survivors(machine, rules, limit=8, seed=step):
                second, space = _opened(survivor.image, rules, 2)
                made = {finding.kind for finding in space.recovery.findings} & MADE
                if not made or survivor.image in seen:
                    continue
                seen.add(survivor.image)
                kinds |= made
                there = _bodies(space)
                space.put("a", "three")
                for after in survivors(second, rules, limit=8, seed=step):
                    _, third = _opened(after.image, rules, 3)
                    assert _bodies(third) == [*there, "three"], after.story
                    assert [one for one in third.check() if one.kind is Kind.DAMAGED] == [], after.story
    assert kinds >= {Kind.FINISHED, Kind.TORN}


@pytest.mark.every(3)
@ALL_RULES
@pytest.mark.parametrize(
    ("xid", "kinds", "in_doubt", "bodies"),
    [
        (XID, [Kind.RETURNED, Kind.IN_DOUBT], [str(XID)], ["one"]),
        (Xid(FORMAT_ROUND, b"round", b"1"), [Kind.RETURNED, Kind.ROLLED_BACK], [], ["one"]),
    ],
    ids=["in doubt", "of a round"],
)
def test_a_branch_that_an_opener_put_back_stays_in_doubt_and_that_of_a_round_is_rolled_back(
    rules: Rules, xid: Xid, kinds: list[Kind], in_doubt: list[str], bodies: list[object]
) -> None:
    """The commit that adopted it is gone: damage, but no reason to lose the vote. The coordinator of a round is dead as
    well, so the messages of its branch are free after this opening."""
    machine, space = _opened(_with_one(rules), rules, 1)
    prepare(space, xid, queue="a")
    door.disk(space).rename(layout.prepared(xid), layout.committed(2, 1))
    second, space = _opened(machine.image(), rules, 2)
    found = [finding.kind for finding in space.recovery.findings]
    assert (found[-len(kinds) :], space.recovery.in_doubt) == (kinds, in_doubt)
    for survivor in survivors(second, rules, limit=50, seed=1):
        _, third = _opened(survivor.image, rules, 3)
        assert (third.recovery.in_doubt, _bodies(third)) == (in_doubt, bodies), survivor.story


def _gone(space: spool.Space) -> None:
    """Take all messages, and remove the files that are not needed."""
    space.get_many("a", 10)
    space.put("a", "newest")
    assert door.reclaim(space)


@pytest.mark.every(3)
@ALL_RULES
def test_commits_that_reclaim_counts_as_flushed_survive_a_power_cut(rules: Rules) -> None:
    """A commit without a flush of its own, below one that says that all before it is durable."""
    machine, space = _opened(_with_one(rules), rules, 1)
    fail_one(space, "a")
    assert door.counters(space).durable == 1
    door.reclaim(space)
    assert door.counters(space).durable == 2
    space.put("a", "two")
    space.put("a", "three")
    for survivor in survivors(machine, rules, limit=50, seed=1):
        _, again = _opened(survivor.image, rules, 2)
        assert _bodies(again) == ["one", "two", "three"], survivor.story
        assert again.recovery.damaged == [], survivor.story


@pytest.mark.every(3)
@ALL_RULES
def test_reclaimed_numbers_stay_reclaimed_after_a_commit_with_an_older_mark(rules: Rules) -> None:
    """The writer of the newest file may have read the counters before the reclaim, so an older file has a later
    mark."""
    machine, space = _opened(_with_one(rules), rules, 1)
    other = Meanwhile(machine)
    late = spool.open(other)

    def much_happens() -> None:
        for body in ("two", "three", "four"):
            space.put("a", body)
        _gone(space)

    other.before("lock", much_happens, spare=1)  # the number lock: the file is written by then
    late.put("a", "late")
    newest = max(int(name[:16]) for name in other.names(layout.COMMITTED))
    assert read_header(other, other.open(layout.committed(newest))).durable_mark == 1
    for survivor in survivors(machine, rules, limit=50, seed=1):
        _, again = _opened(survivor.image, rules, 2)
        assert Kind.EMPTY_NUMBER not in {finding.kind for finding in again.recovery.findings}, survivor.story
        assert again.recovery.damaged == [], survivor.story
        assert _bodies(again) == ["newest", "late"], survivor.story


@pytest.mark.every(3)
@ALL_RULES
@pytest.mark.parametrize("lives", [True, False], ids=["its intake lives", "its intake has ended"])
def test_a_dropped_file_is_gone_before_the_commit_that_took_it(rules: Rules, lives: bool) -> None:
    """Otherwise a power cut could bring the dropped file back, and it would become a message again."""
    machine, space = _opened(_with_one(rules), rules, 1)
    disk = door.disk(space)
    handle = disk.create(f"{layout.DROP}/a/dropped")
    disk.write_at(handle, 0, b"dropped")
    disk.close(handle)
    intake = Intake(space)
    if lives:
        intake.take_all()
    else:
        intake.run(once=True)
    _gone(space)
    for survivor in survivors(machine, rules, limit=50, seed=1):
        _, again = _opened(survivor.image, rules, 2)
        Intake(again).run(once=True)
        assert _bodies(again) == ["newest"], survivor.story


def _surplus(disk: Meanwhile) -> None:
    handle = disk.open(layout.committed(1), write=True)
    disk.write_at(handle, disk.handle_identity(handle).size, b"surplus")
    disk.close(handle)


def _number(disk: Meanwhile) -> None:
    disk.damage(layout.committed(1), stamp(1)[0] + len(stamp(1)[1]) - 1)


def _table(disk: Meanwhile) -> None:
    handle = disk.open(layout.committed(1))
    entry = read_header(disk, handle).sections[0]
    disk.close(handle)
    disk.damage(layout.committed(1), entry.offset + entry.table_bytes - 1)


def _directory(disk: Meanwhile) -> None:
    disk.remove_directory(f"{layout.DROP}/a")


def _damaged(rules: Rules, damage: Callable[[Meanwhile], None]) -> tuple[Machine, spool.Space]:
    """A space with three messages, which is opened after a damage."""
    machine, space = _opened(_with_one(rules), rules, 1)
    for body in ("two", "three"):
        space.put("a", body)
    damage(Meanwhile(machine))
    return _opened(machine.image(), rules, 1)


@pytest.mark.every(3)
@ALL_RULES
@pytest.mark.parametrize("damage", [_surplus, _number, _table, _directory])
def test_a_repair_survives_every_power_cut(rules: Rules, damage: Callable[[Meanwhile], None]) -> None:
    machine, space = _damaged(rules, damage)
    assert [one for one in space.check(repair=True) if one.action]
    there = _bodies(space)
    assert there == (["two", "three"] if damage is _table else ["one", "two", "three"])
    for survivor in survivors(machine, rules, limit=100, seed=1):
        _, again = _opened(survivor.image, rules, 2)
        assert again.check() == [], survivor.story
        assert _bodies(again) == there, survivor.story


def _body(disk: Meanwhile) -> None:
    disk.damage(layout.committed(1))


def _header(disk: Meanwhile) -> None:
    disk.damage(layout.committed(1), 70)


@pytest.mark.every(3)
@ALL_RULES
@pytest.mark.parametrize("damage", [_body, _header])
def test_a_quarantined_file_survives_every_power_cut(rules: Rules, damage: Callable[[Meanwhile], None]) -> None:
    """A message without its body and a file without a header: the rest of each, with the reason."""
    machine, space = _damaged(rules, damage)
    space.check(repair=True)
    (kept,) = space.quarantined()
    for survivor in survivors(machine, rules, limit=100, seed=1):
        again_machine, again = _opened(survivor.image, rules, 2)
        assert _bodies(again) == ["two", "three"], survivor.story
        assert again.quarantined() == [kept], survivor.story
        assert again_machine.find(kept.name).data == machine.find(kept.name).data, survivor.story


@pytest.mark.every(3)
@ALL_RULES
def test_the_directories_of_a_space_and_of_a_queue_are_there_once_they_were_made(rules: Rules) -> None:
    machine = Machine(NO_FILES, **rules.told)
    space = spool.create(SimulatedDisk(machine), defaults=AT_ONCE)
    for made in (*layout.DIRECTORIES, f"{layout.DROP}/a"):
        if made == f"{layout.DROP}/a":
            space.create_queue("a")
        for survivor in survivors(machine, rules, limit=300, seed=1):
            there = {path for path, _, data in survivor.image.files if data is None}
            assert made in there, survivor.story


@pytest.mark.every(3)
@ALL_RULES
@pytest.mark.parametrize("repair", [False, True])
def test_a_directory_that_was_made_again_and_its_files_survive_every_power_cut(rules: Rules, repair: bool) -> None:
    """An opener or a repair creates the directory again."""
    empty = Machine(_with_one(rules), **rules.told)
    with spool.open(SimulatedDisk(empty)) as space:
        space.get("a")
    disk = SimulatedDisk(empty)
    if not repair:
        _remove(disk, layout.COMMITTED)
    machine, space = _opened(empty.image(), rules, 1)
    if repair:
        _remove(door.disk(space), layout.QUARANTINE)
        space.check(repair=True)
    space.put("a", "two")
    for survivor in survivors(machine, rules, limit=300, seed=1):
        assert layout.QUARANTINE in {path for path, _, data in survivor.image.files if data is None}, survivor.story
        _, again = _opened(survivor.image, rules, 2)
        assert _bodies(again) == ["two"], survivor.story


def _remove(disk: Disk, name: str) -> None:
    for entry in disk.names(name):
        disk.unlink(f"{name}/{entry}")
    disk.remove_directory(name)
