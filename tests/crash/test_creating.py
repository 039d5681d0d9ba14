"""Creating a space, cut at every step: an acknowledged space exists; any other can be created again or opened."""

from contextlib import suppress
from io import BytesIO

import pytest

import spool
from spool.admin.findings import Kind
from spool.disk.content import read_start
from tests import door
from tests.crash.by_rules import THREE_RULES
from tests.machine import NO_FILES, Image, Machine, PowerCut
from tests.meanwhile import Processes, prepare
from tests.simdisk import CHANGES, SimulatedDisk, repeatable
from tests.strides import Stride, some
from tests.survivors import Rules, survivors


class Answers:
    """How far the maker got."""

    created = False
    queue = False
    message = False


def _make(machine: Machine, disk: SimulatedDisk, answers: Answers) -> None:
    with spool.create(disk) as space:
        answers.created = True
        space.create_queue("a")
        answers.queue = True
        space.put("a", "first")
        answers.message = True


def _steps(whole: Machine, every: int) -> list[int]:
    """Return some of the steps that change the disk, and the end."""
    steps = [n for n, (call, _) in enumerate(whole.trace, 1) if call in CHANGES]
    return [*some(steps, [whole.trace[step - 1][0] for step in steps], every), len(whole.trace) + 1]


def _cut_at(step: int | None, rules: Rules) -> tuple[Machine, Answers]:
    machine, answers = Machine(NO_FILES, **rules.told), Answers()
    machine.crash_at(step)
    with repeatable(1):
        with suppress(PowerCut):
            _make(machine, SimulatedDisk(machine), answers)
    machine.crash_at(None)
    return machine, answers


def _is_usable(machine: Machine, answers: Answers) -> None:
    """Open the space, or create it if its creation was not acknowledged; then it works. A user's files may lie in the
    folder of the acknowledged queue."""
    assert not answers.queue or SimulatedDisk(machine).names("drop") == ["a"]
    with repeatable(2):
        try:
            space = spool.open(SimulatedDisk(machine))
        except spool.NotASpace:
            assert not answers.created
            space = spool.create(SimulatedDisk(machine))
        with space:
            if "a" not in space.queues():
                assert not answers.queue
                space.create_queue("a")
            found = [message.body for message in space.browse("a")]
            assert found == ["first"] or (found == [] and not answers.message)
            space.put("a", "second")
            assert [m.body for m in space.get_many("a", 10)] == [*found, "second"]
            assert [finding for finding in space.check() if finding.kind is Kind.DAMAGED] == []


@pytest.mark.every(3)
@THREE_RULES
def test_a_space_whose_creation_was_cut_anywhere_can_be_made_or_used(rules: Rules, stride: Stride) -> None:
    whole, _ = _cut_at(None, rules)
    steps = _steps(whole, stride(4))
    seen: set[tuple[Image, bool, bool]] = set()
    for step in steps:
        machine, answers = _cut_at(step, rules)
        for survivor in survivors(machine, rules, limit=8, seed=step):
            key = survivor.image, answers.queue, answers.message
            if key not in seen:
                seen.add(key)
                _is_usable(Machine(survivor.image, boot=2, **rules.told), answers)
        _is_usable(machine.copy(), answers)
    assert len(seen) > len(steps) / 2
    print(f"{len(seen)} disks after {len(steps)} cuts")


def _import(machine: Machine, exported: bytes) -> bool:
    """Import the export, and return whether the call returned."""
    try:
        with repeatable(1):
            spool.import_space(SimulatedDisk(machine), BytesIO(exported)).close()
        return True
    except PowerCut:
        return False


_DROPPED, _CAPTURED = "drop/orders/four.txt", "active/drop.orders.0123456789abcdef/four.txt"


@pytest.fixture(scope="module")
def exported() -> bytes:
    """Return the export of a space with two files of messages, a file of a branch in doubt, and two dropped files."""
    processes, file = Processes(), BytesIO()
    with processes.space() as space:
        disk = door.disk(space)
        disk.make_directory(_CAPTURED.rpartition("/")[0])
        for name in (_DROPPED, _CAPTURED):
            handle = disk.create(name)
            disk.write_at(handle, 0, b"four")
            disk.close(handle)
        space.put_many("orders", ["one", "two"])
        prepare(space, take=True)
        space.put("orders", "three")
        space.export(file)
    return file.getvalue()


@pytest.mark.every(3)
@THREE_RULES
def test_an_import_cut_anywhere_is_no_space_or_a_whole_one(rules: Rules, exported: bytes, stride: Stride) -> None:
    whole = Machine(NO_FILES, **rules.told)
    assert _import(whole, exported)
    steps = _steps(whole, stride(4))
    seen: set[tuple[Image, bool]] = set()
    for step in steps:
        machine = Machine(NO_FILES, **rules.told)
        machine.crash_at(step)
        answered = _import(machine, exported)
        machine.crash_at(None)
        for survivor in survivors(machine, rules, limit=8, seed=step):
            if (survivor.image, answered) in seen:
                continue
            seen.add((survivor.image, answered))
            left = Machine(survivor.image, boot=2, **rules.told)
            try:
                space = spool.open(SimulatedDisk(left))
            except spool.NotASpace:
                assert not answered, survivor.story
                assert _import(left, exported), survivor.story
                space = spool.open(SimulatedDisk(left))
            with space:
                assert [message.body for message in space.browse("orders")] == ["two", "three"], survivor.story
                assert space.stats("orders").in_doubt == 2
                for name in (_DROPPED, _CAPTURED):
                    assert read_start(door.disk(space), name, 10) == b"four", survivor.story
                assert [finding for finding in space.check() if finding.kind is Kind.DAMAGED] == []
    assert len(seen) > len(steps) / 2
