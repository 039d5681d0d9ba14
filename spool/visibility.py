"""What this process may believe: catching up with published commits, and looking again after a claim (DESIGN §5).

A claim only proves that nobody else holds the message now. Whether it is still there is known after looking where its
removal may lie, in the direction in which files move: prepared branches, then published commits, then every number that
was issued. Only then is a message delivered.
"""

import logging
from typing import Literal, overload

from spool import checkpoint, layout
from spool.clock import Deadline
from spool.commits import Commit, Part
from spool.counters import Page
from spool.entries import TOTALS_FACT
from spool.errors import CorruptedFile, SystemFailure
from spool.format import Adoption, Header
from spool.index import Index
from spool.locks import PREPARED_LIST
from spool.publication import settle_all
from spool.quarantine import kept
from spool.reader import FileImage, image_of
from spool.store import Store
from spool.xid import Xid

log = logging.getLogger("spool")

# A reader that was overtaken by reclaim starts again. What is missing after so many starts is gone for good.
_PATIENT_STARTS = 20
_TRIES_ON_BAD_BYTES = 3
_TOO_FAST = "the space changes faster than it can be read: try again"


def look_again(store: Store, deadline: Deadline) -> None:
    """After a lock on a message was taken: see everything that could have removed or held it before.

    One look at the counters serves all three questions: whoever held the message stored what he did before he let go.
    """
    catch_up(store, settle_all(store, deadline, list_prepared(store)))


# -- prepared branches ------------------------------------------------------------------------------------------------


def list_prepared(store: Store, page: Page | None = None) -> Page:
    """Refresh ``store.prepared`` if a branch was prepared or rolled back since the last listing; returns the counters
    as they are then: a branch that was gone from the list had been committed before. ``page``: counters, just read.

    The version may be read without the byte: whoever prepared a branch bumped it before letting go of the claims that
    we hold now. The listing itself needs the byte, or it might see the new version and not yet the new name.
    """
    page = page or store.counters.read()
    if page.prepared == store.prepared.version:
        return page
    deadline = store.deadline()
    store.control.lock(PREPARED_LIST, deadline, "the list of prepared branches", shared=True)
    try:
        version = store.counters.read().prepared
        names = store.disk.names(layout.PREPARED)
    finally:
        store.control.unlock(PREPARED_LIST)
    images: dict[Xid, FileImage] = {}
    for name in names:
        xid = layout.parse_xid(name)
        image = None if xid is None else prepared_image(store, xid)
        if xid is not None and image is not None:
            images[xid] = image
    with store.mutex:
        store.prepared.replace(version, {x: i for x, i in images.items() if x not in store.index.adopted})
    return store.counters.read()


def prepared_image(store: Store, xid: Xid) -> FileImage | None:
    """None if the branch is not in ``prepared/`` (any more), or damaged (the recovery scan says so)."""
    known = store.prepared.images.get(xid)
    try:
        image = image_of(store.disk, layout.prepared(xid), known=known)
    except CorruptedFile as error:
        log.error("%s", error)
        return None
    return image if image is not None and carries(image.header, xid) else None


def carries(header: Header, xid: Xid) -> bool:
    """Content is bound to its name: a branch's file says which branch it is (DESIGN §3), and has no number. (-1: the
    bytes for one were damaged; all others are proven.)"""
    return header.number in (0, -1) and [branch.xid for branch in header.branches] == [xid]


# -- published commits ------------------------------------------------------------------------------------------------


def catch_up(store: Store, page: Page | None = None) -> None:
    """Apply every published commit that this process has not seen, each read by name.

    ``page``: counters that were read when the caller's look began, or later.
    """
    apply_up_to(store, (page or store.counters.read().check()).published)


def apply_up_to(store: Store, published: int) -> None:
    """Apply what this process has not seen of the commits up to a published number."""
    if published <= store.index.applied:
        return
    with store.mutex:
        while store.index.applied < published:
            commit = store.own.pop(store.index.applied + 1, None) or read_commit(store, store.index.applied + 1)
            if commit is None or not apply(store, store.index, commit):
                rebuild(store)


def apply(store: Store, index: Index, commit: Commit) -> bool:
    """A commit that was just published; False if the index is of no use any more."""
    for part in commit.parts:
        store.sources.remember(part.source(commit.number), part.image)
    done = _applied(store, index, commit)
    for xid in commit.adopted:
        store.prepared.decided(xid)
    return done


def _applied(store: Store, index: Index, commit: Commit) -> bool:
    """False if a swept file that the index still counted on was reclaimed."""
    head = commit.parts[0]
    if head.image.header.supersedes:  # its tables are soon asked for, by whatever takes from it
        store.sources.remember(head.source(commit.number), head.image)
    try:
        index.apply(commit)
    except (CorruptedFile, FileNotFoundError) as error:
        log.info("the index is built anew: %s", error)
        return False
    return True


def rebuild(store: Store, *, alone: bool = False, opening: bool = False) -> None:
    """Start from what is there: files that were missing have been reclaimed, so nothing of theirs lives.

    ``alone``: nobody moves files meanwhile, so what is missing or foreign is damage at the first look. ``opening``: a
    checkpoint may tell what the files hold.
    """
    with store.mutex:
        index = read_all(store, last_resort=False, from_checkpoint=True) if opening else None
        if index is None:
            index = read_all(store, last_resort=True) if alone else _read_patiently(store)
        store.index = index
        store.prepared.version = -1
        list_prepared(store)


def _read_patiently(store: Store) -> Index:
    for start in range(_PATIENT_STARTS + 1):
        index = read_all(store, last_resort=start == _PATIENT_STARTS)
        if index is not None:
            return index
    raise SystemFailure(_TOO_FAST)


@overload
def read_all(store: Store, *, last_resort: Literal[True], published: int | None = None) -> Index: ...
@overload
def read_all(
    store: Store, *, last_resort: bool, published: int | None = None, from_checkpoint: bool = False
) -> Index | None: ...
def read_all(
    store: Store, *, last_resort: bool, published: int | None = None, from_checkpoint: bool = False
) -> Index | None:
    """An index as of a published number, or None if a file that was listed is gone when read.

    The listing is noted before anything is read: an adopted branch in neither listing was reclaimed, and is empty.
    ``published``: by who knows better than the counters. ``from_checkpoint``: what it covers is not read again; None if
    there is none to be believed.
    """
    if published is None:
        published = store.counters.read().published
    listed = {f"{layout.PREPARED}/{name}" for name in store.disk.names(layout.PREPARED)}
    names = store.disk.names(layout.COMMITTED)
    listed.update(f"{layout.COMMITTED}/{name}" for name in names)
    index = checkpoint.load(store, names, published) if from_checkpoint else store.new_index()
    if index is None:
        return None
    absent: list[tuple[int, str, str]] = []
    parsed = [name for name in map(layout.parse_committed, names) if name is not None and not name.adoption]
    for number in sorted(name.number for name in parsed if index.applied < name.number <= published):
        commit = read_commit(store, number, listed=listed, last_resort=last_resort)
        if commit is None or not _applied(store, index, commit):
            _unread(last_resort)
            return None
        if commit.parts[0].image.header.adopts:
            absent += _absent_branches(commit)
    index.applied = published
    while index.applied < store.counters.read().published:
        commit = read_commit(store, index.applied + 1, last_resort=last_resort)
        if commit is None or not _applied(store, index, commit):
            _unread(last_resort)
            return None
    if last_resort:
        for number, name, wrong in absent:
            if not being_reclaimed(store, index, number) and not kept(store.disk, name):
                index.damaged(number, name, wrong)
    return index


def _unread(last_resort: bool) -> None:
    """What was listed is gone. Last resorts name what is missing instead; swept files that go one behind the other
    while they are read are the one thing that they cannot serve without."""
    if last_resort:
        raise SystemFailure(_TOO_FAST)


def _absent_branches(commit: Commit) -> list[tuple[int, str, str]]:
    """(number, name, what is wrong) of adopted branches that were nowhere to be read, and not named already."""
    there = {part.adoption for part in commit.parts}
    named = {name for name, _ in commit.damage}
    places = [(layout.committed(commit.number, k), k, xid) for k, xid in enumerate(commit.adopted, 1)]
    return [(commit.number, n, f"branch {xid} is missing") for n, k, xid in places if k not in there and n not in named]


def being_reclaimed(store: Store, index: Index, number: int) -> bool:
    """Whether a commit is just going, or gone: its adopted branches go before it, after the fact that counts them."""
    totals = index.facts.get(TOTALS_FACT)
    return (totals is not None and number in totals[1]["folded"]) or not store.disk.exists(layout.committed(number))


def read_commit(
    store: Store, number: int, *, listed: set[str] | None = None, last_resort: bool = False
) -> Commit | None:
    """A published commit with its adopted branches, or None if something it needs is not where it was.

    ``last_resort``: never None; what is missing, foreign or damaged is named in the commit, and served without.
    """
    name = layout.committed(number)
    image, wrong = _numbered_image(store, number)
    if (wrong is not None or image is None) and not last_resort:
        return None
    if image is None:
        return Commit(number, [Part(0, None, 0, FileImage(store.header(), ()))], [(name, wrong or "it is missing")])
    commit = Commit(number, [Part(0, None, 0, image)], [] if wrong is None else [(name, wrong)])
    torn = any(len(t.lengths) != s.messages for t, s in zip(image.tables, image.header.sections, strict=True))
    if torn and not kept(store.disk, name):
        commit.damage.append((name, "a table of contents is damaged: the messages it lists cannot be read"))
    for place, adoption in enumerate(image.header.adopts, 1):
        branch = _adopted_image(store, number, place, adoption)
        if branch is not None:
            commit.parts.append(Part(place, adoption.xid, adoption.first, branch))
        elif listed is not None and not _is_listed(listed, number, place, adoption.xid):
            continue
        elif not last_resort:
            return None
        elif not kept(store.disk, layout.committed(number, place)):
            commit.damage.append((layout.committed(number, place), f"branch {adoption.xid} is missing or damaged"))
    return commit


def _is_listed(listed: set[str], number: int, place: int, xid: Xid) -> bool:
    return layout.prepared(xid) in listed or layout.committed(number, place) in listed


def _numbered_image(store: Store, number: int) -> tuple[FileImage | None, str | None]:
    """(image or None, what is wrong or None). None, None: there is no such file.

    The name can carry other bytes at any time, so bad ones are read again by name before they are believed.
    """
    name = layout.committed(number)
    image, wrong = None, None
    for attempt in range(_TRIES_ON_BAD_BYTES):
        try:
            image = image_of(store.disk, name, salvage=attempt == _TRIES_ON_BAD_BYTES - 1)
        except CorruptedFile as error:
            image, wrong = None, str(error).removeprefix(f"{name}: ")
            continue
        if image is None or image.header.number == number:
            return image, None
        wrong = f"it carries the number {image.header.number}"
        if image.header.number == -1:
            return image, "its number does not match its checksum"
        image = None
    return image, wrong


def _adopted_image(store: Store, number: int, place: int, adoption: Adoption) -> FileImage | None:
    """The branch's file, in the direction files move; only the bytes that the head adopted will do."""
    for name in (layout.prepared(adoption.xid), layout.committed(number, place), layout.prepared(adoption.xid)):
        try:
            image = image_of(store.disk, name)
        except CorruptedFile as error:
            log.error("%s", error)
            continue
        if image is not None and (image.header.checksum, image.header.size) == (adoption.checksum, adoption.size):
            return image
    return None
