"""The commit of a prepared branch: a numbered file adopts the branch's file, which then gets a committed name.

A process that got a branch's vote may post the request to adopt the branch, so that another process commits it (see
``ring``). The other process reads the branch's file, and compares the file's header with the header in the request.
``bench/cases/processes.py`` tells how much the processes gain.
"""

import logging
from collections.abc import Collection, Iterable

from spool.coordination.counters import CounterPage, Counters
from spool.disk.content import unlink_unless_gone
from spool.disk.disk import Disk, FlushFailed
from spool.disk.durability import Move
from spool.errors import SpoolError
from spool.format.reader import FileContents
from spool.index.index import Index
from spool.log.visibility import catch_up, prepared_contents
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.runtime.async_exceptions import raise_if_torn
from spool.store.store import Store

log = logging.getLogger("spool")

HEURISTIC_FACT = "heuristic:"


def fact_key(xid: Xid) -> str:
    """Return the key of the fact that records an administrator's decision about a branch."""
    return f"{HEURISTIC_FACT}{xid}"


def heuristic_fact(index: Index, xid: Xid) -> str | None:
    """Return the administrator's decision about the branch in this index, or None if the index has no decision."""
    found = index.facts.get(fact_key(xid))
    return None if found is None else str(found[1])


class UnknownBranch(SpoolError):
    """No prepared branch has this xid. ``committed_by``: the number of the commit that adopted the branch, or None."""

    def __init__(self, xid: Xid, committed_by: int | None, why: str = "it was rolled back, or never prepared") -> None:
        was = why if committed_by is None else f"it was committed as number {committed_by}"
        super().__init__(f"there is no prepared branch {xid}: {was}")
        self.committed_by = committed_by


def adoption(page: CounterPage, contents: FileContents, facts: WriteSet | None = None) -> WriteSet:
    """Return the write set that commits a prepared branch, and may contain facts about the branch. No queue of the
    branch can be deleted.

    ``page``: the counters, just read.
    """
    found = WriteSet(page=page)
    found.adopt(contents)
    if facts is not None:
        found.append(facts)
    return found


def find_adopted(store: Store, write_set: WriteSet) -> bool:
    """Read the prepared branches that a write set of another process adopts; return False if a branch is not there any
    more, or is not the branch that the process has seen."""
    wanted, write_set.adopts = write_set.adopts, []
    for one in wanted:
        contents = prepared_contents(store.files.disk, store.view.prepared, one.xid)
        if contents is None or (contents.header.size, contents.header.checksum) != (one.size, one.checksum):
            return False
        write_set.adopt(contents)
    return True


def refusal(
    store: Store, page: CounterPage, xid: Xid, contents: FileContents, others: Collection[Xid] = ()
) -> UnknownBranch | None:
    """Return the error if a branch must not be adopted, because it was decided (rule 5); else None.

    Every earlier commit is applied already.

    Args:
        page: the counters, read under the number lock.
        others: the branches that the same commit adopts already.
    """
    if xid in others:
        return UnknownBranch(xid, None, "another thread commits it at this moment")
    index, disk, prepared = store.view.index, store.files.disk, store.view.prepared
    is_there = not index.has_adopted(contents) and fact_key(xid) not in index.facts
    with store.view.mutex:
        is_known = prepared.branches.get(xid) is contents
        is_known = is_known and (page.prepared == prepared.version or xid.format_id in FORMATS_USED_ONCE)
    if is_there and is_known:  # no branch was added or removed since, or no other branch can have the xid
        is_there = disk.exists(layout.prepared(xid))
    elif is_there:
        found = prepared_contents(disk, prepared, xid)
        is_there = found is not None and found.header.checksum == contents.header.checksum
    return None if is_there else UnknownBranch(xid, index.adopter(xid))


def refuse_decided(store: Store, page: CounterPage, write_sets: Iterable[WriteSet]) -> None:
    """Set the error of each write set with a branch that must not be adopted. For the page, see ``refusal``."""
    others = set[Xid]()
    for one in write_sets:
        for adopted, contents in zip(one.adopts, one.adopted, strict=True):
            one.error = refusal(store, page, adopted.xid, contents, others) or one.error
            others.add(adopted.xid)


def voted_contents(store: Store, xid: Xid) -> FileContents:
    """Read a prepared branch; raises UnknownBranch if the branch does not exist."""
    if (contents := prepared_contents(store.files.disk, store.view.prepared, xid)) is None:
        catch_up(store)
        raise UnknownBranch(xid, store.view.index.adopter(xid))
    return contents


def move_adopted(store: Store, number: int, places: Iterable[tuple[int, Xid]]) -> None:
    """Give adopted branches their committed names.

    An adopted file also counts under its old name, so errors are only logged.

    Args:
        number: the number of the commit that adopted the branches; the commit is durable and published.
        places: for each branch, its place (from 1) among the branches that the commit adopts, and its xid.
    """
    disk, counters = store.files.disk, store.shared.counters
    moves: list[_Adopted] = []
    for k, xid in places:
        moves += (_Adopted(disk, layout.prepared(xid), layout.committed(number, k)),)
        moves[-1].counters = counters
    try:
        disk.durability.move(moves)
    except FlushFailed:
        store.stop()
    except OSError as error:
        raise_if_torn(error)
        log.warning("commit %d keeps the name of its prepared branch: %s", number, error)


class _Adopted(Move):
    """The move of an adopted branch's file; another process may have moved the file meanwhile."""

    disk: Disk
    counters: Counters

    def rename(self) -> None:
        try:
            self.disk.rename_new(self.source, self.target)
        except FileExistsError:  # after a power cut the file may have both names: the committed name counts
            self.release()
        except FileNotFoundError:
            pass

    def link(self) -> bool:
        if self.counters.read().is_suspect:  # after a failed flush, the disk may not have the new name
            return False
        try:
            self.disk.link(self.source, self.target)
        except FileNotFoundError:
            return False
        except FileExistsError:
            pass
        return True

    def release(self) -> None:
        unlink_unless_gone(self.disk, self.source)
