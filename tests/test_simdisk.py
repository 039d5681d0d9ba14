"""The simulated disk answers as the real disk does, so the results of the crash tests hold for the engine."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.disk import Disk
from spool.disk.stat import FileIdentity
from tests.machine import Machine, PowerCut
from tests.simdisk import SimulatedDisk
from tests.survivors import Rules, survivors

NAMES = st.sampled_from(["d/x", "d/y", "e/x", "e/y", "top", "d/new", "d/x/below", "none/x"])
DIRECTORIES = st.sampled_from(["d", "e", "d/new", "d/x", "none"])
OFFSETS = st.integers(0, 12)
HANDLES = st.integers(0, 4)
BY_HANDLE = ["flush", "handle_identity", "has_writer", "write_at", "read_at", "truncate", "lock", "unlock", "some_lock"]

CALLS = st.one_of(
    st.tuples(st.sampled_from(["create", "open", "unlink", "exists", "identity"]), NAMES),
    st.tuples(st.just("open_to_write"), NAMES),
    st.tuples(st.sampled_from(["rename", "rename_new", "link"]), NAMES, NAMES).filter(
        lambda call: not {call[1], call[2]} >= {"d/x", "d/x/below"}  # a directory into itself, which no caller does
    ),
    st.tuples(st.sampled_from(["names", "make_directory", "remove_directory", "flush_directory"]), DIRECTORIES),
    st.tuples(st.sampled_from(["close", "flush", "handle_identity", "has_writer"]), HANDLES),
    st.tuples(st.just("write_at"), HANDLES, OFFSETS, st.binary(max_size=6)),
    st.tuples(st.just("read_at"), HANDLES, OFFSETS, OFFSETS),
    st.tuples(st.just("truncate"), HANDLES, OFFSETS),
    st.tuples(st.sampled_from(["lock", "lock_shared", "unlock", "some_lock"]), HANDLES, OFFSETS, st.integers(1, 4)),
)


class _Player:
    """Plays calls on a disk. Their answers can be compared with the answers of another disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.handles: list[int] = []
        self._inodes: dict[tuple[int, int], int] = {}

    def play(self, call: str, *args: Any) -> Any:
        try:
            return self._plain(self._call(call)(*args))
        except OSError as error:
            return type(error).__name__, error.errno

    def _call(self, call: str) -> Callable[..., Any]:
        """Return the method. If the method takes a handle, the returned function takes the place of a handle in
        ``handles`` instead."""
        shared = {"lock_shared": ("lock", {"shared": True}), "open_to_write": ("open", {"write": True})}
        name, options = shared.get(call, (call, {}))
        method = getattr(self.disk, name)
        if name in ("create", "open"):
            return lambda path: self.handles.append(method(path, **options))
        if name == "close":
            return lambda place: method(self.handles.pop(place % len(self.handles))) if self.handles else None
        if name in BY_HANDLE:
            return lambda place, *rest: (
                method(self.handles[place % len(self.handles)], *rest, **options) if self.handles else None
            )
        return method

    def _plain(self, answer: Any) -> Any:
        if isinstance(answer, FileIdentity):
            number = self._inodes.setdefault((answer.device, answer.inode), len(self._inodes))
            return (number, answer.links, answer.size) if answer.is_regular else (number, "a directory")
        return sorted(answer) if isinstance(answer, list) else answer


@settings(max_examples=120)
@given(st.lists(CALLS, max_size=40))
def test_the_simulated_disk_answers_every_call_as_the_real_disk_does(calls: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as root:
        real, simulated = _Player(Disk(root)), _Player(SimulatedDisk(Machine()))
        for call in [("make_directory", "d"), ("make_directory", "e"), ("create", "d/x"), *calls]:
            assert simulated.play(*call) == real.play(*call), call
        for handle in real.handles:
            real.disk.close(handle)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), OFFSETS, st.integers(1, 4), st.integers(0, 2)), max_size=30))
def test_locks_of_several_descriptions_part_and_join_as_the_kernel_s_do(steps) -> None:
    with TemporaryDirectory() as root:
        players = _Player(Disk(root)), _Player(SimulatedDisk(Machine()))
        for player in players:
            player.play("create", "f")
            player.play("open_to_write", "f")
        for shared, start, length, which in steps:
            for call in ("unlock" if which == 2 else "lock_shared" if shared else "lock", "some_lock"):
                answers = [player.play(call, which, start, length) for player in players]
                assert answers[0] == answers[1], (call, which, start, length)
        for handle in players[0].handles:
            players[0].disk.close(handle)


def test_housekeeping_is_one_process_at_a_time(tmp_path: Path) -> None:
    machine = Machine()
    for one, other in ((Disk(str(tmp_path)), Disk(str(tmp_path))), (SimulatedDisk(machine), SimulatedDisk(machine))):
        one.close(one.create("busy"))
        with one.exclusively("busy") as first, other.exclusively("busy") as second:
            assert (first, second) == (True, False)
        with other.exclusively("busy") as again:
            assert again


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_killed_process_does_nothing_more_and_holds_nothing() -> None:
    machine = Machine()
    one, other = SimulatedDisk(machine), SimulatedDisk(machine)
    handle = one.create("f")
    assert one.lock(handle, 7)
    theirs = other.open("f", write=True)
    assert not other.lock(theirs, 7)
    machine.crash_at(len(machine.trace) + 1)
    with pytest.raises(PowerCut):
        one.write_at(handle, 0, b"never")
    with pytest.raises(PowerCut):
        one.exists("f")
    assert other.lock(theirs, 7)
    assert other.read_at(theirs, 0, 9) == b""


# -- files that survive a power cut -----------------------------------------------------------------------------------


def _left(machine: Machine, rules: Rules) -> list[dict[str, bytes]]:
    """Every disk that may be left, as the bytes of each file by name."""
    images = [survivor.image for survivor in survivors(machine, rules, limit=10_000)]
    return [{path: data for path, _, data in image.files if data is not None} for image in images]


def _renamed(*, flush_first: bool = False, flush_last: bool = False, flush_target: bool = False) -> Machine:
    """d/x is written and renamed to e/x."""
    machine = Machine()
    disk = SimulatedDisk(machine)
    disk.make_directory("d")
    disk.make_directory("e")
    disk.flush_directory("")
    handle = disk.create("d/x")
    disk.write_at(handle, 0, b"ab")
    if flush_first:
        disk.flush(handle)
    disk.rename("d/x", "e/x")
    if flush_last:
        disk.flush(handle)
    if flush_target:
        disk.flush_directory("e")
    return machine


@pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
def test_a_file_may_be_renamed_but_empty_or_half(rules: Rules) -> None:
    left = _left(_renamed(), rules)
    for data in (b"", b"a", b"ab", b"\0\0"):
        assert {"e/x": data} in left


def test_an_ordered_file_system_loses_no_rename_before_a_flush() -> None:
    assert _left(_renamed(flush_last=True), Rules.ORDERED) == [{"e/x": b"ab"}]
    assert {"d/x": b"ab"} in _left(_renamed(flush_first=True), Rules.ORDERED)
    assert {} not in _left(_renamed(flush_first=True), Rules.ORDERED)


def test_btrfs_may_show_a_renamed_file_under_both_names() -> None:
    left = _left(_renamed(flush_last=True), Rules.LOG_TREE)
    assert {"e/x": b"ab"} in left
    assert {"d/x": b"ab", "e/x": b"ab"} in left
    assert all(files.get("e/x") == b"ab" for files in left)


def test_without_order_a_flush_of_the_file_keeps_no_name_and_one_of_the_directory_does() -> None:
    assert {} in _left(_renamed(flush_first=True, flush_last=True), Rules.STRICT)
    left = _left(_renamed(flush_first=True, flush_target=True), Rules.STRICT)
    assert sorted(map(sorted, left)) == [["d/x", "e/x"], ["e/x"]]


@pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
def test_an_overwritten_file_may_come_back_as_it_was(rules: Rules) -> None:
    machine = _renamed(flush_first=True, flush_target=True)
    disk = SimulatedDisk(machine)
    disk.write_at(disk.open("e/x", write=True), 0, b"cdef")
    held = {files["e/x"] for files in _left(machine, rules) if "e/x" in files}
    assert {b"ab", b"cdef", b"cd"} <= held


@pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
def test_a_rename_flushed_with_both_directories_has_one_outcome(rules: Rules) -> None:
    machine = _renamed(flush_first=True, flush_target=True)
    SimulatedDisk(machine).flush_directory("d")
    assert _left(machine, rules) == [{"e/x": b"ab"}]
