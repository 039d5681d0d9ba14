"""Get the places and sizes of an open space's messages from the index. ``locate`` finds moved messages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from spool.admin.reads import WHAT_TO_DO
from spool.errors import CorruptedFile
from spool.format.table import CompactedTable
from spool.index.commit import Subscription
from spool.index.run import Run
from spool.index.segment import LiveRun, Segment, pack_position
from spool.index.stored_run import StoredRun, stored_run_of
from spool.log.visibility import catch_up
from spool.model.layout import MAX_ORDINAL
from spool.model.message import expiry_time, with_defaults
from spool.model.text import no_queue
from spool.policies.subscriptions import put_by
from spool.reading.places import Compacted, Item, packed
from spool.runtime.call_guard import public_call, within
from spool.store.store import Store

T = TypeVar("T")

_MOST_ATTEMPTS = 3  # attempts to read the index, while other processes compact files


class CommitSize(NamedTuple):
    """The number of messages of a commit, and the sum of the sizes of their bodies."""

    number: int
    messages: int
    bytes: int


class Backlog:
    """The messages of some queues, or of all queues, by commit. A program can read a backlog without taking messages.

    Args:
        queues: the names of the queues; empty for all queues.
        headers: the headers that a message must have, with their values. The message may also have other headers.

    Raises:
        QueueNotFound: one of the queues does not exist.
    """

    def __init__(self, store: Store, queues: Sequence[str] = (), headers: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._headers = headers or {}
        there = store.settings.current(store.check_usable()).config.queues
        for name in queues:
            if name not in there:
                raise no_queue(name, there, "name queues of this space, or none to read all of them")
        self._queues = {name: there[name] for name in queues or there}
        self._all = Subscription(tuple(queues), 0, 0, 0.0)  # (of all messages, from the first commit on)

    @public_call("reading messages")
    def items(self, first: int, last: int) -> list[tuple[Item, int]]:
        """Return the places of the messages of commits ``first`` to ``last``, each with the size of its bodies."""
        return self._told(lambda: list(self._items(first, last)))

    @public_call("reading messages")
    def sizes(self, first: int, last: int) -> list[CommitSize]:
        """Return, in order, the sizes of the commits from ``first`` to ``last`` that still have messages."""
        return self._told(lambda: self._sizes(first, last))

    @public_call("reading messages")
    def kept_sizes(self, first: int, last: int) -> list[CommitSize]:
        """Return, in order, an upper limit of the size that each commit from ``first`` to ``last`` had at first."""
        catch_up(self._store)
        with self._store.view.mutex:
            files, index = self._store.view.index.files, range(first, last + 1)
            numbers = index if len(index) < len(files) else sorted(number for number in files if number in index)
            put = [(number, self._all.messages_of(files[number])) for number in numbers if number in files]
            return [CommitSize(number, count, files[number].body_bytes) for number, count in put if count]

    @public_call("reading messages")
    def kept_items(self, first: int, last: int) -> tuple[list[tuple[Item, int]], list[int]]:
        """Read the files of the commits ``first`` to ``last``, to find the messages that these commits put.

        The result includes consumed messages.

        Returns:
            Two lists. The first has the places where the messages were put, each with the size of the bodies there.
            The second has the numbers of commits that put messages, but cannot be read.
        """
        found: list[tuple[Item, int]] = []
        lost: list[int] = []
        configs = self._store.settings.known.config.queues
        for number, _, _ in within(Backlog.kept_sizes)(self, first, last):
            if (alone := put_by(self._store, number)) is None:
                lost.append(number)
                continue
            for run in alone.messages.runs.get(number, ()):
                name = run.queue.name
                if (not self._all.queues or name in self._all.queues) and self._is_wanted(run.attributes):
                    where = stored_run_of(run, configs.get(name))
                    found.append((where, run.bytes_of(run.first, run.live)))
        return found, lost

    def _told(self, look: Callable[[], T]) -> T:
        problem: Exception | None = None
        for _ in range(_MOST_ATTEMPTS):
            catch_up(self._store)
            try:
                with self._store.view.mutex:
                    return look()
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        raise CorruptedFile(f"the messages of a file cannot be listed: {problem}; {WHAT_TO_DO}")

    def _items(self, first: int, last: int) -> Iterator[tuple[Item, int]]:
        for run in self._runs(first, last):
            yield stored_run_of(run, self._queues[run.queue.name]), run.bytes_of(run.first, run.live)
        for segment, table, found in self._segments(first, last):
            config = self._queues[segment.queue.name]
            ranges = [(live.number, live.first, live.length) for live in found]
            size = sum(sum(table.lengths[live.row : live.row + live.length]) for live in found)
            rows = _rows_but(found, segment.rows)
            defaults = with_defaults(config, {})
            yield Compacted(segment.file, segment.entry, config.name, rows, packed(ranges), defaults), size

    def _sizes(self, first: int, last: int) -> list[CommitSize]:
        sums: dict[int, tuple[int, int]] = {}

        def add(number: int, messages: int, size: int) -> None:
            there, bytes_there = sums.get(number, (0, 0))
            sums[number] = there + messages, bytes_there + size

        for run in self._runs(first, last):
            add(run.number, run.live, run.bytes_of(run.first, run.live))
        for _, table, found in self._segments(first, last):
            for live in found:
                add(live.number, live.length, sum(table.lengths[live.row : live.row + live.length]))
        return [CommitSize(number, *sums[number]) for number in sorted(sums)]

    def _runs(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs of these commits with matching queues and headers, in the order of the commits."""
        known, now = self._store.view.index.messages.runs, self._store.clock.now()
        few = range(first, min(last, self._store.view.index.applied) + 1)
        numbers = few if len(few) <= len(known) else sorted(number for number in known if number in few)
        for number in numbers:
            for run in known.get(number, ()):
                if run.queue.name in self._queues and not run.is_expired(now) and self._is_wanted(run.attributes):
                    yield run

    def _segments(self, first: int, last: int) -> Iterator[tuple[Segment, CompactedTable, list[LiveRun]]]:
        """Yield the segments that have matching messages of these commits, each with its table and matching runs."""
        messages, now = self._store.view.index.messages, self._store.clock.now()
        for segment in messages.segments.irange_key(None, pack_position(last, MAX_ORDINAL)):
            if segment.queue.name not in self._queues or segment.high <= pack_position(first, 0):
                continue
            table = messages.table_of(segment)
            found = []
            for live in segment.live_runs(table):
                if not first <= live.number <= last:
                    continue
                attributes = table.attributes[table.runs[live.run][1]]
                expires = expiry_time(attributes, table.origins.times[live.run])
                if (expires is None or expires > now) and self._is_wanted(attributes):
                    found.append(live)
            if found:
                yield segment, table, found

    def _is_wanted(self, attributes: Mapping[str, Any]) -> bool:
        return not self._headers or self._headers.items() <= attributes.get("headers", {}).items()


def _rows_but(found: Sequence[LiveRun], rows: int) -> bytes:
    """Return one bit for each row of a section. The bit is set if the row is in no live run."""
    others = bytearray(b"\xff" * ((rows + 7) // 8))
    for live in found:
        for row in range(live.row, live.row + live.length):
            others[row >> 3] &= ~(1 << (row & 7))
    return bytes(others)


def locate(store: Store, queue: str, number: int, ordinal: int, end: int) -> tuple[StoredRun | None, int]:
    """Find the messages of commit ``number`` whose ordinals are in ``range(ordinal, end)``.

    Returns:
        The first neighbouring messages of this range that are still in the queue, and the ordinal after these messages.
        If the messages at ``ordinal`` have left the queue: None, and the ordinal with which to continue.

    Raises:
        CorruptedFile: the table of a file is damaged.
    """
    with store.guard.step:
        try:
            catch_up(store)
            with store.view.mutex:
                queues = store.settings.known.config.queues
                run, stop = store.view.index.messages.run_from(number, ordinal, end)
                if run is None or run.queue.name != queue:
                    return None, stop
                return stored_run_of(run, queues.get(queue)).part(ordinal, stop - ordinal), stop
        except OSError as error:
            store.fail("reading messages", error)
