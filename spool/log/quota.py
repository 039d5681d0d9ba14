"""How full a queue and a space are, and whether more fits.

What counts is what is there: messages that live, held or not, and those that branches in doubt would add, for they may
come at any time. The count is exact under the number lock, after every issued number: that is where a commit or a vote
is refused. Earlier, a put is refused where it cannot succeed as things stand. What fails moves to its error queue, full
or not: a limit never loses a message.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from spool.errors import Full, TransactionTimeout
from spool.format.format import Table
from spool.log.sequence import settle_all
from spool.log.visibility import catch_up, list_prepared
from spool.names import plural
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.store import Store


class Load(NamedTuple):
    """Messages, and bytes of their bodies."""

    messages: int = 0
    bytes: int = 0

    def plus(self, other: "Load") -> "Load":
        return Load(self.messages + other.messages, self.bytes + other.bytes)


Loads = Mapping[str, Load]


def see_all(store: Store, deadline: Deadline) -> None:
    """Under the number lock: everything that counts."""
    try:
        catch_up(store, list_prepared(store, settle_all(store, deadline)))
    except WaitExpired as error:
        raise TransactionTimeout(f"{error}; the transaction was rolled back") from None


def check_room(store: Store, added: Loads, doubtful: Loads | None = None) -> None:
    """Full if these do not fit, as far as this process has seen. ``doubtful``: what is in doubt, for who asks more than
    once."""
    config = store.config
    with store.view.mutex:
        doubtful = in_doubt(store) if doubtful is None else doubtful
        for queue, load in added.items():
            limits = config.queues.get(queue)
            if limits is not None and _grows(load):
                there = load_of(store, queue, doubtful)
                _compare(f"queue {queue}", limits.max_messages, limits.max_bytes, there, load)
        total = sum_of(added.values())
        if (config.max_messages is not None or config.max_bytes is not None) and _grows(total):
            _compare("the space", config.max_messages, config.max_bytes, load_of_all(store, doubtful), total)


def _grows(load: Load) -> bool:
    return load.messages > 0 or load.bytes > 0


def _compare(what: str, messages: int | None, size: int | None, there: Load, more: Load) -> None:
    if messages is not None and more.messages > 0 and there.messages + more.messages > messages:
        raise Full(
            f"{what} holds {plural(there.messages, 'message')}, {more.messages} more are too many, and its "
            f"max_messages is {messages}: take some of them, or raise the limit; nothing was put"
        )
    if size is not None and more.bytes > 0 and there.bytes + more.bytes > size:
        raise Full(
            f"{what} holds {plural(there.bytes, 'byte')}, {more.bytes} more are too many, and its max_bytes is {size}: "
            f"take some messages, or raise the limit; nothing was put"
        )


def joined(one: Loads, other: Loads) -> dict[str, Load]:
    """Both together, queue by queue."""
    found = dict(one)
    for queue, load in other.items():
        found[queue] = found.get(queue, Load()).plus(load)
    return found


def sum_of(loads: Iterable[Load]) -> Load:
    total = Load()
    for load in loads:
        total = total.plus(load)
    return total


def load_of(store: Store, queue: str, doubtful: Loads) -> Load:
    """What counts of a queue. The caller holds the mutex."""
    line = store.view.index.messages.queues.get(queue)
    there = Load() if line is None else Load(line.live, line.bytes)
    return there.plus(doubtful.get(queue, Load()))


def load_of_all(store: Store, doubtful: Loads) -> Load:
    lines = (Load(line.live, line.bytes) for line in store.view.index.messages.queues.values())
    return sum_of(lines).plus(sum_of(doubtful.values()))


def in_doubt(store: Store) -> Loads:
    """By queue, what branches in doubt would add. The caller holds the mutex."""
    return added_by(table for image in store.view.prepared.images.values() for table in image.tables)


def room_for(store: Store, tables: Callable[[], Iterable[Table]], deadline: Deadline) -> Callable[[], None]:
    """What to ask under the number lock before a branch with these tables of contents is committed or votes, with the
    settings as this process has read them by then: for a commit, under that lock; for a vote, just before it."""

    def check() -> None:
        if store.config.limited:
            see_all(store, deadline)
            check_room(store, change_by(store, tables()))

    return check


def room_in(store: Store, queue: str) -> int | None:
    """How many messages more a queue takes, as far as this process has seen; None if it has no limit."""
    limits = store.config.queues.get(queue)
    if limits is None or (limits.max_messages is None and limits.max_bytes is None):
        return None
    with store.view.mutex:
        there = load_of(store, queue, in_doubt(store))
    if limits.max_bytes is not None and there.bytes >= limits.max_bytes:
        return 0
    return None if limits.max_messages is None else max(0, limits.max_messages - there.messages)


def check_adoption(store: Store, own: Iterable[Table], unasked: Iterable[Table]) -> None:
    """For who commits prepared branches together with tables of his own. ``unasked``: those of the branches that voted
    without a look at any limit: what they put is counted as if it came now, and not among what is in doubt."""
    unasked = list(unasked)
    with store.view.mutex:
        counted = {queue: Load(-load.messages, -load.bytes) for queue, load in added_by(unasked).items()}
        doubtful = joined(in_doubt(store), counted)
    check_room(store, joined(change_by(store, own), change_by(store, unasked, moves=False)), doubtful)


# -- what a branch would add -------------------------------------------------------------------------------------------


def added_by(tables: Iterable[Table]) -> dict[str, Load]:
    """By queue, the messages in these tables of contents."""
    found: dict[str, Load] = {}
    for table in tables:
        row = 0
        for place, _, count in table.runs:
            found = joined(found, {table.queues[place]: Load(count, sum(table.lengths[row : row + count]))})
            row += count
    return found


def change_by(store: Store, tables: Iterable[Table], *, moves: bool = True) -> dict[str, Load]:
    """By queue, what a branch adds, less what it takes away of what is there, and, unless ``moves`` is False, what it
    moves from one to another."""
    tables = list(tables)
    found = added_by(tables)
    with store.view.mutex:
        for table in tables:
            for command in table.commands:
                if command[0] == "remove" or (command[0] == "update" and moves):
                    _count_command(store, found, command)
    return found


def _count_command(store: Store, found: dict[str, Load], command: list[Any]) -> None:
    name, number, ordinal, count, what = command
    target = None if name == "remove" else what.get("queue")
    if name == "update" and target is None:
        return
    end = ordinal + count
    while ordinal < end:
        run, stop = store.view.index.messages.run_from(number, ordinal, end)
        if run is not None:
            here, size = run.queue.name, run.bytes_of(ordinal, stop - ordinal)
            found.update(joined(found, {here: Load(ordinal - stop, -size)}))
            if target is not None:
                found.update(joined(found, {target: Load(stop - ordinal, size)}))
        ordinal = stop
