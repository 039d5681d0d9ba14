"""Dropped files are in an export, each once: as a file that waits, or as the message that it became meanwhile."""

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.intake import Intake
from spool.model import layout
from tests.exports.archives import exported
from tests.machine import NO_FILES, Machine
from tests.meanwhile import Processes, elsewhere
from tests.simdisk import SimulatedDisk, repeatable
from tests.spaces import space_with
from tests.strides import Stride

FOLDER = f"{layout.DROP}/orders"
DROPPED = [b"one", b"three", b"two"]


def drop(disk: SimulatedDisk, name: str) -> None:
    handle = disk.create(f"{FOLDER}/{name}")
    disk.write_at(handle, 0, name.encode())
    disk.close(handle)


def take_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


class Watched(SimulatedDisk):
    """One process's disk, on which something happens just before a step of it."""

    steps = 0
    at = 0
    action: Callable[[], None]

    def _step(self, call: str, *args: object) -> None:
        self.steps += 1
        if self.steps == self.at:
            with elsewhere():
                self.action()
        super()._step(call, *args)


def _exported_beside(action: Callable[[Processes], None], step: int, *, ordered: bool) -> tuple[bytes, int]:
    """An export of a space with two dropped files, and one that an intake had captured when it died; another process
    acts just before a step. Returns the number of steps, too."""
    with repeatable(1):
        processes = Processes(ordered=ordered)
        doomed, disk = processes.open()
        drop(disk, "three")
        disk.dies_before("rename_new", lambda: take_in(doomed), layout.COMMITTED)
        watched = Watched(processes.machine)
        for name in ("one", "two"):
            drop(watched, name)
        space = spool.open(watched)
        watched.steps, watched.at, watched.action = 0, step, lambda: action(processes)
        return exported(space), watched.steps


def _messages(data: bytes) -> list[Any]:
    """The messages and files of an import, after an intake has run there."""
    target = Machine(NO_FILES)
    with spool.import_space(SimulatedDisk(target), io.BytesIO(data)) as space:
        take_in(space)
        assert space.quarantined() == []
        return sorted(message.body for message in space.browse("orders"))


def _an_intake(processes: Processes) -> None:
    with suppress(spool.TransactionTimeout):  # the exporting process holds the number lock, and so does not go on
        take_in(processes.space())


def _an_intake_that_dies(processes: Processes) -> None:
    _dies_before(processes, "rename_new", layout.COMMITTED)


def _an_intake_that_dies_after_its_commit(processes: Processes) -> None:
    _dies_before(processes, "unlink", f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}")


def _dies_before(processes: Processes, call: str, about: str) -> None:
    doomed, disk = processes.open()
    with suppress(AssertionError, spool.TransactionTimeout):  # it does not come to that step
        disk.dies_before(call, lambda: take_in(doomed), about)


@pytest.mark.every(5)
@pytest.mark.parametrize("action", [_an_intake, _an_intake_that_dies, _an_intake_that_dies_after_its_commit])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_dropped_file_is_exported_once_whenever_an_intake_takes_it(
    ordered: bool, action: Callable[[Processes], None], stride: Stride
) -> None:
    _, steps = _exported_beside(action, 0, ordered=ordered)
    as_messages = set()
    for step in range(1, steps + 1, stride(4)):
        data, _ = _exported_beside(action, step, ordered=ordered)
        assert _messages(data) == DROPPED, step
        as_messages.add(spool.verify_export(io.BytesIO(data)).messages["orders"])
    if action is _an_intake or (action is _an_intake_that_dies_after_its_commit and ordered):
        assert {0, 3} <= as_messages


space = space_with("orders", defaults={})


def test_a_dropped_file_that_no_intake_would_take_is_named(space: spool.Space, tmp_path: Path) -> None:
    folder = Path(space.path, "drop/orders")
    (folder / ".hidden").touch()
    (folder / "a.tmp").touch()
    (folder / "directory").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "whole").write_bytes(b"whole")
    Path(space.path, "drop/other").mkdir()
    Path(space.path, "quarantine/directory").mkdir()
    with open(folder / "open", "wb"):
        file = io.BytesIO()
        report = space.export(file)
    assert report.dropped.keys() == {"drop/orders/whole"}
    assert {*report.left_out} == {
        "drop/orders/.hidden", "drop/orders/a.tmp", "drop/orders/directory", "drop/orders/fifo", "drop/orders/link",
        "drop/orders/open", "drop/other", "quarantine/directory",
    }  # fmt: skip
    file.seek(0)
    assert spool.verify_export(file) == report
    file.seek(0)
    with spool.import_space(tmp_path / "copy", file):
        assert os.listdir(tmp_path / "copy/drop") == ["orders"]
        assert os.listdir(tmp_path / "copy/drop/orders") == ["whole"]


def test_dropped_files_keep_their_order_and_their_names(space: spool.Space, tmp_path: Path) -> None:
    folder, names = Path(space.path, "drop/orders"), ["z", os.fsdecode(b"caf\xe9"), "n" * 255, "a b"]
    for later, name in enumerate(names):
        (folder / name).write_bytes(os.fsencode(name))
        os.utime(folder / name, ns=(later, 10**18 + later))
    with spool.import_space(tmp_path / "copy", io.BytesIO(exported(space))) as copy:
        take_in(copy)
        assert [message.body for message in copy.browse("orders")] == [os.fsencode(name) for name in names]


def test_a_dropped_file_that_changes_while_it_is_exported_is_named(space: spool.Space, tmp_path: Path) -> None:
    file, written = Path(space.path, "drop/orders/grows"), io.BytesIO()
    file.write_bytes(b"first")

    def grow(progress: object) -> None:
        file.write_bytes(b"first and second")
        (file.parent / "late").write_bytes(b"late")

    report = space.export(written, progress=grow)
    assert report.dropped == {}
    assert {*report.left_out} == {"drop/orders/grows", "drop/orders/late"}
    written.seek(0)
    with spool.import_space(tmp_path / "copy", written):
        assert os.listdir(tmp_path / "copy/drop/orders") == []


def test_a_file_in_quarantine_that_goes_or_shrinks_meanwhile_is_named(space: spool.Space, tmp_path: Path) -> None:
    space.put("orders", 1)
    folder, written = Path(space.path, "quarantine"), io.BytesIO()
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    (folder / "c").write_bytes(b"c")

    class Shrinking(io.BytesIO):
        def write(self, data: Any) -> int:
            if b"quarantine/c" in data:
                (folder / "c").write_bytes(b"")
            return super().write(data)

    def remove(progress: object) -> None:
        (folder / "b").unlink(missing_ok=True)

    written = Shrinking()
    report = space.export(written, progress=remove)
    assert {*report.left_out} == {"quarantine/c"}  # and b did not exist at that moment
    written.seek(0)
    with spool.import_space(tmp_path / "copy", io.BytesIO(written.getvalue())):
        assert os.listdir(tmp_path / "copy/quarantine") == ["a"]
