"""Taking messages: claim what may be had, look again, deliver."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack

from spool.coordination.counters import Page
from spool.disk.quarantine import quarantine_bytes
from spool.errors import BadMessageId, CorruptedFile, MessageInUse, SystemFailure, UnknownCodec
from spool.format.batch import CommitBatch
from spool.format.reader import BodyPlace
from spool.index.run import Run
from spool.log.commit import commit_batch
from spool.log.visibility import catch_up, list_prepared, revalidate
from spool.model import codecs, layout
from spool.model.message import Message, Origin, Position, message_id, neighbours, parse_message_id
from spool.model.ranges import Ranges, positions, subtract
from spool.policies.claim_journal import OrphanReaper
from spool.policies.expiry import expire
from spool.runtime import interrupts
from spool.runtime.clock import Deadline
from spool.store.store import Store
from spool.transactions.groups import GroupHolds
from spool.transactions.selection import Places, Wanted, candidates, groups_of, is_there, still_there
from spool.transactions.two_phase import resolve_orphans

# How long who waits for a message leaves it to the bell. Ctrl-C and closing the space wait as long at most.
IDLE_SECONDS = 0.1
# About a damaged message that is only looked at.
WHAT_TO_DO = "spool-admin check --repair moves what is damaged to quarantine, with the reason"
# The shortest time between two looks of who was woken for nothing.
BUSY_SECONDS = 0.002


def claim(
    store: Store,
    undertaker: OrphanReaper,
    wanted: Wanted,
    page: Page,
    deadline: Deadline,
    note: Callable[[Ranges], None],
    holds: GroupHolds,
) -> Ranges:
    """Claims of messages that are there and nobody else's, in the queue's order; [] if there is none now.

    ``page``: the counters, just read. ``note`` is told of claims as soon as they are locked. ``holds``: the groups that
    the claims' transaction has, and will have. MessageInUse if a message asked for by id is held.
    """
    store.view.follows = True
    catch_up(store, page)
    list_prepared(store, page)  # or what a branch held that was rolled back since would still look taken
    line = store.view.index.messages.queues.get(wanted.queue)
    if line is not None and line.expiring:
        expire(store, wanted.queue, deadline)
    skip: Places = set(wanted.passed)
    before, kept = tuple(holds.names), Ranges()
    try:
        while not kept:
            got = _claim_free(store, wanted, skip, holds)
            if got:
                kept = _confirm(store, undertaker, wanted, got, deadline, note, holds)
                continue
            seen = store.view.index.applied
            # A coordinator that is gone held messages by its prepared branches; and something came while we looked.
            if resolve_orphans(store, deadline) or store.view.index.applied > seen:
                continue
            if wanted.message_id is not None and is_there(store, wanted):
                raise MessageInUse(f"message {wanted.message_id} is held by another transaction: try again later")
            return []
        return kept
    finally:
        if holds.names:
            with store.view.mutex:
                holds.let_go(but={*before, *groups_of(store, kept)})


def _confirm(
    store: Store, undertaker: OrphanReaper, wanted: Wanted, got: Ranges, deadline: Deadline,
    note: Callable[[Ranges], None], holds: GroupHolds,
) -> Ranges:  # fmt: skip
    """Of what was locked, what may be had; the rest is let go of."""
    try:
        note(got)
        for number in {number for number, _, _ in got}:
            undertaker.count_orphans_tries(number, deadline)
        revalidate(store, deadline)
        with store.view.mutex:
            kept = still_there(store, wanted, got, holds)
    except BaseException:
        release(store, got)
        raise
    release(store, subtract(got, kept))
    return kept


def _claim_free(store: Store, wanted: Wanted, skip: Places, holds: GroupHolds) -> Ranges:
    """Lock up to as many as are wanted, past those that others hold; ``skip`` grows by all that were tried."""
    got: Ranges = []
    missing = wanted.count
    try:
        with store.view.mutex:
            while missing and (tried := candidates(store, wanted, missing, skip, holds)):
                for number, first, count in tried:
                    locked = store.shared.claims.claim(number, first, count)
                    got += [(number, piece, length) for piece, length in locked]
                    missing -= sum(length for _, length in locked)
                if missing:
                    skip.update(positions(tried))
    except BaseException:
        release(store, got)
        raise
    return got


def release(store: Store, ranges: Ranges) -> None:
    """Let go of claims: exactly what is in ``ranges``, never a hull."""
    for number, first, count in ranges:
        store.shared.claims.release(number, first, count)


# -- from a claim to where its body lies ------------------------------------------------------------------------------


class HeldMessage(NamedTuple):
    """A claimed message without its body, for a process that has not opened the space. Offsets and lengths in bytes.

    ``names``: where its file may lie, relative to the space, in the direction in which files move.
    """

    id: str
    queue: str
    position: Position
    enqueued_at: float
    attributes: Mapping[str, Any]
    names: tuple[str, ...]
    body: BodyPlace


def held_messages(store: Store, ranges: Ranges) -> list[HeldMessage]:
    """For claimed messages, in order."""
    found = []
    with store.view.mutex:
        for position in positions(ranges):
            run = store.view.index.messages.find(position)
            if run is None:
                raise SystemFailure(f"message {position} left the index while it was held")
            branch_id, ordinal = store.view.index.messages.branch_of(position)
            source, row = run.file, run.row_of(position.ordinal)
            name = layout.committed(source.number, source.adoption)
            found.append(
                HeldMessage(
                    message_id(branch_id, ordinal), run.queue.name, position, run.committed_at,
                    _with_defaults(store, run.queue.name, run.attributes),
                    (name,) if source.xid is None else (layout.prepared(source.xid), name),
                    store.files.cache.place(source, run.section, row),
                )
            )  # fmt: skip
    return found


# -- from a claim to a message ----------------------------------------------------------------------------------------


def messages(store: Store, ranges: Ranges, deadline: Deadline) -> tuple[list[Message], Ranges]:
    """The claimed messages, and the claims of those that are not delivered: their bodies are damaged, and went to
    quarantine, or they are behind one whose codec cannot read it. UnknownCodec if that is the first."""
    found: list[Message] = []
    bad: Ranges = []
    for place, (number, first, count) in enumerate(ranges):
        try:
            found += read_messages(store, number, first, count)
        except (CorruptedFile, UnknownCodec):
            for ordinal in range(first, first + count):
                try:
                    found += read_messages(store, number, ordinal, 1)
                except CorruptedFile as error:
                    set_aside(store, Position(number, ordinal), str(error), deadline)
                    bad.append((number, ordinal, 1))
                except UnknownCodec:
                    if not found:
                        raise
                    return found, [*bad, (number, ordinal, first + count - ordinal), *ranges[place + 1 :]]
    return found, bad


def read_messages(store: Store, number: int, first: int, count: int, *, only_looked_at: bool = False) -> list[Message]:
    """Neighbouring live messages with their bodies; CorruptedFile if one is damaged.

    A body whose codec cannot read it here is an UnknownCodec; of messages that are ``only_looked_at``, the bytes as
    stored.
    """
    found: list[Message] = []
    with store.view.mutex:
        ordinal = first
        while ordinal < first + count:
            run, stop = store.view.index.messages.run_from(number, ordinal, first + count)
            if run is None:
                raise SystemFailure(f"message {number}/{ordinal} left the index while it was held")
            found += _read_run(store, run, ordinal, stop - ordinal, only_looked_at)
            ordinal = stop
    return found


def _read_run(store: Store, run: Run, ordinal: int, count: int, only_looked_at: bool) -> list[Message]:
    raws = store.files.cache.bodies(run.file, run.section, run.row_of(ordinal), count)
    branch_id, place = store.view.index.messages.branch_of(Position(run.number, ordinal))
    codec, queue = run.attributes.get("codec"), run.queue.name
    attributes = _with_defaults(store, queue, run.attributes)
    origin = Origin(branch_id.hex(), ordinal - place, queue, run.number, run.committed_at, attributes)
    if codec is None or store.raw_bodies:
        return neighbours(origin, ordinal, raws)
    bodies: list[Any] = []
    for raw in raws:
        try:
            bodies.append(codecs.decode(raw, codec))
        except UnknownCodec as error:
            if not only_looked_at:
                id_ = message_id(branch_id, place + len(bodies))
                raise UnknownCodec(f"message {id_} of queue {queue} stays where it is: {error}") from None
            bodies.append(raw)
    return neighbours(origin, ordinal, bodies)


def _with_defaults(store: Store, queue: str, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The queue's reply and failure queue stand in for a message's own."""
    config = store.config.queues.get(queue)
    if config is None or (config.reply_queue is None and config.failure_queue is None):
        return attributes
    defaults = {"reply_queue": config.reply_queue, "failure_queue": config.failure_queue}
    return {**{name: value for name, value in defaults.items() if value is not None}, **attributes}


def set_aside(store: Store, position: Position, reason: str, deadline: Deadline) -> None:
    """A damaged body: keep its bytes and the reason in quarantine, and take the message out of its queue.

    The file there is one msgpack map: what ``put`` was told, with the body's bytes as they lie, if they can be read.
    """
    with store.view.mutex:
        run = store.view.index.messages.find(position)
        if run is None:
            return
        branch_id, place = store.view.index.messages.branch_of(position)
        id_, queue = message_id(branch_id, place), run.queue.name
        name = layout.committed(run.file.number, run.file.adoption)
        described: dict[str, Any] = {"queue": queue, "id": id_, **run.attributes}
        try:
            described["body"] = store.files.cache.unproven(run.file, run.section, run.row_of(position.ordinal))
        except (CorruptedFile, OSError) as error:
            described["body"] = None
            reason = f"{reason}; its bytes cannot be read: {error}"
    text = f"message {id_} of queue {queue} was not delivered: {reason}; put it again"
    quarantine_bytes(store.files.disk, f"{name}.{position.ordinal}", msgpack.packb(described), text)
    draft = CommitBatch()
    draft.remove(position.number, position.ordinal, 1, "failed")
    commit_batch(store, draft, deadline, flush=True)


def find_message(store: Store, wanted_id: str) -> Message:
    """A message by id, wherever it is, without claiming it; BadMessageId if there is none."""
    catch_up(store)
    with store.view.mutex:
        position = store.view.index.messages.position_of(*parse_message_id(wanted_id))
    found = None if position is None else peek(store, position)
    if found is None:
        raise BadMessageId(f"there is no message {wanted_id}: it was taken, or never committed")
    return found


def peek(store: Store, position: Position) -> Message | None:
    """A message that nobody here has claimed, or None if it is gone; CorruptedFile if it is damaged.

    Others may take it, and reclaim or recycle its file, while we look: then catching up tells that it is gone.
    """
    problem: Exception | None = None
    for _ in range(2):
        with store.view.mutex:
            if store.view.index.messages.find(position) is None:
                return None
            try:
                return read_messages(store, position.number, position.ordinal, 1, only_looked_at=True)[0]
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        catch_up(store)
    with store.view.mutex:
        run = store.view.index.messages.find(position)
        if run is None:
            return None
        id_, queue = message_id(*store.view.index.messages.branch_of(position)), run.queue.name
    place = f"{position.number}/{position.ordinal}"
    raise CorruptedFile(f"message {id_} of queue {queue} (position {place}) is damaged: {problem}; {WHAT_TO_DO}")


def wait_for(
    store: Store, wanted: Wanted, attempt: Callable[[], Ranges], deadline: Deadline, holds: GroupHolds,
    check: Callable[[], object],
) -> Ranges:  # fmt: skip
    """Repeat an attempt until it gets something or the deadline passes. Of the threads that wait for one queue, one
    looks for all: whoever gets something makes room for the next. ``check`` raises if there is no point in waiting."""
    got = attempt()
    if got or deadline.remaining() <= 0:
        return got
    if holds.names:  # what it waits for may be for nobody else
        return _look_now_and_then(store, wanted, attempt, deadline)
    turn = store.turns.setdefault(wanted.queue, threading.Lock())
    while not turn.acquire(timeout=min(IDLE_SECONDS, deadline.remaining())):
        interrupts.admit()
        check()
        if deadline.remaining() <= 0:
            return attempt()
    try:
        return _look_now_and_then(store, wanted, attempt, deadline)
    finally:
        turn.release()


def _look_now_and_then(store: Store, wanted: Wanted, attempt: Callable[[], Ranges], deadline: Deadline) -> Ranges:
    """When something was published, and besides, because not all that makes a message free is published, and an event
    may be lost."""
    heard, rang = store.shared.notifier.rings, False

    def pause_for(short: float) -> bool:
        nonlocal heard, rang
        if rang:  # and in vain: in a busy space not every commit is worth a look of everybody who waits
            store.clock.sleep(min(BUSY_SECONDS, deadline.remaining()))
        seconds = min(patience(store, wanted, short), deadline.remaining())
        rang = store.shared.notifier.wait(heard, seconds, deaf_seconds=short)
        heard = store.shared.notifier.rings
        return rang

    for _ in deadline.polls(pause_for=pause_for):
        got = attempt()
        if got:
            return got
    return []


def patience(store: Store, wanted: Wanted, short: float) -> float:
    """How long to wait for the bell after an attempt in vain.

    A message that is there, but held by a claim or a prepared branch, can become free silently: its holder dies, or
    lets go of what it had only looked at; so those are looked at often. A delayed one becomes due at a time that is
    known. Whatever else can come is published; then only a lost event, Ctrl-C or a closed space is to be noticed.
    """
    if is_there(store, wanted):
        return short
    with store.view.mutex:
        due = None if wanted.by_key else store.view.index.messages.queue(wanted.queue).next_due()
    return IDLE_SECONDS if due is None else max(short, min(IDLE_SECONDS, due - store.clock.now()))
