"""Which transaction holds a message, as far as it is known: by a claim and its note, or by its prepared branch.

A claim is a lock, and the lock alone decides; what the note says beside it is for people. A plain get holds its message
only while it commits, and writes no note.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from spool.coordination.locks import xid_byte
from spool.model.message import Position, message_id
from spool.policies.claim_journal import JournalContents, all_journals, read_journal
from spool.store.store import Store

HELD, IN_DOUBT = "held", "in doubt"


@dataclass(frozen=True, slots=True)
class Holder:
    """What holds a message. ``state``: ``held`` by a transaction that is under way, or ``in doubt``, held by one that
    is prepared and undecided.

    ``xid``: the transaction's identifier as text; ``pid`` and ``program``: the process that took the message, or
    prepared the transaction; ``since``: seconds since the epoch, of the transaction's first take, or of its prepare.
    Each is None if it is not known.
    """

    state: str
    xid: str | None = None
    pid: int | None = None
    program: str | None = None
    since: float | None = None


def holders(store: Store, queue: str) -> dict[str, Holder]:
    """By message id, of the messages of one queue that are held, in the order in which they were put."""
    found = by_position(store)
    by_id = {}
    with store.view.mutex:
        for position in sorted(found):
            run = store.view.index.messages.find(position)
            if run is not None and run.queue.name == queue:
                by_id[message_id(*store.view.index.messages.branch_of(position))] = found[position]
    return by_id


def by_position(store: Store) -> dict[Position, Holder]:
    """Of every message that is held, in whatever queue; prepared branches as of their last listing."""
    claimed = claimed_positions(store)
    found = {position: Holder(HELD) for position in claimed}
    if claimed:
        _add_noted(store, claimed, found)
    with store.view.mutex:
        for position, xid in store.view.prepared.held.items():
            header = store.view.prepared.images[xid].header
            pid, program = header.writer.get("pid"), header.writer.get("program")
            found[position] = Holder(IN_DOUBT, str(xid), _whole(pid), _text(program), header.time)
    return found


def claimed_positions(store: Store) -> set[Position]:
    """Of all processes, this one included."""
    found = {Position(*place) for place in store.shared.claims.held_ranges()}
    for number, first, count in store.shared.claims.held_elsewhere():
        found.update(Position(number, ordinal) for ordinal in range(first, first + count))
    return found


def _add_noted(store: Store, claimed: Iterable[Position], found: dict[Position, Holder]) -> None:
    """What the notes of live transactions say about these."""
    places = sorted(claimed)
    for xid in all_journals(store):
        if store.shared.xids.is_free(xid_byte(xid)):
            continue  # its process is dead: others may hold what it held
        note = read_journal(store, xid)
        holder = Holder(HELD, str(xid), note.pid, note.program, note.since)
        found.update((position, holder) for position in _noted(note, places))


def _noted(note: JournalContents, places: list[Position]) -> Iterable[Position]:
    """Those of the sorted places that the note names. A note may say anything: what it claims is never counted up."""
    for number, first, count in note.ranges:
        start, end = (bisect_left(places, Position(number, ordinal)) for ordinal in (first, first + count))
        yield from places[start:end]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
