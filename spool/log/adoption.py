"""The commit of a prepared branch: a numbered file adopts the branch's file, which then gets a committed name.

A process that got a branch's vote may post the request to adopt the branch, so that another process commits it (see
``combined``). The other process reads the branch's file, and compares the file's header with the header in the request.
``bench/cases/processes.py`` tells how much the processes gain.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from spool.coordination.counters import CounterPage, Counters
from spool.disk.content import unlink_unless_gone
from spool.disk.disk import Disk, FlushFailed
from spool.disk.durability import Move
from spool.errors import SpoolError
from spool.format.batch import CommitBatch
from spool.format.reader import FileContents
from spool.index.index import Index
from spool.log.commit_request import ADOPTION, CommitRequest
from spool.log.visibility import catch_up, prepared_contents
from spool.model import layout
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.runtime.tearing import raise_if_torn
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


class AdoptionRequest(CommitRequest):
    """A request to commit a prepared branch. The commit may also contain facts about the branch.

    ``first``: the place of the branch among the branches that the commit adopts, from 1.
    """

    def __init__(self, xid: Xid, contents: FileContents | None, facts: CommitBatch | None = None) -> None:
        """``contents``: the contents of the branch's file; None until ``resolve``."""
        self.page, self.messages, self.bytes = None, 0, 0
        self.adopts = self.xid = xid
        self.contents = contents
        self.facts = facts
        self._header: tuple[int, int] | None = None  # the size and checksum of the header that another process named

    @classmethod
    def unpack(cls, xid: Sequence[Any], size: int, checksum: int) -> "AdoptionRequest":
        """Return the request that another process packed; call ``resolve`` next."""
        request = cls(Xid.checked(*xid), None)
        request._header = size, checksum
        return request

    def pack(self) -> tuple[Any, ...] | None:
        if self.facts is not None or self.contents is None:
            return None
        header = self.contents.header
        return ADOPTION, self.xid, header.size, header.checksum

    def resolve(self, store: Store) -> bool:
        self.contents = prepared_contents(store.files.disk, store.view.prepared, self.xid)
        header = None if self.contents is None else self.contents.header
        return header is not None and (header.size, header.checksum) == self._header

    def append_to(self, batch: CommitBatch) -> None:
        assert self.contents is not None
        batch.adopt(self.contents)
        self.first = len(batch.adopts)
        if self.facts is not None:
            batch.append(self.facts)

    def refusal(self, store: Store, page: CounterPage, others: Collection[Xid]) -> Exception | None:
        if self.xid in others:
            return UnknownBranch(self.xid, None, "another thread commits it at this moment")
        index = store.view.index
        if self.xid in index.adopted or heuristic_fact(index, self.xid) is not None or not self._is_there(store, page):
            return UnknownBranch(self.xid, index.adopted.get(self.xid))
        return None

    def _is_there(self, store: Store, page: CounterPage) -> bool:
        """Return whether the branch's file exists, unchanged since it was read."""
        disk, prepared = store.files.disk, store.view.prepared
        with store.view.mutex:
            is_known = prepared.branches.get(self.xid) is self.contents
            is_known = is_known and (page.prepared == prepared.version or self.xid.format_id in FORMATS_USED_ONCE)
        if is_known:  # no branch was added or removed since, or no other branch can have the xid
            return disk.exists(layout.prepared(self.xid))
        found = prepared_contents(disk, prepared, self.xid)
        contents = self.contents
        return found is not None and contents is not None and found.header.checksum == contents.header.checksum


def voted_contents(store: Store, xid: Xid) -> FileContents:
    """Read a prepared branch; raises UnknownBranch if the branch does not exist."""
    contents = prepared_contents(store.files.disk, store.view.prepared, xid)
    if contents is None:
        catch_up(store)
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    return contents


def move_adopted(store: Store, number: int, places: Iterable[tuple[int, Xid]]) -> None:
    """Give adopted branches their committed names.

    An adopted file also counts under its old name, so errors are only logged.

    Args:
        number: the number of the commit that adopted the branches; the commit is durable and published.
        places: for each branch, its place (from 1) among the branches that the commit adopts, and its xid.
    """
    disk, counters = store.files.disk, store.shared.counters
    moves = [_Adopted(disk, layout.prepared(xid), layout.committed(number, k), counters) for k, xid in places]
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

    def __init__(self, disk: Disk, source: str, target: str, counters: Counters) -> None:
        super().__init__(disk, source, target)
        self._counters = counters

    def rename(self) -> None:
        try:
            self.disk.rename_new(self.source, self.target)
        except FileExistsError:  # after a power cut the file may have both names: the committed name counts
            self.release()
        except FileNotFoundError:
            pass

    def link(self) -> bool:
        if self._counters.read().is_suspect:  # after a failed flush, the disk may not have the new name
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
