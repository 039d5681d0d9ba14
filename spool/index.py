"""What is in the queues, in memory: a pure function of the commits that were applied, in order of their numbers.

Neighbouring messages of one commit with the same queue and control fields are one *run*, so a commit of a thousand
messages costs a few entries; thousands of swept messages are one *segment*. Bodies and tables stay on disk. Claims,
prepared branches and due times decide whether a message can be taken *now*; they are asked by the caller, not stored
here.

A message is found by its position, which never changes; the file it lies in, its *source*, does.
"""

import logging
from array import array
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Protocol

from sortedcontainers import SortedKeyList

from spool.branches import Branches
from spool.commits import Commit, Part, Source
from spool.entries import TOTALS_FACT
from spool.errors import CorruptedFile
from spool.files import DEQUEUED, ENQUEUED, EXPIRED, FAILED, FileState, add_tallies
from spool.format import SectionEntry, Table
from spool.layout import MAX_NUMBER, ORDINAL_BITS, committed
from spool.line import Line
from spool.message import Position
from spool.ranges import Ranges
from spool.runs import Run, lengths_of
from spool.segments import HASH_BYTES, Piece, Segment, find_correlation, find_id, place
from spool.xid import Xid

log = logging.getLogger("spool")

_WHY = {"dequeued": DEQUEUED, "failed": FAILED, "expired": EXPIRED}
_FIFO = ("fifo",)
REFILL_MESSAGES = 256  # how many of a segment become runs at once
LEAST_SEGMENT = 32  # fewer swept messages are kept as runs at once


class Tables(Protocol):
    """Where the tables of what is swept come from; CorruptedFile if they are not what they were."""

    def table(self, source: Source, section: int) -> Table: ...

    def keys(self, source: Source, entry: SectionEntry) -> tuple[bytes, bytes]:
        """``ids`` and ``correlations`` of a section, alone."""


class Index:
    """All queues of a space up to ``applied``. ``orders``: by queue, where it is not fifo."""

    def __init__(self, tables: Tables, orders: Mapping[str, tuple[str, ...]]) -> None:
        self.applied = 0
        self.restored = 0  # what is up to here came from a checkpoint
        self.queues: dict[str, Line] = {}
        self.files: dict[int, FileState] = {}
        self.idle: set[int] = set()
        self.facts: dict[str, tuple[int, Any, float | None]] = {}
        self.adopted: dict[Xid, int] = {}
        self.taken: set[tuple[str, bytes]] = set()
        self.damage: list[tuple[str, str]] = []
        self.touched: Ranges | None = None  # while a sweep looks: what left its place or changed since
        self.tables = tables
        self._orders = orders
        self.runs: dict[int, list[Run]] = {}
        self.segments: SortedKeyList[Segment, int] = SortedKeyList(key=_low_of)
        self.branches = Branches()

    # -- applying ---------------------------------------------------------------------------------------------------

    def apply(self, commit: Commit) -> None:
        """The next commit; its messages, then its commands, then its facts."""
        header = commit.parts[0].image.header
        state = self.files[commit.number] = FileState(tuple(commit.adopted))
        self.adopted.update((xid, commit.number) for xid in state.adopted)
        for name, wrong in commit.damage:
            self.damaged(commit.number, name, wrong)
        for part in commit.parts:
            self._add_messages(commit, part, state)
        for part in commit.parts:
            for table in part.image.tables:
                for command in table.commands:
                    self._command(state, commit.number, command)
                for key, value, expiry in table.facts:
                    self._fact(commit.number, state, key, value, expiry)
        state.only_removes = _only_removes(commit)
        if header.supersedes:
            self._supersede(commit.number, state, header.supersedes, folds=not header.messages)
        if not state.live:
            self._rest(commit.number)
        self.applied = max(self.applied, commit.number)

    def _add_messages(self, commit: Commit, part: Part, state: FileState) -> None:
        source = part.source(commit.number)
        ordinal = part.first
        swept = any(table.origins is not None for table in part.image.tables)
        if not swept:
            for branch in [branch for branch in part.image.header.branches if branch.count]:
                first = part.first + branch.first
                self.branches.add(commit.number, first, branch.id, first)
        for section, (table, entry) in enumerate(zip(part.image.tables, part.image.header.sections, strict=True)):
            if table.origins is not None and table.runs:
                self._add_swept(source, section, entry, table, _left(part, ordinal, entry.messages), state)
            elif table.runs:
                self._add_section(commit, source, section, table, ordinal, state)
            ordinal += entry.messages  # of a table that was damaged none is known, yet the next ones keep their places

    def _add_section(
        self, commit: Commit, source: Source, section: int, table: Table, base: int, state: FileState
    ) -> None:
        lengths = lengths_of(table.lengths)
        runs = self.runs.setdefault(commit.number, [])
        ordinal = base
        for queue_place, attributes_place, count in table.runs:
            queue = self.queue(table.queues[queue_place])
            attributes = table.attributes[attributes_place]
            run = Run(queue, source, section, base, commit.number, ordinal, count, attributes, commit.time, lengths)
            runs.append(run)
            queue.add(run)
            self._weigh(queue, state, count, run.bytes_of(ordinal, count))
            state.count(queue.name, ENQUEUED, count)
            ordinal += count

    def _weigh(self, queue: Line, state: FileState, count: int, size: int) -> None:
        """Messages came (or, below 0, went)."""
        queue.live += count
        queue.bytes += size
        state.live += count
        state.live_bytes += size
        state.body_bytes += max(0, size)

    def _command(self, state: FileState, number: int, command: list[Any]) -> None:
        name = command[0]
        if name == "take":
            state.taken += ((command[1], command[2]),)
            self.taken.add((command[1], command[2]))
            return
        if name == "left":
            return  # read with the messages that it is about
        target, first, count = command[1:4]
        if target != number:
            state.address(target)
        ordinal, end = first, first + count
        while ordinal < end:  # a message that is not there was removed before, or its file was reclaimed: nothing to do
            if name == "remove":
                queue, source, stop = self._take_out(target, ordinal, end)
                if queue is not None:
                    self._removed(state, number, queue, source, command[4], stop - ordinal)
            else:
                run, stop = self._pulled(target, ordinal, end)
                if run is not None:
                    if run.source.number != number:
                        state.address(run.source.number)
                    self._update(run, ordinal, stop - ordinal, command[4])
            ordinal = stop

    def _removed(self, state: FileState, number: int, queue: Line, source: int, why: str, count: int) -> None:
        if source != number:
            state.address(source)
        what = _WHY.get(why)
        if what is not None:
            self.files[source].count(queue.name, what, count)
        if what == DEQUEUED:
            queue.served += count

    def _take_out(self, number: int, ordinal: int, end: int) -> tuple[Line | None, int, int]:
        """Messages leave the index, wherever they are: (queue or None if the first is not there, the number of the file
        they lay in, where to look on)."""
        run, stop = self._run_at(number, ordinal, end)
        if run is not None:
            queue, source, size = run.queue, run.source.number, run.bytes_of(ordinal, stop - ordinal)
            self._cut(run, ordinal, stop)
        else:
            segment, piece, stop = self._piece_at(number, ordinal, stop)
            if segment is None or piece is None:
                return None, 0, stop
            table = self.tables.table(segment.source, segment.section)
            queue, source, stop = segment.queue, segment.source.number, ordinal + piece.length
            size = sum(table.lengths[piece.row : piece.row + piece.length])
            self._leave(segment, piece, size)
        self._gone(queue, source, stop - ordinal, size)
        if self.touched is not None:
            self.touched.append((number, ordinal, stop - ordinal))
        return queue, source, stop

    def _gone(self, queue: Line, source: int, count: int, size: int) -> None:
        state = self.files[source]
        self._weigh(queue, state, -count, -size)
        if not state.live:
            self._rest(source)

    def _update(self, run: Run, ordinal: int, count: int, changes: Mapping[str, Any]) -> None:
        """The messages become a run of their own, with their own control fields."""
        attributes = {**run.attributes, **changes}
        if "not_before" in changes:
            attributes.pop("delay", None)
            if changes["not_before"] is None:
                del attributes["not_before"]
        old, queue = run.queue, self.queue(attributes.pop("queue", run.queue.name))
        state, size = self.files[run.source.number], run.bytes_of(ordinal, count)
        if queue is not old:
            if attributes.get("failure_reason"):
                state.count(old.name, FAILED, count)
            state.count(queue.name, ENQUEUED, count)
        branch = self.branch_of(Position(run.number, ordinal))
        if run.first == ordinal and run.live > count:  # what follows must not stand where these will
            rest = run.tail(ordinal + count)
            self._drop(run)
            self._insert(rest, branch[0], branch[1] + count)
        else:
            self._cut(run, ordinal, ordinal + count)
        old.live -= count
        old.bytes -= size
        moved = Run(
            queue, run.source, run.section, run.base, run.number, ordinal, count, attributes, run.committed_at,
            run.lengths,
        )  # fmt: skip
        self._insert(moved, *branch)
        queue.live += count
        queue.bytes += size
        if self.touched is not None:
            self.touched.append((run.number, ordinal, count))

    def _fact(self, number: int, state: FileState, key: str, value: Any, expiry: float | None) -> None:
        """The newest of its key counts; the value None means: no longer."""
        old = self.facts.pop(key, None)
        if old is not None and old[0] in self.files:
            self.files[old[0]].facts -= 1
            if value is None and old[0] != number:
                state.address(old[0])  # or the old one would be back once this file is gone
        if value is not None:
            self.facts[key] = (number, value, expiry)
            state.facts += 1
            for folded in value["folded"] if key == TOTALS_FACT else ():
                if folded in self.files:
                    self._give_up(folded)

    # -- sweeps -------------------------------------------------------------------------------------------------------

    def _add_swept(
        self, source: Source, section: int, entry: SectionEntry, table: Table, left: list[tuple[int, int]],
        state: FileState,
    ) -> None:  # fmt: skip
        """Messages lie in a sweep's file from now on. Where they lay before, they are not any more; what is known of
        them from there (a rebuild may not have seen it) does not matter."""
        assert table.origins is not None
        segment = Segment(self.queue(table.queues[table.runs[0][0]]), source, section, entry, table)
        for row, count in left:
            segment.leave(row, count, sum(table.lengths[row : row + count]))
        pieces = list(segment.pieces(table))
        for piece in pieces:
            ordinal, end = piece.first, piece.first + piece.length
            while ordinal < end:
                _, _, ordinal = self._take_out(piece.number, ordinal, end)
        if not pieces:
            return
        low, high = state.span or (MAX_NUMBER, 0)
        state.span = min(low, segment.low >> ORDINAL_BITS), max(high, segment.high >> ORDINAL_BITS)
        self._weigh(segment.queue, state, segment.live, segment.bytes)
        one_queue = len({run[0] for run in table.runs}) == 1
        if one_queue and segment.live >= LEAST_SEGMENT and self._in_order(segment, table):
            segment.queue.add_segment(segment)
            self.segments.add(segment)
            return
        for piece in pieces:
            self._insert_piece(segment, table, piece)

    def _in_order(self, segment: Segment, table: Table) -> bool:
        """Whether its rows lie in its queue's order; the segment then knows where it stands."""
        keys, dues = [], []
        for piece in segment.pieces(table):
            run = run_of(segment, table, piece, self.queue)
            keys.append(run.key)
            if run.due is not None:
                dues.append((run.due, *run.key))
        if len(dues) == len(keys) and _is_sorted(dues):
            segment.delayed, segment.key = True, dues[0]
            return True
        segment.key = keys[0]
        return _is_sorted(keys)

    def _supersede(self, number: int, state: FileState, supersedes: tuple[int, ...], *, folds: bool) -> None:
        there = [known for known in supersedes if known in self.files]
        for known in there:
            old = self.files[known]
            old.superseded_by = number
            if folds:  # its commands are all said again here
                for target in old.targets:
                    state.address(target)
                old.targets = frozenset()
        state.supersedes = array("Q", there) or None

    def _refill(self, segment: Segment) -> None:
        """The next messages of a segment become runs."""
        try:
            table = self.tables.table(segment.source, segment.section)
        except (CorruptedFile, FileNotFoundError) as error:
            self._lose(segment, str(error))
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

    def _lose(self, segment: Segment, wrong: str) -> None:
        """Its table cannot be read any more: its messages are not served, and it is named."""
        number = segment.source.number
        self.damaged(number, committed(number), wrong)
        self._gone(segment.queue, number, segment.live, segment.bytes)
        self._forget_segment(segment)

    def _pulled(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """As ``run_from``, of a run that is in the index from now on."""
        run, stop = self._run_at(number, ordinal, end)
        if run is not None:
            return run, stop
        segment, piece, stop = self._piece_at(number, ordinal, stop)
        if segment is None or piece is None:
            return None, stop
        table = self.tables.table(segment.source, segment.section)
        return self._pull(segment, table, piece), ordinal + piece.length

    def _pull(self, segment: Segment, table: Table, piece: Piece) -> Run:
        """Messages of a segment become a run."""
        self._leave(segment, piece, sum(table.lengths[piece.row : piece.row + piece.length]))
        return self._insert_piece(segment, table, piece)

    def _insert_piece(self, segment: Segment, table: Table, piece: Piece) -> Run:
        assert table.origins is not None
        run = run_of(segment, table, piece, self.queue)
        ordinal, in_branch = table.origins.ordinals[piece.run], table.origins.places[piece.run]
        self._insert(run, table.origins.branches[piece.run], in_branch + piece.first - ordinal)
        return run

    def _leave(self, segment: Segment, piece: Piece, size: int) -> None:
        segment.leave(piece.row, piece.length, size)
        if not segment.live:
            self._forget_segment(segment)

    def _forget_segment(self, segment: Segment) -> None:
        segment.queue.drop_segment(segment)
        self.segments.remove(segment)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _insert(self, run: Run, branch: bytes, in_branch: int) -> None:
        """A run whose first message has that ordinal in its branch."""
        insort(self.runs.setdefault(run.number, []), run, key=_first_of)
        self.branches.add(run.number, run.first, branch, run.first - in_branch)
        run.queue.add(run)

    def _cut(self, run: Run, ordinal: int, end: int) -> None:
        """Messages leave a run: its front, its rear, or its middle, which splits it."""
        if run.first == ordinal and run.end == end:
            self._drop(run)
        elif run.first == ordinal:
            run.first = end
        else:
            if end < run.end:
                rest = run.tail(end)
                insort(self.runs[run.number], rest, key=_first_of)
                rest.queue.add(rest)
            run.end = ordinal

    def _drop(self, run: Run) -> None:
        run.queue.drop(run)
        runs = self.runs[run.number]
        del runs[bisect_right(runs, run.first, key=_first_of) - 1]
        if not runs:
            del self.runs[run.number]
            self.branches.forget(run.number)

    # -- files --------------------------------------------------------------------------------------------------------

    def _give_up(self, number: int) -> None:
        """Reclaim has recorded that the number goes, since nothing in it lived: its counts are in that record now, and
        what it holds is gone, even if somebody puts the file back and what removed it is gone as well."""
        state = self.files[number]
        state.folded = True
        state.tally = {}
        self._forget_facts(number, state)
        if state.live:
            for segment in [segment for segment in self.segments if segment.source.number == number]:
                self._gone(segment.queue, number, segment.live, segment.bytes)
                self._forget_segment(segment)
            runs = [run for runs in self.runs.values() for run in runs if run.source.number == number]
            for run in runs:
                self._take_out(run.number, run.first, run.end)

    def _rest(self, number: int) -> None:
        """None of the messages in the number's files lives any more: they may go, unless one is damaged: nobody knows
        what else it held."""
        if not self.files[number].damaged:
            self.idle.add(number)

    def damaged(self, number: int, name: str, wrong: str) -> None:
        """One of the number's files cannot be read whole: it stays until somebody has seen to it."""
        self.damage.append((name, wrong))
        self.files[number].damaged = True
        self.idle.discard(number)

    def forget(self, number: int) -> None:
        """The number's files are gone."""
        state = self.files.pop(number)
        self.idle.discard(number)
        for xid in state.adopted:
            self.adopted.pop(xid, None)
        self._forget_facts(number, state)

    def _forget_facts(self, number: int, state: FileState) -> None:
        if state.facts:
            state.facts = 0
            for key in [key for key, (owner, _, _) in self.facts.items() if owner == number]:
                del self.facts[key]

    def restore(self, entry: Run | Segment) -> None:
        """An entry of a checkpoint; the numbers' states are there already."""
        state = self.files[entry.source.number]
        state.live += entry.live
        entry.queue.live += entry.live
        if isinstance(entry, Segment):
            entry.queue.add_segment(entry)
            self.segments.add(entry)
            size = entry.bytes
        else:
            insort(self.runs.setdefault(entry.number, []), entry, key=_first_of)
            entry.queue.add(entry)
            size = entry.bytes_of(entry.first, entry.live)
        state.live_bytes += size
        entry.queue.bytes += size

    # -- looking ------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Line:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = Line(name, self._orders.get(name, _FIFO), self._refill)
        return found

    def find(self, position: Position) -> Run | None:
        """The run that holds a live message, or None."""
        return self.run_from(position.number, position.ordinal, position.ordinal + 1)[0]

    def run_from(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """The run that holds a live message, and where its neighbours in it end, at most at ``end``.

        None if the message is not there, and where to look on. What lies in a segment stays there: its run is made for
        the caller.
        """
        run, stop = self._run_at(number, ordinal, end)
        if run is not None or not self.segments:
            return run, stop
        segment, piece, stop = self._piece_at(number, ordinal, stop)
        if segment is None or piece is None:
            return None, stop
        table = self.tables.table(segment.source, segment.section)
        return run_of(segment, table, piece, self.queue), ordinal + piece.length

    def _run_at(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """As ``run_from``, of what lies in memory one by one."""
        runs = self.runs.get(number)
        if not runs:
            return None, end  # a command may claim any count: nothing lies there
        at = bisect_right(runs, ordinal, key=_first_of) - 1
        if at >= 0 and ordinal < runs[at].end:
            return runs[at], min(end, runs[at].end)
        return None, min(end, runs[at + 1].first) if at + 1 < len(runs) else end

    def _piece_at(self, number: int, ordinal: int, stop: int) -> tuple[Segment | None, Piece | None, int]:
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
        for segment in self.segments:
            run = find_id(self.tables.keys(segment.source, segment.entry)[0], branch_id, ordinal)
            if run is None:
                continue
            origins = self.tables.table(segment.source, segment.section).origins
            assert origins is not None
            position = Position(origins.numbers[run], origins.ordinals[run] + ordinal - origins.places[run])
            if self.find(position) is not None and self.branch_of(position) == (branch_id, ordinal):
                return position
        return None

    def branch_of(self, position: Position) -> tuple[bytes, int]:
        """(branch id, ordinal in the branch) of a live message."""
        if self._run_at(*position, position.ordinal + 1)[0] is None:
            segment, piece, _ = self._piece_at(*position, position.ordinal + 1)
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
        return [run_of(segment, table, piece, self.queue) for piece in segment.pieces(table)]

    def correlated(self, queue: str, correlation_id: str) -> list[Run]:
        """Every run of the queue with that correlation id, in order, delayed ones among them."""
        line = self.queue(queue)
        for segment in [segment for segment in line.segments() if segment.correlated]:
            packed = self.tables.keys(segment.source, segment.entry)[1]
            wanted = set(find_correlation(packed, hash_of(correlation_id)))
            if wanted:
                table = self.tables.table(segment.source, segment.section)
                for piece in [piece for piece in segment.pieces(table) if piece.run in wanted]:
                    self._pull(segment, table, piece)
        return line.correlated(correlation_id)

    def totals(self) -> dict[str, list[int]]:
        """Per queue [enqueued, dequeued, failed, expired] since the space was created.

        What reclaimed files contributed is a fact, which also names the files that it covers: one of them may still
        be there if the process died between writing the fact and removing the file.
        """
        covered, sums = set(), {}
        if TOTALS_FACT in self.facts:
            value = self.facts[TOTALS_FACT][1]
            covered = set(value["folded"])
            sums = {queue: list(counts) for queue, counts in value["queues"].items()}
        for number, state in self.files.items():
            if number not in covered:
                add_tallies(sums, state.tally)
        return sums


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


def _left(part: Part, first: int, count: int) -> list[tuple[int, int]]:
    """(row, count) of the messages of a swept section that had left before the sweep was committed."""
    found = []
    for table in part.image.tables:
        for command in table.commands:
            if command[0] == "left":
                start, stop = max(command[1], first), min(command[1] + command[2], first + count)
                if start < stop:
                    found.append((start - first, stop - start))
    return found


def _only_removes(commit: Commit) -> bool:
    """Whether a later commit may say again all that it says (see ``sweep``)."""
    header, tables = commit.parts[0].image.header, commit.parts[0].image.tables
    if header.adopts or header.messages or not tables:
        return False
    return all(not table.facts and all(command[0] == "remove" for command in table.commands) for table in tables)


def _is_sorted(keys: list[tuple[float, ...]]) -> bool:
    return all(one < two for one, two in pairwise(keys))


def _first_of(run: Run) -> int:
    return run.first


def _low_of(segment: Segment) -> int:
    return segment.low
