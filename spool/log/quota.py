"""Quotas: the usage of queues and of the space, and whether more messages fit.

The usage of a queue counts its live messages, claimed or not, and the messages that prepared branches would add. A
prepared branch may be committed at any time. Under the number lock, after every issued number has been applied, the
count is exact. A commit or a vote that does not fit is refused under this lock. A put is refused earlier, without the
lock, if this process already knows that the messages do not fit. A failed message moves to its error queue even if the
error queue is full, because no message is lost by a limit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from spool.errors import Full
from spool.format.commands import Addressing, addressing
from spool.format.table import Table
from spool.log.settled_lock import settle_and_catch_up
from spool.log.write_set import WriteSet
from spool.model.settings import QueueConfig, SpaceConfig
from spool.model.text import plural
from spool.model.xid import FORMAT_ROUND
from spool.store.parts import PreparedBranches, View
from spool.store.settings_reader import Settings
from spool.store.store import Store


class Usage(NamedTuple):
    """A number of messages, and the total size of their bodies in bytes."""

    messages: int = 0
    bytes: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(self.messages + other.messages, self.bytes + other.bytes)


UsageByQueue = Mapping[str, Usage]
_NOTHING = Usage()


def check_room(view: View, settings: Settings, added: UsageByQueue, prepared: UsageByQueue | None = None) -> None:
    """Raise Full if messages do not fit, as far as this process knows.

    Args:
        added: the usage to add, by queue.
        prepared: the result of ``prepared_usage``, if the caller has it.
    """
    config = settings.config
    with view.mutex:
        prepared = prepared_usage(view.prepared) if prepared is None else prepared
        for queue, usage in added.items():
            if (limits := config.queues.get(queue)) is not None:
                _compare(queue, limits, usage_of(view, queue, prepared), usage)
        if config.max_messages is not None or config.max_bytes is not None:
            live = sum_of(Usage(queue.live, queue.bytes) for queue in view.index.messages.queues.values())
            _compare(None, config, live.plus(sum_of(prepared.values())), sum_of(added.values()))


def _compare(queue: str | None, limits: QueueConfig | SpaceConfig, there: Usage, more: Usage) -> None:
    """Raise Full if messages do not fit into a queue, or into the space if ``queue`` is None."""
    what = "the space" if queue is None else f"queue {queue}"
    for most, held, new, unit in _exceeded(limits, there, more):
        raise Full(
            f"{what} holds {plural(held, unit)} of at most {most} (max_{unit}s), so {new} more do not fit: "
            "take some messages, or raise the limit; nothing was put",
            queue,
        )


def _exceeded(limits: QueueConfig | SpaceConfig, there: Usage, more: Usage) -> Iterator[tuple[int, int, int, str]]:
    """Yield each limit that ``more`` beside ``there`` would exceed, with the numbers that it compares and their
    unit."""
    for most, held, new, unit in (
        (limits.max_messages, there.messages, more.messages, "message"),
        (limits.max_bytes, there.bytes, more.bytes, "byte"),
    ):
        if most is not None and new > 0 and held + new > most:
            yield most, held, new, unit


def never_fits(config: SpaceConfig, added: UsageByQueue) -> str:
    """Return a text about the limit that these messages exceed even in an empty space; "" if they exceed no limit."""
    found: list[tuple[str, QueueConfig | SpaceConfig, Usage]] = [("the space", config, sum_of(added.values()))]
    found += [(f"queue {queue}", config.queues[queue], usage) for queue, usage in added.items()]
    for what, limits, usage in found:
        for most, _, new, unit in _exceeded(limits, _NOTHING, usage):
            return f"{what} holds at most {plural(most, unit)} (max_{unit}s), so {new:,} never fit"
    return ""


def combined(one: UsageByQueue, other: UsageByQueue) -> dict[str, Usage]:
    """Add two usages, queue by queue."""
    return {queue: one.get(queue, _NOTHING).plus(other.get(queue, _NOTHING)) for queue in {**one, **other}}


def sum_of(usages: Iterable[Usage]) -> Usage:
    return reduce(Usage.plus, usages, Usage())


def usage_of(view: View, queue: str, prepared: UsageByQueue) -> Usage:
    """Return the usage of a queue. Caller holds the mutex."""
    known = view.index.messages.queues.get(queue)
    there = Usage() if known is None else Usage(known.live, known.bytes)
    return there.plus(prepared.get(queue, Usage()))


def prepared_usage(prepared: PreparedBranches, coordinators: Collection[bytes] = ()) -> UsageByQueue:
    """Return, for each queue, the usage that prepared branches would add. Caller holds the mutex.

    ``coordinators``: gtrids of forwarding rounds and Spark writes. The branches with these gtrids do not count.
    """
    found: dict[str, Usage] = {}
    for xid, contents in prepared.branches.items():
        if xid.format_id != FORMAT_ROUND or xid.gtrid not in coordinators:
            known = prepared.usages.get(xid)
            if known is None or known[0] is not contents:
                prepared.usages[xid] = known = contents, added_by(contents.tables)
            found = combined(found, known[1])
    return found


def usages_of(store: Store, write_sets: Iterable[WriteSet]) -> list[UsageByQueue]:
    """Return the usage that each write set adds.

    The usage is computed without the number lock, because a branch may have millions of messages. The usage is still
    right under the lock, because the owner of a write set holds the messages that it removes or moves.
    """
    settle_and_catch_up(store, store.deadline())  # (write sets may remove messages that other processes have put)
    with store.view.mutex:
        prepared_usage(store.view.prepared)  # computed once for each prepared branch
    return [change_by(store.view, _counted_in(one)) for one in write_sets]


def _counted_in(one: WriteSet) -> list[Table]:
    """Return the tables of contents that count as new: those of the write set, and those of adopted branches that voted
    without a check, as tasks of a forwarding round do."""
    written = one.file.tables if one.file is not None and one.file.streamed else []
    adopted = [found for found in one.adopted if found.header.branches[0].xid.format_id == FORMAT_ROUND]
    return [*written, *one.tables, *(table for found in adopted for table in found.tables)]


def refuse_full(
    store: Store, settings: Settings, write_sets: Sequence[WriteSet], usages: Sequence[UsageByQueue] | None
) -> None:
    """Set the error of each write set that does not fit into a quota beside the accepted write sets.

    The caller holds the number lock. Prepared branches of the same rounds as adopted branches do not count, because
    they are never committed: they belong to further attempts at the same work, or to copied messages.

    ``usages``: the result of ``usages_of``; None if a limit was set a moment ago.
    """
    settle_and_catch_up(store, store.deadline())
    view, added = store.view, dict[str, Usage]()
    rounds = {adopted.xid.gtrid for one in write_sets for adopted in one.adopts}
    with view.mutex:
        prepared = prepared_usage(view.prepared, rounds.union(*(one.rounds for one in write_sets)))
    for one, change in zip(write_sets, usages or usages_of(store, write_sets), strict=True):
        if one.error is None:
            try:
                if any(usage.messages > 0 or usage.bytes > 0 for usage in change.values()):
                    check_room(view, settings, change, combined(prepared, added))
                added = combined(added, change)
            except Full as error:
                one.error = error


def room_in(view: View, settings: Settings, queue: str) -> int | None:
    """Return how many more messages a queue takes, as far as this process knows; None if there is no limit."""
    limits = settings.config.queues.get(queue)
    if limits is None or (limits.max_messages is None and limits.max_bytes is None):
        return None
    with view.mutex:
        there = usage_of(view, queue, prepared_usage(view.prepared))
    if limits.max_bytes is not None and there.bytes >= limits.max_bytes:
        return 0
    return None if limits.max_messages is None else max(0, limits.max_messages - there.messages)


# -- the usage that a branch adds --------------------------------------------------------------------------------------


def added_by(tables: Iterable[Table]) -> dict[str, Usage]:
    """Return, for each queue, the usage of the messages in these tables of contents."""
    found: dict[str, Usage] = {}
    for table in tables:
        row = 0
        for place, _, count in table.runs:
            queue, size = table.queues[place], sum(table.lengths[row : row + count])
            found[queue] = found.get(queue, _NOTHING).plus(Usage(count, size))
            row += count
    return found


def change_by(view: View, tables: Iterable[Table]) -> dict[str, Usage]:
    """Return, for each queue, the change of its usage by branches with these tables of contents."""
    tables = list(tables)
    found = added_by(tables)
    with view.mutex:
        for table in tables:
            for command in addressing(table.commands):
                _count_command(view, found, command)
    return found


def _count_command(view: View, found: dict[str, Usage], command: Addressing) -> None:
    target: str | None = None
    if command.name == "update":
        if "queue" not in command.changes:
            return
        if "failure_reason" not in command.changes:  # (a failed message moves to its error queue, full or not)
            target = command.changes["queue"]
    begin, end = command.first, command.first + command.length
    for run, first, stop in view.index.messages.live_runs(command.number, begin, end):
        here, more = run.queue.name, Usage(stop - first, run.bytes_of(first, stop - first))
        found[here] = found.get(here, _NOTHING).plus(Usage(-more.messages, -more.bytes))
        if target is not None:
            found[target] = found.get(target, _NOTHING).plus(more)
