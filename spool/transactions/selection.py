"""Which messages a get may have: in order, past what others hold, of a group only what is first of it.

Asked twice: before the claim, of what looks free; and after it, of what was claimed, once everything is known that
could have removed or held it before.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from spool.index.run import Run
from spool.model.message import Position, parse_message_id
from spool.model.ranges import Ranges, append, positions
from spool.store.store import Store
from spool.transactions.groups import GroupHolds, Name

Places = set[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a get asks for: the front of a queue, one message by id, or the first with a correlation id. ``spread``:
    messages that are not to be handled in turn, so one at most of each group. ``passed``: not these."""

    queue: str
    count: int = 1
    message_id: str | None = None
    correlation_id: str | None = None
    spread: bool = False
    passed: Set[tuple[int, int]] = frozenset()

    @property
    def by_key(self) -> bool:
        return self.message_id is not None or self.correlation_id is not None


def candidates(store: Store, wanted: Wanted, missing: int, skip: Places, holds: GroupHolds) -> Ranges:
    """Up to ``missing`` messages that look free, front first. The caller holds the mutex."""
    found: Ranges = []
    for run, first, count in _in_line(store, wanted):
        if run.attributes or not run.queue.is_plain:
            group, backwards = run.group, run.backwards
        else:
            group, backwards = None, False
        claimed = store.shared.claims.held(run.number)
        if group is not None:
            if holds.hold((wanted.queue, group)):
                missing -= _add_of_group(store, wanted, (run, first, count), missing, skip, holds, found)
        elif not (claimed or skip or store.view.prepared.held or backwards):
            taken = min(count, missing)
            append(found, run.number, first, taken)
            missing -= taken
        else:
            ordinals = range(first, first + count)
            for ordinal in reversed(ordinals) if backwards else ordinals:
                if _is_free(store, run.number, ordinal, skip):
                    append(found, run.number, ordinal, 1)
                    missing -= 1
                    if not missing:
                        break
        if not missing:
            return found
    return found


def _add_of_group(
    store: Store, wanted: Wanted, asked: tuple[Run, int, int], missing: int, skip: Places, holds: GroupHolds,
    found: Ranges,
) -> int:  # fmt: skip
    """Messages of a group that is ours, behind those that are ours already; how many. What is not free keeps all
    behind it waiting."""
    run, first, count = asked
    mine = holds.claims()
    added = 0
    places = (
        ((run.number, ordinal) for ordinal in range(first, first + count))
        if wanted.by_key
        else _in_turn(store, wanted.queue, run.group)
    )
    for place in places:
        if place in mine and not wanted.spread:
            continue
        if not _is_free(store, *place, skip):
            if wanted.by_key:
                continue
            break
        append(found, *place, 1)
        added += 1
        if added == missing or wanted.spread:
            break
    return added


def _in_turn(store: Store, queue: str, group: str | None) -> Iterator[tuple[int, int]]:
    """The places of a group's messages, in the order of delivery."""
    assert group is not None
    now = store.clock.now()
    for run in store.view.index.messages.queue(queue).in_group(group):
        if run.is_expired(now):
            return  # whoever lets it go makes way
        for ordinal in run.ordinals:
            yield run.number, ordinal


def _is_free(store: Store, number: int, ordinal: int, skip: Places) -> bool:
    place = (number, ordinal)
    return (
        ordinal not in store.shared.claims.held(number) and place not in skip and place not in store.view.prepared.held
    )


def _in_line(store: Store, wanted: Wanted) -> Iterator[tuple[Run, int, int]]:
    """Runs, and which of their messages are asked for (first, count), in the order of delivery."""
    index, now = store.view.index, store.clock.now()
    if wanted.message_id is not None:
        position = index.messages.position_of(*parse_message_id(wanted.message_id))
        run = None if position is None else index.messages.find(position)
        if run is not None and position is not None and run.queue.name == wanted.queue and not run.is_expired(now):
            yield run, position.ordinal, 1
        return
    # By its key a delayed message is taken at once.
    by_key = wanted.correlation_id
    messages = index.messages
    for run in messages.in_order(wanted.queue, now) if by_key is None else messages.correlated(wanted.queue, by_key):
        if run.expires is None or run.expires > now:
            yield run, run.first, run.end - run.first


def is_there(store: Store, wanted: Wanted) -> bool:
    """Whether there is such a message, free or not."""
    with store.view.mutex:
        return any(True for _ in _in_line(store, wanted))


def still_there(store: Store, wanted: Wanted, got: Ranges, holds: GroupHolds) -> Ranges:
    """Of what was claimed, what may be delivered after looking again: pieces of ``got``, in order. The caller holds the
    mutex."""
    kept: Ranges = []
    now = store.clock.now()
    for number, first, count in got:
        pieces: Ranges = []
        ordinal = first
        while ordinal < first + count:
            run, stop = store.view.index.messages.run_from(number, ordinal, first + count)
            if (
                run is not None
                and run.queue.name == wanted.queue
                and (wanted.by_key or run.due is None or run.due <= now)
                and (run.expires is None or run.expires > now)
            ):
                if not store.view.prepared.held:
                    append(pieces, number, ordinal, stop - ordinal)
                else:
                    for one in range(ordinal, stop):
                        if (number, one) not in store.view.prepared.held:
                            append(pieces, number, one, 1)
            ordinal = stop
        kept += pieces
    return _in_turn_only(store, wanted, kept, holds) if holds.names and not wanted.by_key else kept


def _in_turn_only(store: Store, wanted: Wanted, kept: Ranges, holds: GroupHolds) -> Ranges:
    """Without those of a group that are not next in it: one before them came back while they were being claimed."""
    mine, next_ones, wrong = holds.claims(), set(positions(kept)), set[Position]()
    for _, group in groups_of(store, kept):
        allowed = set()
        for place in _in_turn(store, wanted.queue, group):
            if place in next_ones:
                allowed.add(place)
            elif place not in mine:
                break
        wrong.update(place for place in next_ones if _group(store, place) == group and place not in allowed)
    right: Ranges = []
    for place in positions(kept):
        if place not in wrong:
            append(right, *place, 1)
    return right if wrong else kept


def groups_of(store: Store, ranges: Ranges) -> set[Name]:
    """The groups of messages that are there."""
    found = set()
    for position in positions(ranges):
        run = store.view.index.messages.find(position)
        if run is not None and run.group is not None:
            found.add((run.queue.name, run.group))
    return found


def _group(store: Store, position: Position) -> str | None:
    run = store.view.index.messages.find(position)
    return None if run is None else run.group
