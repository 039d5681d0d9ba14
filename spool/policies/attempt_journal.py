"""The journal of the attempts in progress. If a process dies, an attempt is counted for the messages in its journal.

A process has one journal, a file ``active/<xid>.claims``. The file has a *slot* for each range of messages in work. A
slot has a fixed length, so it can be overwritten, and the slot of an ended attempt gets a later message. The file is
never flushed, because a journal has to survive a killed process, not a power cut. A journal names its owner by a
number. While the owner lives, it holds the byte of this number in every claim file, and the byte of the journal's xid
(Rule 6).

A program works on a message as soon as it has got the message in a transaction. So the slot is written before the
delivery, and ends before the claim is released. If a commit has removed the messages of a slot, nothing is written at
its end, because no attempt can be counted for a message that does not exist.

A slot has the state of its messages: their queue, and the number of their failed attempts. The commit that counts an
attempt changes the state. So if a process dies after this commit, and before the end of the slot or of the journal, the
attempt is not counted again.

A forwarding round claims thousands of messages, and tasks in other processes call the service for one message at a
time. A task may outlive its round, and may write late. So a round has a separate journal, with a slot for each message.
The first byte of a slot is its *mark*: a slot whose mark is not set has no valid checksum. A task sets the mark during
the call.
"""

import logging
import struct
import threading
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from spool.coordination.counters import CounterPage
from spool.coordination.locks import xid_byte
from spool.disk.content import opened, unlink_unless_gone
from spool.disk.disk import Disk, raise_unless_full
from spool.errors import SystemFailure
from spool.format.writer import writer_name
from spool.index.index import Index
from spool.index.run import Run
from spool.log.sequence import number_locked, settle_all
from spool.log.visibility import catch_up, list_prepared
from spool.log.write import Rooms, no_rooms
from spool.model import layout
from spool.model.position import Position, PositionRanges, positions
from spool.model.xid import Xid, new_local_xid
from spool.policies import retries
from spool.runtime.async_exceptions import raise_if_torn
from spool.runtime.clock import Deadline
from spool.store.store import Store

log = logging.getLogger("spool")

_MAX_JOURNAL_BYTES = 64 << 20
_AGAIN_SECONDS = 1.0  # between two attempts to count attempts on a full disk
_NAME, _VERSION = "xaspool-claims", 1

# A slot: number, first ordinal, count, state and time, in msgpack with the widest form of each number; then the CRC-32.
_RANGE, _CHECKSUM = struct.Struct(">BBQBIBIBIBd"), struct.Struct(">BI")
_SLOT_BYTES = _RANGE.size + _CHECKSUM.size
_SLOTS_AT_ONCE = 64  # by which a file grows
_LARGE_BYTES = 1 << 20  # a larger file is removed when no slot is in use, so that readers do not read it for ever
_NONE = -1  # no handle
MARKED, UNMARKED = b"\x95", b"\0"


class Slot(NamedTuple):
    """Messages of one commit whose attempts have begun.

    state: the state of the messages before the attempts, see ``_state``; None in a journal of an earlier version.
    begun_at: when the program got the messages, in seconds since the epoch, or None if unknown; for people only.
    """

    number: int
    first: int
    length: int
    state: int | None
    begun_at: float | None


class JournalContents(NamedTuple):
    """The content of a journal.

    owner: the number of the journal's owner; 0 if the journal cannot be read.
    slots: the messages in work. If the owner has died, their attempts count.
    pid, program: the process that wrote the journal, or None if unknown; for people only.
    """

    owner: int
    slots: Sequence[Slot]
    pid: int | None = None
    program: str | None = None

    @property
    def ranges(self) -> PositionRanges:
        return [slot[:3] for slot in self.slots]


class CallMarks(NamedTuple):
    """The place of marks in the journal of a round, for the messages of one claim.

    xid: the xid of the journal.
    first: the offset of the first mark in the file.
    """

    xid: Xid
    first: int

    def place(self, message: int) -> int:
        """Return the offset of a mark. ``message``: the place of the message in the claim."""
        return self.first + message * _SLOT_BYTES

    def after(self, messages: int) -> "CallMarks":
        """Return the place of the marks after those of ``messages`` messages."""
        return CallMarks(self.xid, self.place(messages))


class Journal:
    """The journal of this process, or of a round. The first attempt creates the file. Thread-safe.

    If a write fails, e.g. on a full disk, the error is logged, and the death of the process counts no attempt.

    xid: the name of the file, whose byte this process holds while the file exists.
    """

    def __init__(self, store: Store) -> None:
        self.xid = new_local_xid()
        self._store = store
        self._mutex = threading.Lock()  # held while the file is created, enlarged or removed
        self._handle = _NONE  # (another one while a slot is in use)
        self._first = self._end = 0  # the offsets of the first slot, and after the last slot
        self._free: list[int] = []  # the offsets of the free slots; each call adds or removes them in one step
        self._is_closing = False

    def begin(self, claims: PositionRanges, since: float) -> list[int]:
        """Record that attempts at claimed messages begin; return the slots. The process is an owner (``become_owner``).

        Args:
            since: when the program got the first of the messages, in seconds since the epoch.
        """
        slots, runs_of, disk = list[int](), self._store.view.index.messages.runs, self._store.files.disk
        try:
            for number, first, count in claims:
                found: Iterable[tuple[Run, int, int]] = ()
                try:
                    [run] = runs_of[number]  # messages that were put together are one run
                    if run.first <= first <= run.end - count:
                        found = ((run, first, first + count),)
                except (KeyError, ValueError):
                    pass
                for run, start, stop in found or self._runs(number, first, count):
                    try:
                        at = self._free.pop()
                    except IndexError:
                        at = self._enlarge()
                    slots += (at,)
                    state = _state(run.attributes.get("attempts", 0) if run.attributes else 0, run.queue.name)
                    disk.write_at(self._handle, at, _slot(number, start, stop - start, state, since))
        except OSError as error:
            raise_if_torn(error)
            log.warning("claims cannot be recorded: %s", error)
        return slots

    def end(self, slots: Sequence[int], *, removed: bool = False) -> None:
        """Record that attempts have ended, before their messages are released.

        ``removed``: whether a commit has removed the messages.
        """
        try:
            for at in () if removed else slots:
                self._store.files.disk.write_at(self._handle, at, _FREE)
        except OSError as error:
            raise_if_torn(error)
            log.warning("the end of an attempt could not be recorded: %s", error)
        self._free += slots
        if self._is_closing or self._end > _LARGE_BYTES:
            self._remove_if_unused()

    def reserve(self, claims: PositionRanges) -> CallMarks | None:
        """Write a slot with an unset mark for each claimed message; return the place of the marks.

        If the write fails, this removes the file and returns None.
        """
        become_owner(self._store)
        slots, now = bytearray(), self._store.clock.now()
        for claim in claims:
            for run, start, stop in self._runs(*claim):
                state = _state(run.attributes.get("attempts", 0), run.queue.name)
                slots += b"".join([_slot(run.number, ordinal, 1, state, now) for ordinal in range(start, stop)])
        slots[::_SLOT_BYTES] = bytes(len(slots) // _SLOT_BYTES)  # no mark is set
        try:
            with self._mutex:
                self._create()
            self._store.files.disk.write_at(self._handle, self._first, bytes(slots))
        except OSError as error:
            raise_if_torn(error)
            log.warning("claims cannot be recorded: %s", error)
            self.remove()
            return None
        return CallMarks(self.xid, self._first)

    def clear_marks(self, marks: CallMarks, count: int) -> None:
        """Unset the marks of ``count`` messages."""
        with self._mutex:
            for message in range(count if self._handle != _NONE else 0):
                self._store.files.disk.write_at(self._handle, marks.place(message), UNMARKED)

    def remove(self) -> None:
        """Remove the file, if it exists. Afterwards, no process counts an attempt of this journal."""
        with self._mutex:
            self._remove()

    def close(self) -> None:
        """Remove the file as soon as no attempt is in progress, because the space is being closed.

        The next process that opens the space counts the attempts that do not end before.
        """
        self._is_closing = True
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        if self._first + len(self._free) * _SLOT_BYTES >= self._end:
            taken = list[int]()
            with self._mutex:  # (from here on, no thread can add a slot)
                with suppress(IndexError):
                    while True:
                        taken += (self._free.pop(),)
                if self._first + len(taken) * _SLOT_BYTES == self._end:
                    self._remove()
                else:  # another thread has taken a slot since
                    self._free += taken

    def _remove(self) -> None:
        disk, handle, self._handle = self._store.files.disk, self._handle, _NONE
        if handle != _NONE:
            try:
                disk.close(handle)
                unlink_unless_gone(disk, layout.attempt_journal(self.xid))
            except OSError as error:
                raise_if_torn(error)
                log.warning("a journal of claims could not be removed: %s", error)
            finally:
                self._store.shared.xids.unlock(xid_byte(self.xid))

    def _runs(self, number: int, first: int, count: int) -> list[tuple[Run, int, int]]:
        with self._store.view.mutex:
            return list(self._store.view.index.messages.live_runs(number, first, first + count))

    def _enlarge(self) -> int:
        """Add free slots to the file, which is created first if it does not exist; return one slot more."""
        with self._mutex:
            if self._handle == _NONE:
                self._create()
            at, self._end = self._end, self._end + _SLOTS_AT_ONCE * _SLOT_BYTES
            self._free += range(self._end - _SLOT_BYTES, at, -_SLOT_BYTES)
            return at

    def _create(self) -> None:
        store, writer = self._store, writer_name()
        while not store.shared.xids.try_lock(xid_byte(self.xid)):  # it is also the byte of another name
            self.xid = new_local_xid()
        about = [writer["pid"], writer["program"], store.clock.now()]
        packed: bytes = msgpack.packb([_NAME, _VERSION, store.shared.claims.owner, *about])
        head = packed + bytes(msgpack.packb(zlib.crc32(packed)))
        self._first = self._end = len(head)
        handle, name = None, layout.attempt_journal(self.xid)
        try:
            handle = store.files.disk.create(name)
            store.files.disk.write_at(handle, 0, head)
        except BaseException:
            if handle is not None:
                store.files.disk.close(handle)
                store.files.disk.unlink(name)
            store.shared.xids.unlock(xid_byte(self.xid))
            raise
        self._handle = handle


def _slot(number: int, first: int, count: int, state: int, begun_at: float) -> bytes:
    """Return a range with its checksum as bytes of a fixed length. ``count``: 0 for a free slot."""
    record = _RANGE.pack(MARKED[0], 0xCF, number, 0xCE, first, 0xCE, count, 0xCE, state, 0xCB, begun_at)
    return record + _CHECKSUM.pack(0xCE, zlib.crc32(record))


_FREE = _slot(1, 0, 0, 0, 0.0)


@lru_cache(maxsize=1024)
def _state(attempts: int, queue: str) -> int:
    """Return a number for messages in a queue with so many failed attempts.

    The number of a message is another one after its attempt was counted, in its queue or an error queue.
    """
    return zlib.crc32(f"{attempts} {queue}".encode())


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
                    left = Uncounted([*left.ranges, *journal.ranges], error)
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
                raise_unless_full(error)
                refused = error
            else:
                return None
        return refused


def all_journals(disk: Disk) -> list[Xid]:
    """Return the xids that have a journal. A journal is a regular file, and a power cut may leave other entries."""
    found = (layout.parse_xid(name, layout.JOURNAL_SUFFIX) for name in disk.names(layout.ACTIVE))
    return [xid for xid in found if xid is not None and _is_regular(disk, layout.attempt_journal(xid))]


def _is_regular(disk: Disk, name: str) -> bool:
    identity = disk.identity(name)
    return identity is not None and identity.is_regular


def read_journal(disk: Disk, xid: Xid) -> JournalContents:
    """Read a journal. A missing journal has no owner and no slots. A slot without its checksum has no messages."""
    try:
        with opened(disk, layout.attempt_journal(xid)) as handle:
            data = disk.read_at(handle, 0, min(disk.handle_identity(handle).size, _MAX_JOURNAL_BYTES))
    except FileNotFoundError:
        data = b""
    unpacker = msgpack.Unpacker(max_buffer_size=0, max_array_len=6, max_map_len=0)
    unpacker.feed(data)
    try:
        name, version, owner, pid, program, since = _checked(unpacker, data)
        if [name, version] != [_NAME, _VERSION] or not isinstance(owner, int):
            return JournalContents(0, ())
    except _UNREADABLE:
        return JournalContents(0, ())
    start = unpacker.tell()
    if data[start : start + 1] in _TAGS_BEFORE:
        slots = _slots_of_before(unpacker, data, since)
    else:
        places = range(start, len(data) - _SLOT_BYTES + 1, _SLOT_BYTES)
        slots = [slot for at in places if (slot := _slot_at(data, at)) is not None]
    pid, program = pid if isinstance(pid, int) else None, program if isinstance(program, str) else None
    return JournalContents(int(owner), slots, pid, program)


_UNREADABLE = (msgpack.UnpackException, ValueError, TypeError, LookupError, OverflowError)


def _checked(unpacker: "msgpack.Unpacker", data: bytes) -> Any:
    """Unpack a value and its checksum. Raises one of ``_UNREADABLE``, e.g. if the checksum is wrong."""
    start = unpacker.tell()
    value = unpacker.unpack()
    end = unpacker.tell()
    if unpacker.unpack() != zlib.crc32(data[start:end]):
        raise ValueError("a wrong checksum")
    return value


def _slot_at(data: bytes, at: int) -> Slot | None:
    """Decode a slot; return None if the slot is free, its mark is not set, or it was written in part."""
    _, _, number, _, first, _, count, _, state, _, begun_at = _RANGE.unpack_from(data, at)
    _, checksum = _CHECKSUM.unpack_from(data, at + _RANGE.size)
    if checksum != zlib.crc32(data[at : at + _RANGE.size]) or not count or not _is_range(number, first, count):
        return None
    return Slot(number, first, count, state, begun_at)


def _is_range(*claim: object) -> bool:
    match claim:
        case int(number), int(first), int(count):
            return 0 < number <= layout.MAX_NUMBER and 0 <= first < first + count <= layout.MAX_ORDINAL + 1
    return False


# -- journals of the version before: a file for each transaction -----------------------------------------------------

_TAGS_BEFORE = (b"\x93", b"\x94", b"\xc4", b"\xc5", b"\xc6")


def _slots_of_before(unpacker: "msgpack.Unpacker", data: bytes, since: object) -> list[Slot]:
    """Read the marks of a round, ranges, and ranges with a state; up to the last complete record."""
    marks, found = None, list[Slot]()
    begun_at = since if isinstance(since, float) else None
    with suppress(*_UNREADABLE):
        if data[unpacker.tell()] > 0x94:
            marks = unpacker.unpack()
        while True:
            number, first, count, *state = _checked(unpacker, data)
            if _is_range(number, first, count):
                found.append(Slot(int(number), int(first), int(count), state[0] if state else None, begun_at))
    if marks is None:
        return found
    each = positions(slot[:3] for slot in found if slot.state is None)
    marked = [Slot(*position, 1, None, begun_at) for position, mark in zip(each, marks, strict=False) if mark]
    return marked + [slot for slot in found if slot.state is not None]


def count_journal(store: Store, xid: Xid, deadline: Deadline) -> bool:
    """Count the attempts in a dead owner's journal, and remove the journal.

    Return False if the xid remains locked, because the journal's owner lives.
    """
    byte, name = xid_byte(xid), layout.attempt_journal(xid)
    for _ in deadline.polls():
        if not store.files.disk.exists(name):
            return True
        if store.shared.xids.try_lock(byte):
            break
    else:
        return False
    try:
        list_prepared(store)  # (first: a branch moves from the votes to the commits) a vote holds its messages itself
        settle_all(store, deadline)
        catch_up(store)
        journal = read_journal(store.files.disk, xid)
        with store.view.mutex:
            found = uncounted(store.view.index, journal)
        retries.count_failures(store, found, "the process that held it died", deadline, died=True)
        unlink_unless_gone(store.files.disk, name)
        return True
    finally:
        store.shared.xids.unlock(byte)


def uncounted(index: Index, journal: JournalContents) -> list[Position]:
    """Return each existing message whose attempt has begun and was not counted, once. The caller holds the mutex of the
    index. (Slots may name a message twice: an attempt counts if the state of one slot is the message's state.)"""
    unchanged, without, changed = set[Position](), set[Position](), set[Position]()
    for slot in journal.slots:
        for run, start, stop in index.messages.live_runs(slot.number, slot.first, slot.first + slot.length):
            is_same = slot.state == _state(run.attributes.get("attempts", 0), run.queue.name)
            found = without if slot.state is None else unchanged if is_same else changed
            found.update(Position(slot.number, ordinal) for ordinal in range(start, stop))
    return sorted(unchanged | (without - changed))


def clean_up_after_dead(store: Store, deadline: Deadline) -> None:
    """Count an attempt for the claims of dead processes, and remove their unfinished branches from ``active/``.

    The first opener does the same. This function is for a space that always has an opener.
    """
    for xid in all_journals(store.files.disk):
        if store.shared.xids.is_free(xid_byte(xid)):
            try:
                count_journal(store, xid, deadline)
            except OSError as error:
                raise_unless_full(error)
                log.info("attempts of a dead process are counted later: %s", error)
    for name in store.files.disk.names(layout.ACTIVE):
        branch = layout.parse_xid(name)
        if branch is not None and _is_regular(store.files.disk, layout.active(branch)):
            with store.shared.xids.trying(xid_byte(branch)) as ours:
                if ours:
                    unlink_unless_gone(store.files.disk, f"{layout.ACTIVE}/{name}")
