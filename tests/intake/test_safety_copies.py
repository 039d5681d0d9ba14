"""If renames are not ordered, another user's file has a copy while an intake renames it, but becomes one message."""

import re
from unittest import mock

import pytest

import spool
from spool.coordination.locks import capture_byte, drop_folder_byte
from spool.disk.stat import FileIdentity
from spool.intake import Intake
from spool.model import layout
from spool.policies.dropped_states import Proof, Seen
from tests import door
from tests.machine import OF_ANOTHER, Machine, PowerCut
from tests.meanwhile import Processes
from tests.simdisk import SimulatedDisk
from tests.survivors import Rules, survivors

NAME = f"{OF_ANOTHER}-a"
FIRST = f"{layout.DROP}/orders/{NAME}"


@pytest.fixture
def processes() -> Processes:
    """Return processes of a machine on which another user's file was dropped durably."""
    processes = Processes(ordered=False)
    disk = SimulatedDisk(processes.machine)
    handle = disk.create(FIRST)
    disk.write_at(handle, 0, b"a")
    disk.flush(handle)
    disk.flush_directory(f"{layout.DROP}/orders")
    processes.machine.find(FIRST).foreign = True
    return processes


def take_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def after_a_cut(machine: Machine) -> set[tuple[bytes, ...]]:
    """Return the bodies that an intake gets, for each disk that a power cut can leave."""
    found = set()
    for survivor in survivors(machine, Rules.STRICT, limit=60, seed=1):
        again = Machine(survivor.image, boot=9, **Rules.STRICT.told)
        with spool.open(SimulatedDisk(again)) as space:
            take_in(space)
            found.add(tuple(message.body for message in space.browse("orders")))
    return found


TAKEN = f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}"
BEFORE_ITS_RENAME = ("rename_new", FIRST)
BEFORE_ITS_COPY_GOES = ("unlink", TAKEN)


def dies(processes: Processes, call: str, about: str) -> None:
    doomed, disk = processes.open()
    disk.dies_before(call, lambda: take_in(doomed), about)


@pytest.mark.parametrize("death", [BEFORE_ITS_RENAME, BEFORE_ITS_COPY_GOES])
def test_a_file_left_by_a_dead_intake_is_taken_once(processes: Processes, death: tuple[str, str]) -> None:
    dies(processes, *death)
    other = processes.space()
    take_in(other)
    assert [message.body for message in other.browse("orders")] == [b"a"]
    assert after_a_cut(processes.machine) == {(b"a",)}


def test_the_new_name_is_durable_before_the_copy_is_removed(processes: Processes) -> None:
    """The first intake dies between the rename and its flush, the second when it has removed the copy."""
    doomed, disk = processes.open()
    disk.before("rename_new", lambda: disk.before("flush_directory", disk.die), FIRST)
    with pytest.raises(PowerCut):
        take_in(doomed)
    other, disk = processes.open()
    disk.before("unlink", lambda: disk.before("flush_directory", disk.die), TAKEN)
    with pytest.raises(PowerCut):
        take_in(other)
    assert after_a_cut(processes.machine) == {(b"a",)}


def calls_since(machine: Machine, begin: int, *wanted: str) -> list[str]:
    """Return the calls of these kinds since step ``begin``, each with its file's name without the random part."""
    return [
        f"{call} {re.sub(r'[.][0-9a-f]{16}', '', str(args[0]))}"
        for call, args in machine.trace[begin:]
        if call in wanted
    ]


def test_a_copy_is_removed_durably_before_another_intake_may_take_its_original(processes: Processes) -> None:
    """Otherwise a power cut could bring the copy back after its original has become a message, and the copy would
    become another message."""
    dies(processes, *BEFORE_ITS_RENAME)
    other = processes.space()
    xids, trace, begin = door.store(other).shared.xids, processes.machine.trace, len(processes.machine.trace)
    with (
        mock.patch.object(xids, "lock", side_effect=lambda byte, *_, **_options: trace.append(("hold", (byte,)))),
        mock.patch.object(xids, "unlock", side_effect=lambda byte: trace.append(("let go", (byte,)))),
    ):
        take_in(other)
    calls = calls_since(processes.machine, begin, "hold", "let go", "flush", "remove_directory")
    removed = next(place for place, call in enumerate(calls) if f"remove_directory {TAKEN}orders/.spare" in call)
    held, flush = f"{drop_folder_byte('orders')}", f"flush {TAKEN}orders"
    assert calls[removed - 2 : removed] == [f"hold {held}", flush]
    assert calls[removed + 1 : removed + 3] == [flush, f"let go {held}"]


def test_a_removal_of_a_dead_intake_is_durable_before_the_next_takes_a_file(processes: Processes) -> None:
    """The dead intake removed a copy, but its removal was not durable."""
    dies(processes, *BEFORE_ITS_RENAME)
    third = processes.space()
    other, disk = processes.open()
    disk.before("remove_directory", lambda: disk.before("flush_directory", disk.die), TAKEN)
    with pytest.raises(PowerCut):
        take_in(other)
    begin = len(processes.machine.trace)
    Intake(third).take_all()
    calls = calls_since(processes.machine, begin, "flush", "link")
    assert calls[0] == f"flush {TAKEN}orders", "of the dead one: its own is new, and comes with flushes of active/"
    assert calls[1:3] == [f"flush {TAKEN}orders", f"flush {layout.ACTIVE}"]


def test_a_file_whose_copy_another_intake_is_recovering_is_left_to_that_intake(processes: Processes) -> None:
    """Otherwise that intake would find the original missing, and take the copy, too."""
    dies(processes, *BEFORE_ITS_RENAME)
    recovering, other = processes.space(), processes.space()
    (directory,) = (name for name in processes.disk().names(layout.ACTIVE) if name.startswith(layout.CAPTURE_PREFIX))
    assert door.store(recovering).shared.xids.try_lock(capture_byte(directory))
    take_in(other)
    assert list(other.browse("orders")) == []
    door.store(recovering).shared.xids.unlock(capture_byte(directory))
    take_in(recovering)
    assert [message.body for message in other.browse("orders")] == [b"a"]


def test_a_copy_is_used_if_its_original_is_lost(processes: Processes) -> None:
    dies(processes, *BEFORE_ITS_RENAME)
    processes.disk().unlink(FIRST)
    other = processes.space()
    take_in(other)
    assert [message.body for message in other.browse("orders")] == [b"a"]


def test_bytes_written_after_a_commit_whose_intake_died_are_kept(processes: Processes) -> None:
    """How much of it the messages have is not known."""
    writer = processes.disk()
    handle = writer.open(FIRST, write=True)
    doomed, disk = processes.open()
    disk.before("make_durable", lambda: disk.before("make_directory", disk.die), "committed")
    with pytest.raises(PowerCut):
        take_in(doomed)
    writer.write_at(handle, 1, b" and more")
    other = processes.space()
    take_in(other)
    assert [message.body for message in other.browse("orders")] == [b"a"]
    (kept,) = other.quarantined()
    assert "it may have changed since" in kept.detail
    assert processes.machine.find(kept.name).data == b"a and more"


def test_a_file_with_another_inode_size_or_time_is_another_file() -> None:
    identity = FileIdentity(1, 17, 1, 5, 1_000, 0o100644, 0, 2_000)
    complete = Seen(Proof.DECLARED, identity)
    assert complete.is_still(identity._replace(changed_ns=3_000))
    for other in (identity._replace(inode=18), identity._replace(size=6), identity._replace(modified_ns=1_001), None):
        assert not complete.is_still(other)
