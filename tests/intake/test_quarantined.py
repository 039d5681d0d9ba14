"""An administrator's changes of the quarantine are durable: no power cut undoes them."""

from collections.abc import Iterator
from itertools import count
from unittest import mock

import pytest

import spool
from spool.intake import Intake
from spool.model import layout
from spool.runtime.clock import WaitExpired
from tests import door
from tests.full import no_room
from tests.machine import Machine, PowerCut
from tests.meanwhile import Meanwhile
from tests.simdisk import SimulatedDisk
from tests.survivors import Rules, Survivor, survivors

ENTRY, NAME = "active.bad.msgpack", "bad.msgpack"
PATH = f"{layout.QUARANTINE}/{ENTRY}"
BY_RULES = pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)


def with_one_set_aside(rules: Rules) -> tuple[Machine, spool.Space]:
    """Return a machine and a space with a dropped file in quarantine, all durable."""
    machine = Machine(**rules.told)
    with spool.create(SimulatedDisk(machine)) as space:
        space.create_queue("orders")
        disk = door.disk(space)
        handle = disk.create(f"{layout.DROP}/orders/{NAME}")
        disk.write_at(handle, 0, b"bad")
        disk.close(handle)
        assert Intake(space).run(once=True).quarantined == 1
    again = Machine(machine.image(), boot=2, **rules.told)
    return again, spool.open(SimulatedDisk(again))


def names(survivor: Survivor) -> set[str]:
    """Return the paths of the files in the queue's folder and in quarantine."""
    return {
        path
        for path, _, data in survivor.image.files
        if data is not None and path.startswith((f"{layout.DROP}/", f"{layout.QUARANTINE}/"))
    }


@BY_RULES
@pytest.mark.parametrize(
    ("call", "left"),
    [("restore_quarantined", {f"{layout.DROP}/orders/{NAME}"}), ("delete_quarantined", set())],
    ids=["restored", "deleted"],
)
def test_a_restored_file_is_in_its_folder_and_a_deleted_one_nowhere(rules: Rules, call: str, left: set[str]) -> None:
    machine, space = with_one_set_aside(rules)
    getattr(space, call)(ENTRY)
    for survivor in survivors(machine, rules, limit=50, seed=1):
        assert names(survivor) == left, survivor.story


def cut_at_each_step(rules: Rules, *, foreign: bool = False) -> Iterator[Machine]:
    """Machines on which the file was being restored when the power failed."""
    for step in count(1):
        machine, space = with_one_set_aside(rules)
        machine.find(f"{layout.QUARANTINE}/{ENTRY}").foreign = foreign
        machine.crash_at(len(machine.trace) + step)
        try:
            space.restore_quarantined(ENTRY)
        except PowerCut:
            yield machine
        else:
            assert step > 5
            return


@pytest.mark.every(3)
@BY_RULES
def test_no_power_cut_loses_a_file_that_is_being_restored(rules: Rules) -> None:
    for machine in cut_at_each_step(rules):
        for survivor in survivors(machine, rules, limit=20, seed=1):
            whole = [data for path, _, data in survivor.image.files if path.endswith(NAME)]
            assert b"bad" in whole, survivor.story


def intake_after(machine: Machine) -> spool.Space:
    """Make all changes durable, start the machine again, and run an intake."""
    again = Machine(machine.image(), boot=3, **Rules.STRICT.told)
    space = spool.open(SimulatedDisk(again))
    Intake(space).run(once=True)
    return space


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "of another user"])
def test_a_file_whose_restoring_died_at_any_step_lies_in_quarantine_once(foreign: bool) -> None:
    """The intake finds it bad again, so it comes back to quarantine if it was put back; it is never there twice."""
    for machine in cut_at_each_step(Rules.STRICT, foreign=foreign):
        disk = door.disk(intake_after(machine))
        found = [name for name in disk.names(layout.QUARANTINE) if name.startswith(ENTRY)]
        assert len([name for name in found if not name.endswith(".txt")]) == 1, found
        assert disk.names(f"{layout.DROP}/orders") == []


def restoring_died(*, foreign: bool = False) -> tuple[Machine, spool.Space]:
    """Return a machine on which a restore died just before it removed the file's name in quarantine, and the space of
    another process."""
    machine, _ = with_one_set_aside(Rules.STRICT)
    machine.find(PATH).foreign = foreign
    disk = Meanwhile(machine)
    space = spool.open(disk)
    disk.dies_before("unlink", lambda: space.restore_quarantined(ENTRY), PATH)
    return machine, spool.open(Meanwhile(machine))


def test_a_restoring_that_died_can_be_asked_for_again() -> None:
    _, space = restoring_died()
    assert space.restore_quarantined(ENTRY) == f"{layout.DROP}/orders/{NAME}"
    assert door.disk(space).names(layout.QUARANTINE) == []


def test_another_file_that_waits_in_the_folder_stops_a_restoring() -> None:
    _, space = restoring_died()
    disk = door.disk(space)
    disk.unlink(f"{layout.DROP}/orders/{NAME}")
    disk.close(disk.create(f"{layout.DROP}/orders/{NAME}"))
    with pytest.raises(spool.InvalidArgument, match="waits to be taken"):
        space.restore_quarantined(ENTRY)
    assert disk.exists(PATH)


def test_a_file_whose_restoring_died_is_in_its_folder_durably_before_it_leaves_quarantine() -> None:
    machine, _ = with_one_set_aside(Rules.STRICT)
    disk = Meanwhile(machine)
    space = spool.open(disk)
    disk.dies_before("flush_directory", lambda: space.restore_quarantined(ENTRY), f"{layout.DROP}/orders")
    disk = Meanwhile(machine)
    other = spool.open(disk)
    disk.dies_before("flush_directory", lambda: Intake(other).run(once=True), layout.QUARANTINE)
    for survivor in survivors(machine, Rules.STRICT, limit=50, seed=1):
        whole = [data for path, _, data in survivor.image.files if path.endswith(NAME)]
        assert b"bad" in whole, survivor.story


def test_another_users_file_whose_restoring_died_is_one_file_after_a_power_cut() -> None:
    machine, _ = restoring_died(foreign=True)
    for survivor in survivors(machine, Rules.STRICT, limit=50, seed=1):
        there = {path: inode for path, inode, data in survivor.image.files if path.endswith(NAME) and data == b"bad"}
        assert len(set(there.values())) == 1, survivor.story


def test_no_intake_enters_a_folder_while_a_restored_file_has_two_names() -> None:
    machine, _ = with_one_set_aside(Rules.STRICT)
    other = spool.open(SimulatedDisk(machine))
    disk = Meanwhile(machine)
    space = spool.open(disk)

    def take_in() -> None:
        with pytest.raises(WaitExpired):
            Intake(other).run(once=True)

    disk.before("unlink", take_in, PATH)
    space.restore_quarantined(ENTRY)
    assert not disk.waits_for("unlink")
    assert disk.names(layout.QUARANTINE) == []


def test_a_copy_that_fails_leaves_nothing_in_the_folder() -> None:
    machine, space = with_one_set_aside(Rules.STRICT)
    machine.find(f"{layout.QUARANTINE}/{ENTRY}").foreign = True
    disk = door.disk(space)
    with mock.patch.object(disk, "write_at", no_room), pytest.raises(spool.SpoolError):
        space.restore_quarantined(ENTRY)
    assert disk.names(f"{layout.DROP}/orders") == []
    assert sorted(disk.names(layout.QUARANTINE)) == [ENTRY, f"{ENTRY}.reason.txt"]
