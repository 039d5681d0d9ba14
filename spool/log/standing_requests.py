"""Standing requests: the outcome of a posted request whose leader or owner dies.

A posted request stands until a leader commits or cancels it, even if its owner dies. So a process that has claimed a
message, or has locked a key, looks at the standing requests first. A request that names this message or key belongs to
a dead process, because a live process keeps its claims and its keys until it knows the outcome.
"""

from spool.coordination.request_slots import DAMAGED, DONE, EMPTY, JOINED, POSTED, TAKEN, RemovedSpan, RequestSlots
from spool.errors import CorruptedFile
from spool.format.reader import contents_of
from spool.log.sequence import settle_to
from spool.model import layout
from spool.model.layout import ORDINAL_BITS
from spool.model.position import PositionRanges
from spool.store.feed import addresses
from spool.store.store import Store


def span_of(ranges: PositionRanges) -> RemovedSpan:
    """Return the span of messages: a process that searches for a message compares the span first."""
    if not ranges:
        return RemovedSpan()
    firsts = [number << ORDINAL_BITS | first for number, first, _ in ranges]
    lasts = [number << ORDINAL_BITS | first + count - 1 for number, first, count in ranges]
    return RemovedSpan(min(firsts), max(lasts))


def settle(store: Store, slot: int) -> None:
    """Settle a request that an earlier leader joined. Afterwards the slot is done, or posted again.

    The caller leads. An earlier leader died, or the outcome of its commit was unknown. Rule 19. A damaged slot, and a
    slot whose commit is damaged, is cleared: its owner then knows that the outcome is unknown (rule 23).

    Raises:
        WaitExpired, SpaceStopped: the number of that commit cannot be published.
    """
    slots = store.shared.requests
    state = slots.state(slot)
    if state == JOINED:
        slots.change(slot, (JOINED,), POSTED)
    elif state == TAKEN:
        try:
            slots.change(slot, (TAKEN,), DONE if _was_committed(store, slots.number(slot)) else POSTED)
        except CorruptedFile:  # the commit's file was damaged: nobody knows whether the request was in it
            slots.clear(slot)
    elif state not in (EMPTY, POSTED, DONE):  # (the owner of an empty slot may post its next request meanwhile)
        slots.clear(slot)


def _was_committed(store: Store, number: int) -> bool:
    """Return whether the commit that took a request happened. Otherwise the number has ended as an empty commit.

    The number was issued for the leader's file, and is published now. So any content under the number is the leader's
    commit.

    Raises:
        CorruptedFile: the file was damaged.
    """
    settle_to(store, number, store.deadline())
    contents = contents_of(store.files.disk, layout.committed(number), salvage=True)
    return contents is not None and bool(contents.header.sections or contents.header.adopts)


def look_at_standing(store: Store, claimed: PositionRanges | None = None) -> None:
    """Settle each request of a dead process, if the request may conflict with the caller's locks. Rule 20.

    A request that was committed is published when this returns; any other request is cancelled. The caller looks at the
    prepared branches and the commits afterwards.

    Args:
        claimed: the messages that the caller has claimed. Only requests that remove or change one of these messages are
            settled. None: the caller has locked something else, and all requests of dead processes are settled.

    Raises:
        WaitExpired: a process that leads does not end its commit in time.
    """
    slots = store.shared.requests
    if slots.none_stand:
        return
    for slot in _conflicting(slots, claimed):
        slots.lead(store.deadline())
        try:
            if slot in _conflicting(slots, claimed):
                _cancel(store, slot)
        finally:
            slots.end_lead()


def cancel_of_dead(store: Store) -> None:
    """Settle all requests of dead processes, so that reclaim need not keep their numbers.

    Do nothing while a process leads. The leader may be this thread, because a commit reclaims files when the disk is
    full.
    """
    slots = store.shared.requests
    if slots.none_stand or not slots.try_lead():
        return
    try:
        for slot in _conflicting(slots, None):
            _cancel(store, slot)
    finally:
        slots.end_lead()


def _cancel(store: Store, slot: int) -> None:
    """Settle a request, and cancel it if it is not committed. The caller leads."""
    settle(store, slot)
    if store.shared.requests.state(slot) == POSTED:
        store.shared.requests.clear(slot)


def _conflicting(slots: RequestSlots, claimed: PositionRanges | None) -> list[int]:
    """Return the slots whose requests conflict with the caller's locks.

    Damaged requests conflict with no lock: a leader cannot read them either, so no leader ever commits them.
    """
    if claimed is None:
        return [slot for slot in slots.standing() if not slots.is_owned(slot)]
    return [
        slot
        for slot in slots.standing_within(span_of(claimed))
        if slots.state(slot) == DAMAGED or addresses(slots.request(slot), claimed)
    ]
