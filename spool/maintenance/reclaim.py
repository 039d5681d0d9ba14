"""Reclaim: remove files that the space no longer needs.

A numbered file is needed in each of these cases:

- it is the newest published file;
- one of its messages is live;
- it removed a message, or took a dropped file, and after a power cut the file could exist again;
- one of its facts is the newest fact of its key.

Reclaim removes the file of a removed message before the file that records the removal. Reclaim removes adopted branches
before the adopting commit. A flush separates the two steps. So no power cut brings a removed message back.

Each number up to the published number has a file or was reclaimed. The totals fact contains a digest of the reclaimed
numbers: their count and their sum. The totals fact also lists the reclaimed numbers whose files may still exist. So the
space detects that another program deleted files. If only one file is missing, the space can name the file.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from spool.disk.content import unlink_unless_gone
from spool.disk.disk import Disk, FlushFailed
from spool.disk.recycler import weight
from spool.errors import NotOpen, SpoolError, SystemFailure
from spool.format.schema import TOTALS_FACT
from spool.index.commit import Retention, add_tallies
from spool.index.index import Index
from spool.log.engine_commit import commit_batch
from spool.log.sequence import flush_published
from spool.log.standing_requests import cancel_of_dead
from spool.log.visibility import catch_up
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.layout import FreeName
from spool.policies.attempt_journal import clean_up_after_dead
from spool.runtime.call_guard import deliver_pending_signals
from spool.runtime.clock import POLL_MAX_SECONDS, Clock, Deadline
from spool.store.parts import Files, Shared, View
from spool.store.store import Store, log

# A process that waits for the reclaim lock, e.g. an export, tries to take the lock every few milliseconds. So the
# process gets the lock between two maintenance steps.
PAUSE_BETWEEN_STEPS = 2 * POLL_MAX_SECONDS
_BATCH_FILES = 4_096
_STEP_FILES = 4
_MODULUS = 2**64  # one above msgpack's largest integer, and far above any difference of two digests


def next_to_go(files: Mapping[int, Retention], idle: Iterable[int], published: int, durable: int) -> list[list[int]]:
    """Return the numbers whose files can be removed, level by level. Each level must be removed before the next level.

    A commit refers only to commits with lower numbers, so one pass over the numbers is enough. Numbers above
    ``durable`` remain, because the removal or compaction of a message must be durable before the file of the message is
    deleted.

    Args:
        idle: numbers without a live message, in order.
        published: the newest published number, which remains.
    """
    levels: list[list[int]] = []
    level_of: dict[int, int] = {}
    for number in idle:
        state = files[number]
        if number >= published or number > durable:
            break
        if state.facts or state.captured or state.superseded_by > durable or state.pinned_by:
            continue
        needs = [target for target in (*state.addressed, *(state.supersedes or ())) if target in files]
        if not level_of.keys() >= set(needs):
            continue
        level_of[number] = level = 1 + max(map(level_of.__getitem__, needs), default=-1)
        levels += [[]] if level == len(levels) else []
        levels[level].append(number)
    return levels


def note_pins(number: int, state: Retention, claimed: Set[int]) -> None:
    """Record the claims that keep a superseded file. A process that claimed a message before the compaction still reads
    the message from this file.

    A process that claims a message later finds the message in its new file. So only claims that exist at the first
    check keep the file, until these claims end.

    Args:
        claimed: the numbers with claimed messages.
    """
    if state.pinned_by is not None:
        state.pinned_by &= claimed
    elif state.span is None:
        state.pinned_by = frozenset((number,)) & claimed
    else:
        low, high = state.span
        state.pinned_by = frozenset(one for one in claimed if low <= one <= high)


def reclaim(
    store: Store, pause: Callable[[], None] = lambda: None, behind: int = 0, wait: Deadline | None = None
) -> int:
    """Remove files that are not needed, level by level. Return how many numbers were removed.

    A failure is logged, and the next round tries again.

    Args:
        pause: called after every few files.
        behind: the number of newest commits whose files remain for now.
        wait: see ``in_turns``.
    """
    removed = 0
    with failures_logged(store):
        for step in in_turns(store, _steps(store, pause, behind), wait):
            removed += step
    return removed


def in_turns(store: Store, steps: Iterator[int], wait: Deadline | None = None) -> Iterator[int]:
    """Do maintenance steps one after another, each under the reclaim lock, and yield the results.

    Only one process at a time does maintenance.

    Args:
        wait: how long a step waits for another process that holds the lock. With a deadline, signal handlers run
            between the steps. None: if another process holds the lock, the steps end.
    """
    while True:
        step = None
        for _ in (True,) if wait is None else wait.polls():
            with store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
                step = next(steps, None) if ours else None
            if ours:
                break
        else:
            if wait is not None:
                log.warning("files that are not needed remain for now: another process reclaims, exports or repairs")
        if step is None:
            return
        yield step
        store.clock.sleep(PAUSE_BETWEEN_STEPS)
        if wait is not None:
            deliver_pending_signals()


@contextmanager
def failures_logged(store: Store) -> Iterator[None]:
    """Log a failure of maintenance. A failed flush stops the space. The close of the space is no failure."""
    try:
        yield
    except FlushFailed:
        store.stop()
    except NotOpen:
        pass  # the next opener reclaims
    except (OSError, SpoolError) as error:
        if not store.closed:
            log.warning("reclaim stopped early: %s", error)


def _steps(store: Store, pause: Callable[[], None], behind: int) -> Iterator[int]:
    """Reclaim in steps. Yield how many numbers a step removed.

    The caller holds the reclaim lock during each step, and may release it after a step. Files that become idle
    meanwhile remain, because otherwise the steps would not end while other processes take messages.
    """
    if store.files.disk.durability.defers_removal(store.shared.counters.read().is_suspect):
        return
    clean_up_after_dead(store, store.deadline())
    cancel_of_dead(store)
    flush_published(store)
    catch_up(store)
    _forget_captured(store.files.disk, store.view)
    if store.files.mirror is not None and digest_mismatch(store.files.disk, store.view, store.view.index) is not None:
        # A restore from the mirror could return taken messages, because the mirror keeps their lost commits.
        raise SystemFailure("commits are missing, which the mirror may have, so files remain: see spool-admin check")
    newest = store.view.index.applied - behind if behind else None
    with store.view.mutex:
        found = set(store.view.index.idle)
    gone = 1
    while gone:
        gone = 0
        with store.view.mutex:  # each record of totals retires the record before it
            idle = sorted(store.view.index.idle & (found | store.view.index.retired))
        for begin in range(0, len(idle), _BATCH_FILES):
            if step := _remove_idle(store, idle[begin : begin + _BATCH_FILES], newest, pause):
                gone += step
                yield step
                catch_up(store)  # another process may have reclaimed after the step


def _remove_idle(store: Store, idle: Sequence[int], newest: int | None, pause: Callable[[], None]) -> int:
    """Remove a batch of idle files below ``newest`` (None: the newest published number). Return how many were removed.

    Files freed by this batch are left to the next pass. All levels of a batch share one record, because a full disk may
    have room for only one record.
    """
    removed = 0
    if levels := _plan(store.shared, store.view, store.clock, idle, newest):
        _record_totals(store, [number for level in levels for number in level])
    for level in levels:
        removed += _remove(store.files, store.view, level, pause)
        store.guard.check()  # the next level may be removed only if this level was removed completely
    return removed


def _plan(shared: Shared, view: View, clock: Clock, batch: Sequence[int], newest: int | None) -> list[list[int]]:
    """Return the numbers of a batch whose files can be removed, level by level. ``newest``: as in ``_remove_idle``.

    If a commit has taken a request, the commit's file remains, because a process may still check whether the commit
    happened (rule 21). While a process holds the byte of a number, the process may still give adopted branches their
    committed names, so these files remain (rule 9).
    """
    durable = shared.counters.read().durable
    with view.mutex:
        index = view.index
        index.forget_expired(clock.now())
        idle = [number for number in batch if number in index.idle]
        idle = [one for one in idle if not index.files[one].adopted or shared.numbers.is_free(one)]
        superseded = [number for number in idle if index.files[number].superseded_by]
        claimed = shared.claims.numbers() if superseded else set()
        for number in superseded:
            note_pins(number, index.files[number], claimed)
        taken = shared.requests.taken_numbers()
        if newest is not None or taken:
            return next_to_go(index.files, idle, min([index.applied if newest is None else newest, *taken]), durable)
        levels = next_to_go(index.files, idle, index.applied + 1, durable)
        return [] if levels == [[index.applied]] else levels  # the newest number is removed only together with others


def _forget_captured(disk: Disk, view: View) -> None:
    """Forget dropped files whose removal is durable. Until then, the commit that took the file is needed.

    Only an intake deletes a dropped file, because only an intake knows whether the file may still have a writer.
    """
    with view.mutex:
        noted = [(number, list(state.captured)) for number, state in view.index.files.items() if state.captured]
    pending = [(number, gone) for number, taken in noted if (gone := [one for one in taken if _is_gone(disk, one)])]
    if not pending:
        return
    disk.flush_directory(layout.ACTIVE)
    for directory in {directory for _, taken in pending for directory, _ in taken}:
        if disk.exists(f"{layout.ACTIVE}/{directory}"):
            disk.flush_directory(f"{layout.ACTIVE}/{directory}")
    with view.mutex:
        for number, taken in pending:
            if (state := view.index.files.get(number)) is not None:
                state.captured = tuple(one for one in state.captured if one not in taken)
            view.index.captured.difference_update(taken)


def _is_gone(disk: Disk, taken: tuple[str, bytes]) -> bool:
    directory, name = taken
    return not disk.exists(f"{layout.ACTIVE}/{directory}/{os.fsdecode(name)}")


def _record_totals(store: Store, batch: list[int]) -> None:
    """Add the counts of these numbers to the totals of the space, and record that the numbers are removed."""
    with store.view.mutex:
        index = store.view.index
        fresh = [number for number in batch if number not in index.retired]
        superseded, value, _ = index.facts.get(TOTALS_FACT, (None, None, None))
        if fresh and superseded is not None and superseded not in fresh:
            fresh.append(superseded)  # otherwise the removal of the earlier record would need another record
        record = WriteSet().fact(TOTALS_FACT, _totals_with(index, value, fresh))
    if fresh:
        commit_batch(store, record, store.deadline(), flush=True)
    else:  # a dead process has recorded these numbers, and may have removed files without a flush
        store.files.disk.flush_directory(layout.COMMITTED)


def _totals_with(index: Index, known: Mapping[str, Any] | None, fresh: Sequence[int]) -> dict[str, Any]:
    """Return the ``known`` totals plus the counts of the ``fresh`` numbers, which will be removed. The caller holds the
    mutex."""
    sums: dict[str, list[int]] = {}
    add_tallies(sums, {} if known is None else known["queues"])
    for number in fresh:
        add_tallies(sums, index.files[number].tally)
    covered = () if known is None else set(known["folded"]).intersection(index.files)
    return {"queues": sums, "folded": sorted({*covered, *fresh}), "gone": list(recorded_digest(known).plus(fresh))}


def reset_retired_digest(store: Store, numbers: Iterable[int]) -> None:
    """Record a new digest: all numbers except ``numbers`` count as reclaimed. The caller holds the reclaim lock."""
    with store.view.mutex:
        index = store.view.index
        superseded, known, _ = index.facts.get(TOTALS_FACT, (None, None, None))
        fresh = [] if superseded is None else [superseded]
        value = _totals_with(index, known, fresh)
        left = kept_numbers(numbers, index.applied, value)
        value["gone"] = list(RetiredDigest.of_missing(index.applied, left))
    commit_batch(store, WriteSet().fact(TOTALS_FACT, value), store.deadline(), flush=True)


def _remove(files: Files, view: View, batch: list[int], pause: Callable[[], None]) -> int:
    """Delete the files of a batch of numbers, and forget the numbers. The removal of adopted branches is durable before
    the commits that adopted them are removed.

    Returns how many numbers were removed. If the space closes meanwhile, only a part of the batch was removed.
    """
    with view.mutex:
        adopted = {number: view.index.files[number].adopted for number in batch if view.index.files[number].adopted}
        for number in batch:
            files.cache.forget(number)
    files.copies.forget({number: len(adopted.get(number, ())) for number in batch})
    given: list[FreeName] = []
    gone: list[int] = []
    room = files.recycler.room()

    def give(name: str) -> None:
        nonlocal room
        if (spare := files.recycler.give(name, room)) is not None:
            given.append(spare)
            room -= weight(spare)
        else:
            unlink_unless_gone(files.disk, name)

    for number, xids in adopted.items():
        if not files.disk.exists(layout.committed(number)):
            continue  # another process has removed the files, and the xids may have other branches already
        for place, xid in enumerate(xids, 1):
            unlink_unless_gone(files.disk, layout.prepared(xid))
            give(layout.committed(number, place))
    if adopted:
        files.disk.flush_directory(layout.COMMITTED)
        files.disk.flush_directory(layout.PREPARED)
    for number in _in_steps(batch, pause):
        give(layout.committed(number))
        gone.append(number)
    files.disk.flush_directory(layout.COMMITTED)
    files.recycler.release(given)
    with view.mutex:
        for number in gone:
            if number in view.index.files:  # an index that was rebuilt meanwhile may lack the number
                view.index.forget(number)
    return len(gone)


def _in_steps(batch: list[int], pause: Callable[[], None]) -> Iterator[int]:
    """Yield the numbers of a batch with pauses between them, until the space closes."""
    for place, number in enumerate(batch):
        if place % _STEP_FILES == 0:
            try:
                pause()
            except NotOpen:
                return
        yield number


# -- the digest of reclaimed numbers -----------------------------------------------------------------------------------


class RetiredDigest(NamedTuple):
    """A digest of the reclaimed numbers: their count, and their sum modulo 2**64."""

    many: int = 0
    total: int = 0

    def plus(self, numbers: Collection[int]) -> Self:
        return self._replace(many=self.many + len(numbers), total=(self.total + sum(numbers)) % _MODULUS)

    @classmethod
    def of_missing(cls, applied: int, there: Collection[int]) -> Self:
        """Return the digest of the numbers up to ``applied``, except the numbers in ``there``."""
        return cls(applied - len(there), (applied * (applied + 1) // 2 - sum(there)) % _MODULUS)


def recorded_digest(totals: Mapping[str, Any] | None) -> RetiredDigest:
    """Return the digest in the value of the totals; an empty digest if the space has no totals yet."""
    return RetiredDigest() if totals is None else RetiredDigest(*totals["gone"])


def kept_numbers(numbers: Iterable[int], applied: int, totals: Mapping[str, Any] | None) -> set[int]:
    """Return the numbers that have a file, without the numbers that reclaim has recorded as removed."""
    return {number for number in numbers if number <= applied} - set(() if totals is None else totals["folded"])


def digest_mismatch(disk: Disk, view: View, index: Index) -> tuple[int, int | None] | None:
    """Compare the recorded digest with the existing files, to find files that another program deleted or put back.

    The caller holds the reclaim lock, or is the only process with the space open.

    Returns:
        None if the digest and the files agree. Otherwise, a pair. The first element is the number of missing files,
        which is negative if too many files exist. The second element is the sequence number of the file if only one
        file differs; otherwise None.
    """
    with view.mutex:
        applied = index.applied
        totals = index.facts.get(TOTALS_FACT, (0, None, None))[1]
    known, numbers = recorded_digest(totals), layout.committed_numbers(disk.names(layout.COMMITTED))
    actual = RetiredDigest.of_missing(applied, kept_numbers(numbers, applied, totals))
    if known == actual:
        return None
    many, total = actual.many - known.many, (actual.total - known.total) % _MODULUS
    number = {1: total, -1: -total % _MODULUS}.get(many)
    return many, number if number is not None and 0 < number <= applied else None
