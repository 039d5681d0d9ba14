"""The crash tests are worth something only if they fail when the engine breaks its promises: here it does."""

import pytest

from spool.model import layout
from tests.crash.harness import Explorer, Violation
from tests.histories.table import BY_NAME
from tests.simdisk import SimulatedDisk
from tests.survivors import Rules


@pytest.fixture(autouse=True)
def _counted(record_property) -> None:
    record_property("planted bugs", 1)


class _CommitIsNotFlushed(SimulatedDisk):
    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        if directory != layout.COMMITTED:
            super().make_durable(handle, directory, new=new, stamped=stamped)


class _PrepareIsNotFlushed(SimulatedDisk):
    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        if directory != layout.PREPARED:
            super().make_durable(handle, directory, new=new, stamped=stamped)


class _CopyIsNotFlushedAgain(SimulatedDisk):
    """A dead writer's number is copied over and flushed, but its new name is not."""

    def __init__(self, machine) -> None:
        super().__init__(machine)
        self._copies: set[str] = set()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if source.endswith(layout.COPY_SUFFIX):
            self._copies.add(target.partition("/")[0])

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        if directory not in self._copies:
            super().make_durable(handle, directory, new=new, stamped=stamped)


class _CopyIsNotFlushedFirst(SimulatedDisk):
    """A dead writer's number is copied over, and the bytes are flushed only after the copy has replaced the file."""

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        if directory != layout.ACTIVE:
            super().make_durable(handle, directory, new=new, stamped=stamped)


class _ReplacedCountsAsNew(SimulatedDisk):
    """A file's flush is taken to carry a name that was another file's."""

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        super().make_durable(handle, directory, new=True, stamped=stamped)


class _DirectoryIsNotFlushed(SimulatedDisk):
    """The disk flushes as on a file system that orders renames or flushes a name with its file, but this one does
    neither."""

    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None:
        self.flush(handle)


@pytest.mark.parametrize(
    ("disk", "history", "rules"),
    [
        (_CommitIsNotFlushed, "put", Rules.ORDERED),
        (_CommitIsNotFlushed, "put", Rules.LOG_TREE),
        (_CommitIsNotFlushed, "get", Rules.STRICT),
        (_CommitIsNotFlushed, "two-phase commit", Rules.ORDERED),
        (_PrepareIsNotFlushed, "two-phase commit", Rules.ORDERED),
        (_PrepareIsNotFlushed, "prepare", Rules.STRICT),
        (_DirectoryIsNotFlushed, "put", Rules.STRICT),
        (_DirectoryIsNotFlushed, "two-phase commit", Rules.STRICT),
        (_CommitIsNotFlushed, "put", Rules.NEW_NAMES),
        (_PrepareIsNotFlushed, "prepare", Rules.NEW_NAMES),
    ],
)
@pytest.mark.slow
def test_a_flush_that_a_promise_leaves_out_is_found(disk, history, rules):
    with pytest.raises(Violation) as found:
        Explorer(BY_NAME[history], rules, disk=disk).explore()
    assert f"{history}: cut before" in str(found.value)


@pytest.mark.parametrize(
    "rules",
    [pytest.param(rules, marks=() if rules is Rules.ORDERED else pytest.mark.slow) for rules in Rules],
    ids=lambda rules: rules.value,
)
@pytest.mark.parametrize("disk", [_CopyIsNotFlushedFirst, _CopyIsNotFlushedAgain])
@pytest.mark.slow
def test_a_flush_that_recovery_leaves_out_is_found(disk, rules):
    with pytest.raises(Violation):
        Explorer(BY_NAME["put"], rules, recovery_disk=disk, again=3).explore()


@pytest.mark.slow
def test_a_name_that_was_another_files_and_is_not_flushed_with_its_directory_is_found():
    with pytest.raises(Violation):
        Explorer(BY_NAME["put"], Rules.NEW_NAMES, recovery_disk=_ReplacedCountsAsNew, again=3).explore()
