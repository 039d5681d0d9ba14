"""Delivery of messages: read claimed messages, get without a transaction, and show messages without a claim.

A damaged body is never delivered: its message goes to quarantine, with the reason.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from spool.disk.quarantine import Cause, Reason, quarantine_bytes
from spool.errors import BadMessageId, CorruptedFile, SystemFailure, UnknownCodec
from spool.index.run import Run
from spool.index.stretch import Stretch
from spool.log.commit import commit_batch
from spool.log.visibility import catch_up
from spool.log.write_set import WriteSet
from spool.model import codecs, layout
from spool.model.message import (
    Message,
    Origin,
    new_message,
    parse_message_id,
    set_body,
    set_ordinal,
    set_origin,
    with_defaults,
)
from spool.model.position import Position, PositionRanges
from spool.runtime.clock import Deadline
from spool.runtime.tearing import raise_if_torn
from spool.store.parts import Files, View
from spool.store.store import Store

# The advice of the error about a damaged message that was read without a claim.
WHAT_TO_DO = "spool-admin check --repair moves damaged messages to quarantine, with the reason"
_MOST_READS = 3  # reads of a message that other processes move meanwhile


def held_stretches(store: Store, ranges: PositionRanges) -> list[Stretch]:
    """Return the places of the bodies of claimed messages, in order."""
    found, queues = list[Stretch](), store.settings.known.config.queues
    with store.view.mutex:
        for number, ordinal, count in ranges:
            end = ordinal + count
            while ordinal < end:
                part, ordinal = store.view.index.messages.stretch_from(queues, number, ordinal, end)
                if part is None:
                    raise SystemFailure(f"message {number}/{ordinal} left the index while it was held")
                found.append(part)
    return found


def messages_one_by_one(store: Store, ranges: PositionRanges, only_shown: bool) -> tuple[list[Message], PositionRanges]:
    """Read claimed messages one by one, because some are unreadable.

    Returns the messages that were read, and the claims of the others.

    A message whose body is damaged moves to quarantine. If no codec here can decode a message, this message and all
    later ones are not delivered.

    Raises:
        UnknownCodec: no codec here can decode the first message.
    """
    found: list[Message] = []
    bad: PositionRanges = []
    for at, (number, first, count) in enumerate(ranges):
        for ordinal in range(first, first + count):
            try:
                found += read_messages(store, number, ordinal, 1, only_shown=only_shown)
            except CorruptedFile as error:
                set_aside(store, Position(number, ordinal), str(error), store.deadline())
                bad.append((number, ordinal, 1))
            except UnknownCodec:
                if not found:
                    raise
                return found, [*bad, (number, ordinal, first + count - ordinal), *ranges[at + 1 :]]
    return found, bad


def read_messages(store: Store, number: int, first: int, count: int, *, only_shown: bool = False) -> list[Message]:
    """Read neighbouring live messages with their bodies.

    Raises:
        CorruptedFile: a body is damaged.
        UnknownCodec: no codec here can decode a body, and ``only_shown`` is not set. With ``only_shown``, the message
            gets the stored bytes as its body.
    """
    found: list[Message] = []
    ordinal, end = first, first + count
    with store.view.mutex:
        table, configs = store.view.index.messages, store.settings.known.config.queues
        while ordinal < end:
            run, stop = table.run_at(number, ordinal, end)
            if run is None:
                run, stop = table.run_from(number, ordinal, end)
            if run is None:
                raise SystemFailure(f"message {number}/{ordinal} left the index while it was held")
            queue, attributes = run.queue.name, run.attributes
            bodies: Sequence[Any] = store.files.cache.bodies(run, ordinal, stop - ordinal, bytes)
            codec = attributes.get("codec") if attributes else None
            if codec is not None and store.view.decodes_bodies:
                bodies = _decoded(bodies, codec, only_shown, run, ordinal)
            if queue in configs and (configs[queue].reply_queue or configs[queue].failure_queue):
                attributes = with_defaults(configs[queue], attributes)
            shared = (run.branch.hex(), run.begin, queue, number, run.committed_at, attributes)
            origin = tuple.__new__(Origin, shared)
            for place, body in enumerate(bodies, ordinal):  # (this loop costs little more time than the bodies)
                message = new_message()
                set_origin(message, origin)
                set_ordinal(message, place)
                set_body(message, body)
                found += (message,)
            ordinal = stop
    return found


def stored_body(files: Files, view: View, message: Message) -> bytes:
    """Return the stored bytes of the body of a claimed message."""
    if message.codec is None:
        return message.body  # type: ignore[no-any-return]
    with view.mutex:
        run, _ = view.index.messages.run_from(*message.position, message.position.ordinal + 1)
        if run is None:
            raise SystemFailure(f"message {message.id} left the index while it was held")
        return files.cache.bodies(run, message.position.ordinal, 1, bytes)[0]


def _decoded(raws: Sequence[bytes], codec: str, only_shown: bool, run: Run, first: int) -> list[Any]:
    """Decode neighbouring bodies of a run. ``first``: the ordinal of the first body's message."""
    bodies: list[Any] = []
    for raw in raws:
        try:
            bodies.append(codecs.decode(raw, codec))
        except UnknownCodec as error:
            if not only_shown:
                id_ = run.id_of(first + len(bodies))
                unknown = UnknownCodec(f"message {id_} remains in queue {run.queue.name}: {error}")
                unknown.message_id = id_
                raise unknown from None
            bodies.append(raw)
    return bodies


def set_aside(store: Store, position: Position, reason: str, deadline: Deadline) -> None:
    """Move a message from its queue to quarantine, because its body is damaged. The reason is stored there.

    The file in quarantine is one msgpack map. It has the message's control fields, and the stored bytes of the body if
    they can be read. The caller holds the claim.
    """
    with store.view.mutex:
        run = store.view.index.messages.find(position)
        if run is None:
            return
        id_, queue = run.id_of(position.ordinal), run.queue.name
        name = layout.committed(run.file.number, run.file.adoption)
        described: dict[str, Any] = {"queue": queue, "id": id_, **run.attributes}
        try:
            described["body"] = store.files.cache.unproven(run, position.ordinal)
        except (CorruptedFile, OSError) as error:
            raise_if_torn(error)
            described["body"] = None
            reason = f"{reason}; its bytes cannot be read: {error}"
    text = f"message {id_} of queue {queue} was not delivered: {reason}; put it again"
    why = Reason(text, Cause.MESSAGE, queue)
    quarantine_bytes(store.files.disk, f"{name}.{position.ordinal}", msgpack.packb(described), why)
    batch = WriteSet()
    batch.remove(position.number, position.ordinal, 1, "failed")
    commit_batch(store, batch, deadline, flush=True)


def find_message(store: Store, wanted_id: str) -> Message:
    """Return the message with this id from any queue, without a claim.

    Raises BadMessageId if no message has the id.
    """
    catch_up(store)
    with store.view.mutex:
        position = store.view.index.messages.position_of(*parse_message_id(wanted_id))
    found = None if position is None else peek(store, position)
    if found is None:
        raise BadMessageId(f"there is no message {wanted_id}: it was taken, or never committed")
    return found.message


class Seen(NamedTuple):
    """A message that was read without a claim, and the size of its stored body in bytes.

    is_cut: whether the body of ``message`` is only the beginning of the stored body.
    """

    message: Message
    body_bytes: int
    is_cut: bool


def peek(store: Store, position: Position, preview: int | None = None) -> Seen | None:
    """Return a message without a claim, or None if it was removed; raises CorruptedFile if the message is damaged.

    During the read, other processes may remove the message, and reclaim or recycle its file. If so, this process
    catches up, and the index then shows the removal.

    Args:
        preview: how many bytes of the body to read. A longer body is cut there, and its checksum is not verified.
    """
    problem: Exception | None = None
    for _ in range(_MOST_READS):
        cut: Seen | None = None
        with store.view.mutex:
            run = store.view.index.messages.find(position)
            if run is None:
                return None
            file = run.file
            try:
                length = store.files.cache.place(run, position.ordinal).length
                if preview is None or length <= preview:
                    whole = read_messages(store, position.number, position.ordinal, 1, only_shown=True)[0]
                    return Seen(whole, length, False)
                cut = Seen(_beginning(store, run, position, preview), length, True)
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        catch_up(store)
        with store.view.mutex:
            now = store.view.index.messages.find(position)
        if cut is not None and now is not None:
            if now.file == file:
                return cut  # the message was in this file after the read, so the file was not recycled before
            problem = CorruptedFile("other processes move the message all the time: try again")
    with store.view.mutex:
        run = store.view.index.messages.find(position)
        if run is None:
            return None
    id_, queue = run.id_of(position.ordinal), run.queue.name
    where = f"{position.number}/{position.ordinal}"
    raise CorruptedFile(f"message {id_} of queue {queue} (position {where}) is damaged: {problem}; {WHAT_TO_DO}")


def _beginning(store: Store, run: Run, position: Position, count: int) -> Message:
    """Return a message with the first bytes of its stored body. The caller holds the mutex."""
    config = store.settings.known.config.queues.get(run.queue.name)
    attributes = run.attributes if config is None else with_defaults(config, run.attributes)
    body = store.files.cache.beginning(run, position.ordinal, count)
    return Message(run.id_of(position.ordinal), run.queue.name, body, run.committed_at, position, attributes)
