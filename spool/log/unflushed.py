"""Commits without a flush (rule 16): those of queues that may lose messages, and their bounds."""

from collections.abc import Iterable
from itertools import chain

from spool.coordination.counters import CounterPage
from spool.format.commands import Addressing
from spool.format.table import Table
from spool.log.sequence import flush_commit, flush_published
from spool.log.write_set import WriteSet
from spool.model.settings import SpaceConfig
from spool.store.parts import View
from spool.store.store import Store

# The greatest number of published commits that are not flushed yet. After a power cut an opener makes up to this many
# numbers durable one by one, and gives up if far more numbers have no file.
MOST_UNFLUSHED = 4_096


def needs_flush(view: View, config: SpaceConfig, batch: WriteSet) -> bool:
    """Return whether a commit must be flushed.

    A commit that has ``facts``, adopts branches or supersedes commits needs a flush. Any other commit needs no flush if
    all its queues may lose messages.
    """
    if batch.facts or batch.adopts or batch.supersedes:
        return True
    for table in batch.tables:
        if not config.may_lose.issuperset(table.queues):
            return True
        for command in table.commands:
            if command.name == "take" or command.name == "left":
                return True
            if not config.may_lose.issuperset(_queues_of(view, command)):
                return True
    return False


def _queues_of(view: View, command: Addressing) -> set[str]:
    """Return the queues of the messages that a command addresses, and the target queue of a move.

    "" stands for the queue of a consumed or compacted message, because a search for that message may fail.
    """
    queues = {command.changes["queue"]} if command.name == "update" and "queue" in command.changes else set[str]()
    first, end = command.first, command.first + command.length
    with view.mutex:
        while first < end:
            run, first = view.index.messages.run_at(command.number, first, end)
            queues.add("" if run is None else run.queue.name)
    return queues


def flush_moved(store: Store, batch: WriteSet, tables: Iterable[Table]) -> bool:
    """Flush the files of messages that the batch or its branches move into queues that must not lose messages.

    Files that are durable already are skipped. Returns True if a file was flushed: then the commit must also be
    flushed.
    """
    durable, may_lose = store.shared.counters.read().durable, store.settings.known.config.may_lose
    moved = {
        command.number
        for table in chain(tables, *(branch.tables for branch in batch.adopted))
        for command in table.commands
        if command.name == "update" and "queue" in command.changes and command.changes["queue"] not in may_lose
    }
    late = [number for number in moved & store.view.index.unflushed if number > durable]
    for number in late:
        flush_commit(store.files.disk, number)
    return bool(late)


def keep_pace(store: Store, page: CounterPage | None) -> None:
    """Flush the commits that were published without a flush, if there are at least ``MOST_UNFLUSHED``."""
    page = page or store.shared.counters.read()
    if page.issued - page.durable >= MOST_UNFLUSHED:
        flush_published(store)
