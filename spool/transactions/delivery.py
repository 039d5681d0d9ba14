"""Delivery of messages: read claimed messages.

A damaged body is never delivered: its message goes to quarantine, with the reason.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from spool.disk.quarantine import FileCause, FileReason, quarantine_bytes
from spool.errors import CorruptedFile, SystemFailure, UnknownCodec
from spool.index.run import Run
from spool.index.stored_run import StoredRun, stored_run_of
from spool.log.engine_commit import commit_batch
from spool.log.write_set import WriteSet
from spool.model import codecs, layout
from spool.model.message import Message, Origin, new_message, set_body, set_ordinal, set_origin, with_defaults
from spool.model.position import Position, PositionRanges
from spool.runtime.async_exceptions import raise_if_torn
from spool.runtime.clock import Deadline
from spool.store.parts import Files, View
from spool.store.store import Store


def held_runs(store: Store, ranges: PositionRanges) -> list[StoredRun]:
    """Return the places of the bodies of claimed messages, in order."""
    found, queues = list[StoredRun](), store.settings.known.config.queues
    with store.view.mutex:
        for number, first, count in ranges:
            for run, start, stop in store.view.index.messages.live_runs(number, first, first + count):
                found.append(stored_run_of(run, queues.get(run.queue.name)).part(start, stop - start))
                count -= stop - start
            if count:
                raise SystemFailure(f"messages of commit {number} left the index while they were held")
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
        if (run := store.view.index.messages.find(position)) is None:
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
    why = FileReason(text, FileCause.MESSAGE, queue)
    quarantine_bytes(store.files.disk, f"{name}.{position.ordinal}", msgpack.packb(described), why)
    batch = WriteSet()
    batch.remove(position.number, position.ordinal, 1, "failed")
    commit_batch(store, batch, deadline, flush=True)
