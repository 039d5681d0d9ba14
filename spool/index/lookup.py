"""Where the live messages are: runs and segments by position, queues in order; ids."""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Protocol

from sortedcontainers import SortedKeyList

from spool.errors import CorruptedFile
from spool.format.format import SectionEntry, Table
from spool.index.branches import Branches
from spool.index.commit import Source
from spool.index.queue import Line
from spool.index.run import Run
from spool.index.segment import HASH_BYTES, Piece, Segment, find_correlation, find_id, place
from spool.model.message import Position
from spool.model.order import cuts
from spool.model.settings import QueueConfig

REFILL_MESSAGES = 256  # how many of a segment become runs at once


class Tables(Protocol):
    """Where the tables of what is swept come from; CorruptedFile if they are not what they were."""

    def table(self, source: Source, section: int) -> Table: ...

    def keys(self, source: Source, entry: SectionEntry) -> tuple[bytes, bytes]:
        """``ids`` and ``correlations`` of a section, alone."""


class Contents:
    """All messages that live, wherever. A segment that cannot be read any more is given to ``lose``."""

    def __init__(self, tables: Tables, queues: Mapping[str, QueueConfig]) -> None:
        self.queues: dict[str, Line] = {}
        self.tables = tables
        self.runs: dict[int, list[Run]] = {}
        self.segments: SortedKeyList[Segment, int] = SortedKeyList(key=_low_of)
        self.branches = Branches()
        self._configs = queues

    def lose(self, segment: Segment, wrong: str) -> None:
        raise NotImplementedError

    # -- looking ------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Line:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = Line(self._configs.get(name) or QueueConfig(name), self._refill)
        return found

    def find(self, position: Position) -> Run | None:
        """The run that holds a live message, or None."""
        return self.run_from(position.number, position.ordinal, position.ordinal + 1)[0]

    def run_from(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """The run that holds a live message, and where its neighbours in it end, at most at ``end``.

        None if the message is not there, and where to look on. What lies in a segment stays there: its run is made for
        the caller.
        """
        run, stop = self.run_at(number, ordinal, end)
        if run is not None or not self.segments:
            return run, stop
        segment, piece, stop = self.piece_at(number, ordinal, stop)
        if segment is None or piece is None:
            return None, stop
        table = self.tables.table(segment.source, segment.section)
        return run_of(segment, table, piece, self.queue), ordinal + piece.length

    def run_at(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """As ``run_from``, of what lies in memory one by one."""
        runs = self.runs.get(number)
        if not runs:
            return None, end  # a command may claim any count: nothing lies there
        at = bisect_right(runs, ordinal, key=first_of) - 1
        if at >= 0 and ordinal < runs[at].end:
            return runs[at], min(end, runs[at].end)
        return None, min(end, runs[at + 1].first) if at + 1 < len(runs) else end

    def piece_at(self, number: int, ordinal: int, stop: int) -> tuple[Segment | None, Piece | None, int]:
        """The swept messages from a position on, and where to look on, at most at ``stop``, where a run begins."""
        first = place(number, ordinal)
        for segment in self.segments.irange_key(None, place(number, stop - 1), reverse=True):
            if segment.high > first:
                table = self.tables.table(segment.source, segment.section)
                piece, after = segment.piece_at(table, number, ordinal, stop)
                if piece is not None:
                    return segment, piece, after
                stop = min(stop, after)
        return None, None, stop

    def position_of(self, branch_id: bytes, ordinal: int) -> Position | None:
        """Where the message with that id lies, if its branch is known and it lives."""
        found = self.branches.find(branch_id, ordinal)
        if found is not None and self.find(Position(*found)) is not None:
            return Position(*found)
        for segment in list(self.segments):
            keys = self._keys(segment)
            run = None if keys is None else find_id(keys[0], branch_id, ordinal)
            if run is None:
                continue
            origins = self.tables.table(segment.source, segment.section).origins
            assert origins is not None
            position = Position(origins.numbers[run], origins.ordinals[run] + ordinal - origins.places[run])
            if self.find(position) is not None and self.branch_of(position) == (branch_id, ordinal):
                return position
        return None

    def _keys(self, segment: Segment) -> tuple[bytes, bytes] | None:
        """What a segment is searched by, or None if it is lost."""
        try:
            return self.tables.keys(segment.source, segment.entry)
        except (CorruptedFile, FileNotFoundError) as error:
            self.lose(segment, str(error))
            return None

    def branch_of(self, position: Position) -> tuple[bytes, int]:
        """(branch id, ordinal in the branch) of a live message."""
        if self.run_at(*position, position.ordinal + 1)[0] is None:
            segment, piece, _ = self.piece_at(*position, position.ordinal + 1)
            if segment is None or piece is None:
                raise KeyError(position)
            origins = self.tables.table(segment.source, segment.section).origins
            assert origins is not None
            return origins.branches[piece.run], origins.places[piece.run] + piece.first - origins.ordinals[piece.run]
        return self.branches.of(*position)

    def in_order(self, queue: str, now: float) -> Iterator[Run]:
        """Runs that can be delivered now, first to last."""
        found = self.queues.get(queue)
        return iter(()) if found is None else found.in_order(now)

    def runs_of(self, segment: Segment) -> list[Run]:
        """What lies in a segment, in order; it stays there."""
        table = self.tables.table(segment.source, segment.section)
        found = []
        for piece in segment.pieces(table):
            run = run_of(segment, table, piece, self.queue)
            for ordinal in run.queue.cuts_in(run.number, run.first, run.end):
                rest = run.tail(ordinal)
                run.end = ordinal
                found.append(run)
                run = rest
            found.append(run)
        return found

    def correlated(self, queue: str, correlation_id: str) -> list[Run]:
        """Every run of the queue with that correlation id, in order, delayed ones among them."""
        line = self.queue(queue)
        for segment in [segment for segment in line.segments() if segment.correlated]:
            keys = self._keys(segment)
            wanted = set() if keys is None else set(find_correlation(keys[1], hash_of(correlation_id)))
            if wanted:
                table = self.tables.table(segment.source, segment.section)
                for piece in [piece for piece in segment.pieces(table) if piece.run in wanted]:
                    self._pull(segment, table, piece)
        return line.correlated(correlation_id)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def insert(self, run: Run, branch: bytes, in_branch: int) -> None:
        """A run whose first message has that ordinal in its branch."""
        self.branches.add(run.number, run.first, branch, run.first - in_branch)
        self.enter(run)

    def enter(self, run: Run) -> None:
        """Whose branch is known."""
        insort(self.runs.setdefault(run.number, []), run, key=first_of)
        self.stand(run)

    def stand(self, run: Run) -> None:
        """A run takes its place in its queue. None ever reaches across a message that was put before one of its own."""
        line = run.queue
        line.add(run)
        if line.cuts:
            for ordinal in line.cuts_in(run.number, run.first, run.end):
                self._part(line, run.number, ordinal)
            for number, ordinal in cuts(run.attributes):
                self._part(line, number, ordinal)

    def _part(self, line: Line, number: int, ordinal: int) -> None:
        run, _ = self.run_at(number, ordinal, ordinal + 1)
        if run is None or run.queue is not line:
            return
        if run.first == ordinal:  # its front may have left: it stands where its first message is now
            line.drop(run)
            run.key = line.key_of(number, ordinal, run.attributes, run.committed_at)
            line.add(run)
        else:
            rest = run.tail(ordinal)
            run.end = ordinal
            insort(self.runs[number], rest, key=first_of)
            line.add(rest)

    def cut(self, run: Run, ordinal: int, end: int) -> None:
        """Messages leave a run: its front, its rear, or its middle, which splits it."""
        if run.first == ordinal and run.end == end:
            self.drop(run)
        elif run.first == ordinal:
            run.first = end
        else:
            if end < run.end:
                rest = run.tail(end)
                insort(self.runs[run.number], rest, key=first_of)
                rest.queue.add(rest)
            run.end = ordinal

    def drop(self, run: Run) -> None:
        run.queue.drop(run)
        runs = self.runs[run.number]
        del runs[bisect_right(runs, run.first, key=first_of) - 1]
        if not runs:
            del self.runs[run.number]
            self.branches.forget(run.number)

    # -- time ---------------------------------------------------------------------------------------------------------

    def expires(self, queue: str, now: float) -> bool:
        """Whether there is, or in a segment may be, anything that is past its time."""
        found = self.queues.get(queue)
        return found is not None and bool(found.expiring) and (found.expiring[0].expires or 0.0) <= now

    def expired(self, queue: str, now: float) -> Iterator[Run]:
        """What is past its time, in runs that are in the index from now on."""
        line = self.queue(queue)
        place = 0
        while place < len(line.expiring):
            entry = line.expiring[place]
            if entry.expires is None or entry.expires > now:
                return
            if isinstance(entry, Segment):
                self._pull_expired(entry, now)  # what comes out of it stands from here on
            else:
                yield entry
                place += 1

    def _pull_expired(self, segment: Segment, now: float) -> None:
        try:
            table = self.tables.table(segment.source, segment.section)
        except (CorruptedFile, FileNotFoundError) as error:
            self.lose(segment, str(error))
            return
        for piece in list(segment.pieces(table)):
            run = run_of(segment, table, piece, self.queue)
            if run.expires is not None and run.expires <= now:
                self._pull(segment, table, piece)
        if segment.live:
            segment.queue.drop_segment(segment)
            segment.expires = segment.next_expiry(table)
            segment.queue.add_segment(segment)

    # -- segments -----------------------------------------------------------------------------------------------------

    def is_in_order(self, segment: Segment, table: Table) -> bool:
        """Whether its rows lie in its queue's order; the segment then knows where it stands."""
        keys, dues = [], []
        for piece in segment.pieces(table):
            run = run_of(segment, table, piece, self.queue)
            if run.keeps_waiting:  # it was due when it was swept; where the clock was put back since, it is not
                return False
            keys.append(run.key)
            if run.due is not None:
                dues.append((run.due, *run.key))
        if len(dues) == len(keys) and _is_sorted(dues):
            segment.delayed, segment.key = True, dues[0]
            return True
        segment.key = keys[0]
        return _is_sorted(keys)

    def _refill(self, segment: Segment) -> None:
        """The next messages of a segment become runs."""
        try:
            table = self.tables.table(segment.source, segment.section)
        except (CorruptedFile, FileNotFoundError) as error:
            self.lose(segment, str(error))
            return
        done = 0
        for piece in list(segment.pieces(table, segment.next)):
            self._pull(segment, table, piece)
            segment.next = piece.row + piece.length
            done += piece.length
            if done >= REFILL_MESSAGES:
                break
        if segment.live:
            following = next(segment.pieces(table, segment.next))
            run = run_of(segment, table, following, self.queue)
            segment.queue.drop_segment(segment)
            segment.key = (run.due, *run.key) if segment.delayed and run.due is not None else run.key
            segment.queue.add_segment(segment)

    def pulled(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """As ``run_from``, of a run that is in the index from now on."""
        run, stop = self.run_at(number, ordinal, end)
        if run is not None:
            return run, stop
        segment, piece, stop = self.piece_at(number, ordinal, stop)
        if segment is None or piece is None:
            return None, stop
        table = self.tables.table(segment.source, segment.section)
        return self._pull(segment, table, piece), ordinal + piece.length

    def _pull(self, segment: Segment, table: Table, piece: Piece) -> Run:
        """Messages of a segment become a run."""
        self.leave(segment, piece, sum(table.lengths[piece.row : piece.row + piece.length]))
        return self.insert_piece(segment, table, piece)

    def insert_piece(self, segment: Segment, table: Table, piece: Piece) -> Run:
        assert table.origins is not None
        run = run_of(segment, table, piece, self.queue)
        ordinal, in_branch = table.origins.ordinals[piece.run], table.origins.places[piece.run]
        self.insert(run, table.origins.branches[piece.run], in_branch + piece.first - ordinal)
        return run

    def leave(self, segment: Segment, piece: Piece, size: int) -> None:
        segment.leave(piece.row, piece.length, size)
        if not segment.live:
            self.forget_segment(segment)

    def forget_segment(self, segment: Segment) -> None:
        segment.queue.drop_segment(segment)
        self.segments.remove(segment)


def hash_of(correlation_id: str) -> bytes:
    """As swept tables are sorted by it."""
    return blake2b(correlation_id.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


def run_of(segment: Segment, table: Table, piece: Piece, queue: Any) -> Run:
    """A piece of a segment as a run, which is not in the index yet."""
    assert table.origins is not None
    queue_place, attributes_place, _ = table.runs[piece.run]
    lengths = table.lengths[piece.row] if piece.length == 1 else table.lengths
    return Run(
        queue(table.queues[queue_place]), segment.source, segment.section, piece.first - piece.row, piece.number,
        piece.first, piece.length, table.attributes[attributes_place], table.origins.times[piece.run], lengths,
    )  # fmt: skip


def _is_sorted(keys: list[tuple[float, ...]]) -> bool:
    return all(one < two for one, two in pairwise(keys))


def first_of(run: Run) -> int:
    return run.first


def _low_of(segment: Segment) -> int:
    return segment.low
