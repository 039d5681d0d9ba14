"""The view of this process: it follows the published commits, and revalidates each claim.

Invariants, with the numbers of the rules in docs/architecture.md, "The rules that keep processes apart":

1. The index is a function of the published commits up to ``index.applied``, each applied once and in order.
2. A claim proves only that no other process holds the message at this moment. So before delivery the process searches
   for a removal of the message in prepared branches, then in published commits, then in every issued number. Files move
   in this direction (rule 4).
3. An unreadable file does not count as absent: the process reads the file again by name, and reports damage (rule 8).
4. If a listed commit file is missing when the process reads it, the file was reclaimed. The process then lists the
   files again, and forgets commits without a file, before it continues to read.
"""

import logging
from collections import Counter
from contextlib import closing

from spool.coordination.counters import CounterPage
from spool.coordination.locks import PREPARED_LIST
from spool.disk.content import opened_ahead
from spool.disk.disk import Disk
from spool.errors import CorruptedFile, SpoolError, SystemFailure
from spool.format.header import Header
from spool.format.reader import FIRST_READ_BYTES, FileContents, readable_contents
from spool.index.commit import Commit
from spool.index.index import Index
from spool.log import checkpoint
from spool.log.replay import Listing, name_absent_branches, read_commit
from spool.log.sequence import settle_to
from spool.log.standing_requests import look_at_standing
from spool.model import layout
from spool.model.position import PositionRanges
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.runtime.async_exceptions import raise_if_torn
from spool.runtime.clock import Deadline
from spool.store.parts import PreparedBranches, View
from spool.store.settings_reader import Settings
from spool.store.store import Store

log = logging.getLogger("spool")

# Give up after this many restarts. Reclaim may delete a file between listing and reading, so a restart is normal.
# Twenty restarts in a row mean that the directory lists files which do not exist.
_MAX_RESTARTS = 20
# A listed file counts as damaged after this many failed reads.
_TRIES_ON_BAD_FILES = 3
# The errors of a commit that needs a compacted file which reclaim removed: the index must be rebuilt.
_RECLAIMED = (CorruptedFile, FileNotFoundError)
_TOO_FAST = "the space changes faster than it can be read: try again"


def revalidate(
    store: Store,
    claimed: PositionRanges | None = None,
    deadline: Deadline | None = None,
    page: CounterPage | None = None,
) -> None:
    """Revalidate a claim: apply every change that may have removed or held the claimed messages (rule 4).

    The posted requests of other processes come first (rule 20). Then one read of the counters covers prepared branches,
    published commits and issued numbers. One read suffices because the last holder of a message raised the counters
    before it released the message. This function waits for an unpublished number only if the number's commit may
    address the claimed messages, according to the feed. A live writer holds its claims until publication, and this
    process holds the messages now. So the writer of this number has died, or the feed lacks the commit.

    Args:
        claimed: the claimed messages; without them every issued number is applied.
        page: the counters, if the caller has looked at the posted requests and then read the counters since the claim.

    Raises:
        WaitExpired: a live writer did not publish its number in time.
    """
    if page is None:
        look_at_standing(store, claimed)
        page = store.shared.counters.read()
    if page.prepared != store.view.prepared.version:
        page = list_prepared(store, page)
    last = page.issued
    while last > page.published and claimed is not None and not store.shared.feed.may_address(last, claimed):
        last -= 1
    if last > page.published:
        page = settle_to(store, last, deadline or store.deadline(), page)
    catch_up(store, page)


# -- prepared branches ------------------------------------------------------------------------------------------------


def list_prepared(store: Store, page: CounterPage | None = None) -> CounterPage:
    """Refresh ``view.prepared`` if a branch was prepared or rolled back since the last listing.

    The version may be read without the list's byte. This is safe: a process that prepared a branch raised the version
    before it released its claims. If this process holds these claims now, it reads the raised version. The listing
    itself takes the byte; otherwise a listing with the new version could lack the new name.

    Args:
        page: the counters, if they have just been read.

    Returns:
        The counters, read after the listing. If the list lacks a branch because a commit adopted the branch, the
        counters include that commit.
    """
    page = page or store.shared.counters.read()
    if page.prepared == store.view.prepared.version:
        return page
    with store.shared.control.holding(PREPARED_LIST, store.deadline(), "the list of prepared branches", shared=True):
        version = store.shared.counters.read().prepared
        names = store.files.disk.names(layout.PREPARED)
    known, branches = store.view.prepared.branches, dict[Xid, FileContents]()
    for name in names:
        if (xid := layout.parse_xid(name)) is None:
            continue
        contents = known.get(xid) if xid.format_id in FORMATS_USED_ONCE else None  # (no other branch has had the xid)
        if contents := contents or prepared_contents(store.files.disk, store.view.prepared, xid):
            branches[xid] = contents
    with store.view.mutex:
        has_adopted = store.view.index.has_adopted
        store.view.prepared.replace(version, {xid: found for xid, found in branches.items() if not has_adopted(found)})
    return store.shared.counters.read()


def prepared_contents(disk: Disk, prepared: PreparedBranches, xid: Xid) -> FileContents | None:
    """Return the header and tables of a prepared branch, or None if the branch is missing or damaged."""
    contents = readable_contents(disk, layout.prepared(xid), prepared.branches.get(xid))
    return contents if contents is not None and is_branch_file(contents.header, xid) else None


def is_branch_file(header: Header, xid: Xid) -> bool:
    """Return whether the header of a file in ``prepared/`` has only the branch ``xid``, and no number.

    (The number -1 means that the bytes of the number are damaged. All other bytes are proven.)
    """
    is_commit = header.is_numbered and header.number != -1
    return not is_commit and [branch.xid for branch in header.branches] == [xid]


# -- published commits ------------------------------------------------------------------------------------------------


def catch_up(store: Store, page: CounterPage | None = None) -> None:
    """Apply every published commit that this process has not applied yet.

    Afterwards the queues are sorted by the settings that were read last.

    Args:
        page: the counters, if the caller has read them during its own check.
    """
    page = page or store.shared.counters.read()
    if page.is_stopped or store.misplaced:
        store.check_usable()
    if page.published > store.view.index.applied:
        apply_up_to(store, page.published)
    settings = store.settings.known
    if store.view.settings is not settings:
        apply_up_to(store, store.shared.counters.read().check().published)  # the settings may be newer than the page
        _follow_settings(store.view, settings)


def apply_up_to(store: Store, published: int) -> None:
    """Apply the commits up to a published number that this process has not applied yet."""
    view = store.view
    if published <= view.index.applied:
        return
    with view.mutex:
        while view.index.applied < published:
            number = view.index.applied + 1
            own = view.own_commits.pop(number, None)
            commit = own() if own is not None else store.shared.feed.commit(number) or read_commit(store, number)
            if commit is None:
                _resume(store)
                continue
            try:
                view.index.apply(commit)
            except _RECLAIMED as error:
                log.info("the index is rebuilt: %s", error)
                rebuild(store)
            for adoption in commit.files[0].contents.header.adopts:
                view.prepared.forget(adoption)


def _follow_settings(view: View, settings: Settings) -> None:
    """Sort the messages of each queue as the settings say.

    The view must have caught up, because a change of the order reads files. An older view may refer to a compacted file
    that was removed.
    """
    with view.mutex:
        if settings.version < view.settings.version:
            return  # another thread has applied later settings
        view.index.messages.configure(settings.config.queues)
        view.settings = settings


def apply_own(store: Store) -> None:
    """Apply the kept commits that directly follow the applied commits. Errors are only logged: the commits are done."""
    view = store.view
    with view.mutex:
        last = view.index.applied
        while last + 1 in view.own_commits:
            last += 1
        try:
            apply_up_to(store, last)
        except (OSError, SpoolError) as error:
            raise_if_torn(error)
            number = view.index.applied + 1
            log.warning("commit %s is done, but this process cannot see it yet: %s", number, error)


# -- after reclaim removed files --------------------------------------------------------------------------------------


def _resume(store: Store) -> None:
    """Continue with the existing files, because the next commits have been reclaimed. Caller holds the mutex."""
    if _replay(store, store.view.index):
        _after_skipping(store)
    else:
        rebuild(store)


def rebuild(store: Store, *, alone: bool = False, opening: bool = False) -> None:
    """Rebuild the index from the existing files. A missing file was reclaimed, so it had no live messages.

    Args:
        alone: whether no other process moves files. In that case a missing or foreign file counts as damage at the
            first reading.
        opening: whether a checkpoint may be used.
    """
    with store.view.mutex:
        settings = store.settings.known
        store.view.index = read_all(store, settings, alone=alone, from_checkpoint=opening)
        store.view.settings = settings
        _after_skipping(store)


def _after_skipping(store: Store) -> None:
    """Drop the kept commits, and list the prepared branches again, after commits were skipped or read again. Caller
    holds the mutex.

    The index has the kept commits of this process now. Reclaim may have removed a commit before this process read it.
    The list may still have the branches that this commit adopted.
    """
    store.view.own_commits.clear()
    store.view.prepared.version = -1
    list_prepared(store)


def read_all(
    store: Store,
    settings: Settings,
    *,
    alone: bool = False,
    published: int | None = None,
    from_checkpoint: bool = False,
) -> Index:
    """Read the files into a new index.

    Args:
        settings: the settings by which the messages of each queue are sorted.
        alone: see ``rebuild``.
        published: the last number to read; by default the published number of the counters.
        from_checkpoint: skip the commits that a checkpoint covers, if one can be used.
    """
    for _ in range(_MAX_RESTARTS):
        index = checkpoint.load(store.files, store.shared.counters, settings) if from_checkpoint else None
        index = index or Index(store.files.cache, settings.config.queues)
        if _replay(store, index, alone=alone, published=published):
            return index
        from_checkpoint = False
    raise SystemFailure(_TOO_FAST)


def _replay(store: Store, index: Index, *, alone: bool = False, published: int | None = None) -> bool:
    """Apply the files beyond ``index.applied``; forget commits without a file. Return False if a rebuild is needed.

    This function reads three things in this order: the published number, the names to read, the names to keep. Reclaim
    removes the files of consumed messages before the file of the commit that consumed them. So if the second reading
    lacks a commit's file, the third lacks the files of all messages that the commit consumed. Without the third
    reading, a message could remain although its removal is never read.

    If a file of the second reading is missing when it is opened, reclaim has overtaken the reader again. Then all
    readings are repeated. Each repetition meets fewer missing files. If no other process has the space open, the second
    reading also serves as the third.
    """
    failed: Counter[int] = Counter()
    heads: list[Commit] = []
    while True:
        last = store.shared.counters.read().published if published is None else published
        listing = Listing.of(store.files.disk)
        index.keep_only((listing if alone else Listing.of(store.files.disk)).numbers)
        stuck = None
        following = sorted(number for number in listing.numbers if index.applied < number <= last)
        with closing(opened_ahead(store.files.disk, [*map(layout.committed, following)], FIRST_READ_BYTES)) as handles:
            for number, handle in zip(following, handles, strict=True):
                give_up = alone or failed[number] >= _TRIES_ON_BAD_FILES
                commit = read_commit(store, number, handle=handle, listing=listing, last_resort=give_up)
                if commit is None:
                    stuck = number
                    break
                try:
                    index.apply(commit, is_new=False)
                except _RECLAIMED as error:
                    log.info("the index is rebuilt: %s", error)
                    return False
                heads += [commit] if alone and commit.files[0].contents.header.adopts else []
        if stuck is None:
            index.applied = last
            for head in heads:
                name_absent_branches(store.files.disk, index, head)
            return True
        failed[stuck] += 1
        if failed[stuck] > _MAX_RESTARTS:
            raise SystemFailure(f"{layout.committed(stuck)} is listed but not found: check the disk, then try again")
