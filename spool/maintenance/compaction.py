"""The slow queue sweeper: it moves a backlog out of memory and out of small files into large ones.

A sweep writes live messages of many files into one numbered file. It changes where a message lies, never its position,
its claim's byte or its order; so whoever holds one does not notice. What was removed, changed or moved between the
sweep's look and its commit is told apart under the number lock and named in the file as *left*: the file says what is
true at its own number. Claimed and in-doubt messages stay where they are. The caller holds the reclaim lock.

A *fold* does the same with commits of which nothing is left but what they removed and their facts: it says that again
in one file.
"""

import logging
import os
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spool.errors import CorruptedFile
from spool.format.batch import CommitBatch, Section
from spool.format.format import Origins, SectionEntry, Table, body_head, encode_table
from spool.format.reader import image_of
from spool.format.schema import TOTALS_FACT
from spool.format.writer import CommitFileWriter
from spool.index.body_files import FileCache
from spool.index.commit import Retention
from spool.index.index import Index
from spool.index.lookup import correlation_hash
from spool.index.queue import Queue
from spool.index.run import Run
from spool.index.segment import pack_correlations, pack_ids
from spool.log.commit import commit, own_file
from spool.log.sequence import settle_all
from spool.log.visibility import catch_up, list_prepared
from spool.model import layout
from spool.model.message import Position
from spool.model.ranges import Ranges
from spool.model.xid import BRANCH_ID_BYTES
from spool.store.settings import Settings
from spool.store.store import Store

log = logging.getLogger("spool")

EVERY_SECONDS = 5.0
KEPT_MESSAGES = 5  # beside as many as were served since the last look
LEAST_MESSAGES = 64  # a sweep of fewer would cost more than it saves
SMALL_RUN = 64  # a run of as many is as cheap in memory as a segment, and its file is large enough
SEGMENT_MESSAGES = 4_096
SEGMENT_BYTES = 16 << 20  # of a segment, and of a whole file
FOLDED_COMMITS = 512
_FOLDED_FACTS = 4_096
MOST_WASTE = 0.10  # of what lives, beside one segment
MOST_PICKS = 1 << 16  # at one look: what they take in memory is bounded, too
SMALL_FILE = 1_024  # messages
SMALL_FILES = 16
_FILE_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class Pick:
    """Neighbouring messages that are to be swept, as they are now."""

    run: Run
    first: int
    count: int
    branch: bytes
    in_branch: int
    bytes: int


class _GivenUpError(Exception):
    """What was looked at is not there any more; nothing was done, and the next look comes soon enough."""


# -- deciding ---------------------------------------------------------------------------------------------------------


def is_slow(entries: int, served: int) -> bool:
    """The sweeper's equation: more lies in memory than twice what was served in the interval."""
    return entries > 2 * served


def choose(line: Queue, files: Mapping[int, Retention], served: int, held: Collection[Position]) -> list[Run]:
    """The runs of a slow queue that are to be swept, in order: behind those that are soon wanted, and only small ones;
    a large run is as good as a segment. What was swept before stays where it is."""
    runs, skipped = [], 0
    for run in line.runs():
        if run.due is None and skipped < served + KEPT_MESSAGES:
            skipped += run.live
        elif run.live < SMALL_RUN and files[run.file.number].span is None and not _stays(run, held):
            runs.append(run)
    return runs


def _stays(run: Run, held: Collection[Position]) -> bool:
    """What is held, and what keeps its group waiting for its next try: only in memory it does that."""
    if run.blocks_group:
        return True
    return bool(held) and any(Position(run.number, ordinal) in held for ordinal in range(run.first, run.end))


def worn(files: Mapping[int, Retention]) -> set[int]:
    """The numbers whose files are to be swept whatever their queues do: those that waste most, if all together waste
    too much, and small ones of earlier sweeps, if there are many."""
    small = {number for number, state in files.items() if state.span is not None and 0 < state.live < SMALL_FILE}
    found = small if len(small) >= SMALL_FILES else set()
    alive = [(state.live_bytes / state.body_bytes, number) for number, state in files.items() if state.live_bytes]
    live = sum(state.live_bytes for state in files.values())
    waste = sum(files[number].body_bytes - files[number].live_bytes for _, number in alive)
    if waste > MOST_WASTE * live + SEGMENT_BYTES:
        for share, number in sorted(alive):
            if share > 0.5 or waste <= MOST_WASTE * live:
                break
            waste -= files[number].body_bytes - files[number].live_bytes
            found.add(number)
    return found


# -- doing ------------------------------------------------------------------------------------------------------------


class Sweeper:
    """Sweeps a space's slow queues; remembers what each had served when it looked last."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._served: dict[str, int] = {}

    def look(self) -> int:
        """Sweep what is slow and what wastes space, fold what piles up; returns how many files were written."""
        done = 0
        self._see()
        served = self._served_since()
        try:
            done += self._fold()
            while written := self._sweep(served):
                done += written
                self._see()
        except _GivenUpError:
            pass
        return done

    def _see(self) -> None:
        """What others have done, and ourselves."""
        catch_up(self.store, list_prepared(self.store))

    def _served_since(self) -> dict[str, int]:
        """How many messages each queue has served since the last look."""
        with self.store.view.mutex:
            now = {name: line.served for name, line in self.store.view.index.messages.queues.items()}
        before, self._served = self._served, now
        return {name: max(0, count - before.get(name, 0)) for name, count in now.items()}

    def _sweep(self, served: Mapping[str, int]) -> int:
        """As many messages as are looked at at once; how many files were written."""
        with self.store.view.mutex:
            index = self.store.view.index
            worn_out = worn(index.files)
            if not worn_out and sum(line.entries for line in index.messages.queues.values()) < LEAST_MESSAGES:
                return 0
            held = self._held()
            lines = list(index.messages.queues.values())
            picks = [pick for line in lines for pick in _picks(index, line, served.get(line.name, 0), held, worn_out)]
            del picks[MOST_PICKS:]
            index.changed_since = []
        try:
            if sum(pick.count for pick in picks) < LEAST_MESSAGES and not worn_out:
                return 0
            return sum(self._write(index, sections) for sections in _files(picks))
        finally:
            index.changed_since = None

    def _write(self, index: Index, sections: list[list[Pick]]) -> int:
        self.store.gate.check()  # who closes the space does not wait for more than one file
        return _Sweep(self.store, index, sections).write()

    def _held(self) -> set[Position]:
        """What is claimed by anybody or in doubt."""
        claims = self.store.shared.claims
        held = {Position(number, ordinal) for number, ordinal in claims.held_ranges()}
        for number, first, count in claims.held_elsewhere():
            held.update(Position(number, ordinal) for ordinal in range(first, first + count))
        return held | set(self.store.view.prepared.held)

    def _fold(self) -> int:
        """Say the removals and facts of many commits again in one, when many have piled up."""
        with self.store.view.mutex:
            index = self.store.view.index
            index.forget_expired(self.store.clock.now())
            numbers = sorted(number for number in index.idle if _piles_up(index, number))
        if len(numbers) < FOLDED_COMMITS:
            return 0
        removals, facts = _said_by(self.store, numbers)
        draft = CommitBatch()
        for _, number, first, count, why in removals:
            draft.remove(number, first, count, why)
        for key, (_, value, expiry) in facts.items():
            draft.fact(key, value, expiry)

        def still_true() -> None:
            if any(self.store.view.index.facts.get(key) != fact for key, fact in facts.items()):
                raise _GivenUpError

        with own_file(self.store, self.store.deadline(), header_room=(16 << 10) + 10 * len(numbers)) as file:
            draft.begin_branch(file.xid, os.urandom(BRANCH_ID_BYTES))
            _commit(self.store, file, draft, numbers, still_true)
        return 1


def _piles_up(index: Index, number: int) -> bool:
    """A file that is there for what it removes, or for a few facts. One that has many is large enough; the totals are
    reclaim's, which writes them anew."""
    state = index.files[number]
    if not state.foldable or state.facts > _FOLDED_FACTS:
        return False
    totals = index.facts.get(TOTALS_FACT)
    return bool(state.targets or state.facts) and (totals is None or totals[0] != number)


def _picks(index: Index, line: Queue, served: int, held: Collection[Position], worn_out: set[int]) -> list[Pick]:
    runs = choose(line, index.files, served, held) if is_slow(line.entries, served) else []
    if worn_out:
        runs = _with_worn(index, line, runs, worn_out, held)
    return [pick for run in runs for pick in _picks_of(index, run)]


def _with_worn(index: Index, line: Queue, runs: list[Run], worn_out: set[int], held: Collection[Position]) -> list[Run]:
    """And all that lies in these files, in order."""
    chosen = {id(run) for run in runs}
    found = list(runs)
    for run in line.runs():
        if run.file.number in worn_out and id(run) not in chosen and not _stays(run, held):
            found.append(run)
    for segment in line.all_segments():
        if segment.file.number in worn_out:
            found += index.messages.runs_of(segment)
    return sorted(found, key=lambda run: (run.due is not None, run.due or 0.0, run.key))


def _picks_of(index: Index, run: Run) -> Iterator[Pick]:
    """A run as it is to lie in the file: where the last message is the first to be delivered, each by itself."""
    branch, in_branch = index.messages.branch_of(Position(run.number, run.first))
    if not run.backwards:
        yield Pick(run, run.first, run.live, branch, in_branch, run.bytes_of(run.first, run.live))
        return
    for ordinal in reversed(range(run.first, run.end)):
        yield Pick(run, ordinal, 1, branch, in_branch + ordinal - run.first, run.bytes_of(ordinal))


def _files(picks: Iterable[Pick]) -> Iterator[list[list[Pick]]]:
    """Sections, of one queue and one line each, and which of them share a file."""
    sections: list[list[Pick]] = []
    size = 0
    for _, group in groupby(picks, key=lambda pick: (pick.run.queue.name, pick.run.due is None)):
        for section in _sections(group):
            weight = sum(pick.bytes for pick in section)
            if sections and (size + weight > SEGMENT_BYTES or len(sections) == _FILE_SEGMENTS):
                yield sections
                sections, size = [], 0
            sections.append(section)
            size += weight
    if sections:
        yield sections


def _sections(picks: Iterable[Pick]) -> Iterator[list[Pick]]:
    section: list[Pick] = []
    count = size = 0
    for pick in picks:
        if section and (count + pick.count > SEGMENT_MESSAGES or size + pick.bytes > SEGMENT_BYTES):
            yield section
            section, count, size = [], 0, 0
        section.append(pick)
        count, size = count + pick.count, size + pick.bytes
    if section:
        yield section


class _Sweep:
    """One file."""

    def __init__(self, store: Store, index: Index, sections: list[list[Pick]]) -> None:
        self.store = store
        self.index = index
        self.sections = sections
        self.picks: list[Pick] = []  # those that were written, one behind the other

    def write(self) -> int:
        """1, or 0 if nothing of it can be swept."""
        sources = {pick.run.file.number for section in self.sections for pick in section}
        reading = FileCache(self.store.files.disk)  # not the space's own, which gets share under the mutex
        # The header is written under the number lock, and must not outgrow its room: that would move all the rest.
        with own_file(self.store, self.store.deadline(), header_room=(16 << 10) + 10 * len(sources)) as file:
            draft = CommitBatch()
            draft.begin_branch(file.xid, os.urandom(BRANCH_ID_BYTES))
            try:
                for section in self.sections:
                    self._add(draft, section, reading)
                    file.stream(draft)
            finally:
                reading.close()
            if file.handle is None:
                return 0
            self.store.files.disk.flush(file.handle)  # the bulk, before anybody has to wait for it
            supersedes = {pick.run.file.number for pick in self.picks}
            _commit(self.store, file, draft, supersedes, lambda: self._leave(draft))
        return 1

    def _add(self, draft: CommitBatch, section: list[Pick], reading: FileCache) -> None:
        """One section, whole in the draft; what cannot be read stays where it is, for a get to set aside."""
        table = Table(queues=[section[0].run.queue.name], origins=Origins([], [], [], [], []))
        bodies: list[bytes] = []
        kept: list[Pick] = []
        for pick in section:
            try:
                found = reading.bodies(pick.run.file, pick.run.section, pick.run.row_of(pick.first), pick.count)
            except (CorruptedFile, FileNotFoundError) as error:
                log.warning("a message that cannot be read is not swept: %s", error)
                continue
            _add_row(table, pick)
            bodies += found
            kept.append(pick)
        if not bodies:
            return
        table.lengths = array("I", map(len, bodies))
        table.checksums = array("I", map(zlib.crc32, bodies))
        _make_searchable(table, kept)
        draft.sections.append(section_of(table, bodies))
        draft.messages += len(bodies)
        self.picks += kept

    def _leave(self, draft: CommitBatch) -> None:
        """Under the number lock: what is not any more as it was when we looked is left where it is."""
        if self.store.view.index is not self.index:
            raise _GivenUpError
        begins: dict[int, list[tuple[int, Pick]]] = {}
        ordinal = 0
        for pick in self.picks:
            begins.setdefault(pick.run.number, []).append((ordinal, pick))
            ordinal += pick.count
        left: Ranges = []
        for number, first, count in self.index.changed_since or ():
            for begin, pick in begins.get(number, ()):
                start, stop = max(first, pick.first), min(first + count, pick.first + pick.count)
                if start < stop:
                    left.append((0, begin + start - pick.first, stop - start))
        for first, count in _united(left):
            if count == ordinal:
                raise _GivenUpError
            draft.leave(first, count)


def _commit(
    store: Store, file: CommitFileWriter, batch: CommitBatch, supersedes: Collection[int], leave: Callable[[], None]
) -> None:
    """What the file says is true at its own number: nobody can commit anything between our last look and that."""
    deadline = store.deadline()
    batch.supersedes = tuple(sorted(supersedes))

    def check(_: Settings) -> None:
        settle_all(store, deadline)
        catch_up(store)
        leave()

    commit(store, file, batch, deadline, check=check)


def _add_row(table: Table, pick: Pick) -> None:
    run = pick.run
    attributes = dict(run.attributes)
    if not table.attributes or table.attributes[-1] != attributes:
        table.attributes.append(attributes)
    table.runs.append([0, len(table.attributes) - 1, pick.count])
    origins = table.origins
    assert origins is not None
    origins.numbers.append(run.number)
    origins.ordinals.append(pick.first)
    origins.times.append(run.committed_at)
    origins.branches.append(pick.branch)
    origins.places.append(pick.in_branch)


def _make_searchable(table: Table, picks: list[Pick]) -> None:
    table.ids = pack_ids([(pick.branch, pick.in_branch, run) for run, pick in enumerate(picks)])
    ids = [pick.run.attributes.get("correlation_id") for pick in picks]
    hashes = [(correlation_hash(id_), run) for run, id_ in enumerate(ids) if id_ is not None]
    table.correlations = pack_correlations(hashes)


def section_of(table: Table, bodies: list[bytes]) -> Section:
    """Ready to be written."""
    encoded = encode_table(table)
    parts = [encoded]
    for body in bodies:
        parts += (body_head(len(body)), body)
    size = sum(map(len, parts)) - len(encoded)
    return Section(table, SectionEntry(0, len(encoded), zlib.crc32(encoded), size, len(bodies)), parts)


def _united(ranges: Ranges) -> list[tuple[int, int]]:
    """(first, count) of what the ranges cover, each message once."""
    found: list[tuple[int, int]] = []
    for _, first, count in sorted(ranges):
        if found and first <= found[-1][0] + found[-1][1]:
            start, known = found[-1]
            found[-1] = start, max(known, first + count - start)
        else:
            found.append((first, count))
    return found


Facts = dict[str, tuple[int, Any, float | None]]


def _said_by(store: Store, numbers: list[int]) -> tuple[list[list[Any]], Facts]:
    """All that these commits removed and whose files may still be there, neighbours behind each other; and their facts,
    as far as they are the newest."""
    found: list[list[Any]] = []
    facts: Facts = {}
    for number in numbers:
        image = image_of(store.files.disk, layout.committed(number))
        if image is None or image.header.number != number:
            raise _GivenUpError
        with store.view.mutex:
            index = store.view.index
            targets = index.files[number].targets if number in index.files else ()
            swept = any(target in index.files and index.files[target].span is not None for target in targets)
            commands = [command for table in image.tables for command in table.commands]
            found += [command for command in commands if swept or command[1] in index.files]
            keys = [fact[0] for table in image.tables for fact in table.facts]
            facts.update({key: index.facts[key] for key in keys if index.facts.get(key, (0,))[0] == number})
    return sorted(found, key=lambda command: (command[1], command[2])), facts
