"""The queues in memory: a function of the commits, which are applied in the order of their sequence numbers.

Neighbouring messages of one commit with the same queue and control fields are one *run*. So a commit of a thousand
messages costs a few entries. Thousands of compacted messages are one *segment*. Bodies and tables remain on disk. The
index does not decide alone whether a message can be claimed *now*: callers also check claims, prepared branches and the
time.

The index finds a message by its position, which never changes. The file in which the message lies may change.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

from spool.format.commands import Command
from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace, FileContents
from spool.format.schema import TOTALS_FACT
from spool.format.table import CompactedTable
from spool.index.body_files import FileCache
from spool.index.commit import (
    DEQUEUED,
    ENQUEUED,
    EXPIRED,
    FAILED,
    SUBSCRIPTION_FACT,
    Commit,
    CommitFile,
    FileRef,
    Retention,
    Subscription,
    add_target,
    shared_tally,
    totals_of,
)
from spool.index.lookup import MessageTable
from spool.index.run import Lengths, Run, lengths_of
from spool.index.segment import Segment
from spool.model.layout import MAX_NUMBER, ORDINAL_BITS, committed
from spool.model.message import updated
from spool.model.position import PositionRanges
from spool.model.schedule import SCHEDULE_FACT, Schedule, schedule_of
from spool.model.settings import QueueConfig
from spool.model.xid import Xid

# For each reason of a removal, the count that the removal increases.
_COUNTED_AS = {"dequeued": DEQUEUED, "failed": FAILED, "expired": EXPIRED}
LEAST_SEGMENT = 32  # a section of fewer compacted messages becomes runs at once


class Index:
    """The state of all queues of a space after the commit ``applied``.

    messages: the live messages.
    files: for each commit that still has files, the reasons to keep them.
    restored: the index got all commits up to this number from a checkpoint.
    idle: the commits without live messages that may be reclaimed.
    idle_bytes: the bytes of all bodies in the files of the idle commits.
    unread: commits without live messages that are kept for a subscription.
    subscriptions, schedules: the subscriptions and the schedules, by the keys of their facts.
    retired: the idle commits whose removal reclaim has recorded; their files may still exist.
    unflushed: commits that were published without a flush. A later flush has covered the commits up to the durable
        mark.
    facts: for each key, the newest fact, as (commit, value, expiry time or None).
    adopted: the branches that a commit adopted, each with the number of that commit, its place (from 1) among the
        branches of that commit, and its checksum.
    captured: the dropped files that a commit records as captured by an intake.
    damage: (file, problem) for each file of which a part could not be read.
    changed_since: during a compaction, the messages that were removed or changed since its start; None if no compaction
        runs.
    """

    def __init__(self, cache: FileCache, configs: Mapping[str, QueueConfig]) -> None:
        self.messages = MessageTable(cache, configs, self.drop_damaged)
        self._cache = cache
        self.applied = 0
        self.restored = 0
        self.files: dict[int, Retention] = {}
        self.idle: set[int] = set()
        self.idle_bytes = 0
        self.unread: set[int] = set()
        self.subscriptions: dict[str, Subscription] = {}
        self.schedules: dict[str, Schedule] = {}
        self.retired: set[int] = set()
        self.unflushed: set[int] = set()
        self.facts: dict[str, tuple[int, Any, float | None]] = {}
        self._expiries: list[tuple[float, str]] = []  # a heap of (expiry time of a fact, key)
        self.adopted: dict[Xid, tuple[int, int, int]] = {}
        self.captured: set[tuple[str, bytes]] = set()
        self.damage: list[tuple[str, str]] = []
        self.changed_since: PositionRanges | None = None

    # -- applying a commit ------------------------------------------------------------------------------------------

    def apply(self, commit: Commit, *, is_new: bool = True) -> None:
        """Apply the next commit: its messages, then its commands, then its facts.

        ``is_new``: whether claims of its messages may follow soon, so that the tables of its files are kept in the
        cache. (The tables of a compaction are always kept.)
        """
        number, files, damage = commit
        header = files[0].contents.header
        state = self.files[number] = Retention()
        for k, one in enumerate(header.adopts, 1):
            state.adopted += (one.xid,)
            self.adopted[one.xid] = number, k, one.checksum
        for name, wrong in damage:
            self.mark_damaged(number, name, wrong)
        for file in files:
            if file.contents.header.branches:
                self._add_messages(number, header.time, file, state, is_new or bool(header.supersedes))
        mergeable = bool(files[0].contents.tables) and not header.adopts
        for file in files:
            for table in file.contents.tables:
                for command in table.commands:
                    if command.name == "remove":
                        what, first = _COUNTED_AS.get(command.why), command.first
                        self._remove(command.number, first, first + command.length, what, state, number)
                    else:
                        self._command(state, number, header.time, command)
                        mergeable = False
                for key, value, expiry in table.facts:
                    self._fact(number, state, key, value, expiry)
                    mergeable = mergeable and value is not None
        state.mergeable = mergeable
        if header.supersedes:
            self._supersede(number, state, header.supersedes, repeats=not header.messages)
        if not (state.live or state.damaged or number in self.idle):
            if self.subscriptions:
                self.mark_idle(number)
            else:
                self.idle.add(number)
                self.idle_bytes += state.body_bytes
        if not header.flushed:
            self.unflushed.add(number)
        if number > self.applied:
            self.applied = number

    def _add_messages(self, number: int, time: float, read: CommitFile, state: Retention, is_kept: bool) -> None:
        """Add the messages of one file of commit ``number``.

        ``time``: the time of the commit. ``is_kept``: whether to keep the file's tables in the cache.
        """
        adoption, xid, ordinal, (header, tables) = read
        messages, file = self.messages, tuple.__new__(FileRef, (number, adoption, xid, header.checksum))
        compacted = has_several = False
        for table in tables:
            compacted = compacted or type(table) is CompactedTable
            has_several = has_several or len(table.lengths) > 1
        if is_kept and has_several:
            self._cache.remember(file, read.contents)
        begins, ids = list[int](), list[bytes]()  # the first ordinals and the ids of the branches with messages
        for branch in header.branches:
            if branch.count and not compacted:
                begins += (ordinal + branch.first,)
                ids += (branch.id,)
        for table, entry in zip(tables, header.sections, strict=True):
            base = first = ordinal
            ordinal += entry.messages  # a damaged table also counts, so that later messages keep their ordinals
            if not table.runs:
                continue  # the table has no messages, or is damaged
            if type(table) is CompactedTable:
                self._add_compacted(file, entry, table, read.left(base, entry.messages), state)
                continue
            runs = messages.runs.setdefault(number, [])
            bodies: BodyPlace | SectionEntry = entry
            lengths: Lengths = table.lengths[0] if entry.messages == 1 else lengths_of(table.lengths)
            if entry.messages == 1:
                offset = entry.offset + entry.table_bytes + entry.bodies_bytes - table.lengths[0]
                bodies = tuple.__new__(BodyPlace, (offset, table.lengths[0], table.checksums[0]))
            for queue_at, attributes_at, count in table.runs:
                name, attributes, end = table.queues[queue_at], table.attributes[attributes_at], first + count
                queue = messages.queues.get(name) or messages.queue(name)
                if state.tally:
                    _count(state, name, ENQUEUED, count)
                else:
                    state.tally = shared_tally(name, count, 0, 0, 0)
                while first < end:
                    after = bisect_right(begins, first)
                    stop = begins[after] if after < len(begins) and begins[after] < end else end
                    run = Run(
                        queue.order, file, bodies, base, number, first, stop - first, attributes, time, lengths,
                        ids[after - 1], begins[after - 1],
                    )  # fmt: skip
                    runs.append(run)
                    messages.branches[run.branch] = number, run.begin
                    queue.add(run)
                    if queue.cuts:
                        messages.keep_apart(queue, run)
                    size = lengths * (stop - first) if type(lengths) is int else run.bytes_of(first, stop - first)
                    queue.live += stop - first
                    queue.bytes += size
                    state.live += stop - first
                    state.live_bytes += size
                    state.body_bytes += size
                    first = stop

    # -- commands ---------------------------------------------------------------------------------------------------

    def _command(self, state: Retention, number: int, time: float, command: Command) -> None:
        """Apply one command of commit ``number`` that is no removal. ``time``: the time of the commit.

        A message that is not live is no error: an earlier commit removed it."""
        if command.name == "take":
            state.captured += ((command.directory, command.file),)
            self.captured.add((command.directory, command.file))
            return
        if command.name != "update":
            return  # ``CommitFile.left`` has read the command "left" already
        target, first, messages = command.number, command.first, self.messages
        if target != number:
            add_target(state, target)
        for run, start, stop in messages.live_runs(target, first, first + command.length, messages.materialize):
            if run.file.number != number:
                add_target(state, run.file.number)
            self._update(run, start, stop - start, command.changes, time)

    def _remove(
        self, number: int, ordinal: int, end: int, what: int | None = None, by: Retention | None = None, commit: int = 0
    ) -> None:
        """Remove the live messages of commit ``number`` from ``ordinal`` on, up to but not including ``end``.

        Args:
            what: the count of a tally that the removal raises, or None.
            by, commit: the commit that removes the messages, and its number.
        """
        messages = self.messages
        if by is not None and number != commit:
            if by.addressed:
                add_target(by, number)
            else:
                by.addressed = {number}
        while ordinal < end:
            run, stop = messages.run_at(number, ordinal, end)
            if run is not None:
                queue, file, lengths = messages.queues[run.queue.name], run.file.number, run.lengths
                size = lengths * (stop - ordinal) if type(lengths) is int else run.bytes_of(ordinal, stop - ordinal)
                if ordinal == run.first and stop == run.end:
                    messages.remove(queue, run)
                else:
                    messages.remove_range(queue, run, ordinal, stop)
            else:
                segment, live, stop = messages.live_run_at(number, ordinal, stop)
                if segment is None or live is None:
                    ordinal = stop
                    continue
                table = messages.table_of(segment)
                queue, file, stop = messages.queues[segment.queue.name], segment.file.number, ordinal + live.length
                size = sum(table.lengths[live.row : live.row + live.length])
                messages.remove_live_run(segment, live, size)
            state, count = self.files[file], stop - ordinal
            if by is not None and file != number and file != commit:
                add_target(by, file)
            queue.live -= count
            queue.bytes -= size
            state.live -= count
            state.live_bytes -= size
            if not (state.live or state.damaged):  # (the commit was not idle before, because it had live messages)
                if self.subscriptions:
                    self.mark_idle(file)
                else:
                    self.idle.add(file)
                    self.idle_bytes += state.body_bytes
            if self.changed_since is not None:
                self.changed_since.append((number, ordinal, count))
            if what is not None:
                _count(state, queue.name, what, count)
            if what == DEQUEUED:
                queue.served += count
            ordinal = stop

    def _update(self, run: Run, ordinal: int, count: int, changes: Mapping[str, Any], time: float) -> None:
        """Change the control fields of some messages of a run. These messages move to a separate run.

        ``time``: the time of the commit, in seconds since the epoch."""
        messages = self.messages
        attributes = updated(run.attributes, changes)
        if "failure_reason" in changes:
            attributes["failed_at"] = time
        old = messages.queues[run.queue.name]
        queue = messages.queue(changes.get("queue", old.name))
        state, size = self.files[run.file.number], run.bytes_of(ordinal, count)
        if queue is not old:
            if changes.get("failure_reason"):
                _count(state, old.name, _COUNTED_AS.get(changes.get("why", ""), FAILED), count)
            _count(state, queue.name, ENQUEUED, count)
        if run.first == ordinal and run.live > count:  # remove this run first, because the new run may get its key
            rest = run.tail(ordinal + count)
            messages.remove(old, run)
            messages.add(rest)
        else:
            messages.remove_range(old, run, ordinal, ordinal + count)
        old.live -= count
        old.bytes -= size
        moved = Run(
            queue.order, run.file, run.bodies, run.base, run.number, ordinal, count, attributes, run.committed_at,
            run.lengths, run.branch, run.begin,
        )  # fmt: skip
        messages.add(moved)
        queue.live += count
        queue.bytes += size
        if self.changed_since is not None:
            self.changed_since.append((run.number, ordinal, count))

    # -- facts ------------------------------------------------------------------------------------------------------

    def _fact(self, number: int, state: Retention, key: str, value: Any, expiry: float | None) -> None:
        """Apply a fact of commit ``number``. The fact replaces the earlier fact with the same key. A fact with the
        value None only removes the earlier fact."""
        old = self.facts.pop(key, None)
        if old is not None and old[0] in self.files:
            self.files[old[0]].facts -= 1
            if value is None and old[0] != number:
                add_target(state, old[0])  # otherwise a removal of this file would make the old fact valid again
        if value is not None:
            self.keep_fact(key, number, value, expiry)
            state.facts += 1
            if key == TOTALS_FACT:
                self._record_retired(value["folded"])
        elif key in self.subscriptions:
            self._follow_subscription(key)
        else:
            self.schedules.pop(key, None)

    def keep_fact(self, key: str, number: int, value: Any, expiry: float | None) -> None:
        """Set a fact of commit ``number``. ``expiry``: seconds since the epoch; None if the fact never expires."""
        self.facts[key] = (number, value, expiry)
        if expiry is not None:
            heappush(self._expiries, (expiry, key))
        if key.startswith(SUBSCRIPTION_FACT):
            self._follow_subscription(key)
        elif key.startswith(SCHEDULE_FACT) and (found := schedule_of(key, value)) is not None:
            self.schedules[key] = found

    def forget_expired(self, now: float) -> None:
        """Drop the expired facts, so that these facts keep no files any more."""
        while self._expiries and self._expiries[0][0] <= now:
            expiry, key = heappop(self._expiries)
            number, _, current = self.facts.get(key, (0, None, None))
            if current == expiry:
                del self.facts[key]
                if number in self.files:
                    self.files[number].facts -= 1

    # -- adopted branches -------------------------------------------------------------------------------------------

    def adopter(self, xid: Xid) -> int | None:
        """Return the number of the commit that adopted a branch with this xid last, or None."""
        return self.adopted.get(xid, (None,))[0]

    def has_adopted(self, branch: FileContents) -> bool:
        """Return whether a commit adopted this very branch: another branch may have had its xid before."""
        adopted = self.adopted.get(branch.header.branches[0].xid)
        return adopted is not None and adopted[-1] == branch.header.checksum

    # -- compaction -------------------------------------------------------------------------------------------------

    def _add_compacted(
        self, file: FileRef, entry: SectionEntry, table: CompactedTable, removed: list[tuple[int, int]],
        state: Retention,
    ) -> None:  # fmt: skip
        """Add the messages of a compacted section, and remove the entries for the messages' earlier places.

        ``removed``: the messages that were removed or changed before the compaction was committed, as (row, count). The
        earlier entries of the other messages are removed. A rebuilt index may lack these entries.
        """
        messages = self.messages
        queue = messages.queue(table.queues[table.runs[0][0]])
        segment = Segment(queue.order, file, entry, table)
        for row, count in removed:
            segment.remove(row, count, sum(table.lengths[row : row + count]))
        found = list(segment.live_runs(table))
        for live in found:
            self._remove(live.number, live.first, live.first + live.length)
        if not found:
            return
        low, high = state.span or (MAX_NUMBER, 0)
        state.span = min(low, segment.low >> ORDINAL_BITS), max(high, segment.high >> ORDINAL_BITS)
        queue.live += segment.live
        queue.bytes += segment.bytes
        state.live += segment.live
        state.live_bytes += segment.bytes
        state.body_bytes += segment.bytes
        one_queue = len({run[0] for run in table.runs}) == 1
        if one_queue and segment.live >= LEAST_SEGMENT and messages.set_sort_key(segment, table):
            messages.add_segment(segment)
            return
        for live in found:
            messages.insert_live_run(segment, table, live)

    def _supersede(self, number: int, state: Retention, supersedes: tuple[int, ...], *, repeats: bool) -> None:
        """Record the commits that commit ``number`` supersedes, if the files of these commits still exist. ``repeats``:
        whether commit ``number`` repeats all commands of these commits."""
        there = [known for known in supersedes if known in self.files]
        for known in there:
            old = self.files[known]
            old.superseded_by = number
            if repeats:
                for target in old.addressed:
                    add_target(state, target)
                old.addressed = frozenset()
        state.supersedes = array("Q", there) or None

    def drop_damaged(self, segment: Segment, wrong: str) -> None:
        """Drop a segment whose table cannot be read any more, and record the damage of its file."""
        number = segment.file.number
        self.mark_damaged(number, committed(number), wrong)
        self._drop_segment(segment)
        segment.live = 0

    def _drop_segment(self, segment: Segment) -> None:
        queue, state = self.messages.queues[segment.queue.name], self.files[segment.file.number]
        self.messages.remove_segment(segment)
        queue.live -= segment.live
        queue.bytes -= segment.bytes
        state.live -= segment.live
        state.live_bytes -= segment.bytes
        if not state.live:
            self.mark_idle(segment.file.number)

    # -- files ------------------------------------------------------------------------------------------------------

    def mark_idle(self, number: int) -> None:
        """Permit the reclaim of a commit's files, which have no live message.

        Damaged files are kept, because they may have held more messages. Files that a subscription has not read are
        also kept (Rule 15).
        """
        state = self.files[number]
        if state.damaged or number in self.idle:
            return
        if any(each.has_unread(number, state) for each in self.subscriptions.values()):
            self.unread.add(number)
        else:
            self.idle.add(number)
            self.idle_bytes += state.body_bytes

    def _follow_subscription(self, key: str) -> None:
        """Check again which commits are kept for a subscription, because it was registered, has read further, or has
        ended."""
        old, (_, value, _) = self.subscriptions.pop(key, None), self.facts.get(key, (0, None, None))
        if (new := Subscription.of(value)) is not None:
            self.subscriptions[key] = new
        for number in old.read_between(new) if old and new and old.queues == new.queues else [*self.idle, *self.unread]:
            if number in self.idle or number in self.unread:
                self._unmark_idle(number)
                self.mark_idle(number)

    def _unmark_idle(self, number: int) -> None:
        self.unread.discard(number)
        if number in self.idle:
            self.idle.remove(number)
            self.idle_bytes -= self.files[number].body_bytes

    def mark_damaged(self, number: int, name: str, wrong: str) -> None:
        """Record that a part of the file ``name`` of a commit cannot be read. The damaged file is kept until it is
        repaired."""
        self.damage.append((name, wrong))
        self._unmark_idle(number)
        self.files[number].damaged = True

    def _record_retired(self, numbers: list[int]) -> None:
        """Apply the record with which reclaim announces the removal of files: ``numbers`` are the commits of these
        files. Commits that only the previous record names have no files any more."""
        for gone in self.retired.difference(numbers):
            self.forget(gone)
        for number in numbers:
            if number in self.files:
                self._retire(number)

    def _retire(self, number: int) -> None:
        """Drop the messages and the counts of a commit, because reclaim's record includes these counts.

        The files can have live messages if an administrator restored the files after reclaim had removed the commits
        that consumed the messages.
        """
        state = self.files[number]
        state.tally = {}
        self._forget_facts(number, state)
        self.retired.add(number)
        if state.live:
            self._drop_messages({number})
        if number in self.unread:  # (a rebuilt index may apply this record before the subscription's end)
            self.unread.remove(number)
            self.mark_idle(number)

    def _drop_messages(self, numbers: set[int]) -> None:
        messages = self.messages
        for segment in [segment for segment in messages.segments if segment.file.number in numbers]:
            self._drop_segment(segment)
        compacted = any(self.files[number].span is not None for number in numbers)
        commits = list(messages.runs) if compacted else [number for number in numbers if number in messages.runs]
        for run in [run for commit in commits for run in messages.runs[commit] if run.file.number in numbers]:
            self._remove(run.number, run.first, run.end)

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Forget all commits except ``numbers``, and forget their messages, because the files of these commits were
        reclaimed."""
        there = set(numbers)
        gone = [number for number in self.files if number not in there]
        self._drop_messages({number for number in gone if self.files[number].live})
        for number in gone:
            self.forget(number)

    def forget(self, number: int) -> None:
        """Forget a commit whose files were removed."""
        self._unmark_idle(number)
        state = self.files.pop(number)
        self.retired.discard(number)
        for xid in state.adopted:
            if self.adopter(xid) == number:
                del self.adopted[xid]
        self._forget_facts(number, state)

    def _forget_facts(self, number: int, state: Retention) -> None:
        if state.facts:
            state.facts = 0
            for key in [key for key, (owner, _, _) in self.facts.items() if owner == number]:
                del self.facts[key]
                self.schedules.pop(key, None)
                if key in self.subscriptions:
                    self._follow_subscription(key)

    # -- counts -----------------------------------------------------------------------------------------------------

    def totals(self) -> dict[str, list[int]]:
        """Return, for each queue, [enqueued, dequeued, failed, expired] since the space was created."""
        return totals_of(self.files, self.facts.get(TOTALS_FACT, (0, None, None))[1])


def _count(state: Retention, queue: str, what: int, count: int) -> None:
    """Add ``count`` to one of the four counts in a queue's tally. ``what``: ENQUEUED, DEQUEUED, FAILED or EXPIRED."""
    tally = state.tally
    if not tally or (len(tally) == 1 and queue in tally):
        counts = list(tally.get(queue, (0, 0, 0, 0)))
        counts[what] += count
        state.tally = shared_tally(queue, *counts)
        return
    if not isinstance(tally, dict):  # it is shared
        tally = state.tally = {name: list(counts) for name, counts in tally.items()}
    tally.setdefault(queue, [0, 0, 0, 0])[what] += count
