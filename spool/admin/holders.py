"""Find the process that holds a message, from a claim and the process's journal, or a prepared branch.

A claim is a lock, and only the lock decides whether a message is held. The journal has the details for people. A plain
get holds its message only while it commits, and no journal names the message. The journal of a process names the
messages that its transactions hold, and the messages of ``spool.Claims`` that are being handled. For any other claimed
message, the kernel knows the process that has the lock.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from spool.coordination.locks import xid_byte
from spool.disk.disk import Disk
from spool.model.position import Position
from spool.policies.attempt_journal import all_journals, read_journal
from spool.store.parts import Shared, View

CLAIMED: Final = "claimed"
IN_DOUBT: Final = "in doubt"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holder:
    """The transaction, or the process, that holds a message.

    A field other than the state is None if its value is not known.

    state: "claimed" (by an active transaction) or "in doubt" (held by a prepared and undecided transaction).
    xid: the identifier of the prepared transaction, as text; of a claimed message, the name of the process's journal.
    pid, program: the process that took the message, or prepared the transaction.
    since: when the transaction took its first message, or was prepared; for a message of ``spool.Claims``, when
        ``begin`` was called for the message. In seconds since the epoch.
    """

    state: str
    xid: str | None = None
    pid: int | None = None
    program: str | None = None
    since: float | None = None


_UNNAMED = Holder(CLAIMED)


def holders(disk: Disk, shared: Shared, view: View, queue: str) -> dict[str, Holder]:
    """Return the holders of a queue's messages, by message id, in the order in which the messages were put."""
    held = by_position(disk, shared, view)
    by_id = {}
    with view.mutex:
        for position in sorted(held):
            run = view.index.messages.find(position)
            if run is not None and run.queue.name == queue:
                by_id[run.id_of(position.ordinal)] = position
    name_processes(shared, held, by_id.values())
    return {id_: held[position] for id_, position in by_id.items()}


def by_position(disk: Disk, shared: Shared, view: View) -> dict[Position, Holder]:
    """Return the holders of all held messages, in all queues.

    The call does not list the prepared branches again, but uses the last listing. For the process of a claim that no
    journal names, see ``name_processes``.
    """
    claimed = shared.claims.positions()
    held_by = dict.fromkeys(claimed, _UNNAMED)
    places = sorted(claimed)
    for xid in all_journals(disk) if claimed else ():
        if shared.xids.is_free(xid_byte(xid)):
            continue  # the journal's process died, and other transactions may hold the messages
        journal = read_journal(disk, xid)
        for slot in journal.slots:
            holder = Holder(CLAIMED, str(xid), journal.pid, journal.program, slot.begun_at)
            ends = (Position(slot.number, slot.first + length) for length in (0, slot.length))
            start, end = (bisect_left(places, each) for each in ends)  # (a damaged journal has ranges of any length)
            held_by.update((position, holder) for position in places[start:end])
    with view.mutex:
        for position, xid in view.prepared.held.items():
            header = view.prepared.branches[xid].header
            pid, program = header.writer.get("pid"), header.writer.get("program")
            held_by[position] = Holder(IN_DOUBT, str(xid), typed(int, pid), typed(str, program), header.time)
    return held_by


def name_processes(shared: Shared, held: dict[Position, Holder], wanted: Iterable[Position]) -> None:
    """Add the processes to the holders of these messages that no journal names: ask the kernel once for all of them."""
    unnamed = [position for position in wanted if position in held and held[position] == _UNNAMED]
    for position, (pid, program) in shared.claims.processes(unnamed).items():
        held[position] = Holder(CLAIMED, pid=pid, program=program)


def typed(kind: type[T], value: object) -> T | None:
    """Return a value that another program wrote; None if the value has another type."""
    return value if isinstance(value, kind) else None
