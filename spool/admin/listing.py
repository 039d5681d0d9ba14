"""List the messages of a queue with their states: ready, delayed, claimed, in doubt or damaged. Nothing is claimed."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from spool.admin.holders import CLAIMED, IN_DOUBT, Holder, by_position, name_processes
from spool.admin.reads import WHAT_TO_DO, locate, no_message, peek
from spool.errors import CorruptedFile
from spool.index.browse import Cursor, Slice
from spool.index.run import Run
from spool.log.visibility import catch_up, list_prepared
from spool.model import layout
from spool.model.checks import number
from spool.model.message import Message, due_time, parse_message_id
from spool.model.position import Position
from spool.policies.expiry import expire
from spool.store.store import Store

READY: Final = "ready"
DELAYED: Final = "delayed"
DAMAGED: Final = "damaged"
GONE: Final = "gone"

MessageState = Literal["ready", "delayed", "claimed", "in doubt", "gone"]


class QueueEntry(NamedTuple):
    """One message of a queue.

    id, position: the id and the position of the message; None if the whole table of the message is damaged.
    state: ready, delayed, claimed, in doubt or damaged.
    message: the message; None if the message is damaged.
    holder: the transaction or process that holds the message; None if the message is not held.
    damage: the problem and advice; None if the message can be read.
    body_bytes: the size of the stored body in bytes; None if the message is damaged.
    body_cut: whether the body of ``message`` is only the first bytes of the stored body, because of ``preview``.
    """

    id: str | None
    position: Position | None
    state: str
    message: Message | None = None
    holder: Holder | None = None
    damage: str | None = None
    body_bytes: int | None = None
    body_cut: bool = False


PREVIEW = number(2**32 - 1, optional=True)


def entries_of(store: Store, queue: str, slices: list[Slice], preview: int | None, named: bool) -> Iterator[QueueEntry]:
    """Yield entries for the messages of the slices that are still in the queue and have not expired.

    ``preview``: how many bytes of each body to read; None for whole bodies. ``named``: whether to find the processes
    that hold messages, which reads the open files of all processes of the machine.
    """
    held = by_position(store.files.disk, store.shared, store.view)
    listed = (Position(part.number, ordinal) for part in slices for ordinal in part.ordinals)
    name_processes(store.shared, held, listed if held and named else ())
    for part in slices:
        for ordinal in part.ordinals:
            position = Position(part.number, ordinal)
            with store.view.mutex:
                run = store.view.index.messages.find(position)
                if run is None or run.queue.name != queue or run.is_expired(store.clock.now()):
                    continue
            if (entry := current_entry(store, run, position, held, preview)) is not None:
                yield entry


def entry_of(store: Store, wanted_id: str, preview: int | None) -> QueueEntry:
    """Return the message with this id, in any queue. ``preview``: see ``entries_of``.

    Raises:
        BadMessageId: no message has this id.
    """
    list_prepared(store)
    run, position = locate(store, wanted_id)
    held = by_position(store.files.disk, store.shared, store.view)
    name_processes(store.shared, held, [position])
    if (entry := current_entry(store, run, position, held, preview)) is None:
        raise no_message(wanted_id)
    return entry


def current_entry(
    store: Store, run: Run, position: Position, held: Mapping[Position, Holder], preview: int | None
) -> QueueEntry | None:
    """Return the entry of a message, or None if the message has left the queue meanwhile."""
    try:
        seen = peek(store, position, preview)
    except CorruptedFile as error:
        with store.view.mutex:
            damaged = store.view.index.messages.find(position)
        if damaged is None:
            return None
        return QueueEntry(damaged.id_of(position.ordinal), position, DAMAGED, damage=str(error))
    if seen is None:
        return None
    holder = held.get(position) if held else None
    state = _state_unheld(store, run) if holder is None else holder.state
    message = seen.message
    return QueueEntry(message.id, position, state, message, holder, None, seen.body_bytes, seen.is_cut)


def _state_unheld(store: Store, run: Run) -> MessageState:
    """Return the state of a message that no transaction holds."""
    due = due_time(run.attributes, run.committed_at) if run.attributes else None
    return DELAYED if due is not None and due > store.clock.now() else READY


def state_of(store: Store, wanted_id: str) -> MessageState:
    """Return the state of the message with this id, in any queue. The body is not read.

    Raises:
        BadMessageId: the text is not a message's id.
    """
    wanted = parse_message_id(wanted_id)
    catch_up(store)
    while True:
        with store.view.mutex:
            found, ordinal = store.view.index.messages.with_id(*wanted)
        if found is None:
            return GONE
        position = Position(found.number, ordinal)
        # A holder publishes its commit or its vote before it releases its claim. So check the claim first.
        is_claimed = store.shared.claims.is_claimed(*position)
        catch_up(store, list_prepared(store))
        with store.view.mutex:
            if (run := store.view.index.messages.find(position)) is None:
                return GONE
            if position in store.view.prepared.held:
                return IN_DOUBT
        if is_claimed:
            return CLAIMED
        if not run.is_expired(store.clock.now()):
            return _state_unheld(store, run)
        if not expire(store, run.queue.name, store.deadline()):
            return GONE  # no get delivers the message; otherwise the message may now be in the error queue


def unread(store: Store, cursor: Cursor, queue: str) -> list[QueueEntry]:
    """Return an entry for each table that a cursor could not read. Only the number of the table's messages is known."""
    if not cursor.unread:
        return []
    catch_up(store)  # a table that was reclaimed meanwhile is not damaged
    with store.view.mutex:
        segments = store.view.index.messages.segments
        lost = [(segment, why) for segment, why in cursor.unread.items() if segment in segments]
    entries = []
    for segment, why in lost:
        table = layout.committed(segment.file.number, segment.file.adoption)
        damage = f"{segment.live} of the messages of queue {queue} cannot be read: their table in {table} is damaged "
        entries.append(QueueEntry(None, None, DAMAGED, damage=f"{damage}({why}); {WHAT_TO_DO}"))
    return entries
