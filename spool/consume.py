"""Taking messages: choose in order, claim, look again, deliver."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from spool import codecs, layout
from spool.clock import Deadline
from spool.counters import Page
from spool.decide import settle_the_dead
from spool.draft import Draft
from spool.errors import BadMessageId, CorruptedFile, MessageInUse, SystemFailure
from spool.message import Message, Origin, Position, message_id, neighbours, parse_message_id
from spool.notes import Undertaker
from spool.quarantine import quarantine_bytes
from spool.ranges import Ranges, append, positions, subtract
from spool.reader import BodyPlace
from spool.retries import commit_draft
from spool.runs import Run
from spool.store import Store
from spool.visibility import catch_up, list_prepared, look_again

# How long who waits for a message leaves it to the bell. Ctrl-C and closing the space wait as long at most.
IDLE_SECONDS = 0.1
# The shortest time between two looks of who was woken for nothing.
BUSY_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a get asks for: the front of a queue, one message by id, or the first with a correlation id."""

    queue: str
    count: int = 1
    message_id: str | None = None
    correlation_id: str | None = None

    @property
    def by_key(self) -> bool:
        return self.message_id is not None or self.correlation_id is not None


def claim(
    store: Store,
    undertaker: Undertaker,
    wanted: Wanted,
    page: Page,
    deadline: Deadline,
    note: Callable[[Ranges], None],
) -> Ranges:
    """Claims of messages that are there and nobody else's, in the queue's order; [] if there is none now.

    ``page``: the counters, just read. ``note`` is told of claims as soon as they are locked. MessageInUse if a message
    asked for by id is held.
    """
    store.follows = True
    catch_up(store, page)
    list_prepared(store, page)  # or what a branch held that was rolled back since would still look taken
    skip: set[tuple[int, int]] = set()
    while True:
        got = _claim_free(store, wanted, skip)
        if not got:
            seen = store.index.applied
            # A coordinator that is gone held messages by its prepared branches; and something came while we looked.
            if settle_the_dead(store, deadline) or store.index.applied > seen:
                continue
            if wanted.message_id is not None and _is_there(store, wanted):
                raise MessageInUse(f"message {wanted.message_id} is held by another transaction: try again later")
            return []
        try:
            note(got)
            for number in {number for number, _, _ in got}:
                undertaker.count_dead(number, deadline)
            look_again(store, deadline)
            with store.mutex:
                kept = _still_there(store, wanted, got)
        except BaseException:
            release(store, got)
            raise
        release(store, subtract(got, kept))
        if kept:
            return kept


def _claim_free(store: Store, wanted: Wanted, skip: set[tuple[int, int]]) -> Ranges:
    """Lock up to as many as are wanted, past those that others hold; ``skip`` grows by all that were tried."""
    got: Ranges = []
    missing = wanted.count
    try:
        with store.mutex:
            while missing and (tried := _candidates(store, wanted, missing, skip)):
                for number, first, count in tried:
                    locked = store.claims.claim(number, first, count)
                    got += [(number, piece, length) for piece, length in locked]
                    missing -= sum(length for _, length in locked)
                if missing:
                    skip.update(positions(tried))
    except BaseException:
        release(store, got)
        raise
    return got


def _candidates(store: Store, wanted: Wanted, missing: int, skip: set[tuple[int, int]]) -> Ranges:
    """Up to ``missing`` messages that look free, front first."""
    found: Ranges = []
    for run, first, count in _in_line(store, wanted):
        claimed = store.claims.held(run.number)
        if not (claimed or skip or store.prepared.held):
            taken = min(count, missing)
            append(found, run.number, first, taken)
            missing -= taken
        else:
            for ordinal in range(first, first + count):
                place = (run.number, ordinal)
                if ordinal not in claimed and place not in skip and place not in store.prepared.held:
                    append(found, run.number, ordinal, 1)
                    missing -= 1
                    if not missing:
                        break
        if not missing:
            return found
    return found


def _in_line(store: Store, wanted: Wanted) -> Iterator[tuple[Run, int, int]]:
    """Runs, and which of their messages are asked for (first, count), in the order of delivery."""
    if wanted.message_id is not None:
        position = store.index.position_of(*parse_message_id(wanted.message_id))
        run = None if position is None else store.index.find(position)
        if run is not None and position is not None and run.queue.name == wanted.queue:
            yield run, position.ordinal, 1
        return
    ready = store.index.in_order(wanted.queue, store.clock.now())
    # By its key a delayed message is taken at once (Q04).
    by_key = wanted.correlation_id
    for run in ready if by_key is None else store.index.correlated(wanted.queue, by_key):
        yield run, run.first, run.live


def _is_there(store: Store, wanted: Wanted) -> bool:
    with store.mutex:
        return any(True for _ in _in_line(store, wanted))


def _still_there(store: Store, wanted: Wanted, got: Ranges) -> Ranges:
    """Of what was claimed, what may be delivered after looking again: pieces of ``got``, in order."""
    kept: Ranges = []
    now = store.clock.now()
    for number, first, count in got:
        pieces: Ranges = []
        ordinal = first
        while ordinal < first + count:
            run, stop = store.index.run_from(number, ordinal, first + count)
            if (
                run is not None
                and run.queue.name == wanted.queue
                and (wanted.by_key or run.due is None or run.due <= now)
            ):
                if not store.prepared.held:
                    append(pieces, number, ordinal, stop - ordinal)
                else:
                    for one in range(ordinal, stop):
                        if (number, one) not in store.prepared.held:
                            append(pieces, number, one, 1)
            ordinal = stop
        kept += pieces
    return kept


def release(store: Store, ranges: Ranges) -> None:
    """Let go of claims: exactly what is in ``ranges``, never a hull."""
    for number, first, count in ranges:
        store.claims.release(number, first, count)


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
    with store.mutex:
        for position in positions(ranges):
            run = store.index.find(position)
            if run is None:
                raise SystemFailure(f"message {position} left the index while it was held")
            branch_id, ordinal = store.index.branch_of(position)
            source, row = run.source, run.row_of(position.ordinal)
            name = layout.committed(source.number, source.adoption)
            found.append(
                HeldMessage(
                    message_id(branch_id, ordinal), run.queue.name, position, run.committed_at,
                    _with_defaults(store, run.queue.name, run.attributes),
                    (name,) if source.xid is None else (layout.prepared(source.xid), name),
                    store.sources.place(source, run.section, row),
                )
            )  # fmt: skip
    return found


# -- from a claim to a message ----------------------------------------------------------------------------------------


def messages(store: Store, ranges: Ranges, deadline: Deadline) -> tuple[list[Message], Ranges]:
    """The claimed messages, and the claims of those whose bodies are damaged: those went to quarantine."""
    found: list[Message] = []
    bad: Ranges = []
    for number, first, count in ranges:
        try:
            found += read_messages(store, number, first, count)
        except CorruptedFile:
            for ordinal in range(first, first + count):
                try:
                    found += read_messages(store, number, ordinal, 1)
                except CorruptedFile as error:
                    set_aside(store, Position(number, ordinal), str(error), deadline)
                    bad.append((number, ordinal, 1))
    return found, bad


def read_messages(store: Store, number: int, first: int, count: int) -> list[Message]:
    """Neighbouring live messages with their bodies; CorruptedFile if one is damaged."""
    found: list[Message] = []
    with store.mutex:
        ordinal = first
        while ordinal < first + count:
            run, stop = store.index.run_from(number, ordinal, first + count)
            if run is None:
                raise SystemFailure(f"message {number}/{ordinal} left the index while it was held")
            found += _read_run(store, run, ordinal, stop - ordinal)
            ordinal = stop
    return found


def _read_run(store: Store, run: Run, ordinal: int, count: int) -> list[Message]:
    raws = store.sources.bodies(run.source, run.section, run.row_of(ordinal), count)
    branch_id, place = store.index.branch_of(Position(run.number, ordinal))
    codec, queue = run.attributes.get("codec"), run.queue.name
    attributes = _with_defaults(store, queue, run.attributes)
    origin = Origin(branch_id.hex(), ordinal - place, queue, run.number, run.committed_at, attributes)
    return neighbours(origin, ordinal, raws if codec is None else [codecs.decode(raw, codec) for raw in raws])


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
    with store.mutex:
        run = store.index.find(position)
        if run is None:
            return
        branch_id, place = store.index.branch_of(position)
        name = layout.committed(run.source.number, run.source.adoption)
        described: dict[str, Any] = {"queue": run.queue.name, "id": message_id(branch_id, place), **run.attributes}
        try:
            described["body"] = store.sources.unproven(run.source, run.section, run.row_of(position.ordinal))
        except (CorruptedFile, OSError) as error:
            described["body"] = None
            reason = f"{reason}; its bytes cannot be read: {error}"
    quarantine_bytes(store.disk, f"{name}.{position.ordinal}", msgpack.packb(described), reason)
    draft = Draft()
    draft.remove(position.number, position.ordinal, 1, "failed")
    commit_draft(store, draft, deadline, flush=True)


def find_message(store: Store, wanted_id: str) -> Message:
    """A message by id, wherever it is, without claiming it; BadMessageId if there is none."""
    catch_up(store)
    with store.mutex:
        position = store.index.position_of(*parse_message_id(wanted_id))
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
        with store.mutex:
            if store.index.find(position) is None:
                return None
            try:
                return read_messages(store, position.number, position.ordinal, 1)[0]
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        catch_up(store)
    raise CorruptedFile(f"message {position.ordinal} of commit {position.number} cannot be read: {problem}")


def wait_for(store: Store, wanted: Wanted, attempt: Callable[[], Ranges], deadline: Deadline) -> Ranges:
    """Repeat an attempt until it gets something or the deadline passes: when something was published, and now and then,
    because not all that makes a message free is published, and an event may be lost."""
    heard, rang = store.bell.rings, False

    def pause_for(short: float) -> bool:
        nonlocal heard, rang
        if rang:  # and in vain: in a busy space not every commit is worth a look of everybody who waits
            store.clock.sleep(min(BUSY_SECONDS, deadline.remaining()))
        seconds = min(_patience(store, wanted, short), deadline.remaining())
        rang = store.bell.wait(heard, seconds, deaf_seconds=short)
        heard = store.bell.rings
        return rang

    for _ in deadline.polls(pause_for=pause_for):
        got = attempt()
        if got:
            return got
    return []


def _patience(store: Store, wanted: Wanted, short: float) -> float:
    """How long to wait for the bell after an attempt in vain.

    A message that is there, but held by a claim or a prepared branch, can become free silently: its holder dies, or
    lets go of what it had only looked at; so those are looked at often. A delayed one becomes due at a time that is
    known. Whatever else can come is published; then only a lost event, Ctrl-C or a closed space is to be noticed.
    """
    if _is_there(store, wanted):
        return short
    with store.mutex:
        due = None if wanted.by_key else store.index.queue(wanted.queue).next_due()
    return IDLE_SECONDS if due is None else max(short, min(IDLE_SECONDS, due - store.clock.now()))
