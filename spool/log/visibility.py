"""What this process sees: it follows the published commits, and takes a second look after a claim.

Invariants. The rules are those of docs/architecture.md, "The rules that keep processes apart":

1. The index is a function of the published commits up to ``index.applied``, each applied once and in order.
2. A claim proves only that no other process holds the message now. It is delivered after a second look where its
   removal may lie, in the direction in which files move: prepared branches, published commits, every issued number
   (rule 4).
3. A file that cannot be read is not taken for absent: it is read again by name, and damage is named (rule 8).
4. A commit file that is listed and gone when it is read was reclaimed. What there is to read is listed again, and what
   is not there any more is forgotten, before reading goes on.
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
from spool.format.reader import FIRST_READ_BYTES, FileContents, contents_of
from spool.index.commit import Commit
from spool.index.index import Index
from spool.log import checkpoint
from spool.log.replay import Listing, name_absent_branches, read_commit
from spool.log.sequence import settle_to
from spool.model import layout
from spool.model.position import PositionRanges
from spool.model.xid import Xid
from spool.runtime.clock import Deadline
from spool.store.parts import Files, PreparedBranches, View
from spool.store.settings import Settings
from spool.store.store import Store

log = logging.getLogger("spool")

# Give up after so many restarts. Reclaim may delete a file between listing and reading, so a restart is normal; twenty
# in a row mean a directory that does not show what is there.
_MAX_RESTARTS = 20
# A file that is listed and could not be read so often is damaged.
_TRIES_ON_BAD_FILES = 3
_TOO_FAST = "the space changes faster than it can be read: try again"


def revalidate(
    store: Store,
    claimed: PositionRanges | None = None,
    deadline: Deadline | None = None,
    page: CounterPage | None = None,
) -> None:
    """Take the second look after a claim: see everything that may have removed or held the message. Rule 4.

    One read of the counters answers all three questions: the process that held the message stored what it did before it
    let go of it. A number that is not published yet is waited for only if the feed does not say that its commit leaves
    the claimed messages alone: a writer that lives holds their claims until it is published, so this is one that died,
    or whose commit is not in the feed.

    Args:
        claimed: the messages; None: see all that was issued.
        page: the counters, if they have been read since the claim.

    Raises:
        WaitExpired: a writer that lives did not publish its number in time.
    """
    page = page or store.shared.counters.read()
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

    The version may be read without the list's byte: a process that prepared a branch raised it before it let go of the
    claims that this process holds now. The listing itself takes the byte, or it might see the new version and not yet
    the new name.

    Args:
        page: the counters, if they have just been read.

    Returns:
        The counters as they are after the listing: a branch that was gone from the list had been committed before.
    """
    page = page or store.shared.counters.read()
    if page.prepared == store.view.prepared.version:
        return page
    deadline = store.deadline()
    store.shared.control.lock(PREPARED_LIST, deadline, "the list of prepared branches", shared=True)
    try:
        version = store.shared.counters.read().prepared
        names = store.files.disk.names(layout.PREPARED)
    finally:
        store.shared.control.unlock(PREPARED_LIST)
    branches: dict[Xid, FileContents] = {}
    for name in names:
        xid = layout.parse_xid(name)
        contents = None if xid is None else prepared_contents(store.files.disk, store.view.prepared, xid)
        if xid is not None and contents is not None:
            branches[xid] = contents
    with store.view.mutex:
        adopted = store.view.index.adopted
        store.view.prepared.replace(version, {xid: found for xid, found in branches.items() if xid not in adopted})
    return store.shared.counters.read()


def prepared_contents(disk: Disk, prepared: PreparedBranches, xid: Xid) -> FileContents | None:
    """Read header and tables of a prepared branch; None if it is not there, or damaged (recovery reports that)."""
    known = prepared.branches.get(xid)
    try:
        contents = contents_of(disk, layout.prepared(xid), known=known)
    except CorruptedFile as error:
        log.error("%s", error)
        return None
    return contents if contents is not None and is_branch_file(contents.header, xid) else None


def is_branch_file(header: Header, xid: Xid) -> bool:
    """Whether a file in ``prepared/`` is the branch that its name says: the header names that branch alone, and has no
    number. (-1: the bytes for a number are damaged; all other bytes are proven.)"""
    return header.number in (0, -1) and [branch.xid for branch in header.branches] == [xid]


# -- published commits ------------------------------------------------------------------------------------------------


def catch_up(store: Store, page: CounterPage | None = None) -> None:
    """Apply every published commit that this process has not applied yet, each read by name.

    Args:
        page: the counters, if they have been read since the caller's look began.

    Afterwards the queues are sorted as the settings say that were read last.
    """
    page = page or store.shared.counters.read()
    if page.is_stopped:
        page.check()
    if page.published > store.view.index.applied:
        apply_up_to(store, page.published)
    settings = store.settings.known
    if store.view.settings is not settings:
        apply_up_to(store, store.shared.counters.read().check().published)  # the settings may be newer than the page
        _follow_settings(store.view, settings)


def apply_up_to(store: Store, published: int) -> None:
    """Apply the commits up to a published number that this process has not applied yet."""
    if published <= store.view.index.applied:
        return
    with store.view.mutex:
        while store.view.index.applied < published:
            number = store.view.index.applied + 1
            own = store.view.own_commits.pop(number, None)
            commit = own() if own is not None else store.shared.feed.commit(number) or read_commit(store, number)
            if commit is None:
                _resume(store)
            elif not apply(store.files, store.view.prepared, store.view.index, commit):
                rebuild(store)


def _follow_settings(view: View, settings: Settings) -> None:
    """Sort the messages of each queue as the settings say.

    The view has caught up: a compacted file to which an older one refers may be gone, and a new order reads it.
    """
    with view.mutex:
        if settings.version < view.settings.version:
            return  # another thread was faster, and follows later ones
        for name, options in settings.config.queues.items():
            view.index.messages.queue(name).configure(options)
        view.settings = settings


def apply_own(store: Store) -> None:
    """Apply the commits of this process that are kept and follow what is applied. Errors are logged: they are done."""
    view = store.view
    with view.mutex:
        while (own := view.own_commits.pop(view.index.applied + 1, None)) is not None:
            commit = own()
            try:
                if not apply(store.files, view.prepared, view.index, commit):
                    rebuild(store)
            except (OSError, SpoolError) as error:
                log.warning("commit %s is done, but this process cannot see it yet: %s", commit.number, error)
                return


def apply(files: Files, prepared: PreparedBranches | None, index: Index, commit: Commit) -> bool:
    """Apply a commit to an index. Caller holds the mutex.

    Args:
        prepared: the branches that are listed beside this index; None while it is being read.

    Returns:
        False: the index must be rebuilt, since a compacted file that it needs for the commit was reclaimed.
    """
    number, parts, _ = commit
    header = parts[0].contents.header
    for part in parts:
        for table in part.contents.tables:
            if len(table.lengths) > 1 and (prepared is not None or header.supersedes):
                files.cache.remember(part.file_ref(number), part.contents)  # needed for the first message that is taken
                break
    done = True
    try:
        index.apply(commit)
    except (CorruptedFile, FileNotFoundError) as error:
        log.info("the index is built anew: %s", error)
        done = False
    if not header.flushed:
        index.unflushed.add(number)
    if prepared is not None:
        for adoption in header.adopts:
            prepared.forget(adoption.xid)
    return done


# -- what reclaim has overtaken ---------------------------------------------------------------------------------------


def _resume(store: Store) -> None:
    """Go on with the files that are there: the next commits have been reclaimed. Caller holds the mutex."""
    if _replay(store, store.view.index):
        _after_skipping(store)
    else:
        rebuild(store)


def rebuild(store: Store, *, alone: bool = False, opening: bool = False) -> None:
    """Build the index anew from the files that are there. A file that is missing was reclaimed: nothing of it lives.

    Args:
        alone: no other process moves files meanwhile: what is missing or foreign is damage at the first look.
        opening: a checkpoint may be used.
    """
    with store.view.mutex:
        settings = store.settings.known
        store.view.index = read_all(store, settings, alone=alone, from_checkpoint=opening)
        store.view.settings = settings
        _after_skipping(store)


def _after_skipping(store: Store) -> None:
    """Drop what is known beside the index after commits were skipped or read anew. Caller holds the mutex.

    Own commits that are kept are in the index now. Prepared branches are listed again, because the commits that adopted
    some of them may have been reclaimed before they were read.
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
        settings: sort the messages of each queue by these.
        alone: see ``rebuild``.
        published: the last number to read, if the caller knows it better than the counters do.
        from_checkpoint: do not read what a checkpoint covers, if there is one that can be believed.
    """
    for _ in range(_MAX_RESTARTS):
        index = checkpoint.load(store.files, store.shared.counters, settings) if from_checkpoint else None
        index = index or Index(store.files.cache, settings.config.queues)
        if _replay(store, index, alone=alone, published=published):
            return index
        from_checkpoint = False
    raise SystemFailure(_TOO_FAST)


def _replay(store: Store, index: Index, *, alone: bool = False, published: int | None = None) -> bool:
    """Apply the files beyond ``index.applied`` and forget those that are gone. False: the index must be rebuilt.

    Three looks, in this order: the published number, the names to be read, the names that are there. A commit whose
    file was gone at the second look had lost all that it removed before that, so nothing of it is there at the third.
    Without the third look a message could stay whose removal is never read. If a file was there at the second look and
    is gone when it is read, reclaim has overtaken the reader once more: the looks are taken anew. Each time fewer names
    are left of those that were there. An opener that is alone takes the second look for the third.
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
                if not apply(store.files, None, index, commit):
                    return False
                heads += [commit] if alone and commit.parts[0].contents.header.adopts else []
        if stuck is None:
            index.applied = last
            for head in heads:
                name_absent_branches(store.files.disk, index, head)
            return True
        failed[stuck] += 1
        if failed[stuck] > _MAX_RESTARTS:
            raise SystemFailure(
                f"{layout.committed(stuck)} is listed and cannot be found: look at the disk, then try again"
            )
