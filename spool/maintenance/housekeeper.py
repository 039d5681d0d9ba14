"""The housekeeping thread of an open space: it compacts slow queues and reclaims consumed files.

A separate thread does the housekeeping, so that no put or get waits for the housekeeping. A failure is logged, and the
next round repeats the step. One process at a time does the housekeeping. If no process does the housekeeping, the next
process that closes or opens the space reclaims. ``triggers`` decides when a step is due.
"""

import errno
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from math import inf

from spool.coordination.locks import FOLLOWING, HOUSEKEEPING
from spool.coordination.next_due import next_due, tell_next_due
from spool.disk.advice import advice
from spool.disk.disk import FlushFailed, raise_unless_full
from spool.errors import NotOpen, SpaceStopped, SpoolError
from spool.log import checkpoint
from spool.log.sequence import flush_published
from spool.log.visibility import apply_own, apply_up_to
from spool.maintenance import triggers
from spool.maintenance.compaction import EVERY_SECONDS, Compactor
from spool.maintenance.reclaim import in_turns, reclaim
from spool.maintenance.triggers import IndexSize
from spool.model import layout
from spool.policies.attempt_journal import clean_up_after_dead
from spool.policies.expiry import expire
from spool.policies.subscriptions import end_expired
from spool.runtime.call_guard import enters
from spool.store.edits import notice_edits
from spool.store.store import Store, log

# While no process commits, the thread does small steps without pauses. After a commit, the thread pauses after each of
# the next hundred steps. So an application that commits ten times a second has the disk and the interpreter for most of
# the time.
PAUSE_SECONDS = 0.001
PAUSES_AFTER_A_COMMIT = 100
_APPLIED_AT_ONCE = 64
_LATE_SECONDS = 2 * EVERY_SECONDS  # any process puts a message of a schedule that is later, as no elected one has


class Housekeeper:
    """The housekeeping of one open space."""

    def __init__(
        self, store: Store, publish: Callable[[], None], put_due: Callable[[], float], end_overdue: Callable[[], None]
    ) -> None:
        """The process that does the housekeeping calls these functions every ``EVERY_SECONDS``.

        end_overdue: rolls back this process's transactions whose time is over; called in every process.
        put_due: puts the due messages of schedules, and returns the time at which the next message is due. It is also
            called at this time, and only if the space has schedules.
        """
        self._store = store
        self._publish, self._put_due, self._end_overdue = publish, put_due, end_overdue
        self._next_due = inf  # the time at which this process puts the next message of a schedule
        self._compactor = Compactor(store)
        self._reclaimed_at = store.view.index.applied
        restored, extent = store.view.index.restored, self._extent()
        self._saved = IndexSize(restored, extent.files, extent.segments if restored else 0)
        # The published number at the last round, and at the last quiet round.
        self._published = self._trimmed_at = store.view.index.applied
        # Until this number is applied, the space calls ``committed`` only because of marks or large files.
        self.next_look = 0
        # The counters at the last step, and the number of pauses that remain.
        self._seen, self._pauses = store.shared.counters.read(), 0
        self._may_lose = False  # whether, at this process's last flush, a queue could lose messages
        self._wake = threading.Event()
        self._busy = threading.Lock()
        store.wake = self._wake.set
        self._beside = store.files.disk.run_beside("xaspool housekeeping", self._run)

    def committed(self, every: int = triggers.RECLAIM_EVERY_COMMITS) -> None:
        """Wake the thread if a step is due. The space calls this method after commits of this process."""
        index = self._store.view.index
        self.next_look = index.applied + triggers.RECLAIM_LARGE_EVERY_COMMITS
        since = index.applied - self._reclaimed_at
        many = since >= every and (len(index.idle) >= every or len(index.unflushed) >= triggers.FLUSH_COMMITS)
        if not many and (since < triggers.RECLAIM_LARGE_EVERY_COMMITS or not self._is_large(triggers.RECLAIM_BYTES)):
            return
        if self._beside:
            self._wake.set()
        else:
            self._reclaim(triggers.RETAINED_FOR_READERS)

    def _is_large(self, least: int) -> bool:
        """Return whether the idle files have at least ``least`` bytes. Return False while other processes have the
        space open, because then the newest files remain."""
        return self._store.view.index.idle_bytes >= least and not self._store.shared.open_lock.has_others()

    @enters
    def tidy_up(self) -> None:
        """Flush, reclaim and write a checkpoint when the space closes, so that the next opener need not do this
        work."""
        with suppress(OSError, SpaceStopped, NotOpen), self._store.guard, ExitStack() as at_end:
            if self._beside:
                at_end.callback(self._store.meters.share)
            if self._store.shared.counters.read().is_stopped:
                return
            if self._store.guard.is_alone:  # otherwise this thread and a call in another thread could deadlock
                apply_own(self._store)
                end_expired(self._store)
                if not self._store.shared.open_lock.has_others():
                    self._flush(due=True, most=triggers.FLUSHED_AT_THE_END)
            self._check_marks()
            least = triggers.RECLAIM_EVERY_COMMITS if self._store.shared.open_lock.has_others() else triggers.TIDY_FROM
            if len(self._store.view.index.idle) >= least or self._is_large(triggers.TIDY_BYTES):
                self._reclaim(0)
            self._save(triggers.CHECKPOINT_FROM, lasting=True)

    def end(self) -> None:
        """End the thread, because the space is closed."""
        self._wake.set()

    def compact(self) -> int:
        """Compact slow queues; return the number of written files. If another process compacts or reclaims, return
        0."""
        if written := sum(in_turns(self._store, self._compactor.steps())):
            self._store.meters.record([(("compactions",), 1), (("compacted_files",), written)])
        return written

    # -- the thread -------------------------------------------------------------------------------------------------

    @enters
    def _run(self) -> None:
        guard, clock, goes_on = self._store.guard, self._store.clock, True
        next_compaction = clock.monotonic() + EVERY_SECONDS
        while goes_on and not guard.closed:
            self._wake.wait(max(0.0, min(next_compaction - clock.monotonic(), self._next_due - clock.now())))
            self._wake.clear()
            due = clock.monotonic() >= next_compaction  # an early wake-up does not make the regular steps earlier
            if due:
                next_compaction = clock.monotonic() + EVERY_SECONDS
            with suppress(NotOpen), guard:  # (the space may have been closed during the wait)
                if due:
                    self._store.meters.share()
                goes_on = self._round(due=due)

    def _round(self, *, due: bool) -> bool:
        """Do the steps that are due; return False if the thread must end."""
        store = self._store
        try:
            if store.shared.counters.read().is_stopped:
                return False
            if due:
                store.check_in_place()
            if not store.misplaced:
                self._do_steps(due=due)
        except FlushFailed:
            store.stop()
        except (NotOpen, SpaceStopped):
            pass  # the next opener does these steps
        except (OSError, SpoolError) as error:
            if isinstance(error, OSError) and error.errno == errno.EBADF:
                return False  # the opening of the space was interrupted, and has closed the files
            text = str(error)
            if isinstance(error, OSError) and not isinstance(error, SpoolError):
                text += f": {advice(error)}"
            log.warning("housekeeping stopped early: %s", text)
        return True

    def _do_steps(self, *, due: bool) -> None:
        """Do the steps of a round, in order. ``due``: whether also to do the steps that are done every
        ``EVERY_SECONDS``."""
        self._undo_dropped()
        if due:
            self._end_overdue()
            self._look_again()
        if elected := due and self._is_elected():
            self._catch_up()
        self._put_scheduled(due=due, elected=elected)
        if elected:
            clean_up_after_dead(self._store, self._store.deadline())
            self._expire()
        self._flush(due=elected)
        self._check_marks()
        quiet = elected and self._is_quiet()
        compacted, refused = False, None
        try:
            compacted = elected and self._compactor.has_work() and self.compact() > 0
        except OSError as error:
            raise_unless_full(error)
            refused = error  # the reclaim may make room
        index = self._store.view.index
        due = triggers.is_reclaim_due(len(index.idle), compacted=compacted, quiet=quiet)
        if due or self._is_large(triggers.RECLAIM_BYTES):
            self._reclaim(triggers.retained(quiet=quiet), self._pause)
            # If the space closes meanwhile, this reclaim ends early, and ``tidy_up`` has skipped its reclaim. Then the
            # remaining files are kept for long, as in a quiet space.
            self._save(triggers.checkpoint_from(len(index.files)), lasting=quiet or self._store.closed)
        if elected:
            self._publish()
        if refused is not None:
            raise refused

    # -- the steps --------------------------------------------------------------------------------------------------

    def _undo_dropped(self) -> None:
        """Roll back the transactions that were dropped before their end."""
        while self._store.dropped:
            self._store.dropped.popleft()()

    def _look_again(self) -> None:
        """Apply edits of the settings, drop expired facts and unused tables, and record the commits that other
        processes have flushed."""
        notice_edits(self._store)
        with self._store.view.mutex:
            self._store.view.index.forget_expired(self._store.clock.now())
            self._store.files.cache.forget_unused()
        self._forget_flushed()

    def _flush(self, *, due: bool, most: int | None = None) -> None:
        """Flush commits that were published without a flush. Do nothing while another process reclaims, because reclaim
        also flushes these commits.

        If no queue may lose messages, only counts of attempts are unflushed, and the next reclaim flushes them. When
        the settings no longer have a queue that may lose messages, the last messages of such queues are flushed once.
        """
        store, page = self._store, self._store.shared.counters.read()
        may_lose = bool(store.settings.known.config.may_lose)
        self._may_lose = self._may_lose or may_lose
        if not self._may_lose or not triggers.is_flush_due(page.published - page.durable, due=due):
            return
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            if ours:
                flush_published(store, most)
                self._may_lose = may_lose
        self._forget_flushed()

    def _forget_flushed(self) -> None:
        view, durable = self._store.view, self._store.shared.counters.read().durable
        with view.mutex:
            view.index.unflushed = {number for number in view.index.unflushed if number > durable}

    def _check_marks(self) -> None:
        if self._store.settings.known.config.has_marks:
            from spool.policies.capacity import check_marks  # imported only if needed, because it imports subprocess

            check_marks(self._store)

    def _catch_up(self) -> None:
        """Apply published commits in small pieces, so that a concurrent put does not wait for all commits."""
        store = self._store
        published = store.shared.counters.read().published
        for begin in range(store.view.index.applied, published, _APPLIED_AT_ONCE):
            apply_up_to(store, min(begin + _APPLIED_AT_ONCE, published))
            self._pause()

    def _put_scheduled(self, *, due: bool, elected: bool) -> None:
        """Put the due messages of schedules. Before a failure is repeated, the thread pauses for ``EVERY_SECONDS``.

        The elected process may be stopped. So any process puts a message that is late.
        """
        now, told = self._store.clock.now(), next_due(self._store.shared.control)
        is_late = due and not elected and 0 < told < now - _LATE_SECONDS
        is_now = elected or self._next_due <= now
        if due or is_now:
            self._next_due = inf
        if is_late or (is_now and self._store.view.index.schedules):
            soonest = self._put_due()
            self._next_due = soonest if soonest > self._store.clock.now() else inf
            tell_next_due(self._store.shared.control, soonest, told)

    def _expire(self) -> None:
        """Remove expired messages, even from queues without a consumer. End expired subscriptions."""
        end_expired(self._store)
        with self._store.view.mutex:
            known = self._store.settings.known.config.queues
            queues = [name for name, queue in self._store.view.index.messages.queues.items() if queue.live]
        for queue in [name for name in queues if name in known]:
            expire(self._store, queue, self._store.deadline())

    def _is_quiet(self) -> bool:
        """Return whether no process has committed since the last round. If so, remove recycled files to free disk
        space."""
        published = self._store.shared.counters.read().published
        quiet, self._published = published == self._published, published
        if quiet and published > self._trimmed_at:
            self._trimmed_at = published
            self._store.files.recycler.trim()
        return quiet

    def _is_elected(self) -> bool:
        """Return whether this process compacts.

        Consumers compact, because their index is up to date anyway. If no process consumes, a lock elects one producer.
        So the other producers need not read all commits; a producer reads all commits only for the compaction.
        """
        control, follows = self._store.shared.control, self._store.view.was_searched
        self._store.view.was_searched = False
        if follows:
            return control.is_held_here(FOLLOWING) or control.try_lock(FOLLOWING, shared=True)
        if control.is_held_here(FOLLOWING):
            control.unlock(FOLLOWING)
        if control.is_held_elsewhere(FOLLOWING):
            return False
        return control.is_held_here(HOUSEKEEPING) or control.try_lock(HOUSEKEEPING)

    def _reclaim(self, behind: int, pause: Callable[[], None] = lambda: None) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._reclaimed_at = self._store.view.index.applied
                removed = reclaim(self._store, pause, behind if self._store.shared.open_lock.has_others() else 0)
                if removed:
                    self._store.meters.record([(("reclaims",), 1), (("reclaimed_commits",), removed)])
            finally:
                self._busy.release()

    def _extent(self) -> IndexSize:
        """Return the approximate extent of the index. The method does not take the mutex, because a closing process
        would have to wait for the mutex."""
        index = self._store.view.index
        return IndexSize(index.applied, len(index.files), len(index.messages.segments))

    def _save(self, least: int, *, lasting: bool = False) -> None:
        """Write a checkpoint if a checkpoint is due. The arguments are as in ``triggers.is_checkpoint_due``."""
        if not triggers.is_checkpoint_due(self._extent(), self._saved, least, lasting=lasting):
            return
        with self._store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            if ours and checkpoint.save(self._store.files.disk, self._store.shared.counters, self._store.view):
                self._saved = self._extent()

    def _pause(self) -> None:
        """Sleep between small steps if any process commits, because a step keeps other threads from the interpreter."""
        self._store.guard.check()
        page = self._store.shared.counters.read()
        if page.data != self._seen.data:
            self._seen, self._pauses = page, PAUSES_AFTER_A_COMMIT
        if self._pauses:
            self._pauses -= 1
            self._store.clock.sleep(PAUSE_SECONDS)
