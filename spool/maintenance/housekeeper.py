"""What a space does for itself while it is open: it reclaims what was consumed and sweeps what is slow.

A thread of its own, so that no put or get pays for it. Whatever fails here is logged and tried again later; one process
at a time does it, and if none does, the next who closes or opens the space.
"""

import errno
import threading
from collections.abc import Callable
from contextlib import suppress

from spool.coordination.locks import FOLLOWING, HOUSEKEEPING
from spool.disk import recycler
from spool.disk.disk import FlushFailed
from spool.errors import NotOpen, SpaceStopped, SpoolError
from spool.log import checkpoint
from spool.log.visibility import apply_up_to
from spool.maintenance.compaction import EVERY_SECONDS, Sweeper
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.policies.capacity import check_marks
from spool.policies.expiry import expire
from spool.store.edits import notice_edits
from spool.store.store import Store, log

RECLAIM_EVERY_COMMITS = 512
# Of large files the pool holds fewer: who writes them finds one only if they come back as fast as they go.
RECLAIM_LARGE_EVERY_COMMITS, RECLAIM_BYTES = 16, recycler.MAX_BYTES // 2
# Who finds a file gone before he has read it must list them all (see ``visibility``), so the newest ones stay while
# others are at work.
BEHIND_COMMITS = 512
TIDY_FROM = 64
PAUSE_SECONDS = 0.001
CHECKPOINT_FROM = 256  # files that an opener would have to read, and commits since the last one
_APPLIED_AT_ONCE = 64
_SEGMENT_COSTS = 256  # small files: so long does it take to read the table of a swept segment


class Housekeeper:
    """One open space's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sweeper = Sweeper(store)
        self._reclaimed_at = store.view.index.applied
        self._saved_at = store.view.index.restored
        self._saved_segments = len(store.view.index.messages.segments) if self._saved_at else 0
        self._saved_files = len(store.view.index.files)
        self._published = self._trimmed_at = store.view.index.applied  # at the last round, and the last quiet one
        self._wake = threading.Event()
        self._busy = threading.Lock()
        self._beside = store.files.disk.run_beside("xaspool housekeeping", self._run)

    def committed(self, every: int = RECLAIM_EVERY_COMMITS) -> None:
        """Behind each commit of this process: looks whether much can be reclaimed, or a queue's mark may be reached.
        Never the caller's failure."""
        if self._store.settings.known.config.marked and self._beside:
            self._wake.set()
        index = self._store.view.index
        since = index.applied - self._reclaimed_at
        many = since >= every and len(index.idle) >= every
        if not many and (since < RECLAIM_LARGE_EVERY_COMMITS or not self._is_large()):
            return
        if self._beside:
            self._wake.set()
        else:
            self._reclaim(BEHIND_COMMITS)

    def _is_large(self) -> bool:
        """Whether what may go is, be it few files. While others are there the newest have to stay all the same."""
        return self._store.view.index.idle_bytes >= RECLAIM_BYTES and not self._store.shared.open_lock.others()

    def tidy_up(self) -> None:
        """As the space closes: the next opener need not do it."""
        with suppress(OSError, SpaceStopped, NotOpen), self._store.gate:
            if self._store.shared.counters.read().stopped:
                return
            if self._store.settings.known.config.marked:
                check_marks(self._store)
            if len(self._store.view.index.idle) >= TIDY_FROM:
                self._reclaim(0)
            self._save(CHECKPOINT_FROM, lasting=True)

    def end(self) -> None:
        """The space is closed."""
        self._wake.set()

    def sweep(self) -> int:
        """Sweep what is slow; how many files were written. Nothing, if another process is at it."""
        with self._store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            return self._sweeper.look() if ours else 0

    def _catch_up(self) -> None:
        """Piece by piece: who puts meanwhile must not wait for all of it."""
        store = self._store
        published = store.shared.counters.read().published
        for begin in range(store.view.index.applied, published, _APPLIED_AT_ONCE):
            apply_up_to(store, min(begin + _APPLIED_AT_ONCE, published))
            self._pause()

    def _expire(self) -> None:
        """What nobody takes, whether it is past its time or not."""
        for queue in list(self._store.settings.known.config.queues):
            expire(self._store, queue, self._store.deadline())

    def _is_quiet(self) -> bool:
        """Whether nothing has been committed since the last round; then the disk gets back what is spare."""
        published = self._store.shared.counters.read().published
        quiet, self._published = published == self._published, published
        if quiet and published > self._trimmed_at:
            self._trimmed_at = published
            self._store.files.recycler.trim()
        return quiet

    def _is_ours(self) -> bool:
        """Whether to look for what is slow: those who follow what others do have it at hand. A process that only puts
        would have to read it for this alone; one of them does, if nobody follows."""
        control, follows = self._store.shared.control, self._store.view.follows
        self._store.view.follows = False
        if follows:
            return control.held_here(FOLLOWING) or control.try_lock(FOLLOWING, shared=True)
        if control.held_here(FOLLOWING):
            control.unlock(FOLLOWING)
        if control.held_elsewhere(FOLLOWING):
            return False
        return control.held_here(HOUSEKEEPING) or control.try_lock(HOUSEKEEPING)

    def _reclaim(self, behind: int, pause: Callable[[], None] = lambda: None) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._reclaimed_at = self._store.view.index.applied
                reclaim(self._store, pause, behind if self._store.shared.open_lock.others() else 0)
            finally:
                self._busy.release()

    def _save(self, least: int, *, lasting: bool = False) -> None:
        """A checkpoint, if there is much that the next opener would have to read, and much of it is new.

        ``lasting``: nothing more is likely to be reclaimed soon, so one that does not fit the files that are left is
        worth as much as none.
        """
        index = self._store.view.index
        # No lock for a number that need not be right: who closes waits for nobody here.
        segments = len(index.messages.segments)
        weight = len(index.files) + _SEGMENT_COSTS * segments
        fresh = index.applied - self._saved_at + _SEGMENT_COSTS * (segments - self._saved_segments)
        if lasting and len(index.files) != self._saved_files:
            fresh = weight
        if weight < least or fresh < least:
            return
        with self._store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            if ours and checkpoint.save(self._store):
                self._saved_at, self._saved_segments, self._saved_files = index.applied, segments, len(index.files)

    def _pause(self) -> None:
        """Between small steps: while this thread has the interpreter, no other has, and a put would wait for it."""
        self._store.gate.check()
        self._store.clock.sleep(PAUSE_SECONDS)

    def _run(self) -> None:
        gate, clock, goes_on = self._store.gate, self._store.clock, True
        next_sweep = clock.monotonic() + EVERY_SECONDS
        while goes_on and not gate.closed:
            self._wake.wait(max(0.0, next_sweep - clock.monotonic()))
            self._wake.clear()
            due = clock.monotonic() >= next_sweep  # however often it was woken meanwhile
            if due:
                next_sweep = clock.monotonic() + EVERY_SECONDS
            with suppress(NotOpen), gate:
                goes_on = self._round(due=due)

    def _round(self, *, due: bool) -> bool:
        """Whether there will be anything more to do."""
        store = self._store
        try:
            if store.shared.counters.read().stopped:
                return False
            while store.dropped:
                store.dropped.popleft()()
            if due:
                notice_edits(store)
                with store.view.mutex:
                    store.view.index.forget_expired(store.clock.now())
            due = due and self._is_ours()
            if due:
                self._catch_up()
                self._expire()
            if store.settings.known.config.marked:
                check_marks(store)
            quiet = due and self._is_quiet()
            least = TIDY_FROM if quiet else RECLAIM_EVERY_COMMITS
            if (due and self.sweep()) or len(store.view.index.idle) >= least or self._is_large():
                self._reclaim(0 if quiet else BEHIND_COMMITS, self._pause)
                self._save(CHECKPOINT_FROM + len(store.view.index.files) // 4, lasting=quiet)
        except FlushFailed:
            store.stop()
        except NotOpen:
            pass  # the space closes: the next opener does it
        except (OSError, SpoolError) as error:
            if isinstance(error, OSError) and error.errno == errno.EBADF:
                return False  # its files were closed under it, by an opening that was interrupted at its end
            log.warning("housekeeping stopped early: %s", error)
        return True
