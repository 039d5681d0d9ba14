"""A hold: the messages that one caller has claimed, the locks of their groups, and its attempts at the messages.

A get, a transaction, a round and each message of ``Claims`` have a hold. No other code claims messages, records
attempts or gives messages back.

A claim chooses its messages twice: first among all messages that seem free, then, after the locks, among the locked
messages. The second choice keeps rule 4 of docs/architecture.md. Between the two choices, this process applies every
commit that was published before the claim. The process also lists every branch that was prepared before the claim. A
claim counts only if its message is still free afterwards.

The messages of one group are delivered in order, to one hold at a time; different groups are delivered side by side.
All messages of an ``ordered`` queue are one group. A hold locks a group's byte at its first claim in the group, until
the hold ends. If the process dies, the kernel releases the lock. A get by id or correlation id takes a message out of
order, but never while another hold has the message's group.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import repeat

from spool.coordination.counters import CounterPage
from spool.coordination.locks import GroupName, group_byte, xid_byte
from spool.errors import CorruptedFile, NotOpen, SpoolError, UnknownCodec
from spool.index.queue import ClaimedHead
from spool.log.commit_file import CommitFileWriter
from spool.log.standing_requests import look_at_standing
from spool.log.visibility import apply_up_to, catch_up, list_prepared, revalidate
from spool.log.write_set import WriteSet
from spool.maintenance.triggers import RETAINED_FOR_READERS
from spool.model.message import Message
from spool.model.position import Position, PositionRanges, append_range, positions, subtract_ranges
from spool.model.xid import Xid
from spool.policies import retries
from spool.policies.attempt_journal import Journal, become_owner
from spool.policies.expiry import expire
from spool.runtime.async_exceptions import raise_if_torn
from spool.runtime.clock import Deadline, LockTimeout, WaitExpired
from spool.runtime.greenlets import check_threads
from spool.transactions import waiting
from spool.transactions.claiming import Wanted, asked_for, check_not_own, in_group_order, is_there, nothing_free
from spool.transactions.core import Core
from spool.transactions.delivery import messages_one_by_one, read_messages
from spool.transactions.two_phase import resolve_orphans
from spool.transactions.validation import check_queue

log = logging.getLogger("spool")

PositionSet = set[tuple[int, int]]
_NOTHING: Set[int] = frozenset()
MANY_OWN, _NOT_OWN = 64, -(1 << 40)  # see ``Hold._candidates``


class Hold:
    """The claims, locks and attempts of one caller, until its end. Not thread-safe: the owner serialises the calls.

    claims: the claimed messages.
    groups: the locked groups, with the byte of each. No other hold can have messages of these groups.
    journal: records the attempts at the messages; None: no record.
    slots: the slots of the journal that have messages of this hold.
    since: when the attempts began, in seconds since the epoch, for the journal.
    marks: the journal of a round, in which tasks of other processes mark the messages in work; else None.
    counted: whether ``undo`` counts an attempt for each claimed message, except the messages in ``replaced``.
    locks: the locked bytes of deduplication keys and replaced correlation ids.
    byte: the byte of the branch's xid, while this hold has the byte locked.
    file: the file in ``active/`` of the branch, or None.
    page: the counters, as the last claim has read them.
    """

    since = 0.0
    counted = True
    replaced: Sequence[tuple[int, int, int]] = ()
    marks: Journal | None = None
    byte: int | None = None
    file: CommitFileWriter | None = None
    _is_left = False  # whether the rollback is left to the next process that opens the space
    page: CounterPage

    def __init__(self, core: Core, journal: Journal | None = None) -> None:
        self.store = core.store
        self.journal = journal
        self.claims: PositionRanges = []
        self.groups: dict[GroupName, int] = {}
        self.slots: list[int] = []
        self.locks: list[int] = []
        self._owners = core.owners

    # -- claiming -----------------------------------------------------------------------------------------------------

    def take(
        self, wanted: Wanted, begun: float, check: Callable[[], object], page: CounterPage | None = None
    ) -> tuple[list[Message], PositionRanges]:
        """Wait for messages, claim and read them, and record that attempts begin. For the arguments see ``wait_for``.

        Returns:
            The messages, and their claims.

        Raises:
            Empty: no message became free in time.
            MessageInUse: the get names a message by id, and a transaction held that message all the time.
        """
        store = self.store
        while True:
            got = self.claim(wanted, page) if wanted.timeout == 0 else self.wait_for(wanted, begun, check)
            if not got:
                raise nothing_free(store.view, store.clock, wanted)
            bad: PositionRanges = []
            try:
                try:
                    found: list[Message] = []
                    for number, first, count in got:
                        found += read_messages(store, number, first, count, only_shown=wanted.only_shown)
                except (CorruptedFile, UnknownCodec):
                    found, bad = messages_one_by_one(store, got, wanted.only_shown)
            except BaseException as error:
                try:
                    if isinstance(error, OSError):
                        store.fail(f"reading messages of queue {wanted.queue}", error)  # a failed flush stops the space
                    raise
                finally:
                    self.give_back(got)
            if bad:
                self.give_back(bad)
                got, page = subtract_ranges(got, bad), None
            if found:
                if self.journal is not None:  # (like ``begin_attempts``, without a call)
                    self.since = self.since or store.clock.now()
                    self.slots += self.journal.begin(got, self.since)
                return found, got

    def claim(self, wanted: Wanted, page: CounterPage | None = None) -> PositionRanges:
        """Claim messages that are free now, in the queue's order; return the claims. Their groups remain locked.

        ``page``: the counters, if the caller has just read them and has found the queue.

        Raises:
            QueueNotFound: the queue does not exist.
            SpaceStopped: no message is free, because ``run/`` was deleted.
            WaitExpired: a live process did not publish its commit in time.
            OSError: the disk is full, and only messages of dead processes are left, whose attempts must be counted
                first.
        """
        store, view = self.store, self.store.view
        if page is None:
            if store.guard.closed or store.misplaced:
                store.check_usable()
            page, settings = store.shared.counters.read(), store.settings.known
            if page.is_stopped:
                page.check()
            if wanted.queue not in settings.config.queues or page.settings != settings.version:
                check_queue(store.settings, wanted.queue, page)
        if self.journal is not None and not store.shared.claims.owner:
            become_owner(store)  # (before the claim, because this may wait for a lock)
        view.was_searched = True
        if page.published > view.index.applied:
            apply_up_to(store, page.published)
        if view.settings is not store.settings.known:
            catch_up(store, page)
        if page.prepared != view.prepared.version:  # otherwise messages of rolled-back branches would seem to be held
            list_prepared(store, page)
        queues = view.index.messages.queues
        if wanted.queue in queues and queues[wanted.queue].may_expire:
            expire(store, wanted.queue, store.deadline())
        self.page = page
        skip: PositionSet = set(wanted.passed)
        before, got = tuple(self.groups), PositionRanges()
        left, is_last, owners, counters = None, False, self._owners, store.shared.counters
        try:
            while True:
                self._lock_free(wanted, skip, got)
                if got:
                    if not (  # (otherwise nothing has happened since the first read)
                        store.shared.requests.none_stand
                        and counters.read() is page
                        and page.issued == page.published
                        and page.owner <= owners.seen
                        and not owners.others
                    ):
                        left = self._confirm(wanted, got, page, skip) or left
                    if got:
                        break
                elif left is not None:
                    if is_last:
                        raise left
                    owners.forget_refusals()  # (an earlier call may have been refused)
                    skip, left, is_last = set(wanted.passed), None, True
                else:
                    seen = view.index.applied
                    # Try again if a dead coordinator's branch has released messages, or a commit was published.
                    if not resolve_orphans(store, store.deadline()) and view.index.applied == seen:
                        store.shared.control.verify()  # otherwise a caller would wait for ever after run/ was deleted
                        check_not_own(view, wanted, self.claims)
                        break
            self.claims += got
            return got
        except BaseException:
            store.shared.claims.release_all(got)
            got.clear()
            raise
        finally:
            if self.groups:
                with view.mutex:
                    runs = map(view.index.messages.find, positions(got))
                    still = {(wanted.queue, run.group) for run in runs if run is not None and run.group is not None}
                self._unlock_groups(but={*before, *still})

    def _lock_free(self, wanted: Wanted, skip: PositionSet, got: PositionRanges) -> None:
        """Lock up to ``wanted.count`` free messages, and add them to ``got``. If a lock is refused, add all candidates
        of the round to ``skip``."""
        claims, missing = self.store.shared.claims, wanted.count
        with self.store.view.mutex:
            while missing and (tried := self._candidates(wanted, missing, skip)):
                for number, first, count in tried:
                    for start, length in claims.claim(number, first, count):
                        got += ((number, start, length),)
                        missing -= length
                if missing:
                    for number, first, count in tried:
                        skip.update(zip(repeat(number), range(first, first + count)))

    def _confirm(self, wanted: Wanted, got: PositionRanges, seen: CounterPage, skip: PositionSet) -> OSError | None:
        """Revalidate locked messages (rule 4): unlock the messages that are not free, and remove them from ``got``.

        Messages of dead processes whose attempts cannot be counted, because the disk is full, are not free, and are
        added to ``skip``. The error about them is returned. ``seen``: the counters that were read before the claim.
        """
        store, owners, refused, kept = self.store, self._owners, None, got
        if not store.shared.requests.none_stand:
            look_at_standing(store, got)
        page = store.shared.counters.read()
        if (page.owner > owners.seen or owners.others) and (left := owners.count_attempts_of_dead(got, page)):
            page, refused = store.shared.counters.read(), left.error
            skip.update(positions(left.ranges))
            kept = subtract_ranges(got, left.ranges)
        self.page = page
        if page is not seen or page.issued != page.published:
            revalidate(store, kept, page=page)
            with store.view.mutex:
                kept = self._still_there(wanted, kept)
        if kept != got:
            lost, got[:] = subtract_ranges(got, kept), kept
            store.shared.claims.release_all(lost)
        return refused

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _candidates(self, wanted: Wanted, missing: int, skip: PositionSet) -> PositionRanges:
        """Return at most ``missing`` messages that seem free, in order; lock their groups. The caller holds the
        mutex."""
        found: PositionRanges = []
        store, view = self.store, self.store.view
        claims, held, now = store.shared.claims, view.prepared.held, store.clock.now()
        here, releases, queues = claims.held, claims.releases, view.index.messages.queues  # (the releases first)
        by_key = wanted.message_id is not None or wanted.correlation_id is not None
        if wanted.queue not in queues:
            return found
        queue, only, passed = queues[wanted.queue], None, None
        if by_key:
            runs, only = asked_for(view, wanted, now)
        else:
            runs, passed = queue.in_order(now, releases), queue.passed
        # The number of messages before the next one, if this process has claimed all of them.
        own = _NOT_OWN if by_key or skip or held else 0
        for run in runs:
            if run.expires is not None and run.expires <= now:
                own = _NOT_OWN
                continue
            try:
                claimed: Set[int] = here[run.number]
            except KeyError:  # (no test before the access: another thread may release the last claim)
                claimed = _NOTHING
            group, backwards = None, False
            if run.attributes or not run.queue.is_plain:
                group, backwards = run.group, run.is_backwards
            first, end = (run.first, run.end) if only is None else (only, only + 1)
            if own >= 0 and group is None and not backwards:
                if passed is not None and passed.key == run.key and passed.ordinal > first:
                    first = passed.ordinal
                while first < end and first in claimed:
                    first += 1
                    own += 1
                if first == end:
                    continue
                if own > MANY_OWN:
                    queue.passed = ClaimedHead(run.key, first, releases)
            own = _NOT_OWN
            if group is not None:
                if self._lock_group((wanted.queue, group)):
                    asked: Iterable[tuple[int, int]] = zip(repeat(run.number), range(first, end))
                    if not by_key:
                        asked = in_group_order(view, store.clock, wanted.queue, group)
                    missing -= self._add_of_group(asked, wanted, missing, skip, found)
            elif not (claimed or skip or held or backwards):
                added = end - first if end - first < missing else missing
                if found:
                    append_range(found, run.number, first, added)
                else:
                    found = [(run.number, first, added)]
                missing -= added
            else:
                for ordinal in range(end - 1, first - 1, -1) if backwards else range(first, end):
                    position = (run.number, ordinal)
                    if not (ordinal in claimed or position in skip or position in held):
                        if found:
                            append_range(found, run.number, ordinal, 1)
                        else:
                            found = [(run.number, ordinal, 1)]
                        missing -= 1
                        if not missing:
                            break
            if not missing:
                return found
        return found

    def _add_of_group(
        self, asked: Iterable[tuple[int, int]], wanted: Wanted, missing: int, skip: PositionSet, found: PositionRanges
    ) -> int:
        """Add to ``found`` messages of a group that this hold has locked; return the number of added messages.

        The added messages follow the messages that the hold has claimed already. A message that is not free blocks all
        later messages of the group, except for a get by id or correlation id.

        Args:
            asked: the positions of the messages that may be added, in the group's order.
        """
        claimed, added = set(positions(self.claims)), 0
        here, held = self.store.shared.claims.held, self.store.view.prepared.held
        for position in asked:
            if position in claimed and not wanted.spread:
                continue
            if position[1] in here.get(position[0], ()) or position in skip or position in held:
                if wanted.by_key:
                    continue
                break
            append_range(found, *position, 1)
            added += 1
            if added == missing or wanted.spread:
                break
        return added

    def _still_there(self, wanted: Wanted, got: PositionRanges) -> PositionRanges:
        """Return the locked messages that may be delivered, in order. The caller holds the mutex (rule 4)."""
        kept: PositionRanges = []
        view, now = self.store.view, self.store.clock.now()
        for number, first, count in got:
            for run, start, stop in view.index.messages.live_runs(number, first, first + count):
                if run.queue.name != wanted.queue or run.is_expired(now):
                    continue
                if not wanted.by_key and run.due is not None and run.due > now:
                    continue
                if not view.prepared.held:
                    append_range(kept, number, start, stop - start)
                else:
                    for one in range(start, stop):
                        if (number, one) not in view.prepared.held:
                            append_range(kept, number, one, 1)
        return self._without_overtakers(wanted, kept) if self.groups and not wanted.by_key else kept

    def _without_overtakers(self, wanted: Wanted, kept: PositionRanges) -> PositionRanges:
        """Return ``kept``, but leave out each message whose group has an earlier message that is not claimed.

        The earlier message returned to the queue after the first choice.
        """
        view, claimed, group_of = self.store.view, set(positions(self.claims)), dict[Position, str | None]()
        for position in positions(kept):
            run = view.index.messages.find(position)
            group_of[position] = None if run is None else run.group
        allowed: set[tuple[int, int]] = {position for position, group in group_of.items() if group is None}
        for group in {group for group in group_of.values() if group is not None}:
            for number, ordinal in in_group_order(view, self.store.clock, wanted.queue, group):
                if (number, ordinal) in group_of:
                    allowed.add((number, ordinal))
                elif (number, ordinal) not in claimed:
                    break
        return subtract_ranges(kept, [(*position, 1) for position in group_of if position not in allowed])

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait_for(self, wanted: Wanted, begun: float, check: Callable[[], object]) -> PositionRanges:
        """Repeat the claim until it gets messages or the time of the get is over.

        If several threads of this process wait for one queue, one of them holds the queue's poll lock and repeats its
        attempts. The others wait for the lock, so that a commit wakes one thread and not all.

        Args:
            begun: the time when the get began, by the monotonic clock.
            check: a function that raises if waiting has become pointless. It is called during the wait, and before each
                attempt.
        """
        store, timeout = self.store, wanted.timeout
        deadline = Deadline(store.clock, timeout, None if timeout is None else begun + timeout, check)

        def look(is_poll: bool = False) -> PositionRanges:
            check()
            # (A call that is far behind applies the commits while their files still exist.)
            counters, takes_any = store.shared.counters, not (self.groups or wanted.passed)
            if is_poll and takes_any and counters.read().published - store.view.index.applied < RETAINED_FOR_READERS:
                return counters.wakeups.poll(wanted.queue, partial(self.claim, wanted), store.clock.monotonic())
            return self.claim(wanted)

        got = waiting.attempt(look, deadline) or []
        if got or deadline.remaining() <= 0:
            return got
        check_threads()  # they may have been replaced after the opening
        if wanted.by_key:
            return self._wait_alone(wanted, look, deadline)
        with store.meters.consumers.waiting(wanted.queue):
            if self.groups:  # (only this hold can take more messages of its groups)
                return self._wait_alone(wanted, look, deadline)
            polling = store.view.poll_locks.setdefault(wanted.queue, threading.RLock())
            while not polling.acquire(timeout=min(waiting.IDLE_SECONDS, deadline.remaining())):
                waiting.check_waiting(deadline)
                if deadline.remaining() <= 0:
                    return look()
            try:
                return self._wait_alone(wanted, look, deadline)
            finally:
                polling.release()

    def _wait_alone(self, wanted: Wanted, look: Callable[..., PositionRanges], deadline: Deadline) -> PositionRanges:
        store, wakeups = self.store, self.store.shared.counters.wakeups
        if wakeups.wakes and not wanted.by_key:  # even the release of a claim ends a pause
            steps = waiting.pauses(store, wanted.queue, lambda: False, deadline, longest=waiting.UNHEARD_SECONDS)
            listen = partial(waiting.wait, store, wakeups.expect(wanted.queue))
            return waiting.repeat(store, steps, look, deadline, listen) or []
        held = partial(is_there, store.view, store.clock, wanted)
        return waiting.repeat_when_arrived(store, (wanted.awaited,), held, look, deadline, wanted.head) or []

    # -- attempts -----------------------------------------------------------------------------------------------------

    def begin_attempts(self, claims: PositionRanges) -> None:
        """Record that attempts at claimed messages begin. If this process dies, an attempt is counted for each."""
        assert self.journal is not None
        become_owner(self.store)
        self.since = self.since or self.store.clock.now()
        self.slots += self.journal.begin(claims, self.since)

    def end_attempts(self) -> None:
        """Record that the attempts have ended. If this process dies afterwards, no attempt is counted."""
        if self.slots and self.journal is not None:
            slots, self.slots = self.slots, []
            self.journal.end(slots)

    # -- the branch ---------------------------------------------------------------------------------------------------

    def open_file(self, xid: Xid) -> CommitFileWriter:
        """Return the branch's file. Its xid is locked before it can have a file (rule 6).

        Raises:
            LockTimeout: another process did not release the xid in time.
        """
        if self.byte is None:
            byte = xid_byte(xid)
            try:
                self.store.shared.xids.lock(byte, self.store.deadline(), f"the branch {xid}")
            except WaitExpired as error:
                raise LockTimeout(str(error)) from None
            self.byte = byte
        self.file = self.file or CommitFileWriter(self.store.files.disk, xid)
        return self.file

    def abandon_file(self) -> None:
        """Delete the branch's file if it exists and was not committed."""
        if self.file is not None:
            self.file.abandon()

    def undo(self, reason: str) -> None:
        """Delete the branch's file, and count an attempt for each claimed message; the caller then calls ``end``.

        The attempts are counted before the claims are released, because the next consumer must see the counts.
        While the space is being closed, no attempt can be counted. The next process that opens the space then reads the
        journal and finishes the rollback. Until the files are closed, the claims remain locked.
        """
        try:
            self.abandon_file()
            if self.claims and self.counted:
                attempted = subtract_ranges(self.claims, list(self.replaced))
                retries.count_failures(self.store, positions(attempted), reason, self.store.deadline())
        except NotOpen:
            self._is_left = True
        except (OSError, SpoolError) as error:
            raise_if_torn(error)
            log.warning("a rollback could not be recorded (%s): its messages return, and no attempt is counted", error)

    # -- releasing ----------------------------------------------------------------------------------------------------

    def give_back(self, ranges: PositionRanges) -> None:
        """Release claims on messages that were not taken, and wake as many waiting calls as can take them."""
        self.claims[:] = subtract_ranges(self.claims, ranges)
        self.store.shared.claims.release_all(ranges)
        self._announce(self._queues_of(ranges))

    def end(self, *, taken: bool, removed: bool = False) -> None:
        """End the attempts, and release the claims and the locks of groups.

        After a vote the claims are not needed, because the prepared file holds the messages.

        Args:
            taken: whether a commit or a prepared file has taken the claimed messages. Otherwise they return to their
                queues, and as many waiting calls are woken as can take them.
            removed: whether a commit has removed all of them.
        """
        if self._is_left:
            return
        if self.marks is not None:
            self.marks.remove()
        if self.slots and self.journal is not None:  # (like ``end_attempts``, without a call)
            self.journal.end(self.slots, removed=removed)
            self.slots = []
        claims, self.claims = self.claims, []
        locks = self.store.shared.claims
        for number, first, count in claims:  # (like ``release_all``, without a call)
            locks.release(number, first, count, removed=removed)
        if self.groups or not taken:
            queues = Counter(queue for queue, _ in self.groups)  # the next messages of the groups are free now
            self._unlock_groups()
            self._announce(queues if taken else queues + self._queues_of(claims))
        if self.locks:
            self.unlock_keys()
        if self.byte is not None:
            byte, self.byte = self.byte, None
            self.store.shared.xids.unlock(byte)

    def unlock_keys(self) -> None:
        """Unlock the deduplication keys and the replaced correlation ids."""
        while self.locks:
            self.store.shared.xids.unlock(self.locks.pop())

    def _queues_of(self, ranges: PositionRanges) -> Counter[str]:
        """Return the number of live messages of each queue."""
        queues = Counter[str]()
        with self.store.view.mutex:
            for number, first, count in ranges:
                for run, start, stop in self.store.view.index.messages.live_runs(number, first, first + count):
                    queues[run.queue.name] += stop - start
        return queues

    def _announce(self, queues: Counter[str]) -> None:
        with suppress(ValueError):  # the space was closed meanwhile; waiting calls notice without an announcement
            self.store.shared.counters.wakeups.announce(queues)

    def _lock_group(self, name: GroupName) -> bool:
        """Lock a group; return False if another hold has the group."""
        if name not in self.groups:
            byte = group_byte(*name)
            if not self.store.shared.xids.try_lock(byte):
                return False
            self.groups[name] = byte
        return True

    def _unlock_groups(self, but: Set[GroupName] = frozenset()) -> None:
        """Unlock all groups except the groups in ``but``."""
        for name in [name for name in self.groups if name not in but]:
            self.store.shared.xids.unlock(self.groups.pop(name))


def get_alone(core: Core, wanted: Wanted, before_commit: Callable[[], object]) -> list[Message]:
    """Get messages without a transaction: claim and read messages, and commit their removal.

    Args:
        before_commit: called once the messages are read; an exception from it releases the messages.

    Raises:
        The errors of ``Space.get_many``. No failure counts an attempt.
    """
    store, hold, taken = core.store, Hold(core), False
    try:
        begun = store.clock.monotonic() if wanted.timeout else 0.0
        found, got = hold.take(wanted, begun, store.guard.check)
        before_commit()
        request = WriteSet(page=hold.page)
        for number, first, count in got:
            request.remove(number, first, count, "dequeued")
        while True:
            try:
                core.leader.commit(request)
                break
            except (LockTimeout, WaitExpired):
                late = wanted.timeout is not None and store.clock.monotonic() >= begun + wanted.timeout
                if late or request.number is not None:
                    raise
                request.renew()
        taken = True
        return found
    except WaitExpired as error:
        raise LockTimeout(f"{error}; the transaction was rolled back") from None
    finally:
        if not store.guard.closed:  # else the descriptors may be closed, and their locks released
            hold.end(taken=taken, removed=taken)
