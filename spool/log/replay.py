"""Read one published commit from its files: the numbered file and the branches that it adopted.

The file under a name may be replaced at any time. So the reader searches for a branch in the direction in which
branches move, and accepts a file only if its bytes belong to the name.
"""

from typing import NamedTuple

from spool.disk.disk import Disk
from spool.disk.quarantine import is_quarantined
from spool.errors import CorruptedFile
from spool.format.header import Adoption, Header
from spool.format.reader import FileContents, contents_of, read_contents, readable_contents
from spool.format.schema import TOTALS_FACT
from spool.index.commit import Commit, CommitFile
from spool.index.index import Index
from spool.model import layout
from spool.model.xid import Xid
from spool.store.store import Store

_TRIES_ON_BAD_BYTES = 3


class Listing(NamedTuple):
    """The names in ``prepared/`` and ``committed/`` at one moment; ``numbers``: the numbers of the files."""

    prepared: frozenset[str]
    committed: frozenset[str]
    numbers: set[int]

    @classmethod
    def of(cls, disk: Disk) -> "Listing":
        """List both directories in the order in which adopted branches move, so no branch is missing in both lists."""
        prepared, committed = frozenset(disk.names(layout.PREPARED)), frozenset(disk.names(layout.COMMITTED))
        return cls(prepared, committed, layout.committed_numbers(committed))

    def has_branch(self, number: int, place: int, xid: Xid) -> bool:
        """Return whether the ``place``-th adopted branch of a commit was in either directory."""
        names = layout.prepared(xid), layout.committed(number, place)
        return names[0].rpartition("/")[2] in self.prepared or names[1].rpartition("/")[2] in self.committed


def read_commit(
    store: Store, number: int, *, handle: int | None = None, listing: Listing | None = None, last_resort: bool = False
) -> Commit | None:
    """Read a published commit with its adopted branches.

    Args:
        handle: the open file of the commit, if the caller opened it. Another file may have the name by now.
        listing: the names that exist, if known. A branch that is not listed was reclaimed, and counts as empty.
        last_resort: report foreign or damaged parts as damage, and return the commit without them.

    Returns:
        None if a file of the commit was moved or removed, or if a file cannot be read and ``last_resort`` is False.
    """
    name = layout.committed(number)
    contents, wrong = _numbered_contents(store.files.disk, number, handle)
    if contents is None if wrong is None else not last_resort:
        return None
    contents = contents or FileContents(Header(0, store.clock.now(), {}), ())
    commit = Commit(number, [CommitFile(0, None, 0, contents)], [] if wrong is None else [(name, wrong)])
    for table, section in zip(contents.tables, contents.header.sections, strict=True):
        if len(table.lengths) != section.messages and not is_quarantined(store.files.disk, name):
            commit.damage.append((name, "a table of contents is damaged: the messages it lists cannot be read"))
            break
    for place, adoption in enumerate(contents.header.adopts, 1):
        if (branch := _adopted_contents(store.files.disk, number, place, adoption)) is not None:
            commit.files.append(CommitFile(place, adoption.xid, adoption.first, branch))
        elif listing is not None and not listing.has_branch(number, place, adoption.xid):
            continue
        elif not last_resort:
            return None
        elif not is_quarantined(store.files.disk, layout.committed(number, place)):
            commit.damage.append((layout.committed(number, place), f"branch {adoption.xid} is missing or damaged"))
    return commit


def _numbered_contents(disk: Disk, number: int, handle: int | None) -> tuple[FileContents | None, str | None]:
    """Read a numbered file. Return the contents, if readable, and the damage, if any; without a file both are None.

    Other bytes may appear under the name, and in the open file, at any time. So damaged bytes are read again by name
    before they count as damage.
    """
    name = layout.committed(number)
    contents, wrong = None, None
    for attempt in range(_TRIES_ON_BAD_BYTES):
        try:
            if handle is not None and not attempt:
                contents = read_contents(disk, handle)
            else:
                contents = contents_of(disk, name, salvage=attempt == _TRIES_ON_BAD_BYTES - 1)
        except CorruptedFile as error:
            contents, wrong = None, str(error).removeprefix(f"{name}: ")
            continue
        if contents is None or contents.header.number == number:
            return contents, None
        wrong = f"it carries the number {contents.header.number}"
        if contents.header.number == -1:
            return contents, "its number does not match its checksum"
        contents = None
    return contents, wrong


def _adopted_contents(disk: Disk, number: int, place: int, adoption: Adoption) -> FileContents | None:
    """Read an adopted branch, in the direction in which files move; return None if no file has the adopted bytes."""
    for name in (layout.prepared(adoption.xid), layout.committed(number, place), layout.prepared(adoption.xid)):
        contents = readable_contents(disk, name)
        if contents and (contents.header.checksum, contents.header.size) == (adoption.checksum, adoption.size):
            return contents
    return None


def name_absent_branches(disk: Disk, index: Index, commit: Commit) -> None:
    """Mark missing adopted branches as damage, unless their commit is being reclaimed."""
    own = {file.adoption for file in commit.files}
    bad = {name for name, _ in commit.damage}
    for place, adoption in enumerate(commit.files[0].contents.header.adopts, 1):
        name = layout.committed(commit.number, place)
        if place in own or name in bad or is_being_reclaimed(disk, index, commit.number) or is_quarantined(disk, name):
            continue
        index.mark_damaged(commit.number, name, f"branch {adoption.xid} is missing")


def is_being_reclaimed(disk: Disk, index: Index, number: int) -> bool:
    """Return whether a commit is being removed or was removed. The branches of a commit are removed first."""
    totals = index.facts.get(TOTALS_FACT)
    return (totals is not None and number in totals[1]["folded"]) or not disk.exists(layout.committed(number))
