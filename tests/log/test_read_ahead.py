"""An opener of many files lets the kernel read them ahead of it, and opens each of them once."""

from collections import Counter
from pathlib import Path

import spool
from spool.disk import Disk
from spool.model import layout
from tests import door

COMMITS = 150


class WatchedDisk(Disk):
    """Records opened files and files that are read ahead; ``gone``: missing at the first attempt.

    ahead: the most files at once that were read ahead and not closed yet.
    """

    def __init__(self, root: str, gone: str = "") -> None:
        super().__init__(root)
        self.gone = gone
        self.opened: Counter[str] = Counter()
        self.told: list[str] = []
        self.ahead = 0
        self._names: dict[int, str] = {}
        self._told: set[int] = set()

    def open(self, name: str, *, write: bool = False) -> int:
        self.opened[name] += 1
        if name == self.gone and self.opened[name] == 1:
            raise FileNotFoundError(name)
        handle = super().open(name, write=write)
        self._names[handle] = name
        return handle

    def close(self, handle: int) -> None:
        self._told.discard(handle)
        super().close(handle)

    def will_read(self, handle: int, length: int) -> None:
        super().will_read(handle, length)
        self.told.append(self._names[handle])
        self._told.add(handle)
        self.ahead = max(self.ahead, len(self._told))

    def left_open(self) -> set[int]:
        return self._told


def files(space: spool.Space) -> list[str]:
    return sorted(f"{layout.COMMITTED}/{name}" for name in door.disk(space).names(layout.COMMITTED))


def fill(path: Path) -> None:
    with spool.create(path) as space:
        space.create_queue("q")
        for number in range(COMMITS):
            space.put("q", number)
    (path / layout.CHECKPOINT).unlink(missing_ok=True)


def test_files_are_announced_before_they_are_read_and_not_all_at_once(memory: Path) -> None:
    fill(memory)
    disk = WatchedDisk(str(memory))
    with spool.open(disk) as space:
        assert disk.told == files(space)
        assert disk.ahead == 64
        assert not disk.left_open()
        assert space.stats("q").ready == COMMITS


def test_each_file_is_opened_once(memory: Path) -> None:
    fill(memory)
    disk = WatchedDisk(str(memory))
    with spool.open(disk) as space:
        newest = files(space)[-1]  # which the first opener always reads
        assert {disk.opened[name] for name in files(space) if name != newest} == {1}


def test_a_file_that_cannot_be_announced_is_read_all_the_same(memory: Path) -> None:
    fill(memory)
    gone = layout.committed(40)
    disk = WatchedDisk(str(memory), gone=gone)
    with spool.open(disk) as space:
        assert gone not in disk.told
        assert disk.opened[gone] == 2
        assert [message.body for message in space.browse("q")] == list(range(COMMITS))


def test_files_are_closed_although_one_of_them_cannot_be_read(memory: Path) -> None:
    fill(memory)
    damaged = layout.committed(40)
    (memory / damaged).write_bytes(b"nothing")
    disk = WatchedDisk(str(memory))
    with spool.open(disk) as space:
        assert [finding.name for finding in space.recovery.findings] == [damaged]
        assert disk.opened[damaged] > 1, "it is read again by name before that is believed"
        assert not disk.left_open()
