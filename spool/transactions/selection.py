"""Which messages a get may have: in order, past those that are held; of a group, only the next ones.

Selected twice: before the claim, among what looks free; and after it, among what was claimed, once everything is known
that could have removed or held it before.

Messages of one group are delivered one transaction at a time and in order; groups are delivered side by side. A queue
that is ``ordered`` is one group. A group is held as a byte lock, from the claim of its first message to the end of the
transaction, so the kernel releases it when the process dies. By its id or correlation id a message is taken out of
order, but never while another transaction holds its group.
"""

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass

from spool.coordination.claims import Claims
from spool.coordination.locks import LockFile, group_byte
from spool.index.run import Run
from spool.model.message import parse_message_id
from spool.model.position import Position, PositionRanges, append, positions
from spool.runtime.clock import Clock
from spool.store.parts import PreparedBranches, View

PositionSet = set[tuple[int, int]]
GroupName = tuple[str, str]  # queue, group


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a get asks for: the front of a queue, one message by id, or the first one with a correlation id.

    ``timeout``: seconds to wait; None: for ever. ``spread``: at most one message of each group, since the messages will
    not be handled in order. ``passed``: messages that are not wanted.
    """

    queue: str
    count: int = 1
    message_id: str | None = None
    correlation_id: str | None = None
    timeout: float | None = 0
    spread: bool = False
    passed: Set[tuple[int, int]] = frozenset()

    @property
    def by_key(self) -> bool:
        return self.message_id is not None or self.correlation_id is not None


class GroupLocks:
    """The groups that one transaction holds. ``claims``: the list in which the transaction keeps its claims. (The
    branch itself would be a reference cycle, which lives until Python's collector runs.)"""

    __slots__ = ("_claims", "_held", "_locks", "names")

    def __init__(self, locks: LockFile, claims: PositionRanges) -> None:
        self._locks = locks
        self._claims = claims
        self._held: dict[GroupName, int] = {}
        self.names: Collection[GroupName] = self._held.keys()

    def claimed(self) -> PositionSet:
        """Return the positions of all messages that the transaction has claimed."""
        return set(positions(self._claims))

    def acquire(self, name: GroupName) -> bool:
        """Lock a group; False if another transaction holds it."""
        if name in self._held:
            return True
        byte = group_byte(*name)
        if not self._locks.try_lock(byte):
            return False
        self._held[name] = byte
        return True

    def release(self, but: Collection[GroupName] = ()) -> None:
        """Unlock all groups but these."""
        for name in [name for name in self._held if name not in but]:
            self._locks.unlock(self._held.pop(name))


# -- before the claim -------------------------------------------------------------------------------------------------


def candidates(
    claims: Claims, view: View, clock: Clock, wanted: Wanted, missing: int, skip: PositionSet, groups: GroupLocks
) -> PositionRanges:
    """Return at most ``missing`` messages that look free, front first; lock their groups. Caller holds the mutex."""
    found: PositionRanges = []
    for run, first, count in _asked_for(view, clock, wanted):
        if run.attributes or not run.queue.is_plain:
            group, backwards = run.group, run.backwards
        else:
            group, backwards = None, False
        claimed = claims.held(run.number)
        if group is not None:
            if groups.acquire((wanted.queue, group)):
                missing -= _add_of_group(claims, view, clock, wanted, (run, first, count), missing, skip, groups, found)
        elif not (claimed or skip or view.prepared.held or backwards):
            added = min(count, missing)
            append(found, run.number, first, added)
            missing -= added
        else:
            ordinals = range(first, first + count)
            for ordinal in reversed(ordinals) if backwards else ordinals:
                if _is_free(claims, view.prepared, run.number, ordinal, skip):
                    append(found, run.number, ordinal, 1)
                    missing -= 1
                    if not missing:
                        break
        if not missing:
            return found
    return found


def _add_of_group(
    claims: Claims,
    view: View,
    clock: Clock,
    wanted: Wanted,
    asked: tuple[Run, int, int],
    missing: int,
    skip: PositionSet,
    groups: GroupLocks,
    found: PositionRanges,
) -> int:
    """Add messages of a group that this transaction holds to ``found``; return how many.

    They come behind those that it has claimed already. A message that is not free keeps all behind it waiting.
    """
    run, first, count = asked
    claimed = groups.claimed()
    added = 0
    members = (
        ((run.number, ordinal) for ordinal in range(first, first + count))
        if wanted.by_key
        else _in_group_order(view, clock, wanted.queue, run.group)
    )
    for position in members:
        if position in claimed and not wanted.spread:
            continue
        if not _is_free(claims, view.prepared, *position, skip):
            if wanted.by_key:
                continue
            break
        append(found, *position, 1)
        added += 1
        if added == missing or wanted.spread:
            break
    return added


def _in_group_order(view: View, clock: Clock, queue: str, group: str | None) -> Iterator[tuple[int, int]]:
    """Yield the positions of a group's messages, in the order of delivery, up to the first one that has expired."""
    assert group is not None
    now = clock.now()
    for run in view.index.messages.queue(queue).in_group(group):
        if run.is_expired(now):
            return  # those behind it wait until it is removed
        for ordinal in run.ordinals:
            yield run.number, ordinal


def _is_free(claims: Claims, prepared: PreparedBranches, number: int, ordinal: int, skip: PositionSet) -> bool:
    position = (number, ordinal)
    return ordinal not in claims.held(number) and position not in skip and position not in prepared.held


def _asked_for(view: View, clock: Clock, wanted: Wanted) -> Iterator[tuple[Run, int, int]]:
    """Yield runs with what is asked for of them, as (run, first ordinal, count), in the order of delivery."""
    messages, now = view.index.messages, clock.now()
    if wanted.message_id is not None:
        position = messages.position_of(*parse_message_id(wanted.message_id))
        run = None if position is None else messages.find(position)
        if run is not None and position is not None and run.queue.name == wanted.queue and not run.is_expired(now):
            yield run, position.ordinal, 1
        return
    # By its correlation id, as by its id, a delayed message is taken at once.
    by_key = wanted.correlation_id
    for run in messages.in_order(wanted.queue, now) if by_key is None else messages.correlated(wanted.queue, by_key):
        if run.expires is None or run.expires > now:
            yield run, run.first, run.end - run.first


def is_there(view: View, clock: Clock, wanted: Wanted) -> bool:
    """Return whether there is such a message, free or held."""
    with view.mutex:
        return any(True for _ in _asked_for(view, clock, wanted))


# -- after the claim --------------------------------------------------------------------------------------------------


def still_there(view: View, clock: Clock, wanted: Wanted, got: PositionRanges, groups: GroupLocks) -> PositionRanges:
    """Return what of the claimed messages ``got`` may be delivered, in order. Caller holds the mutex (rule 4)."""
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
                if not view.prepared.held:
                    append(pieces, number, ordinal, stop - ordinal)
                else:
                    for one in range(ordinal, stop):
                        if (number, one) not in view.prepared.held:
                            append(pieces, number, one, 1)
            ordinal = stop
        kept += pieces
    return _without_overtakers(view, clock, wanted, kept, groups) if groups.names and not wanted.by_key else kept


def _without_overtakers(
    view: View, clock: Clock, wanted: Wanted, kept: PositionRanges, groups: GroupLocks
) -> PositionRanges:
    """Return the messages but those that are not next in their group: one before them came back meanwhile."""
    claimed, next_ones, wrong = groups.claimed(), set(positions(kept)), set[Position]()
    for _, group in groups_of(view, kept):
        allowed = set()
        for position in _in_group_order(view, clock, wanted.queue, group):
            if position in next_ones:
                allowed.add(position)
            elif position not in claimed:
                break
        wrong.update(one for one in next_ones if _group(view, one) == group and one not in allowed)
    right: PositionRanges = []
    for position in positions(kept):
        if position not in wrong:
            append(right, *position, 1)
    return right if wrong else kept


def groups_of(view: View, ranges: PositionRanges) -> set[GroupName]:
    """Return the groups of the messages that are there."""
    names = set()
    for position in positions(ranges):
        run = view.index.messages.find(position)
        if run is not None and run.group is not None:
            names.add((run.queue.name, run.group))
    return names


def _group(view: View, position: Position) -> str | None:
    run = view.index.messages.find(position)
    return None if run is None else run.group
