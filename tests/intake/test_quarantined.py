"""What an administrator did in quarantine stays done, whatever a power cut leaves."""

import pytest

import spool
from spool import layout
from spool.intake import Intake
from tests.machine import Machine, PowerCut
from tests.simdisk import ROOT, SimulatedDisk
from tests.survivors import Rules, Survivor, survivors

ENTRY, NAME = "active.bad.msgpack", "bad.msgpack"
BY_RULES = pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)


def with_one_set_aside(rules: Rules) -> tuple[Machine, spool.Space]:
    """All is durable, and a dropped file lies in quarantine."""
    machine = Machine(**rules.told)
    with spool.create(ROOT, disk=SimulatedDisk(machine), clock=machine.clock) as space:
        space.create_queue("orders")
        disk = space._store.disk
        handle = disk.create(f"{layout.DROP}/orders/{NAME}")
        disk.write_at(handle, 0, b"bad")
        disk.close(handle)
        assert Intake(space).run(once=True).quarantined == 1
    again = Machine(machine.image(), boot=2, **rules.told)
    return again, spool.open(ROOT, disk=SimulatedDisk(again), clock=again.clock)


def names(survivor: Survivor) -> set[str]:
    """Of files in the queue's folder and in quarantine."""
    return {
        path
        for path, _, data in survivor.image.files
        if data is not None and path.startswith((f"{layout.DROP}/", f"{layout.QUARANTINE}/"))
    }


@BY_RULES
def test_what_was_restored_is_in_its_folder_and_nowhere_else(rules: Rules) -> None:
    machine, space = with_one_set_aside(rules)
    space.restore_quarantined(ENTRY)
    for survivor in survivors(machine, rules, limit=50, seed=1):
        assert names(survivor) == {f"{layout.DROP}/orders/{NAME}"}, survivor.story


@BY_RULES
def test_what_was_deleted_is_gone(rules: Rules) -> None:
    machine, space = with_one_set_aside(rules)
    space.delete_quarantined(ENTRY)
    for survivor in survivors(machine, rules, limit=50, seed=1):
        assert names(survivor) == set(), survivor.story


@BY_RULES
def test_no_power_cut_loses_a_file_that_is_being_restored(rules: Rules) -> None:
    step = 0
    while True:
        machine, space = with_one_set_aside(rules)
        step += 1
        machine.crash_at(len(machine.trace) + step)
        try:
            space.restore_quarantined(ENTRY)
        except PowerCut:
            pass
        else:
            break
        for survivor in survivors(machine, rules, limit=20, seed=1):
            whole = [data for path, _, data in survivor.image.files if path.endswith(NAME)]
            assert b"bad" in whole, survivor.story
    assert step > 5
