"""An opener of many files lets the kernel read them ahead of it."""

from pathlib import Path

import spool
from spool.disk import Disk
from spool.model import layout

COMMITS = 150


class WatchedDisk(Disk):
    """Notes the commit files that the kernel was told of, and then those that are read; ``gone``: not there then."""

    def __init__(self, root: str, gone: str = "") -> None:
        super().__init__(root)
        self.gone = gone
        self.told: list[str] = []
        self.read: list[str] = []
        self.ahead = 0

    def open(self, name: str, *, write: bool = False) -> int:
        if name == self.gone and name not in self.told:
            self.told.append(name)
            raise FileNotFoundError(name)
        self.read.append(name)
        return super().open(name, write=write)

    def will_read(self, handle: int, length: int) -> None:
        super().will_read(handle, length)
        self.told.append(self.read.pop())
        self.ahead = max(self.ahead, len(set(self.told) - set(self.read)))


def files(space: spool.Space) -> list[str]:
    return sorted(f"{layout.COMMITTED}/{name}" for name in space.engine.store.files.disk.names(layout.COMMITTED))


def of_commits(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(layout.COMMITTED)]


def fill(path: Path) -> None:
    with spool.create(path) as space:
        space.create_queue("q")
        for number in range(COMMITS):
            space.put("q", number)
    (path / layout.CHECKPOINT).unlink(missing_ok=True)


def test_files_are_announced_before_they_are_read_and_not_all_at_once(memory: Path) -> None:
    fill(memory)
    disk = WatchedDisk(str(memory))
    with spool.open(memory, disk=disk) as space:
        whole_groups = files(space)[:128]
        assert disk.told == whole_groups
        assert set(disk.told) < set(disk.read)
        assert disk.ahead == 64
        assert space.stats("q").ready == COMMITS


def test_a_file_that_cannot_be_announced_is_read_all_the_same(memory: Path) -> None:
    fill(memory)
    disk = WatchedDisk(str(memory), gone=layout.committed(40))
    with spool.open(memory, disk=disk) as space:
        assert layout.committed(40) in disk.read
        assert [message.body for message in space.browse("q")] == list(range(COMMITS))


def test_few_files_are_not_announced(memory: Path) -> None:
    with spool.create(memory) as space:
        space.create_queue("q")
        space.put("q", 1)
    disk = WatchedDisk(str(memory))
    with spool.open(memory, disk=disk) as space:
        assert of_commits(disk.told) == []
        assert space.get("q").body == 1
