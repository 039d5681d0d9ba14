"""The tasks of an open space that have not ended: waiting ones by name, and held ones one by one."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice

from spool.admin.holders import by_position, name_processes
from spool.admin.listing import QueueEntry, current_entry
from spool.index.browse import Cursor, Filter
from spool.log.visibility import catch_up, list_prepared
from spool.model.message import due_time
from spool.model.text import one_line
from spool.store.store import Store
from spool.watch.failures import slices_of
from spool.watch.tasks import NAME


@dataclass
class WaitingTasks:
    """The waiting messages of one task in a queue. oldest: when the first of them was put, in seconds since the epoch;
    None if all of them are delayed."""

    ready: int = 0
    delayed: int = 0
    oldest: float | None = None


def waiting_tasks(store: Store, queue: str, most: int) -> tuple[dict[str, WaitingTasks], bool]:
    """Count the messages of a queue that nobody holds, by the name of the task; "" is the name of other messages.

    The second value is whether all messages were counted: the call stops after ``most`` entries of the index.
    """
    catch_up(store)
    held = defaultdict[int, Counter[int]](Counter)
    with store.view.mutex:
        for number, ordinal in (*store.shared.claims.positions(), *store.view.prepared.held):
            held[number][ordinal] = 1
    now, found = store.clock.now(), defaultdict[str, WaitingTasks](WaitingTasks)
    slices = slices_of(store, Cursor(queue, Filter()))
    for each in islice(slices, most):
        count = len(each.ordinals)
        if each.number in held:
            count -= sum(ordinal in held[each.number] for ordinal in each.ordinals)
        if not count:
            continue
        waiting = found[one_line(each.attributes.get("headers", {}).get(NAME, ""))]
        due = due_time(each.attributes, each.committed_at)
        if due is not None and due > now:
            waiting.delayed += count
        else:
            waiting.ready += count
            waiting.oldest = min(each.committed_at, waiting.oldest or each.committed_at)
    return dict(found), next(slices, None) is None


def held_messages(store: Store, most: int, preview: int) -> list[QueueEntry]:
    """Return the messages that programs hold, in all queues: first those whose handling has begun, the oldest first.

    ``preview``: how many bytes of each body to read.
    """
    catch_up(store)
    list_prepared(store)
    held = by_position(store.files.disk, store.shared, store.view)
    order = sorted(held, key=lambda place: (held[place].since or float("inf"), place))[:most]
    name_processes(store.shared, held, order)
    found = []
    for position in order:
        with store.view.mutex:
            run = store.view.index.messages.find(position)
        entry = None if run is None else current_entry(store, run, position, held, preview)
        if entry is not None:
            found.append(entry)
    return found
