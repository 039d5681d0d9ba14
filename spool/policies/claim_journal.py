"""The journal of a transaction's claims. If the process dies, an attempt is counted for the messages in the journal.

A journal is a file ``active/<xid>.claims``. The file is never flushed, because a journal has to survive a killed
process, not a power cut. A journal names its owner by a number. While the owner lives, the byte of this number is
locked in every claim file (Rule 6).

A program works on a message as soon as it has claimed the message. So an attempt is counted for each message in the
journal. A forwarding round, however, claims thousands of messages, and tasks in other processes call the service for
one message at a time. So the journal of a round has a byte for each message, a *mark*. A task sets the mark during the
call, and an attempt is counted only for marked messages. A round writes the marks before the claims. If the round is
killed while it writes its journal, it has begun no call, and no attempt is counted.

A program that holds messages outside of any transaction begins and ends its attempts in any order. In its journal, each
message in work has a slot (``SlotJournal``). A slot is a claim of a fixed length, so that it can be overwritten.

A process can die after the commit that counts an attempt, and before the end of the journal. So before this commit the
journal has the state of the message: in a slot, or in a record that ``add_states`` adds. The commit changes the state,
so the attempt is not counted again.

A process keeps the files of ended journals, without claims, and renames them for its next transactions. Otherwise the
creation and removal of a file would be a large part of a short transaction. The close of the space removes the files.
"""

import logging
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from spool.coordination.counters import CounterPage
from spool.coordination.locks import xid_byte
from spool.disk.content import opened, unlink_unless_gone
from spool.disk.disk import Disk, is_full
from spool.errors import NO_ROOM, SystemFailure
from spool.format.writer import writer_name
from spool.index.index import Index
from spool.log.commit import Rooms, no_rooms
from spool.log.sequence import number_locked, settle_all
from spool.log.visibility import catch_up
from spool.model import layout
from spool.model.position import Position, PositionRanges
from spool.model.xid import Xid, new_local_xid
from spool.policies import retries
from spool.runtime.clock import Deadline
from spool.runtime.tearing import raise_if_torn
from spool.store.store import Store

log = logging.getLogger("spool")

_MAX_NOTE_BYTES = 64 << 20
_MOST_SPARES = 16
_AGAIN_SECONDS = 1.0  # between two attempts to count attempts on a full disk
_NAME, _VERSION = "xaspool-claims", 1
MARKED, UNMARKED = b"\1", b"\0"


class JournalContents(NamedTuple):
    """The content of a journal.

    owner: the number of the journal's owner; 0 if the journal cannot be read.
    ranges: the claims, each as (number, first ordinal, count).
    pid, program: the process that wrote the journal, or None if unknown; for people only.
    since: the time of the first claim in seconds since the epoch, or None if unknown; for people only.
    marks: a byte for each message in the journal of a round; None in the journal of any other transaction.
    states: the states of messages before their attempts were counted, each with the range of these messages.
    begun_at: when the attempts at messages with slots began, in seconds since the epoch; for people only.
    """

    owner: int
    ranges: list[tuple[int, int, int]]
    pid: int | None = None
    program: str | None = None
    since: float | None = None
    marks: bytes | None = None
    states: Sequence[tuple[tuple[int, int, int], object]] = ()
    begun_at: Mapping[tuple[int, int, int], float] = {}

    @property
    def begun(self) -> list[tuple[int, int, int]]:
        """Return the messages for which an attempt has begun. If the process has died, these attempts count."""
        if self.marks is None:
            return self.ranges
        found, begin = [], 0
        for number, first, count in self.ranges:
            place = self.marks.find(MARKED, begin, begin + count)
            while place >= 0:
                found.append((number, first + place - begin, 1))
                place = self.marks.find(MARKED, place + 1, begin + count)
            begin += count
        return found


class CallMarks(NamedTuple):
    """The place of marks in the journal of a round, for the messages of one claim.

    xid: the xid of the round's transaction.
    first: the offset of the first mark in the file.
    """

    xid: Xid
    first: int


class ClaimJournal:
    """The journal of one transaction. The first claim creates the file of the journal. Caller holds the lock of the
    xid."""

    def __init__(self, store: Store, xid: Xid) -> None:
        self.store = store
        self._xid = xid
        self._name = ""  # the name of the file, once the file exists
        self._handle: int | None = None
        self._end = 0
        self._has_marks = False  # tasks may map the file into their memory, so it must not be truncated

    @property
    def is_begun(self) -> bool:
        """Return whether the journal has a file."""
        return self._handle is not None

    def add_states(self, ranges: PositionRanges) -> None:
        """Record the present states of claimed messages, because the next commit counts their attempts."""
        with self.store.view.mutex:
            found = [
                (number, start, stop - start, _state(run.queue.name, run.attributes.get("attempts", 0)))
                for number, first, count in ranges
                for run, start, stop in self.store.view.index.messages.live_runs(number, first, first + count)
            ]
        self.add(found)

    def add(self, claims: Iterable[tuple[int, ...]]) -> None:
        """Record claims, each as (number, first ordinal, count) or (number, first ordinal, count, state).

        If the disk is full, nothing is recorded, and no attempt is counted.
        """
        data, pack = b"", msgpack.Packer().pack
        for one in claims:
            packed = pack(one)
            data += packed + pack(zlib.crc32(packed))
        self._append(data)

    def add_marks(self, count: int) -> int | None:
        """Add unset marks for the claims that are added next.

        Return the offset of the first mark in the file, or None if the disk is full.
        """
        self._has_marks = True
        self._append(msgpack.packb(bytes(count)))
        return self._end - count if self.is_begun else None

    def _append(self, records: bytes) -> None:
        """Append records to the file. A missing file is created first. If the disk is full, remove the file."""
        try:
            data = records if self._handle is not None else self._begin() + records
            assert self._handle is not None
            self.store.files.disk.write_at(self._handle, self._end, data)
            self._end += len(data)
        except OSError as error:
            self._unlink()  # a reader would stop at an incomplete record, and miss later records
            if error.errno not in NO_ROOM:
                raise
            log.warning("claims cannot be recorded: %s", error)

    def clear_marks(self, first: int, count: int) -> None:
        """Unset marks. ``first``: the offset of the first mark in the file."""
        if self._handle is not None:
            self.store.files.disk.write_at(self._handle, first, UNMARKED * count)

    def _begin(self) -> bytes:
        """Create the file, or take the file of an ended journal; return the first record of the file."""
        become_owner(self.store)
        self._name = layout.claim_journal(self._xid)
        self._handle = self._take_spare()
        if self._handle is None:
            self._handle = self.store.files.disk.create(self._name)
        writer = writer_name()
        about = [writer["pid"], writer["program"], self.store.clock.now()]
        packed: bytes = msgpack.packb([_NAME, _VERSION, self.store.shared.claims.owner, *about])
        return packed + bytes(msgpack.packb(zlib.crc32(packed)))

    def _take_spare(self) -> int | None:
        """Give the file of an ended journal this journal's name; return its handle, or None if no file is left."""
        spares, disk = self.store.spare_journals, self.store.files.disk
        while spares:
            try:
                name, handle = spares.pop()
            except IndexError:  # another thread took the last file
                break
            try:
                disk.rename(name, self._name)
            except FileNotFoundError:  # another process has removed the file
                disk.close(handle)
            else:
                return handle
        return None

    def remove(self) -> None:
        """Remove the claims from the file, and keep the file for another journal; or delete the file."""
        if self._handle is None:
            return
        if self._has_marks or len(self.store.spare_journals) >= _MOST_SPARES:
            self._unlink()
            return
        handle, self._handle, self._end = self._handle, None, 0
        try:
            self.store.files.disk.truncate(handle, 0)
        except BaseException:
            self._handle = handle
            self._unlink()
            raise
        self.store.spare_journals.append((self._name, handle))

    def discard(self) -> None:
        """Call ``remove``; a failure is only logged."""
        try:
            self.remove()
        except OSError as error:
            raise_if_torn(error)
            log.warning("a journal of claims could not be removed: %s", error)

    def _unlink(self) -> None:
        if self._handle is not None:
            self.store.files.disk.close(self._handle)
            self._handle = None
            self._end = 0
            self.store.files.disk.unlink(self._name)


class SlotJournal(ClaimJournal):
    """A journal of messages whose attempts begin and end in any order: each message has a slot of the file.

    The slot of an ended attempt gets the next message, so the file grows with the number of messages that are being
    handled at one time. The first message creates the file, and locks the xid's byte. Not thread-safe.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, new_local_xid())
        self._byte: int | None = None
        self._free: list[int] = []  # the offsets of the free slots

    def begin(self, position: Position, queue: str, attempts: int) -> int | None:
        """Record that an attempt has begun; return the slot. None: the disk is full, and no attempt is counted.

        ``queue``, ``attempts``: the message's queue, and the number of failed attempts so far.
        """
        if self._handle is None and not self._create():
            return None
        at = self._free.pop() if self._free else self._end
        if not self._write(at, _slot(*position, 1, _state(queue, attempts), self.store.clock.now())):
            return None
        self._end = max(self._end, at + _SLOT_BYTES)
        return at

    def end(self, slot: int, position: Position | None) -> None:
        """Record that an attempt has ended, before the message is released. From now on, no attempt is counted.

        ``position``: the message, or None if a commit has removed the message, so that no attempt can be counted.
        """
        if position is None or self._write(slot, _slot(*position, 0, 0, 0.0)):
            self._free.append(slot)

    def remove(self) -> None:
        """Remove the file, or keep it for another journal; and unlock the xid. The caller has ended all attempts."""
        try:
            super().remove()
        finally:
            self._free.clear()
            if self._byte is not None:
                byte, self._byte = self._byte, None
                self.store.shared.xids.unlock(byte)

    def _create(self) -> bool:
        while self._byte is None:  # (the byte of a new xid is held only if it is also the byte of another name)
            byte = xid_byte(self._xid)
            if self.store.shared.xids.try_lock(byte):
                self._byte = byte
            else:
                self._xid = new_local_xid()
        self._append(b"")
        return self._handle is not None

    def _write(self, at: int, record: bytes) -> bool:
        """Write a slot; return False if the disk is full. A reader ignores an incomplete slot at the end of the
        file."""
        assert self._handle is not None
        try:
            self.store.files.disk.write_at(self._handle, at, record)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("claims cannot be recorded: %s", error)
            return False
        return True


def _slot(number: int, ordinal: int, count: int, state: int, begun_at: float) -> bytes:
    """Return a range with its checksum as bytes of a fixed length. ``count``: 1, or 0 for a free slot."""
    record = _RANGE.pack(0x95, 0xCF, number, 0xCE, ordinal, 0xCE, count, 0xCE, state, 0xCB, begun_at)
    return record + _CHECKSUM.pack(0xCE, zlib.crc32(record))


_RANGE, _CHECKSUM = struct.Struct(">BBQBIBIBIBd"), struct.Struct(">BI")  # msgpack, with the widest form of each number
_SLOT_BYTES = _RANGE.size + _CHECKSUM.size


def _state(queue: str, attempts: int) -> int:
    """Return a number that is another one after the message's attempt was counted, in its queue or an error queue."""
    return zlib.crc32(f"{attempts} {queue}".encode())


def remove_spares(store: Store) -> None:
    """Delete the files of ended journals; the space is being closed."""
    while store.spare_journals:
        name, handle = store.spare_journals.pop()
        store.files.disk.close(handle)
        with suppress(OSError):  # (another process may have removed the file)
            store.files.disk.unlink(name)


def become_owner(store: Store) -> None:
    """Get an owner number for this process, unless the process has one. Raises WaitExpired.

    Lock the number's byte in every claim file before other processes can read the number.
    """
    if store.shared.claims.owner:
        return
    with number_locked(store.shared.control, store.deadline()):
        if store.shared.claims.owner:
            return  # another thread got a number; with a second number, the first number would look like a dead owner
        owner = store.shared.counters.read().owner + 1
        if owner > layout.MAX_ORDINAL:
            raise SystemFailure("the space has used up its owner numbers: close it in every process and open it again")
        store.shared.claims.become_owner(owner)
        store.shared.counters.store_owner(owner)


class Uncounted(NamedTuple):
    """Messages whose attempts could not be counted. error: the error of the full disk; None if all were counted."""

    ranges: PositionRanges
    error: OSError | None


class Owners:
    """The owners of claims that this process knows. If an owner has died, its attempts are counted.

    seen: this process knows all owners up to this number.
    others: the known owners that may have a journal, except this process.
    """

    def __init__(self, store: Store, rooms: Rooms = no_rooms) -> None:
        """``rooms``: see ``log.commit.commit``."""
        self.store = store
        self.others: set[int] = set()
        self.seen = 0
        self._rooms = rooms
        self._left: dict[int, tuple[float, Uncounted]] = {}  # by owner, with the time of the last attempt

    def count_attempts_of_dead(self, ranges: PositionRanges, page: CounterPage) -> Uncounted | None:
        """Count the attempts of dead owners. Return None if this call found no dead owner.

        On a full disk, a journal remains, and no process may deliver its messages before a later call has counted the
        attempts. Returns these messages.

        Args:
            ranges: the claims that the caller has just got. The claim files of these messages show the dead owners,
                because the death of an owner releases its byte in each file.
            page: the counters. The caller has read the counters after it got the claims.
        """
        claims = self.store.shared.claims
        if page.owner > self.seen:
            self.others.update(owner for owner in range(self.seen + 1, page.owner + 1) if owner != claims.owner)
            self.seen = page.owner
        numbers = {number for number, _, _ in ranges}
        dead = [o for o in tuple(self.others) if any(claims.is_owner_dead(o, number) for number in numbers)]
        if not dead:
            return None
        left = Uncounted([], None)
        for owner in dead:
            ranges, error = self._count_attempts_of(owner)
            if error is None:
                self.others.discard(owner)
            else:
                left = Uncounted([*left.ranges, *ranges], error)
        return left

    def forget_refusals(self) -> None:
        """Let the next call try at once to count the attempts that found no room."""
        self._left.clear()

    def _count_attempts_of(self, owner: int) -> Uncounted:
        now = self.store.clock.monotonic()
        at, left = self._left.pop(owner, (float("-inf"), None))
        if left is None or now >= at + _AGAIN_SECONDS:
            left = Uncounted([], None)
            for xid in all_journals(self.store.files.disk):
                journal = read_journal(self.store.files.disk, xid)
                if journal.owner == owner and (error := self._count(xid)) is not None:
                    left = Uncounted([*left.ranges, *journal.begun], error)
            at = now
        if left.error is not None:
            self._left[owner] = at, left
        return left

    def _count(self, xid: Xid) -> OSError | None:
        """Count the attempts in a journal. Return the error if the disk is full."""
        refused: OSError | None = None
        for _ in chain((True,), self._rooms()):
            try:
                count_journal(self.store, xid, self.store.deadline())
            except OSError as error:
                if not is_full(error):
                    raise
                refused = error
            else:
                return None
        return refused


def all_journals(disk: Disk) -> list[Xid]:
    """Return the xids that have a journal. A journal is a regular file, and a power cut may leave other entries."""
    found = (layout.parse_xid(name, layout.JOURNAL_SUFFIX) for name in disk.names(layout.ACTIVE))
    return [xid for xid in found if xid is not None and _is_regular(disk, layout.claim_journal(xid))]


def _is_regular(disk: Disk, name: str) -> bool:
    identity = disk.identity(name)
    return identity is not None and identity.is_regular


def read_journal(disk: Disk, xid: Xid) -> JournalContents:
    """Read a journal up to the last complete record. A missing journal has no owner and no ranges."""
    journal, name = JournalContents(0, []), layout.claim_journal(xid)
    try:
        with opened(disk, name) as handle:
            identity = disk.handle_identity(handle)
            data = disk.read_at(handle, 0, min(identity.size, _MAX_NOTE_BYTES))
    except FileNotFoundError:
        return journal
    if not disk.same_file(name, identity):  # before the read, the file may have become another transaction's journal
        return journal
    states, begun_at = [], {}
    unpacker = msgpack.Unpacker(max_buffer_size=0, max_array_len=6, max_map_len=0)
    unpacker.feed(data)
    try:
        while True:
            start = unpacker.tell()
            record = unpacker.unpack()
            if isinstance(record, bytes):
                journal = journal._replace(marks=record)
                continue
            packed = data[start : unpacker.tell()]
            if unpacker.unpack() != zlib.crc32(packed):
                break
            if start == 0:
                journal = _first(*record)
            elif (found := _range(*record[:3]))[2]:
                journal.ranges.append(found)
                states += [(found, state) for state in record[3:4]]
                if record[4:] and isinstance(record[4], float):
                    begun_at[found] = record[4]
    except (msgpack.UnpackException, ValueError, TypeError, LookupError, OverflowError):
        pass
    return journal._replace(states=states, begun_at=begun_at)


def _first(name: Any, version: Any, owner: Any, pid: Any, program: Any, since: Any) -> JournalContents:
    """Decode a journal's first record. Raises ValueError for another kind of record, or another version."""
    if [name, version] != [_NAME, _VERSION]:
        raise ValueError("no journal of claims")
    return JournalContents(
        int(owner),
        [],
        pid if isinstance(pid, int) else None,
        program if isinstance(program, str) else None,
        since if isinstance(since, float) else None,
    )


def _range(number: int, first: int, count: int) -> tuple[int, int, int]:
    """Decode the record of a claim. The count 0 stands for no message. Raises ValueError for other values."""
    is_whole = all(isinstance(part, int) for part in (number, first, count))
    if not is_whole or not 0 < number <= layout.MAX_NUMBER or not 0 <= first <= first + count <= layout.MAX_ORDINAL + 1:
        raise ValueError("a range of no messages")
    return int(number), int(first), int(count)


def count_journal(store: Store, xid: Xid, deadline: Deadline) -> bool:
    """Count the attempts in a dead owner's journal, and remove the journal.

    Return False if the xid remains locked, because the journal's owner lives.
    """
    byte = xid_byte(xid)
    for _ in deadline.polls():
        if not store.files.disk.exists(layout.claim_journal(xid)):
            return True
        if store.shared.xids.try_lock(byte):
            break
    else:
        return False
    try:
        journal = read_journal(store.files.disk, xid)
        if not store.files.disk.exists(layout.prepared(xid)):  # otherwise the prepared branch holds the messages
            settle_all(store, deadline)
            catch_up(store)
            with store.view.mutex:
                found = uncounted(store.view.index, journal)
            retries.count_failures(store, found, "the process that held it died", deadline, died=True)
        for name in (layout.claim_journal(xid), layout.active(xid)):
            unlink_unless_gone(store.files.disk, name)
        return True
    finally:
        store.shared.xids.unlock(byte)


def uncounted(index: Index, journal: JournalContents) -> list[Position]:
    """Return each existing message whose attempt has begun and was not counted, once. The caller holds the mutex of the
    index. (Ranges of a damaged journal may overlap or be invalid.)"""
    found: list[Position] = []
    seen, done = 0, 0
    for number, first, count in sorted(journal.begun):
        ordinal, end = max(first, done if number == seen else 0), first + count
        seen, done = number, max(ordinal, end)
        for _, start, stop in index.messages.live_runs(number, ordinal, end):
            found += [Position(number, one) for one in range(start, stop)]
    counted = {
        Position(number, one)
        for (number, first, count), state in journal.states
        for run, start, stop in index.messages.live_runs(number, first, first + count)
        if state != _state(run.queue.name, run.attributes.get("attempts", 0))
        for one in range(start, stop)
    }
    return [position for position in found if position not in counted]


def clean_up_after_dead(store: Store, deadline: Deadline) -> None:
    """Count an attempt for the claims of dead processes, and remove their unfinished branches from ``active/``.

    The first opener does the same. This function is for a space that always has an opener.
    """
    for xid in all_journals(store.files.disk):
        if store.shared.xids.is_free(xid_byte(xid)):
            try:
                count_journal(store, xid, deadline)
            except OSError as error:
                if not is_full(error):
                    raise
                log.info("attempts of a dead process are counted later: %s", error)
    for name in store.files.disk.names(layout.ACTIVE):
        branch = layout.parse_xid(name)
        if branch is not None and _is_regular(store.files.disk, layout.active(branch)):
            with store.shared.xids.trying(xid_byte(branch)) as ours:
                if ours:
                    unlink_unless_gone(store.files.disk, f"{layout.ACTIVE}/{name}")
