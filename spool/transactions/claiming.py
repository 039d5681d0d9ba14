"""Claim messages: choose messages that seem free, lock them, and revalidate.

A get chooses its messages twice: first among all messages that seem free, then, after the claim, among the claimed
messages. The second choice keeps rule 4 of docs/architecture.md. Between the two choices, this process applies every
commit that was published before the claim. The process also lists every branch that was prepared before the claim. A
claim counts only if its message is still free afterwards.

The messages of one group are delivered in order, to one transaction at a time; different groups are delivered side by
side. All messages of an ``ordered`` queue are one group. A transaction locks a group's byte at its first claim in the
group, and holds the lock until the transaction ends. If the process dies, the kernel releases the lock. A get by id or
correlation id takes a message out of order, but never while another transaction holds the message's group.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat

from spool.coordination.counters import CounterPage
from spool.coordination.locks import ClaimLocks, GroupLocks
from spool.errors import Argument, Empty, InvalidArgument, MessageInUse, SpoolError
from spool.index.run import Run
from spool.log.standing import look_at_standing
from spool.log.visibility import catch_up, list_prepared, revalidate
from spool.model.checks import SHORT_TEXT, check
from spool.model.message import exclusive, parse_message_id
from spool.model.position import Position, PositionRanges, append_range, positions, subtract_ranges
from spool.model.text import shown
from spool.policies.claim_journal import Owners
from spool.policies.expiry import expire
from spool.runtime.clock import Clock
from spool.store.parts import View
from spool.store.sought import Sought
from spool.store.store import Store
from spool.transactions.two_phase import resolve_orphans
from spool.transactions.validation import check_queue, check_timeout

PositionSet = set[tuple[int, int]]
_NOTHING: Set[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages that a get asks for.

    These are the head of a queue, one message by id, or the first message with a correlation id.

    ``timeout``: the seconds to wait; None: for ever. ``spread``: whether to claim at most one message of each group,
    because the caller does not handle the messages in order. ``passed``: the positions of messages that the get must
    not take. ``only_shown``: whether a body that this process cannot decode is delivered as its stored bytes.
    """

    queue: str
    count: int = 1
    message_id: str | None = None
    correlation_id: str | None = None
    timeout: float | None = 0
    spread: bool = False
    passed: Set[tuple[int, int]] = frozenset()
    only_shown: bool = False

    @property
    def by_key(self) -> bool:
        return self.message_id is not None or self.correlation_id is not None

    @property
    def head(self) -> str | None:
        """The queue, if the get takes the head of it."""
        return None if self.by_key else self.queue

    @property
    def sought(self) -> Sought:
        """The message that ends a wait of the get. Raises BadMessageId if the id is not valid."""
        id = None if self.message_id is None else parse_message_id(self.message_id)
        return Sought(self.queue, id, self.correlation_id)


def check_wanted(
    queue: str,
    count: int,
    *,
    timeout: float | None = 0,
    message_id: str | None = None,
    correlation_id: str | None = None,
) -> Wanted:
    """Check the arguments of a get: the largest number of messages to take, and ``GetOptions``."""
    if type(count) is not int or count < 1:
        raise InvalidArgument(Argument("max_messages"), f" is a whole number from 1, not {shown(count)}")
    if type(timeout) is not int or timeout:
        check_timeout(timeout, "0, a number of seconds, or None to wait for ever")
    if correlation_id is not None:
        correlation_id = check("correlation_id", correlation_id, SHORT_TEXT)  # else the get might wait for ever
    wanted = Wanted(queue, count, message_id, correlation_id, timeout)
    if message_id is not None and correlation_id is not None:
        raise exclusive("message_id", "correlation_id")
    return wanted


check_wanted.__qualname__ = "get"  # Python's own errors about wrong options then name the public call

# The request of a get without options; shared, because it is immutable.
next_of = lru_cache(maxsize=1024)(Wanted)


def claim(
    store: Store, owners: Owners, wanted: Wanted, groups: GroupLocks, page: CounterPage | None = None
) -> PositionRanges:
    """Claim messages that are free now, in the queue's order; return the claims.

    The groups of these messages remain locked. ``page``: the counters, if the caller has just read them and has found
    the queue.

    Raises:
        QueueNotFound: the queue does not exist.
        SpaceStopped: no message is free, because ``run/`` was deleted.
        WaitExpired: a live process did not publish its commit in time.
        OSError: the disk is full, and only messages of dead processes are left, whose attempts must be counted first.
    """
    if page is None:
        if store.guard.closed:
            store.guard.check()
        page, settings = store.shared.counters.read(), store.settings.known
        if page.is_stopped:
            page.check()
        if wanted.queue not in settings.config.queues or page.settings != settings.version:
            check_queue(store.settings, wanted.queue, page)
    view = store.view
    view.was_read = True
    if page.published > view.index.applied or view.settings is not store.settings.known:
        catch_up(store, page)
    if page.prepared != view.prepared.version:  # otherwise messages of rolled-back branches would still seem to be held
        list_prepared(store, page)
    queues = view.index.messages.queues
    if wanted.queue in queues and queues[wanted.queue].may_expire:
        expire(store, wanted.queue, store.deadline())
    skip: PositionSet = set(wanted.passed)
    before, kept = tuple(groups.names), PositionRanges()
    left, is_last = None, False
    try:
        while not kept:
            got = _claim_free(store.shared.claims, view, store.clock, wanted, skip, groups)
            if got:
                kept, refused = _confirm(store, owners, wanted, got, page, groups, skip)
                left = refused or left
                continue
            if left is not None:
                if is_last:
                    raise left
                owners.forget_refusals()  # (an earlier call may have been refused)
                skip, left, is_last = set(wanted.passed), None, True
                continue
            seen = view.index.applied
            # Try again: a dead coordinator's branch has released messages, or a commit was published meanwhile.
            if resolve_orphans(store, store.deadline()) or view.index.applied > seen:
                continue
            store.shared.control.verify()  # otherwise a caller would wait for ever after run/ was deleted
            return []
        return kept
    except BaseException:
        give_back(store, kept)
        kept = []
        raise
    finally:
        if groups.names:
            with view.mutex:
                runs = map(view.index.messages.find, positions(kept))
                still = {(wanted.queue, run.group) for run in runs if run is not None and run.group is not None}
                groups.release(but={*before, *still})


def _claim_free(
    claims: ClaimLocks, view: View, clock: Clock, wanted: Wanted, skip: PositionSet, groups: GroupLocks
) -> PositionRanges:
    """Lock up to ``wanted.count`` free messages. If a lock is refused, add all candidates of the round to ``skip``."""
    got: PositionRanges = []
    missing = wanted.count
    try:
        with view.mutex:
            while missing and (tried := candidates(claims, view, clock, wanted, missing, skip, groups)):
                for number, first, count in tried:
                    for piece, length in claims.claim(number, first, count):
                        got += ((number, piece, length),)
                        missing -= length
                if missing:
                    for number, first, count in tried:
                        skip.update(zip(repeat(number), range(first, first + count)))
    except BaseException:
        release(claims, got)
        raise
    return got


def _confirm(
    store: Store, owners: Owners, wanted: Wanted, got: PositionRanges, seen: CounterPage, groups: GroupLocks,
    skip: PositionSet,
) -> tuple[PositionRanges, OSError | None]:  # fmt: skip
    """Revalidate locked messages (rule 4): return the messages that are free, and release the others.

    Messages of dead processes whose attempts cannot be counted, because the disk is full, are added to ``skip``. The
    second value is the error about them. ``seen``: the counters that were read before the claim.
    """
    refused: OSError | None = None
    try:
        if not store.shared.requests.are_calm:
            look_at_standing(store, got)
        page = store.shared.counters.read()
        if (page.owner > owners.seen or owners.others) and (left := owners.count_attempts_of_dead(got, page)):
            page, refused = store.shared.counters.read(), left.error
            uncounted = set(positions(left.ranges))
            skip |= uncounted
            got = _without(store.shared.claims, got, uncounted)
        if page is seen and page.issued == page.published:
            return got, refused  # since the first read, no branch was prepared and no number issued or published
        revalidate(store, got, page=page)
        with store.view.mutex:
            kept = still_there(store.view, store.clock, wanted, got, groups)
    except BaseException:
        release(store.shared.claims, got)
        raise
    if kept != got:
        release(store.shared.claims, subtract_ranges(got, kept))
    return kept, refused


def _without(claims: ClaimLocks, got: PositionRanges, skip: Set[Position]) -> PositionRanges:
    """Release the claims on messages in ``skip``; return the other claims."""
    if skip.isdisjoint(positions(got)):
        return got
    kept: PositionRanges = []
    for position in positions(got):
        if position in skip:
            claims.release(*position, 1)
        else:
            append_range(kept, *position, 1)
    return kept


def release(claims: ClaimLocks, ranges: PositionRanges) -> None:
    """Release exactly these claims. Claims that lie between these ranges remain."""
    for number, first, count in ranges:
        claims.release(number, first, count)


def give_back(store: Store, ranges: PositionRanges) -> None:
    """Release claims on messages that were not taken, and wake as many waiting calls as can take them."""
    release(store.shared.claims, ranges)
    queues = Counter[str]()
    with store.view.mutex:
        for number, first, count in ranges:
            for run, start, stop in store.view.index.messages.live_runs(number, first, first + count):
                queues[run.queue.name] += stop - start
    _announce(store, queues)


def release_groups(store: Store, groups: GroupLocks) -> None:
    """Unlock the groups, and wake a waiting call for each. The next messages of the groups are free now."""
    queues = Counter(queue for queue, _ in groups.names)
    groups.release()
    _announce(store, queues)


def _announce(store: Store, queues: Counter[str]) -> None:
    with suppress(ValueError):  # the space was closed meanwhile; waiting calls notice without an announcement
        store.shared.counters.arrivals.announce(queues)


def candidates(
    claims: ClaimLocks, view: View, clock: Clock, wanted: Wanted, missing: int, skip: PositionSet, groups: GroupLocks
) -> PositionRanges:
    """Return at most ``missing`` messages that seem free, in order; lock their groups. The caller holds the mutex."""
    found: PositionRanges = []
    here, held, now = claims.held, view.prepared.held, clock.now()
    messages, only = view.index.messages, None
    if wanted.message_id is not None or wanted.correlation_id is not None:
        runs, only = _asked_for(view, wanted, now)
    else:
        runs = messages.queues[wanted.queue].in_order(now) if wanted.queue in messages.queues else ()
    for run in runs:
        if run.expires is not None and run.expires <= now:
            continue
        try:
            claimed: Set[int] = here[run.number]
        except KeyError:  # (no test before the access: another thread may release the last claim)
            claimed = _NOTHING
        group, backwards = None, False
        if run.attributes or not run.queue.is_plain:
            group, backwards = run.group, run.is_backwards
        elif run.first in claimed and run.first + 1 == run.end:
            continue
        first, count = (run.first, run.end - run.first) if only is None else (only, 1)
        if group is not None:
            if groups.acquire((wanted.queue, group)):
                asked: Iterable[tuple[int, int]] = zip(repeat(run.number), range(first, first + count))
                if not wanted.by_key:
                    asked = _in_group_order(view, clock, wanted.queue, group)
                missing -= _add_of_group(asked, claims, view, wanted, missing, skip, groups, found)
        elif not (claimed or skip or held or backwards):
            added = count if count < missing else missing
            if found:
                append_range(found, run.number, first, added)
            else:
                found = [(run.number, first, added)]
            missing -= added
        else:
            ordinals = range(first, first + count)
            for ordinal in reversed(ordinals) if backwards else ordinals:
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
    asked: Iterable[tuple[int, int]],
    claims: ClaimLocks,
    view: View,
    wanted: Wanted,
    missing: int,
    skip: PositionSet,
    groups: GroupLocks,
    found: PositionRanges,
) -> int:
    """Add to ``found`` messages of a group whose lock this transaction holds; return the number of added messages.

    The added messages follow the messages that the transaction has claimed already. A message that is not free
    blocks all later messages of the group, except for a get by id or correlation id.

    Args:
        asked: the positions of the messages that may be added, in the group's order.
    """
    claimed, here, held, added = groups.claimed(), claims.held, view.prepared.held, 0
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


def _in_group_order(view: View, clock: Clock, queue: str, group: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of a group's messages, in the order of delivery, up to the first expired message."""
    now = clock.now()
    for run in view.index.messages.queue(queue).in_group(group):
        if run.is_expired(now):
            return  # the later messages wait until the expired one is removed
        for ordinal in run.ordinals:
            yield run.number, ordinal


def _asked_for(view: View, wanted: Wanted, now: float) -> tuple[Iterable[Run], int | None]:
    """Return the runs that match the id or correlation id in ``wanted``, in the order of delivery.

    Expired runs are included.

    For a get by id, the second returned value is the ordinal of the message.
    """
    messages = view.index.messages
    if wanted.message_id is not None:
        position = messages.position_of(*parse_message_id(wanted.message_id))
        run = None if position is None else messages.find(position)
        if run is None or position is None or run.queue.name != wanted.queue:
            return (), None
        return (run,), position.ordinal
    if wanted.correlation_id is not None:  # like a get by id, this get takes a delayed message at once
        return messages.correlated(wanted.queue, wanted.correlation_id), None
    queue = messages.queues.get(wanted.queue)
    return () if queue is None else queue.in_order(now), None


def is_there(view: View, clock: Clock, wanted: Wanted) -> bool:
    """Return whether the queue has a message that fits the get, either free or held."""
    now = clock.now()
    with view.mutex:
        return any(not run.is_expired(now) for run in _asked_for(view, wanted, now)[0])


def check_not_own(view: View, wanted: Wanted, claims: PositionRanges) -> None:
    """Raise MessageInUse if the get asks for a message by id, and ``claims`` contains this message.

    ``claims``: the claims of the get's own transaction.
    """
    if wanted.message_id is None or not claims:
        return
    with view.mutex:
        position = view.index.messages.position_of(*parse_message_id(wanted.message_id))
    if position is not None and position in set(positions(claims)):
        raise MessageInUse(f"message {wanted.message_id} was taken in this transaction already")


def nothing_free(view: View, clock: Clock, wanted: Wanted) -> SpoolError:
    """Return the error of a get that claimed nothing."""
    if wanted.message_id is not None:
        if is_there(view, clock, wanted):
            return MessageInUse(f"message {wanted.message_id} is held by a transaction: try again later")
        return Empty(f"queue {wanted.queue} has no message {wanted.message_id}")
    if wanted.correlation_id is not None:
        return Empty(f"queue {wanted.queue} has no free message with the correlation id {shown(wanted.correlation_id)}")
    return Empty(f"queue {wanted.queue} has no message that can be taken now")


def still_there(view: View, clock: Clock, wanted: Wanted, got: PositionRanges, groups: GroupLocks) -> PositionRanges:
    """Return the claimed messages of ``got`` that may be delivered, in order. The caller holds the mutex (rule 4)."""
    kept: PositionRanges = []
    now = clock.now()
    for number, first, count in got:
        ordinal = first
        pieces: PositionRanges = []
        while ordinal < first + count:
            run, stop = view.index.messages.run_from(number, ordinal, first + count)
            if (
                run is not None
                and run.queue.name == wanted.queue
                and (wanted.by_key or run.due is None or run.due <= now)
                and (run.expires is None or run.expires > now)
            ):
                if not (pieces or view.prepared.held):
                    pieces = [(number, ordinal, stop - ordinal)]
                elif not view.prepared.held:
                    append_range(pieces, number, ordinal, stop - ordinal)
                else:
                    for one in range(ordinal, stop):
                        if (number, one) not in view.prepared.held:
                            append_range(pieces, number, one, 1)
            ordinal = stop
        kept += pieces
    return _without_overtakers(view, clock, wanted, kept, groups) if groups.names and not wanted.by_key else kept


def _without_overtakers(
    view: View, clock: Clock, wanted: Wanted, kept: PositionRanges, groups: GroupLocks
) -> PositionRanges:
    """Return ``kept``, but leave out each message whose group has an earlier message that is not claimed.

    The earlier message returned to the queue after the first choice.
    """
    claimed, group_of = groups.claimed(), dict[Position, str | None]()
    for position in positions(kept):
        run = view.index.messages.find(position)
        group_of[position] = None if run is None else run.group
    allowed: set[tuple[int, int]] = {position for position, group in group_of.items() if group is None}
    for group in {group for group in group_of.values() if group is not None}:
        for number, ordinal in _in_group_order(view, clock, wanted.queue, group):
            if (number, ordinal) in group_of:
                allowed.add((number, ordinal))
            elif (number, ordinal) not in claimed:
                break
    if len(allowed) == len(group_of):
        return kept
    right: PositionRanges = []
    for position in group_of:
        if position in allowed:
            append_range(right, *position, 1)
    return right
