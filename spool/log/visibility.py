"""What this process may believe: catching up with published commits, and looking again after a claim.

Its rules stand in docs/architecture.md, "The rules that keep processes apart".

A claim only proves that nobody else holds the message now. Whether it is still there is known after looking where its
removal may lie, in the direction in which files move: prepared branches, then published commits, then every number that
was issued. Only then is a message delivered.
"""

import logging
from collections import Counter

from spool.coordination.counters import Page
from spool.coordination.locks import PREPARED_LIST
from spool.errors import CorruptedFile, SpoolError, SystemFailure
from spool.format.format import Header
from spool.format.reader import FileContents, image_of
from spool.index.commit import Commit
from spool.index.index import Index
from spool.log import checkpoint
from spool.log.replay import Listing, name_absent_branches, read_commit
from spool.log.sequence import settle_all
from spool.model import layout
from spool.model.xid import Xid
from spool.runtime.clock import Deadline
from spool.store.store import Store

log = logging.getLogger("spool")

# Who met it so often that a swept file went while he read on, or that a listed file is not there, has an error to show.
_PATIENT_STARTS = 20
# A file that is listed and cannot be read, so often, is damaged.
_TRIES_ON_BAD_FILES = 3
# Commits of this process that it need not read again.
_MOST_OWN = 64
_TOO_FAST = "the space changes faster than it can be read: try again"


def revalidate(store: Store, deadline: Deadline) -> None:
    """After a lock on a message was taken: see everything that could have removed or held it before.

    One look at the counters serves all three questions: whoever held the message stored what he did before he let go.
    """
    catch_up(store, settle_all(store, deadline, list_prepared(store)))


# -- prepared branches ------------------------------------------------------------------------------------------------


def list_prepared(store: Store, page: Page | None = None) -> Page:
    """Refresh ``view.prepared`` if a branch was prepared or rolled back since the last listing; returns the counters as
    they are then: a branch that was gone from the list had been committed before. ``page``: counters, just read.

    The version may be read without the byte: whoever prepared a branch bumped it before letting go of the claims that
    we hold now. The listing itself needs the byte, or it might see the new version and not yet the new name.
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
    images: dict[Xid, FileContents] = {}
    for name in names:
        xid = layout.parse_xid(name)
        image = None if xid is None else prepared_image(store, xid)
        if xid is not None and image is not None:
            images[xid] = image
    with store.view.mutex:
        store.view.prepared.replace(version, {x: i for x, i in images.items() if x not in store.view.index.adopted})
    return store.shared.counters.read()


def prepared_image(store: Store, xid: Xid) -> FileContents | None:
    """None if the branch is not in ``prepared/`` (any more), or damaged (the recovery scan says so)."""
    known = store.view.prepared.images.get(xid)
    try:
        image = image_of(store.files.disk, layout.prepared(xid), known=known)
    except CorruptedFile as error:
        log.error("%s", error)
        return None
    return image if image is not None and carries(image.header, xid) else None


def carries(header: Header, xid: Xid) -> bool:
    """Content is bound to its name: a branch's file says which branch it is, and has no number. (-1: the
    bytes for one were damaged; all others are proven.)"""
    return header.number in (0, -1) and [branch.xid for branch in header.branches] == [xid]


# -- published commits ------------------------------------------------------------------------------------------------


def catch_up(store: Store, page: Page | None = None) -> None:
    """Apply every published commit that this process has not seen, each read by name.

    ``page``: counters that were read when the caller's look began, or later.
    """
    apply_up_to(store, (page or store.shared.counters.read().check()).published)


def apply_up_to(store: Store, published: int) -> None:
    """Apply what this process has not seen of the commits up to a published number."""
    if published <= store.view.index.applied:
        return
    with store.view.mutex:
        while store.view.index.applied < published:
            commit = store.view.own.pop(store.view.index.applied + 1, None) or read_commit(
                store, store.view.index.applied + 1
            )
            if commit is None:
                _go_on(store)
            elif not apply(store, store.view.index, commit):
                rebuild(store)


def apply_own(store: Store, commit: Commit) -> None:
    """A commit of this process, just published. Who is behind others stays so until he wants to know what there is: a
    process that only puts need not follow them."""
    try:
        with store.view.mutex:
            if commit.number == store.view.index.applied + 1:
                if not apply(store, store.view.index, commit):
                    rebuild(store)
            elif commit.number > store.view.index.applied:
                store.view.own[commit.number] = commit
                if len(store.view.own) > _MOST_OWN:
                    del store.view.own[next(iter(store.view.own))]
    except (OSError, SpoolError) as error:  # it is done, whatever happens to this look
        log.warning("commit %s is done, but this process cannot see it yet: %s", commit.number, error)


def apply(store: Store, index: Index, commit: Commit) -> bool:
    """A commit that was just published; False if the index is of no use any more."""
    for part in commit.parts:
        store.files.cache.remember(part.file_ref(commit.number), part.image)
    done = _applied(store, index, commit)
    for xid in commit.adopted:
        store.view.prepared.decided(xid)
    return done


def _applied(store: Store, index: Index, commit: Commit) -> bool:
    """False if a swept file that the index still counted on was reclaimed."""
    head = commit.parts[0]
    if head.image.header.supersedes:  # its tables are soon asked for, by whatever takes from it
        store.files.cache.remember(head.file_ref(commit.number), head.image)
    try:
        index.apply(commit)
    except (CorruptedFile, FileNotFoundError) as error:
        log.info("the index is built anew: %s", error)
        return False
    return True


# -- what reclaim has overtaken ---------------------------------------------------------------------------------------


def _go_on(store: Store) -> None:
    """Some of what is next has been reclaimed: go on with what is there, or start anew."""
    if _read_on(store, store.view.index):
        _have_skipped(store)
    else:
        rebuild(store)


def rebuild(store: Store, *, alone: bool = False, opening: bool = False) -> None:
    """Start from what is there: files that were missing have been reclaimed, so nothing of theirs lives.

    ``alone``: nobody moves files meanwhile, so what is missing or foreign is damage at the first look. ``opening``: a
    checkpoint may tell what the files hold.
    """
    with store.view.mutex:
        store.view.index = read_all(store, alone=alone, from_checkpoint=opening)
        _have_skipped(store)


def _have_skipped(store: Store) -> None:
    """Branches were adopted by commits that are gone: nobody has said so. And some of our own may have been read."""
    store.view.own.clear()
    store.view.prepared.version = -1
    list_prepared(store)


def read_all(
    store: Store, *, alone: bool = False, published: int | None = None, from_checkpoint: bool = False
) -> Index:
    """An index as of a published number. ``published``: by who knows better than the counters. ``from_checkpoint``:
    what that covers is not read again, if there is one to be believed."""
    for _ in range(_PATIENT_STARTS):
        index = (checkpoint.load(store) if from_checkpoint else None) or store.new_index()
        if _read_on(store, index, alone=alone, published=published):
            return index
        from_checkpoint = False
    raise SystemFailure(_TOO_FAST)


def _read_on(store: Store, index: Index, *, alone: bool = False, published: int | None = None) -> bool:
    """Apply what there is beyond ``index.applied``, and forget what has gone; False if the index is of no use any more.

    Three looks, in this order: the published number, the names to be read, the names that are there. What was gone at
    the second had lost all that it removed before, so nothing of that is there at the third: without it a message could
    stay whose removal is never read. What was there at the second and is gone when it is read has been overtaken once
    more, and the looks are taken anew; each time fewer names are left of those that were there.
    """
    failed: Counter[int] = Counter()
    heads: list[Commit] = []
    while True:
        last = store.shared.counters.read().published if published is None else published
        listing = Listing.of(store)
        index.keep_only(Listing.of(store).numbers)
        stuck = None
        for number in sorted(number for number in listing.numbers if index.applied < number <= last):
            give_up = alone or failed[number] >= _TRIES_ON_BAD_FILES
            commit = read_commit(store, number, listing=listing, last_resort=give_up)
            if commit is None:
                stuck = number
                break
            if not _applied(store, index, commit):
                return False
            heads += [commit] if alone and commit.adopted else []
        if stuck is None:
            index.applied = last
            for head in heads:
                name_absent_branches(store, index, head)
            return True
        failed[stuck] += 1
        if failed[stuck] > _PATIENT_STARTS:
            raise SystemFailure(
                f"{layout.committed(stuck)} is listed and cannot be found: look at the disk, then try again"
            )
