"""Delete, move and change one message, or many messages, for an administrator.

A command changes only messages that no transaction holds. The command claims the messages, checks them again, and
commits durably. One commit changes up to a few thousand messages, and a killed process leaves only complete commits. A
held message is not changed. If the caller named a held message by its id, the caller gets MessageInUse.

A command works on a full disk: it first frees the room of messages that are already deleted, and then makes smaller
commits.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spool.admin.reads import locate, look
from spool.coordination.locks import ClaimLocks
from spool.disk.disk import is_full
from spool.errors import BadMessageId, Full, MessageInUse
from spool.index.browse import Cursor, Filter
from spool.index.run import Run
from spool.log.engine_commit import commit_batch
from spool.log.visibility import list_prepared, revalidate
from spool.log.write_set import WriteSet
from spool.maintenance.disk_space import free_room
from spool.model.position import PositionRanges, append_range, positions
from spool.model.text import plural
from spool.runtime.call_guard import deliver_pending_signals, outside_of_calls
from spool.store.parts import PreparedBranches, View
from spool.store.store import Store
from spool.transactions.claiming import Wanted, nothing_free
from spool.transactions.core import Core
from spool.transactions.hold import Hold

_AT_ONCE = 2_048  # the recycler keeps a file for a full disk; the removals of this many messages fit into the file

# A function that returns the changes to the control fields of a run's messages, or None to delete the messages.
Edit = Callable[[Run], Mapping[str, Any] | None]


def delete(run: Run) -> None:
    """Delete the messages of a run. Deleted messages count neither as dequeued nor as failed."""


def redrive_to(queue: str | None) -> Edit:
    """Move messages to the queue; if `queue` is None, each to its original queue. All attempts are permitted again."""
    return lambda run: moved(run, queue or run.attributes["origin_queue"], "origin_attempts") | {"not_before": None}


def moved(run: Run, queue: str, *counts: str) -> dict[str, Any]:
    """Move messages to the queue, with their delay. All attempts are permitted again."""
    cleared = {count: 0 for count in ("deaths", *counts) if run.attributes.get(count)}
    return {"queue": queue, "attempts": 0, **cleared}


def waits_after_a_failure(now: float) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test of a message's fields, which is true for a failed message that waits for its next attempt."""
    return lambda attributes: attributes.get("attempts", 0) > 0 and attributes.get("not_before", 0.0) > now


def act_on(core: Core, message_id: str, edit: Edit) -> None:
    """Apply ``edit`` to the message with this id.

    Raises:
        BadMessageId: the message does not exist.
        MessageInUse: a transaction holds the message.
    """
    store, hold = core.store, Hold(core)
    page = store.shared.counters.read()
    run, _ = locate(store, message_id)
    wanted = Wanted(run.queue.name, message_id=message_id)
    try:
        if not (claimed := hold.claim(wanted, page)):
            error = nothing_free(store.view, store.clock, wanted)
            if isinstance(error, MessageInUse):
                raise error
            raise BadMessageId(f"there is no message {message_id} any more: it was taken or moved, or its time is over")
        _commit(store, claimed, edit)
    finally:
        hold.end(taken=False)


@dataclass(frozen=True, slots=True)
class Bulk:
    """The messages of a queue that a bulk command changes.

    wanted: the filter that the messages match.
    dry_run: whether the command only counts the messages.
    progress: called after each commit with the number of messages so far.
    possible: whether the command can be applied to a message with these fields.
    """

    queue: str
    wanted: Filter
    dry_run: bool = False
    progress: Callable[[int], None] | None = None
    possible: Callable[[Mapping[str, Any]], bool] = lambda attributes: True

    def matches(self, attributes: Mapping[str, Any], committed_at: float, now: float) -> bool:
        return self.wanted.matches(attributes, committed_at, now) and self.possible(attributes)


def act_on_all(store: Store, bulk: Bulk, edit: Edit) -> int:
    """Apply ``edit`` to all matching messages that are not held. Return the number of changed messages.

    Raises Full if a limit of a queue refuses a commit. Its text tells how many messages were moved before.
    """
    look(store, bulk.queue)
    list_prepared(store)
    cursor = Cursor(bulk.queue, bulk.wanted)
    done = 0
    while True:
        with store.view.mutex:
            slices = cursor.next(store.view.index, store.clock.now(), _AT_ONCE)
            possible = [part for part in slices if bulk.possible(part.attributes)]
            ranges = [(part.number, min(part.ordinals), len(part.ordinals)) for part in possible]
            free = [one for messages in ranges for one in _not_in_doubt(store.view.prepared, *messages)]
        if not slices:
            return done
        try:
            done += _count_unclaimed(store.shared.claims, free) if bulk.dry_run else _act(store, bulk, free, edit)
        except Full as error:
            text = str(error).removesuffix("nothing was put")
            raise Full(f"{text}{plural(done, 'message')} moved before", error.queue) if done else error from None
        if bulk.progress is not None:
            with outside_of_calls():
                bulk.progress(done)
        deliver_pending_signals()


def _not_in_doubt(prepared: PreparedBranches, number: int, first: int, count: int) -> PositionRanges:
    """Return the messages of a range that no branch in doubt holds."""
    if not prepared.held:
        return [(number, first, count)]
    free: PositionRanges = []
    for position in positions([(number, first, count)]):
        if position not in prepared.held:
            append_range(free, number, position.ordinal, 1)
    return free


def _count_unclaimed(claims: ClaimLocks, wanted: PositionRanges) -> int:
    """Count the messages that could be claimed now. No lock is taken."""
    claimed = claims.positions()
    return sum(position not in claimed for position in positions(wanted))


def _act(store: Store, bulk: Bulk, wanted: PositionRanges, edit: Edit) -> int:
    """Apply ``edit`` to the wanted messages that are free, in one commit; on a full disk, in several smaller commits.

    Return the number of changed messages.
    """
    done, pending, has_freed = 0, [wanted], False
    while pending:
        some = pending.pop()
        try:
            done += _change_free(store, bulk, some, edit)
            has_freed = False
        except OSError as error:
            if not is_full(error) or (has_freed and len(some) == 1):
                raise
            free_room(store)
            has_freed = True
            half = len(some) // 2
            pending += [some[half:], some[:half]] if half else [some]
    return done


def _change_free(store: Store, bulk: Bulk, wanted: PositionRanges, edit: Edit) -> int:
    claimed: PositionRanges = []
    try:
        for number, first, count in wanted:
            claimed += [(number, *free) for free in store.shared.claims.claim(number, first, count)]
        if not claimed:
            return 0
        revalidate(store, claimed)
        return _commit(store, claimed, edit, bulk)
    finally:
        store.shared.claims.release_all(claimed)


def _commit(store: Store, claimed: PositionRanges, edit: Edit, bulk: Bulk | None = None) -> int:
    batch, done = WriteSet(), 0
    with store.view.mutex:
        now = store.clock.now()
        for run, first, count in _runs(store.view, claimed):
            if bulk is not None and not (
                run.queue.name == bulk.queue and bulk.matches(run.attributes, run.committed_at, now)
            ):
                continue  # the message was moved or changed meanwhile
            if (changes := edit(run)) is None:
                batch.remove(run.number, first, count, "deleted")
            else:
                batch.update(run.number, first, count, changes)
            done += count
    if done:
        commit_batch(store, batch, store.deadline(), limited=True)
    return done


def _runs(view: View, ranges: PositionRanges) -> Iterator[tuple[Run, int, int]]:
    """Yield (run, first ordinal, count) of the messages that are still in a queue and that no branch in doubt holds."""
    for number, first, count in ranges:
        for run, ordinal, stop in view.index.messages.live_runs(number, first, first + count):
            for _, start, length in _not_in_doubt(view.prepared, number, ordinal, stop - ordinal):
                yield run, start, length
