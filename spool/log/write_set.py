"""The content that a caller commits, and its way into a commit: new messages, commands on committed messages, facts.

A put, a get, a transaction, a vote and an adoption are each one write set, and so is their common commit (``merged``).
A write set touches no file. It closes each full section, so that a large branch streams to the disk while it grows.
"""

import os
import threading
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, Self

import msgpack

from spool.coordination.counters import CounterPage
from spool.disk.recycler import STOCK
from spool.errors import SystemFailure
from spool.format.commands import Addressing, Command, Left, Remove, Take, addressing
from spool.format.header import SECTION_MESSAGES, Adoption, BranchEntry
from spool.format.reader import FileContents
from spool.format.schema import MOST_ADDRESSED, check_attributes, check_command
from spool.format.table import SECTION_BYTES, CompactedTable, Section, Table, section_of, table_of
from spool.model.layout import MAX_ORDINAL
from spool.model.position import PositionRanges
from spool.model.xid import BRANCH_ID_BYTES, FORMAT_LOCAL, Xid

_ENTRY_BYTES = 64  # the largest size of a run, a command or a fact in the table, without control fields and values


class Stage(Enum):
    """The stage of a write set on its way into a commit, for the threads of its process."""

    WAITING = "waiting"
    LEADING = "waiting, and its thread leads"
    TAKEN = "taken"
    DONE = "done"


class WriteSet:
    """The content of a new file: messages, commands and facts, of any number of branches; and its way into a commit.

    messages, commands, facts: the numbers of messages, commands and facts. Ordinals count the messages from 0.
    branches: the branches in order, each with the range of its messages.
    sections: the closed sections, ready to be written.
    adopts: the prepared branches that the file commits, as entries of the file's header.
    adopted: the contents of the prepared branches in ``adopts``; of a write set that another process packed, [] until
        they are read.
    supersedes: the numbers of the commits that the file supersedes, because it repeats their content.

    The way into a commit:

    page: the counters, as the caller has read them.
    settings: the version of the settings under which the caller has found all queues into which messages are put; -1 if
        the commit has to look for them.
    branch, first: the branch of the messages, as hex, and the ordinal of the first message. If the write set adopts a
        branch, ``first`` is the place of this branch among those that the commit adopts, from 1.
    number: the number of the commit, once the commit has a number.
    error: the error of a write set that was not committed, or whose outcome is unknown.
    is_large: whether the messages fill a section.
    is_vote: whether the write set is prepared, and not committed.
    file: the ``CommitFileWriter`` of a branch that votes, or that has streamed a part of its content; else None.
    rounds: the gtrids whose prepared branches do not count for quotas, because their content was copied.
    caller: the thread that waits, or 0. ``signal``: held until the waiting thread may go on.
    begin: called when the write set is taken; returns False if its caller cancelled it.
    on_done: called once for all write sets that share this function and are done together.
    future: the future that the caller got, if any.
    """

    branch, first = "", 0
    number: int | None = None
    error: BaseException | None = None
    is_large = is_vote = False
    file: Any = None
    rounds: Collection[bytes] = ()
    caller, stage = 0, Stage.WAITING
    signal: "threading.Lock | None" = None
    begin: Callable[[], bool] | None = None
    on_done: Callable[[Sequence["WriteSet"]], None] | None = None
    future: Any = None

    def __init__(self, supersedes: tuple[int, ...] = (), page: CounterPage | None = None) -> None:
        self.messages = self.commands = self.facts = 0
        self.sections: list[Section] = []
        self.adopts: list[Adoption] = []
        self.adopted: list[FileContents] = []
        self.supersedes = supersedes
        self.branches: list[BranchEntry] = []
        self.page: CounterPage | None = page
        self.settings = -1 if page is None else page.settings
        self._shared: tuple[str, int] | None = None
        self._table = Table()
        self._bodies: list[bytes] = []
        self._bytes = self._addressed = 0

    @property
    def is_empty(self) -> bool:
        return not (self.messages or self.commands or self.facts or self.adopts)

    @property
    def size(self) -> int:
        """The approximate size of the content in a file, in bytes."""
        return self._bytes + (sum(section.entry.size for section in self.sections) if self.sections else 0)

    @property
    def tables(self) -> list[Table]:
        """The tables of the closed sections that are still in memory, and the table of the open section."""
        return [*(section.table for section in self.sections), self._table]

    @property
    def addressed(self) -> PositionRanges:
        """The committed messages that the write set removes or changes."""
        return [command[1:4] for table in self.tables for command in addressing(table.commands)]

    @property
    def removes_only(self) -> bool:
        """Whether the write set only removes messages, as a get does."""
        return not (self.messages or self.branches or self.facts or self.adopts or self.sections) and all(
            command.name == "remove" for command in self._table.commands
        )

    @property
    def ids(self) -> list[str]:
        """Return the ids of the messages, once they have a branch."""
        return list(map(f"{self.branch}%08x".__mod__, range(self.first, self.first + self.messages)))

    def files_to_leave(self) -> int:
        """Return how many consumed files to leave for more urgent commits, which must succeed on a full disk.

        A put leaves files for the attempts of a dead process, for removals, and for the reclaim afterwards. A removal
        leaves two files, because two processes may take a file at the same moment.
        """
        if self.messages:
            return STOCK
        commands = (command for table in self.tables for command in table.commands)
        return 0 if not self.commands else 3 if any(command.name == "update" for command in commands) else 2

    @property
    def section_is_full(self) -> bool:
        return self._bytes >= SECTION_BYTES or len(self._bodies) >= SECTION_MESSAGES

    # -- branches -----------------------------------------------------------------------------------------------------

    def begin_branch(self, xid: Xid | None, id_bytes: bytes) -> None:
        """Begin a branch, with a new local xid for None. Messages that are added from now on belong to this branch."""
        xid = xid or tuple.__new__(Xid, (FORMAT_LOCAL, id_bytes, b""))
        self.branches += (BranchEntry(xid, id_bytes, self.messages, 0),)
        self.branch, self._shared = id_bytes.hex(), None

    def shared_branch(self) -> tuple[str, int]:
        """Return the shared branch of neighbouring messages that belong to no other branch: its id in hex, and its next
        ordinal."""
        if self._shared is None:
            self.begin_branch(None, os.urandom(BRANCH_ID_BYTES))
            self._shared = self.branch, self.messages
        branch, first = self._shared
        return branch, self.messages - first

    def renew(self) -> None:
        """Make the write set ready for another attempt, after a commit that did not happen."""
        self.error = self.signal = None
        self.stage = Stage.WAITING

    def adopt(self, contents: FileContents) -> None:
        """Add a prepared branch that the file commits. The branch's messages follow the present messages of the
        batch."""
        header, last = contents.header, self.adopts[-1] if self.adopts else None
        first, count = self.messages if last is None else last.first + last.count, header.messages
        self.adopts.append(Adoption(header.branches[0].xid, header.size, header.checksum, first, count))
        self.adopted.append(contents)
        if first + count > MAX_ORDINAL + 1:
            raise SystemFailure(f"one commit holds at most {MAX_ORDINAL + 1} messages: commit fewer branches")

    # -- messages, commands, facts ------------------------------------------------------------------------------------

    def put(self, queue: str, bodies: Sequence[bytes], attributes: Mapping[str, Any]) -> int:
        """Append messages with the same control fields; return the ordinal of the first message.

        ValueError: a reader would refuse the control fields, and with them all messages of the commit.
        """
        if attributes:
            check_attributes(attributes)
        first, count, left = self.messages, len(bodies), 0
        if first + count > MAX_ORDINAL + 1:
            raise SystemFailure(f"a transaction holds at most {MAX_ORDINAL + 1} messages: commit it and begin another")
        piece, lengths = bodies, list(map(len, bodies))
        size = sum(lengths)
        while count:
            if self._bytes + size >= SECTION_BYTES or len(self._bodies) + count > SECTION_MESSAGES:
                piece, self.is_large = self._next_piece(bodies), True
                lengths = list(map(len, piece))
                size, left = sum(lengths), count - len(piece)
                count -= left
            table = self._table
            table.lengths += array("I", lengths)
            table.checksums += array("I", map(zlib.crc32, piece))
            self._bodies += piece
            self._bytes += size
            self.messages += count
            if self.branches:
                self.branches[-1].count += count
            last = table.runs[-1] if table.runs else None
            if last is not None and table.queues[last[0]] == queue and table.attributes[last[1]] == attributes:
                last[2] += count  # (like ``_add_run``, without a call)
            elif last is None and not attributes:  # (the same)
                table.queues, table.attributes, table.runs = [queue], [{}], [[0, 0, count]]
                self._bytes += _ENTRY_BYTES
            else:
                self._add_run(queue, attributes, count)
            bodies = bodies[count:]
            size, count, left = SECTION_BYTES, left, 0  # (because of this size, the loop takes a new piece of the rest)
        return first

    def is_open(self, ordinal: int) -> bool:
        """Return whether the message is in the open section, so that ``replace`` can change the message."""
        return ordinal >= self.messages - len(self._bodies)

    def replace(self, ordinal: int, body: bytes, attributes: Mapping[str, Any]) -> None:
        """Give a message of the open section another body and other control fields."""
        table, row = self._table, ordinal - (self.messages - len(self._bodies))
        self._bytes += len(body) - len(self._bodies[row])
        self._bodies[row], table.lengths[row], table.checksums[row] = body, len(body), zlib.crc32(body)
        at, end = len(table.runs) - 1, len(self._bodies)
        while end - table.runs[at][2] > row:
            end -= table.runs[at][2]
            at -= 1
        queue, present, count = table.runs[at]
        if table.attributes[present] != attributes:
            table.attributes += (dict(attributes),)
            self._bytes += _table_bytes(attributes)
            after = end - row - 1
            runs = [[queue, present, count - after - 1], [queue, len(table.attributes) - 1, 1], [queue, present, after]]
            table.runs[at : at + 1] = [run for run in runs if run[2]]
        if self.section_is_full:
            self.close_section()

    def _next_piece(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Return the first bodies that fit into the section, at least one body. A full section is closed first."""
        if self.section_is_full:
            self.close_section()
        room, count, size = SECTION_BYTES - self._bytes, 0, 0
        for body in bodies[: SECTION_MESSAGES - len(self._bodies)]:
            count, size = count + 1, size + len(body)
            if size >= room:
                break
        return bodies[:count]

    def _add_run(self, queue: str, attributes: Mapping[str, Any], count: int) -> None:
        table = self._table
        if table.runs:
            last = table.runs[-1]
            if table.queues[last[0]] == queue and table.attributes[last[1]] == attributes:
                last[2] += count
                return
        if queue not in table.queues:
            table.queues += (queue,)
        if not table.attributes or table.attributes[-1] != attributes:
            table.attributes += (dict(attributes),)
            self._bytes += _table_bytes(attributes) if attributes else _ENTRY_BYTES
        table.runs += ([table.queues.index(queue), len(table.attributes) - 1, count],)

    def append(self, other: "WriteSet", *, joins: bool = False) -> None:
        """Append the content of another write set, with its branches. Of ``other``, only the place of its messages
        changes: messages without a branch get a place in the shared branch, or in the present one if they join it."""
        if other.branches and other._shared is None:
            for branch in other.branches:
                self.branches += (BranchEntry(branch.xid, branch.id, self.messages + branch.first, branch.count),)
            self._shared = None
        elif other.messages:
            if not joins:
                other.branch, other.first = self.shared_branch()
            self.branches[-1].count += other.messages
        fits = self._bytes + other._bytes <= SECTION_BYTES and self._addressed + other._addressed <= MOST_ADDRESSED
        table, theirs = self._table, other._table
        fits = fits and len(self._bodies) + len(other._bodies) <= SECTION_MESSAGES
        if other.sections or not fits or len(table.commands) + len(theirs.commands) > SECTION_MESSAGES:
            self.close_section()
            table = self._table
        self.sections += other.sections
        table.lengths.extend(theirs.lengths)
        table.checksums.extend(theirs.checksums)
        for queue, attributes, count in theirs.runs:
            self._add_run(theirs.queues[queue], theirs.attributes[attributes], count)
        table.commands += theirs.commands
        table.facts += theirs.facts
        self._bodies += other._bodies
        self._bytes += other._bytes
        self._addressed += other._addressed
        self.messages += other.messages
        self.commands += other.commands
        self.facts += other.facts

    def add_section(self, table: Table, bodies: Sequence[bytes]) -> None:
        """Append messages as a whole section with a complete table."""
        self.sections += (section_of(table, bodies),)
        self.messages += len(bodies)
        self.branches[-1].count += len(bodies)

    def remove(self, number: int, first: int, count: int, why: str) -> None:
        """Add a command that removes committed messages; neighbouring ranges are joined."""
        while count > (room := MOST_ADDRESSED - self._addressed):
            if room:
                self.remove(number, first, room, why)
            first, count = first + room, count - room
            self.close_section()
        if commands := self._table.commands:
            last = commands[-1]
            if type(last) is Remove and last.number == number and last.first + last.length == first and last.why == why:
                commands[-1] = tuple.__new__(Remove, ("remove", number, last.first, last.length + count, why))
                self._addressed += count
                return
        if len(commands) >= SECTION_MESSAGES or self._bytes >= SECTION_BYTES:  # (like ``_command``, without a call)
            self.close_section()
        self._table.commands += (tuple.__new__(Remove, ("remove", number, first, count, why)),)
        self.commands += 1
        self._addressed += count

    def update(self, number: int, first: int, count: int, changes: Mapping[str, Any]) -> None:
        """Add a command that changes the control fields or the queue of committed messages; neighbouring ranges are
        joined."""
        if self._addressed + count > MOST_ADDRESSED:
            self.close_section()
        if commands := self._table.commands:
            last, place = commands[-1], (number, first, changes)
            if last.name == "update" and (last.number, last.first + last.length, last.changes) == place:
                commands[-1] = last._replace(length=last.length + count)
                self._addressed += count
                return
        self._command(check_command(("update", number, first, count, dict(changes))))
        self._addressed += count
        self._bytes += _table_bytes(changes)

    def record_captured_file(self, directory: str, name: bytes) -> None:
        """Record the dropped file from which this branch's messages come."""
        self._command(Take("take", directory, name))

    def leave(self, first: int, count: int) -> None:
        """Record that, in the end, compaction does not move these messages. ``first``: the ordinal of the first message
        in this file."""
        self._command(Left("left", first, count))

    def fact(self, key: str, value: Any, expiry: float | None = None) -> Self:
        """Add a fact; returns this write set."""
        if len(self._table.facts) >= SECTION_MESSAGES or self._bytes >= SECTION_BYTES:
            self.close_section()
        self._table.facts.append([key, value, expiry])
        self._bytes += _table_bytes(value)
        self.facts += 1
        return self

    def _command(self, command: Command) -> None:
        if len(self._table.commands) >= SECTION_MESSAGES or self._bytes >= SECTION_BYTES:
            self.close_section()
        self._table.commands += (command,)
        self.commands += 1

    # -- as bytes -----------------------------------------------------------------------------------------------------

    def close_section(self) -> None:
        """Encode the content that was added since the last section was closed, if any."""
        self.sections = self.encoded()
        self._table, self._bodies, self._bytes, self._addressed = Table(), [], 0, 0

    def encoded(self) -> list[Section]:
        """Return all sections. The last one stays open, because a refused write set may later be committed with
        others."""
        table = self._table
        if not (self._bodies or table.commands or table.facts):
            return self.sections
        return [*self.sections, section_of(table, self._bodies)]

    def shared(self) -> tuple[Any, ...] | None:
        """Return the write set as values that msgpack can encode, or None if another process cannot commit it.

        Another process commits no large write set, none that supersedes commits or adopts a branch with other content,
        and none with commands other than removals and updates. A write set with a captured file is not posted, because
        a posted request remains if its owner dies. Then the next intake would take the file a second time.
        """
        table = self._table
        if self.sections or self.supersedes or (self.adopts and (self.commands or self.facts or self.messages)):
            return None
        if not all(isinstance(command, Addressing) for command in table.commands):
            return None
        own = [] if self._shared is not None else self.branches
        branches = [(str(branch.xid), branch.id, branch.first, branch.count) for branch in own]
        adopts = [(one.xid, one.size, one.checksum) for one in self.adopts]
        return branches, section_of(table, ()).parts[0], self._bodies, self._bytes, adopts

    @classmethod
    def of_another(cls, shared: Sequence[Any]) -> Self:
        """Return the write set that another process has shared. The contents of adopted branches are missing."""
        branches, encoded, bodies, size, adopts = shared
        found, table = cls(), table_of(encoded)
        found.branches = [BranchEntry(Xid.parse(xid), id, first, count) for xid, id, first, count in branches]
        found.branch = found.branches[0].id.hex() if branches else ""
        found.adopts = [Adoption(Xid.checked(*xid), size, checksum, 0, 0) for xid, size, checksum in adopts]
        found._table, found._bodies, found._bytes = table, bodies, size
        found._addressed = sum(command.length for command in addressing(table.commands))
        found.messages, found.commands, found.facts = len(bodies), len(table.commands), len(table.facts)
        return found


def removal(page: CounterPage | None, ranges: PositionRanges) -> WriteSet:
    """Return the write set of claimed messages that leave their queue. ``ranges``: (number, first ordinal, count)."""
    found = WriteSet(page=page)
    for number, first, count in ranges:
        found.remove(number, first, count, "dequeued")
    return found


def merged(write_sets: Sequence[WriteSet]) -> WriteSet:
    """Return one write set with the content of all, in their order; a lone write set is returned itself.

    Removals come first, sorted, so that removals of neighbouring messages become one command. Adoptions come last:
    adopted messages have the last ordinals. The messages of neighbouring puts share a branch.
    """
    if not write_sets[1:]:
        (one,) = write_sets
        if one.adopts:
            one.first = 1
        # (earlier, the messages of a put may have had a place beside others, in a commit that did not happen)
        if one.messages and (one._shared is not None or not one.branches):
            id_bytes = os.urandom(BRANCH_ID_BYTES)
            one.branch, one.first = one._shared = id_bytes.hex(), 0
            xid = tuple.__new__(Xid, (FORMAT_LOCAL, id_bytes, b""))
            one.branches = [BranchEntry(xid, id_bytes, 0, one.messages)]
        return one
    whole = WriteSet(page=write_sets[-1].page)
    whole.settings = min(one.settings for one in write_sets)  # (if it is not the present one, the commit looks)
    removals = [one for one in write_sets if one.removes_only]
    for one in sorted(removals, key=attrgetter("addressed")):
        for table in one.tables:
            for command in table.commands:
                whole.remove(*command[1:])
    for one in write_sets:
        if not one.removes_only:
            whole.append(one)
    for one in write_sets:
        if one.adopts:
            one.first = len(whole.adopts) + 1
            for contents in one.adopted:
                whole.adopt(contents)
    return whole


def destinations_of(tables: Iterable[Table]) -> list[str]:
    """Return the queues into which messages are put or moved. Compaction moves no message to another queue."""
    queues: list[str] = []
    for table in tables:
        if type(table) is not CompactedTable:
            queues += table.queues
        for command in table.commands:
            if command.name == "update" and "queue" in command.changes and command.changes["queue"] not in queues:
                queues += (command.changes["queue"],)
    return queues


def _table_bytes(carried: Any) -> int:
    """Return the approximate number of bytes that an entry adds to its section's table. Readers refuse a table that is
    too large."""
    return _ENTRY_BYTES + (len(msgpack.packb(carried)) if carried else 0)
