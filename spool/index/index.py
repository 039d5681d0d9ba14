"""What commits did: the queues as a pure function of the commits that were applied, in order of their numbers.

Neighbouring messages of one commit with the same queue and control fields are one *run*, so a commit of a thousand
messages costs a few entries; thousands of swept messages are one *segment*. Bodies and tables stay on disk. Claims,
prepared branches and due times decide whether a message can be taken *now*; they are asked by the caller, not stored
here.

A message is found by its position, which never changes; the file it lies in, its *source*, does.
"""

from array import array
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

from spool.format.format import SectionEntry, Table
from spool.format.schema import TOTALS_FACT
from spool.index.commit import Commit, Part, Source
from spool.index.files import DEQUEUED, ENQUEUED, EXPIRED, FAILED, FileState, add_tallies
from spool.index.lookup import Contents, Tables
from spool.index.queue import Line
from spool.index.run import Run, lengths_of
from spool.index.segment import Segment
from spool.model.layout import MAX_NUMBER, ORDINAL_BITS, committed
from spool.model.message import Position
from spool.model.ranges import Ranges
from spool.model.settings import QueueConfig
from spool.model.xid import Xid

_WHY = {"dequeued": DEQUEUED, "failed": FAILED, "expired": EXPIRED}
LEAST_SEGMENT = 32  # fewer swept messages are kept as runs at once


class Index(Contents):
    """All queues of a space up to ``applied``. ``queues``: how they order their messages."""

    def __init__(self, tables: Tables, queues: Mapping[str, QueueConfig]) -> None:
        super().__init__(tables, queues)
        self.applied = 0
        self.restored = 0  # what is up to here came from a checkpoint
        self.files: dict[int, FileState] = {}
        self.idle: set[int] = set()
        self.idle_bytes = 0  # of bodies, in those
        self.folded: set[int] = set()  # of those, what reclaim has said it removes
        self.facts: dict[str, tuple[int, Any, float | None]] = {}
        self._expiries: list[tuple[float, str]] = []  # of facts, the next first
        self.adopted: dict[Xid, int] = {}
        self.taken: set[tuple[str, bytes]] = set()
        self.damage: list[tuple[str, str]] = []
        self.touched: Ranges | None = None  # while a sweep looks: what left its place or changed since

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
        state.foldable = _is_foldable(commit)
        if header.supersedes:
            self._supersede(commit.number, state, header.supersedes, folds=not header.messages)
        if not state.live:
            self.rest(commit.number)
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
            self.stand(run)
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
                run, stop = self.pulled(target, ordinal, end)
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
        run, stop = self.run_at(number, ordinal, end)
        if run is not None:
            queue, source, size = run.queue, run.source.number, run.bytes_of(ordinal, stop - ordinal)
            self.cut(run, ordinal, stop)
        else:
            segment, piece, stop = self.piece_at(number, ordinal, stop)
            if segment is None or piece is None:
                return None, 0, stop
            table = self.tables.table(segment.source, segment.section)
            queue, source, stop = segment.queue, segment.source.number, ordinal + piece.length
            size = sum(table.lengths[piece.row : piece.row + piece.length])
            self.leave(segment, piece, size)
        self._gone(queue, source, stop - ordinal, size)
        if self.touched is not None:
            self.touched.append((number, ordinal, stop - ordinal))
        return queue, source, stop

    def _gone(self, queue: Line, source: int, count: int, size: int) -> None:
        state = self.files[source]
        self._weigh(queue, state, -count, -size)
        if not state.live:
            self.rest(source)

    def _update(self, run: Run, ordinal: int, count: int, changes: Mapping[str, Any]) -> None:
        """The messages become a run of their own, with their own control fields."""
        attributes = updated(run.attributes, changes)
        old, queue = run.queue, self.queue(changes.get("queue", run.queue.name))
        state, size = self.files[run.source.number], run.bytes_of(ordinal, count)
        if queue is not old:
            if changes.get("failure_reason"):
                state.count(old.name, _WHY.get(changes.get("why", ""), FAILED), count)
            state.count(queue.name, ENQUEUED, count)
        branch = self.branch_of(Position(run.number, ordinal))
        if run.first == ordinal and run.live > count:  # what follows must not stand where these will
            rest = run.tail(ordinal + count)
            self.drop(run)
            self.insert(rest, branch[0], branch[1] + count)
        else:
            self.cut(run, ordinal, ordinal + count)
        old.live -= count
        old.bytes -= size
        moved = Run(
            queue, run.source, run.section, run.base, run.number, ordinal, count, attributes, run.committed_at,
            run.lengths,
        )  # fmt: skip
        self.insert(moved, *branch)
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
            self.keep_fact(key, number, value, expiry)
            state.facts += 1
            if key == TOTALS_FACT:
                self._fold(value["folded"])

    def keep_fact(self, key: str, number: int, value: Any, expiry: float | None) -> None:
        self.facts[key] = (number, value, expiry)
        if expiry is not None:
            heappush(self._expiries, (expiry, key))

    def forget_expired(self, now: float) -> None:
        """Facts whose time is over keep no file any more."""
        while self._expiries and self._expiries[0][0] <= now:
            expiry, key = heappop(self._expiries)
            owner, _, current = self.facts.get(key, (0, None, None))
            if current == expiry:
                del self.facts[key]
                if owner in self.files:
                    self.files[owner].facts -= 1

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
        if one_queue and segment.live >= LEAST_SEGMENT and self.is_in_order(segment, table):
            segment.queue.add_segment(segment)
            self.segments.add(segment)
            return
        for piece in pieces:
            self.insert_piece(segment, table, piece)

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

    def lose(self, segment: Segment, wrong: str) -> None:
        """Its table cannot be read any more: its messages are not served, and it is named."""
        number = segment.source.number
        self.damaged(number, committed(number), wrong)
        self._gone(segment.queue, number, segment.live, segment.bytes)
        self.forget_segment(segment)
        segment.live = 0

    # -- runs ---------------------------------------------------------------------------------------------------------

    # -- files --------------------------------------------------------------------------------------------------------

    def _fold(self, numbers: list[int]) -> None:
        """Reclaim has recorded what goes. What it had recorded before, and does not name any more, is durably gone."""
        for gone in self.folded.difference(numbers):
            self.forget(gone)
        for number in numbers:
            if number in self.files:
                self._give_up(number)

    def _give_up(self, number: int) -> None:
        """Reclaim has recorded that the number goes, since nothing in it lived: its counts are in that record now, and
        what it holds is gone, even if somebody puts the file back and what removed it is gone as well."""
        state = self.files[number]
        state.tally = {}
        self._forget_facts(number, state)
        self.folded.add(number)
        if state.live:
            self._drop_messages({number})

    def _drop_messages(self, numbers: set[int]) -> None:
        """All that lies in these numbers' files."""
        for segment in [segment for segment in self.segments if segment.source.number in numbers]:
            self._gone(segment.queue, segment.source.number, segment.live, segment.bytes)
            self.forget_segment(segment)
        swept = any(self.files[number].span is not None for number in numbers)
        places = list(self.runs) if swept else [number for number in numbers if number in self.runs]
        for run in [run for place in places for run in self.runs[place] if run.source.number in numbers]:
            self._take_out(run.number, run.first, run.end)

    def rest(self, number: int) -> None:
        """None of the messages in the number's files lives any more: they may go, unless one is damaged: nobody knows
        what else it held."""
        if not self.files[number].damaged and number not in self.idle:
            self.idle.add(number)
            self.idle_bytes += self.files[number].body_bytes

    def damaged(self, number: int, name: str, wrong: str) -> None:
        """One of the number's files cannot be read whole: it stays until somebody has seen to it."""
        self.damage.append((name, wrong))
        self._stir(number)
        self.files[number].damaged = True

    def _stir(self, number: int) -> None:
        """It is not idle any more."""
        if number in self.idle:
            self.idle.remove(number)
            self.idle_bytes -= self.files[number].body_bytes

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Forget the files of all others: they were reclaimed, so nothing in them lives, whoever took it."""
        there = set(numbers)
        gone = [number for number in self.files if number not in there]
        self._drop_messages({number for number in gone if self.files[number].live})
        for number in gone:
            self.forget(number)

    def forget(self, number: int) -> None:
        """The number's files are gone."""
        self._stir(number)
        state = self.files.pop(number)
        self.folded.discard(number)
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
            self.enter(entry)
            size = entry.bytes_of(entry.first, entry.live)
        state.live_bytes += size
        entry.queue.bytes += size

    # -- looking ------------------------------------------------------------------------------------------------------

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


# A time that is set takes the place of one that was relative to the commit.
_RELATIVE = {"not_before": "delay", "expires_at": "time_to_live"}


def updated(attributes: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A message's control fields after an update: None takes a time away, and another queue knows no place of this
    one. ``queue`` and ``why`` are the command's own."""
    found = {**attributes, **changes}
    for name, relative in _RELATIVE.items():
        if name in changes:
            found.pop(relative, None)
            if changes[name] is None:
                del found[name]
    if found.pop("queue", None) is not None:
        found.pop("top", None)
        found.pop("before", None)
    found.pop("why", None)
    return found


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


def _is_foldable(commit: Commit) -> bool:
    """Whether a later commit may say again all that it says, once none of its messages lives (see ``sweep``)."""
    header, tables = commit.parts[0].image.header, commit.parts[0].image.tables
    if header.adopts or not tables:
        return False
    return all(
        all(command[0] == "remove" for command in table.commands) and all(fact[1] is not None for fact in table.facts)
        for table in tables
    )
