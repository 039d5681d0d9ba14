"""Removing files whose messages are all gone.

A numbered file is needed while it is the newest published, while one of its messages lives, while a message that it
removes (or the dropped file that it took) could still come back with its own file, and while one of its facts is the
newest of its key. Files go in the order messages, flush, adopted branches, flush, heads: whatever a power cut leaves,
a removal never goes before what it removes.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from spool.disk.disk import FlushFailed
from spool.disk.recycler import weight
from spool.errors import NotOpen, SpoolError
from spool.format.batch import CommitBatch
from spool.format.schema import TOTALS_FACT
from spool.index.commit import Retention, add_tallies
from spool.index.index import Index
from spool.log.commit import commit_batch
from spool.log.visibility import catch_up
from spool.maintenance.account import Account, recorded, there
from spool.model import layout
from spool.policies.claim_journal import reap_orphans
from spool.store.store import Store, log

_BATCH_FILES = 10_000
_STEP_FILES = 4


def next_to_go(
    files: Mapping[int, Retention], idle: Iterable[int], published: int, durable: int, going: Set[int] = frozenset()
) -> list[int]:
    """The numbers whose files nothing needs any more, given that those ``going`` and what is not in ``files`` are
    durably gone.

    Only numbers at or below ``durable`` go: a removal that may be lost in a power cut must not outlive its target, nor
    a sweep what it took its messages from.
    """
    return sorted(
        number
        for number in idle
        if number < published
        and number <= durable
        and number not in going
        and not files[number].facts
        and not files[number].captured
        and all(target in going or target not in files for target in files[number].targets)
        and not any(old in files and old not in going for old in files[number].supersedes or ())
        and files[number].superseded_by <= durable
        and not files[number].pinned_by
    )


def note_pins(number: int, state: Retention, claimed: Set[int]) -> None:
    """Of a superseded file: who had claimed a message before it was swept may read it from here. Whoever claims one
    later finds it in its new place, so those count who are there at the first look, for as long as they stay.

    ``claimed``: the commits of which messages are claimed now.
    """
    if state.pinned_by is not None:
        state.pinned_by &= claimed
    elif state.span is None:
        state.pinned_by = frozenset((number,)) & claimed
    else:
        low, high = state.span
        state.pinned_by = frozenset(one for one in claimed if low <= one <= high)


def reclaim(store: Store, pause: Callable[[], None] = lambda: None, behind: int = 0) -> int:
    """Remove what can go, level by level; returns how many numbers went. One process at a time; others return 0.

    What fails is logged, and done by the next who reclaims. ``pause`` is called between a few files and the next.
    ``behind``: the newest so many numbers stay for now.
    """
    removed = 0
    try:
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            if not ours or _must_wait(store):
                return 0
            reap_orphans(store, store.deadline())
            _flush_unflushed(store)
            catch_up(store)
            _finish_taken(store)
            newest = store.view.index.applied - behind
            while levels := _plan(store, newest if behind else store.view.index.applied):
                _record_totals(store, [number for level in levels for number in level])
                for level in levels:
                    _remove(store, level, pause)
                    removed += len(level)
    except FlushFailed:
        store.stop()
    except NotOpen:
        pass  # the space closes meanwhile: the next opener does it
    except (OSError, SpoolError) as error:
        if not store.closed:
            log.warning("reclaim stopped early: %s", error)
    return removed


def _must_wait(store: Store) -> bool:
    """After a failed flush, a file that is gone may still be on the disk, and come back once its remover is gone: then
    nothing goes before the machine has started anew. Where renames are ordered the file system itself stops instead."""
    return not store.files.disk.ordered and store.shared.counters.read().suspect


def _plan(store: Store, newest: int) -> list[list[int]]:
    """What can go of the numbers below ``newest``, level behind level: a full disk has room for one record of it, and
    not for one a level."""
    levels: list[list[int]] = []
    going: set[int] = set()
    durable = store.shared.counters.read().durable
    with store.view.mutex:
        index = store.view.index
        index.forget_expired(store.clock.now())
        superseded = [number for number in index.idle if index.files[number].superseded_by]
        claimed = store.shared.claims.numbers() if superseded else set()
        for number in superseded:
            note_pins(number, index.files[number], claimed)
        while len(going) < _BATCH_FILES and (
            level := next_to_go(index.files, index.idle, newest, durable, going)[:_BATCH_FILES]
        ):
            levels.append(level)
            going.update(level)
            newest += newest == index.applied  # the record of the first level will be
    return levels


def _flush_unflushed(store: Store) -> None:
    """Advance the durable mark over commits that were published without a flush."""
    durable, published = store.shared.counters.read().durable, store.shared.counters.read().published
    while durable < published:
        try:
            handle = store.files.disk.open(layout.committed(durable + 1))
        except FileNotFoundError:
            break
        try:
            store.files.disk.make_durable(handle, layout.COMMITTED)
        finally:
            store.files.disk.close(handle)
        durable += 1
        if store.shared.counters.read().durable < durable:
            store.shared.counters.store_durable(durable)


def _finish_taken(store: Store) -> None:
    """A commit that took a dropped file is needed until that file is durably gone. Only an intake removes it: it knows
    whether the file may still have a writer."""
    with store.view.mutex:
        noted = [(number, list(state.captured)) for number, state in store.view.index.files.items() if state.captured]
    pending = [(number, gone) for number, taken in noted if (gone := [one for one in taken if _is_gone(store, one)])]
    if not pending:
        return
    store.files.disk.flush_directory(layout.ACTIVE)
    for directory in {directory for _, taken in pending for directory, _ in taken}:
        if store.files.disk.exists(f"{layout.ACTIVE}/{directory}"):
            store.files.disk.flush_directory(f"{layout.ACTIVE}/{directory}")
    with store.view.mutex:
        for number, taken in pending:
            state = store.view.index.files.get(number)
            if state is not None:
                state.captured = tuple(one for one in state.captured if one not in taken)
            store.view.index.captured.difference_update(taken)


def _is_gone(store: Store, taken: tuple[str, bytes]) -> bool:
    directory, name = taken
    return not store.files.disk.exists(f"{layout.ACTIVE}/{directory}/{os.fsdecode(name)}")


def _record_totals(store: Store, batch: list[int]) -> None:
    """What these numbers contributed to the counts since the space was created, and that they go; before they do."""
    with store.view.mutex:
        index = store.view.index
        fresh = [number for number in batch if number not in index.retired]
        superseded, value, _ = index.facts.get(TOTALS_FACT, (None, None, None))
        if fresh and superseded is not None and superseded not in fresh:
            fresh.append(superseded)  # its own commit needs no further one that way, and so on for ever
        draft = CommitBatch()
        draft.fact(TOTALS_FACT, _totals_with(index, value, fresh))
    if fresh:
        commit_batch(store, draft, store.deadline(), flush=True)
    else:  # who recorded them died, perhaps before what he had removed was durably gone: what removed it goes later
        store.files.disk.flush_directory(layout.COMMITTED)


def _totals_with(index: Index, known: Mapping[str, Any] | None, fresh: Sequence[int]) -> dict[str, Any]:
    """The totals' new value: the ``known`` one, and the ``fresh`` numbers, which are about to go."""
    sums: dict[str, list[int]] = {}
    add_tallies(sums, {} if known is None else known["queues"])
    for number in fresh:
        add_tallies(sums, index.files[number].tally)
    covered = () if known is None else set(known["folded"]).intersection(index.files)
    return {"queues": sums, "folded": sorted({*covered, *fresh}), "gone": list(recorded(known).plus(fresh))}


def balance(store: Store, numbers: Iterable[int]) -> None:
    """A new account: of these numbers there is a file, and all others are gone. The caller keeps reclaim away."""
    with store.view.mutex:
        index = store.view.index
        superseded, known, _ = index.facts.get(TOTALS_FACT, (None, None, None))
        fresh = [] if superseded is None else [superseded]
        value = _totals_with(index, known, fresh)
        left = there(numbers, index.applied, value)
        value["gone"] = list(Account.of_missing(index.applied, left))
    draft = CommitBatch()
    draft.fact(TOTALS_FACT, value)
    commit_batch(store, draft, store.deadline(), flush=True)


def _remove(store: Store, batch: list[int], pause: Callable[[], None]) -> None:
    """Unlink a batch, adopted branches durably before their heads, and forget it."""
    with store.view.mutex:
        adopted = {
            number: store.view.index.files[number].adopted for number in batch if store.view.index.files[number].adopted
        }
        for number in batch:
            store.files.cache.forget(number, len(store.view.index.files[number].adopted))
    if store.files.mirror is not None:
        store.files.mirror.forget({number: len(adopted.get(number, ())) for number in batch})
    for number, xids in adopted.items():
        for place, xid in enumerate(xids, 1):
            for name in (layout.prepared(xid), layout.committed(number, place)):
                _unlink(store, name)
    if adopted:
        store.files.disk.flush_directory(layout.COMMITTED)
        store.files.disk.flush_directory(layout.PREPARED)
    given: list[str] = []
    room = store.files.recycler.room()
    for place, number in enumerate(batch):
        if place % _STEP_FILES == 0:
            pause()
        name = layout.committed(number)
        spare = store.files.recycler.give(name, room)
        if spare is not None:
            given.append(spare)
            room -= weight(spare)
        else:
            _unlink(store, name)
    store.files.disk.flush_directory(layout.COMMITTED)
    if given and not store.files.disk.ordered:
        store.files.disk.flush_directory(layout.FREE)
    store.files.recycler.release(given)
    with store.view.mutex:
        for number in batch:
            if number in store.view.index.files:  # a rebuild meanwhile has not even seen it
                store.view.index.forget(number)


def _unlink(store: Store, name: str) -> None:
    try:
        store.files.disk.unlink(name)
    except FileNotFoundError:
        pass
