"""The commands of a mirror, cut at every step: none leaves a space with fewer messages, and the same command again ends
a restore or a beginning that was interrupted."""

from collections.abc import Callable

import pytest

import spool
from spool import mirrors
from spool.admin.findings import Kind
from spool.model import layout
from tests.crash.by_rules import TWO_RULES, by_rules
from tests.crash.mirrors import MIRROR
from tests.machine import NO_FILES, Image, Machine, PowerCut
from tests.simdisk import CHANGES, SimulatedDisk, repeatable
from tests.strides import Stride, some
from tests.survivors import Rules, survivors

THERE = ["two", "three", "four"]

Command = Callable[[Machine], object]


@pytest.fixture(scope="module")
def mirrored() -> Image:
    """A space with a mirror."""
    machine = Machine(NO_FILES)
    with repeatable(1), spool.create(SimulatedDisk(machine), mirror=MIRROR) as space:
        space.create_queue("orders")
        space.put_many("orders", ["one", "two"])
        space.get("orders")
        space.put_many("orders", ["three", "four"])
    return machine.image()


def restore(machine: Machine) -> None:
    mirrors.restore(SimulatedDisk(machine), MIRROR).close()


def begin(machine: Machine) -> None:
    mirrors.begin(SimulatedDisk(machine), MIRROR).close()


def drop(machine: Machine) -> None:
    mirrors.drop(SimulatedDisk(machine))


def cut_at(step: int | None, command: Command, image: Image, rules: Rules) -> tuple[Machine, bool]:
    """The machine when the power is cut before that step, and whether the command was answered."""
    machine, answered = Machine(image, boot=2, **rules.told), False
    machine.crash_at(step)
    with repeatable(2):
        try:
            command(machine)
            answered = True
        except PowerCut:
            pass
    machine.crash_at(None)
    return machine, answered


def each_cut(command: Command, image: Image, rules: Rules, every: int, look: Callable[[Machine, bool], None]) -> None:
    """Check each different disk after a power cut during the command, and the disk after a kill."""
    whole, _ = cut_at(None, command, image, rules)
    steps = [n for n, (call, _) in enumerate(whole.trace, 1) if call in CHANGES]
    seen: set[tuple[Image, bool]] = set()
    calls = [whole.trace[step - 1][0] for step in steps]
    for step in [*some(steps, calls, every), len(whole.trace) + 1]:
        machine, answered = cut_at(step, command, image, rules)
        for survivor in survivors(machine, rules, limit=40 // every, seed=step):
            if (survivor.image, answered) not in seen:
                seen.add((survivor.image, answered))
                with repeatable(3):
                    look(Machine(survivor.image, boot=3, **rules.told), answered)
        with repeatable(3):
            look(machine.copy(), answered)
    assert len(seen) > 5


def expect_all(machine: Machine) -> None:
    with spool.open(SimulatedDisk(machine)) as space:
        assert [message.body for message in space.browse("orders")] == THERE
        assert [finding for finding in space.check() if finding.kind is Kind.DAMAGED] == []
        space.put("orders", "more")


def make(machine: Machine) -> None:
    spool.create(SimulatedDisk(machine), mirror=MIRROR).close()


@TWO_RULES
def test_a_space_with_a_mirror_whose_making_was_cut_anywhere_can_be_made_or_opened(rules: Rules, stride: Stride):
    def look(machine: Machine, answered: bool) -> None:
        try:
            spool.open(SimulatedDisk(machine)).close()
        except spool.NotASpace:
            assert not answered
            make(machine)

    each_cut(make, NO_FILES, rules, stride(4), look)


@pytest.mark.every(2)
@TWO_RULES
def test_a_restore_cut_anywhere_is_no_space_or_a_whole_one(rules: Rules, mirrored: Image, stride: Stride) -> None:
    def look(machine: Machine, answered: bool) -> None:
        try:
            expect_all(machine)
            return
        except spool.NotASpace:
            assert not answered
        if machine.lookup("restore.toml") is not None:
            with pytest.raises(spool.SpaceExists, match="was interrupted: run it again"):
                spool.create(SimulatedDisk(machine))
        restore(machine)
        expect_all(machine)
        assert machine.image().beside == mirrored.beside

    each_cut(restore, Image((), mirrored.beside), rules, stride(4), look)


@by_rules(Rules.ORDERED)
def test_a_mirror_whose_beginning_was_cut_can_be_begun_again(rules: Rules, mirrored: Image, stride: Stride) -> None:
    """An opener refuses the space, with every message still in it, or takes the new mirror, or none."""
    plain = Machine(mirrored)
    drop(plain)

    def look(machine: Machine, answered: bool) -> None:
        try:
            expect_all(machine)
        except spool.MirrorMismatch:
            assert not answered
            begin(machine)
            expect_all(machine)
        if answered:
            restored = Machine(Image((), machine.image().beside), boot=4, **rules.told)
            restore(restored)
            with spool.open(SimulatedDisk(restored)) as space:
                assert [message.body for message in space.browse("orders")] == [*THERE, "more"]

    for before in (mirrored, plain.image()):
        each_cut(begin, before._replace(beside=NO_FILES), rules, stride(4), look)


@TWO_RULES
def test_a_mirror_whose_end_was_cut_is_a_mirror_still_or_none(rules: Rules, mirrored: Image, stride: Stride) -> None:
    """A dropped mirror that came back with its old commits could be taken for the space's own."""

    def look(machine: Machine, answered: bool) -> None:
        assert not answered or machine.lookup(layout.MIRROR_ID) is None
        expect_all(machine)

    each_cut(drop, mirrored, rules, stride(4), look)
