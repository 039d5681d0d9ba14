"""What is in the queues, in memory: a pure function of the commits that were applied, in order of their numbers.

Neighbouring messages of one commit with the same queue and control fields are one *run*, so a commit of a thousand
messages costs a few entries. Bodies stay on disk. Claims, prepared branches and due times decide whether a message can
be taken *now*; they are asked by the caller, not stored here.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedKeyList

from spool.entries import TOTALS_FACT
from spool.format import Table
from spool.message import DEFAULT_PRIORITY, Position, due_time
from spool.reader import FileImage
from spool.xid import Xid

ENQUEUED, DEQUEUED, FAILED, EXPIRED = range(4)
_WHY = {"dequeued": DEQUEUED, "failed": FAILED, "expired": EXPIRED}


@dataclass(slots=True)
class Part:
    """One file of a commit: the numbered file itself (``adoption`` 0) or its k-th adopted branch."""

    adoption: int
    xid: Xid | None
    first: int
    image: FileImage


@dataclass(slots=True)
class Commit:
    """Everything that one number did. ``damage``: (file, what is wrong with it), for what could not be read."""

    number: int
    parts: list[Part]
    damage: list[tuple[str, str]] = field(default_factory=list)

    @property
    def time(self) -> float:
        return self.parts[0].image.header.time

    @property
    def adopted(self) -> list[Xid]:
        return [adoption.xid for adoption in self.parts[0].image.header.adopts]


class Run:
    """``count`` messages from ordinal ``first`` of a commit on, of one queue, with the same control fields."""

    __slots__ = (
        "attributes", "committed_at", "due", "end", "first", "gone", "head", "key", "number", "part", "queue", "row",
        "section",
    )  # fmt: skip

    def __init__(
        self,
        queue: "QueueIndex",
        part: Part,
        section: int,
        row: int,
        number: int,
        first: int,
        count: int,
        attributes: Mapping[str, Any],
        committed_at: float,
    ) -> None:
        self.queue = queue
        self.part = part
        self.section = section
        self.row = row
        self.number = number
        self.first = self.head = first
        self.end = first + count
        self.attributes = attributes
        self.committed_at = committed_at
        self.due = due_time(attributes, committed_at)
        self.gone: set[int] = set()  # those behind head that left; what left at the front moves head
        self.key: tuple[int, int, int] = queue.key_of(self)

    @property
    def live(self) -> int:
        return self.end - self.head - len(self.gone)

    @property
    def table(self) -> Table:
        return self.part.image.tables[self.section]

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(first, count) of neighbours that are still there, in order."""
        start = self.head
        for ordinal in sorted(self.gone):
            if ordinal > start:
                yield start, ordinal - start
            start = ordinal + 1
        if self.end > start:
            yield start, self.end - start

    def leave(self, ordinal: int, count: int) -> None:
        """Messages that are still in the run leave it."""
        if ordinal == self.head and not self.gone:
            self.head += count
            return
        self.gone.update(range(ordinal, ordinal + count))
        while self.head in self.gone:
            self.gone.remove(self.head)
            self.head += 1

    def stop_of(self, ordinal: int, end: int) -> int:
        """Where the neighbours that begin with a live ordinal end, at most at ``end``."""
        stop = min(end, self.end)
        if self.gone and not self.gone.isdisjoint(range(ordinal, stop)):
            stop = min(gone for gone in self.gone if gone > ordinal)
        return stop

    def row_of(self, ordinal: int) -> int:
        return self.row + ordinal - self.first

    def bytes_of(self, ordinal: int, count: int = 1) -> int:
        row = self.row_of(ordinal)
        return sum(self.table.lengths[row : row + count])


class QueueIndex:
    """One queue's runs, in the order in which they are delivered."""

    def __init__(self, name: str, by_priority: bool = False) -> None:
        self.name = name
        self.by_priority = by_priority
        self.ready: SortedKeyList[Run, Any] = SortedKeyList(key=lambda run: run.key)
        self.delayed: SortedKeyList[Run, Any] = SortedKeyList(key=lambda run: (run.due, run.key))
        self.live = 0
        self.bytes = 0
        self._ripe_until = float("-inf")  # the latest due time of those that were made ready

    def key_of(self, run: Run) -> tuple[int, int, int]:
        priority = run.attributes.get("priority", DEFAULT_PRIORITY) if self.by_priority else 0
        return -priority, run.number, run.first

    def add(self, run: Run) -> None:
        (self.ready if run.due is None else self.delayed).add(run)

    def drop(self, run: Run) -> None:
        (self.ready if run.due is None else self.delayed).remove(run)

    def ripen(self, now: float) -> None:
        """Move what has become due among the ready ones."""
        if now < self._ripe_until:
            self._unripen(now)
        while self.delayed and (due := self.delayed[0].due) is not None and due <= now:
            run = self.delayed.pop(0)
            self._ripe_until = max(self._ripe_until, due)
            run.due = None
            self.ready.add(run)

    def _unripen(self, now: float) -> None:
        """The clock was put back: what is not due any more waits again."""
        self._ripe_until = now
        for run in list(self.ready):
            due = due_time(run.attributes, run.committed_at)
            if due is not None and due > now:
                self.ready.remove(run)
                run.due = due
                self.delayed.add(run)

    def next_due(self) -> float | None:
        return self.delayed[0].due if self.delayed else None

    def reorder(self, by_priority: bool) -> None:
        """The queue's order was changed."""
        self.by_priority = by_priority
        for line in (self.ready, self.delayed):
            runs = list(line)
            line.clear()
            for run in runs:
                run.key = self.key_of(run)
            line.update(runs)


@dataclass(slots=True)
class FileState:
    """What keeps a commit's files on disk (DESIGN §4, "Reclaim")."""

    parts: int
    adopted: tuple[Xid, ...]
    live: int = 0
    targets: set[int] = field(default_factory=set)
    taken: list[tuple[str, bytes]] = field(default_factory=list)
    facts: int = 0
    damaged: bool = False
    folded: bool = False
    tally: dict[str, list[int]] = field(default_factory=dict)


class Index:
    """All queues of a space up to ``applied``."""

    def __init__(self) -> None:
        self.applied = 0
        self.queues: dict[str, QueueIndex] = {}
        self.files: dict[int, FileState] = {}
        self.idle: set[int] = set()
        self.facts: dict[str, tuple[int, Any, float | None]] = {}
        self.adopted: dict[Xid, int] = {}
        self.taken: set[tuple[str, bytes]] = set()
        self.damage: list[tuple[str, str]] = []
        self._runs: dict[int, list[Run]] = {}
        self._moved: dict[tuple[int, int], Run] = {}
        self._branches: dict[bytes, tuple[int, int, int]] = {}
        self._branch_of: dict[int, list[tuple[int, int, bytes]]] = {}

    # -- applying ---------------------------------------------------------------------------------------------------

    def apply(self, commit: Commit) -> None:
        """The next commit; its messages, then its commands, then its facts."""
        header = commit.parts[0].image.header
        state = self.files[commit.number] = FileState(len(header.adopts), tuple(commit.adopted))
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
        if not state.live:
            self._rest(commit.number)
        self.applied = max(self.applied, commit.number)

    def _add_messages(self, commit: Commit, part: Part, state: FileState) -> None:
        for branch in part.image.header.branches:
            first = part.first + branch.first
            self._branches[branch.id] = (commit.number, first, branch.count)
            self._branch_of.setdefault(commit.number, []).append((first, branch.count, branch.id))
        ordinal = part.first
        runs = self._runs.setdefault(commit.number, [])
        for section, (table, entry) in enumerate(zip(part.image.tables, part.image.header.sections, strict=True)):
            row = 0
            for queue_place, attributes_place, count in table.runs:
                queue = self.queue(table.queues[queue_place])
                run = Run(
                    queue, part, section, row, commit.number, ordinal + row, count,
                    table.attributes[attributes_place], commit.time,
                )  # fmt: skip
                runs.append(run)
                queue.add(run)
                queue.live += count
                queue.bytes += sum(table.lengths[row : row + count])
                state.live += count
                state.tally.setdefault(queue.name, [0, 0, 0, 0])[ENQUEUED] += count
                row += count
            ordinal += entry.messages  # of a table that was damaged none is known, yet the next ones keep their places

    def _command(self, state: FileState, number: int, command: list[Any]) -> None:
        name = command[0]
        if name == "take":
            state.taken.append((command[1], command[2]))
            self.taken.add((command[1], command[2]))
            return
        target, first, count = command[1:4]
        if target != number:
            state.targets.add(target)
        ordinal, end = first, first + count
        while ordinal < end:
            run, stop = self.segment(target, ordinal, end)
            if run is not None and name == "remove":
                self._tally(target, run.queue.name, _WHY.get(command[4]), stop - ordinal)
                self._remove(run, ordinal, stop - ordinal)
            elif run is not None:
                stop = ordinal + 1  # the update splits the run: the next message is looked up anew
                self._update(run, ordinal, command[4])
            ordinal = stop  # a message that is not there was removed before, or its file was reclaimed: nothing to do

    def _remove(self, run: Run, ordinal: int, count: int) -> None:
        self._detach(run, ordinal, count)
        state = self.files[run.number]
        state.live -= count
        if not state.live:
            self._rest(run.number)

    def _detach(self, run: Run, ordinal: int, count: int = 1) -> None:
        """Messages that are still in the run leave it, and the run its queue when none is left."""
        run.queue.live -= count
        run.queue.bytes -= run.bytes_of(ordinal, count)
        run.leave(ordinal, count)
        if count == 1:
            self._moved.pop((run.number, ordinal), None)
        if not run.live:
            run.queue.drop(run)

    def _update(self, run: Run, ordinal: int, changes: Mapping[str, Any]) -> None:
        """The message becomes a run of its own, with its own control fields."""
        attributes = {**run.attributes, **changes}
        if "not_before" in changes:
            attributes.pop("delay", None)
            if changes["not_before"] is None:
                del attributes["not_before"]
        queue = self.queue(attributes.pop("queue", run.queue.name))
        if queue is not run.queue:
            if attributes.get("failure_reason"):
                self._tally(run.number, run.queue.name, FAILED)
            self._tally(run.number, queue.name, ENQUEUED)
        self._split_behind(run, ordinal)
        self._detach(run, ordinal)
        moved = Run(
            queue, run.part, run.section, run.row_of(ordinal), run.number, ordinal, 1, attributes, run.committed_at
        )
        queue.add(moved)
        queue.live += 1
        queue.bytes += moved.bytes_of(ordinal)
        self._moved[run.number, ordinal] = moved

    def _split_behind(self, run: Run, ordinal: int) -> None:
        """What lies behind a message becomes a run of its own: the message keeps its place between the two."""
        if ordinal + 1 >= run.end:
            return
        rest = Run(
            run.queue, run.part, run.section, run.row_of(ordinal + 1), run.number, ordinal + 1, run.end - ordinal - 1,
            run.attributes, run.committed_at,
        )  # fmt: skip
        rest.due = run.due
        behind = [gone for gone in run.gone if gone > ordinal]
        run.end = ordinal + 1
        run.gone.difference_update(behind)
        for gone in sorted(behind):
            rest.leave(gone, 1)
        insort(self._runs[run.number], rest, key=_first_of)
        if rest.live:
            rest.queue.add(rest)

    def _tally(self, number: int, queue: str, what: int | None, count: int = 1) -> None:
        if what is not None:
            self.files[number].tally.setdefault(queue, [0, 0, 0, 0])[what] += count

    def _fact(self, number: int, state: FileState, key: str, value: Any, expiry: float | None) -> None:
        """The newest of its key counts; the value None means: no longer."""
        old = self.facts.pop(key, None)
        if old is not None and old[0] in self.files:
            self.files[old[0]].facts -= 1
            if value is None and old[0] != number:
                state.targets.add(old[0])  # or the old one would be back once this file is gone
        if value is not None:
            self.facts[key] = (number, value, expiry)
            state.facts += 1
            for folded in value["folded"] if key == TOTALS_FACT else ():
                if folded in self.files:
                    self._give_up(folded)

    def _give_up(self, number: int) -> None:
        """Reclaim has recorded that the number goes, since nothing in it lived: its counts are in that record now, and
        what it holds is gone, even if somebody puts the file back and what removed it is gone as well."""
        state = self.files[number]
        state.folded = True
        state.tally.clear()
        self._forget_facts(number)
        if state.live:
            moved = [run for (owner, _), run in self._moved.items() if owner == number]
            for run in [*self._runs.get(number, ()), *moved]:
                for first, count in list(run.pieces()):
                    self._detach(run, first, count)
            state.live = 0
            self._rest(number)

    def _rest(self, number: int) -> None:
        """None of the number's messages lives any more: its runs are forgotten, and its files may go, unless one is
        damaged: nobody knows what else it held."""
        if not self.files[number].damaged:
            self.idle.add(number)
        for _, _, branch_id in self._branch_of.pop(number, ()):
            self._branches.pop(branch_id, None)
        self._runs.pop(number, None)

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
        self._forget_facts(number)

    def _forget_facts(self, number: int) -> None:
        for key in [key for key, (owner, _, _) in self.facts.items() if owner == number]:
            del self.facts[key]

    # -- looking ------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueIndex:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueIndex(name)
        return found

    def find(self, position: Position) -> Run | None:
        """The run that holds a live message, or None."""
        return self.segment(position.number, position.ordinal, position.ordinal + 1)[0]

    def segment(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """The run that holds a live message, and where its neighbours in it end, at most at ``end``.

        None if the message is not there, and where to look on.
        """
        moved = self._moved.get((number, ordinal)) if self._moved else None
        if moved is not None:
            return moved, ordinal + 1
        runs = self._runs.get(number)
        if not runs or ordinal >= runs[-1].end:
            return None, end  # a command may claim any count: nothing lies there
        place = bisect_right(runs, ordinal, key=_first_of) - 1
        if place < 0:
            return None, ordinal + 1
        run = runs[place]
        if not run.head <= ordinal < run.end or ordinal in run.gone:
            return None, ordinal + 1
        return run, run.stop_of(ordinal, end)

    def position_of(self, branch_id: bytes, ordinal: int) -> Position | None:
        """Where the message with that id lies, if its branch is known and it lives."""
        found = self._branches.get(branch_id)
        if found is None or not 0 <= ordinal < found[2]:
            return None
        position = Position(found[0], found[1] + ordinal)
        return position if self.find(position) is not None else None

    def branch_of(self, position: Position) -> tuple[bytes, int]:
        """(branch id, ordinal in the branch) of a live message."""
        for first, count, branch_id in self._branch_of[position.number]:
            if first <= position.ordinal < first + count:
                return branch_id, position.ordinal - first
        raise KeyError(position)

    def in_order(self, queue: str, now: float) -> Iterator[Run]:
        """Runs that can be delivered now, first to last."""
        found = self.queues.get(queue)
        if found is None:
            return iter(())
        found.ripen(now)
        return iter(found.ready)

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


def _first_of(run: Run) -> int:
    return run.first


def add_tallies(sums: dict[str, list[int]], tally: Mapping[str, list[int]]) -> None:
    for queue, counts in tally.items():
        sums[queue] = list(map(int.__add__, sums.get(queue, (0, 0, 0, 0)), counts))
