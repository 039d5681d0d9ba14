"""Notes of claims: which messages a live transaction holds, so that a consumer's death counts as a try.

A note is a file ``active/<xid>.claims``, never flushed: it need survive a killed process, not a power cut. It names its
owner, whose bytes in the claim files tell the living from the dead.
"""

import logging
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from spool.coordination.locks import NUMBER, xid_byte
from spool.errors import NO_ROOM, SystemFailure
from spool.format.writer import writer_name
from spool.log.sequence import settle_all, with_number_lock
from spool.log.visibility import catch_up
from spool.model import layout
from spool.model.message import Position
from spool.model.xid import Xid
from spool.policies import retries
from spool.runtime.clock import Deadline
from spool.store.store import Store

log = logging.getLogger("spool")

_MAX_NOTE_BYTES = 64 << 20
_NAME, _VERSION = "xaspool-claims", 2


class Note(NamedTuple):
    """What a note says. ``owner``: 0 if it says nothing; ``ranges``: (number, first ordinal, count).

    For people: the process that wrote it, and the time of its first claim, in seconds since the epoch; None where the
    note does not say it.
    """

    owner: int
    ranges: list[tuple[int, int, int]]
    pid: int | None = None
    program: str | None = None
    since: float | None = None


class ClaimJournal:
    """The note of one transaction; made with its first claim."""

    def __init__(self, store: Store, xid: Xid) -> None:
        self.store = store
        self.name = layout.note(xid)
        self._handle: int | None = None
        self._end = 0

    def add(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """(number, first, count) of what was just claimed. On a full disk a death is not counted as a try."""
        try:
            self._add(ranges)
        except OSError as error:
            self.remove()  # half a note would say something else
            if error.errno not in NO_ROOM:
                raise
            log.warning("claims cannot be noted: %s", error)

    def _add(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        if self._handle is None:
            _become_owner(self.store)
            self._handle = self.store.files.disk.create(self.name)
            writer = writer_name()
            about = [writer["pid"], writer["program"], self.store.clock.now()]
            self._append([_NAME, _VERSION, self.store.shared.claims.owner, *about])
        for number, first, count in ranges:
            self._append([number, first, count])

    def _append(self, record: list[object]) -> None:
        assert self._handle is not None
        packed = msgpack.packb(record)
        data: bytes = packed + msgpack.packb(zlib.crc32(packed))
        self.store.files.disk.write_at(self._handle, self._end, data)
        self._end += len(data)

    def remove(self) -> None:
        if self._handle is not None:
            self.store.files.disk.close(self._handle)
            self._handle = None
            self._end = 0
            self.store.files.disk.unlink(self.name)


def _become_owner(store: Store) -> None:
    """A number of our own, with its byte held in every claim file before anybody can know the number."""
    if store.shared.claims.owner:
        return
    with_number_lock(store, store.deadline())
    try:
        owner = store.shared.counters.read().owner + 1
        if owner > layout.MAX_ORDINAL:
            raise SystemFailure("the space has used up its owner numbers: close it in every process and open it again")
        store.shared.claims.become_owner(owner)
        store.shared.counters.store_owner(owner)
    finally:
        store.shared.control.unlock(NUMBER)


class OrphanReaper:
    """Knows which owners may still have notes, and counts those of the dead."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: set[int] = set()
        self._seen = 0

    def count_orphans_tries(self, number: int, deadline: Deadline) -> None:
        """Called with a claim of that number just won: if an owner died, its tries are counted before this returns."""
        last = self.store.shared.counters.read().owner
        if last > self._seen:
            self._known.update(range(self._seen + 1, last + 1))
            self._seen = last
        for owner in [o for o in self._known if self.store.shared.claims.owner_is_dead(o, number)]:
            for xid in _notes_of(self.store, owner):
                count_note(self.store, xid, deadline)
            self._known.discard(owner)


def _notes_of(store: Store, owner: int) -> list[Xid]:
    return [xid for xid in all_notes(store) if read_note(store, xid).owner == owner]


def all_notes(store: Store) -> list[Xid]:
    """Whose notes there are. What is no regular file is none: a power cut or a stranger may leave anything there."""
    found = (layout.parse_xid(name, layout.NOTE_SUFFIX) for name in store.files.disk.names(layout.ACTIVE))
    return [xid for xid in found if xid is not None and _is_regular(store, layout.note(xid))]


def _is_regular(store: Store, name: str) -> bool:
    identity = store.files.disk.identity(name)
    return identity is not None and identity.is_regular


def read_note(store: Store, xid: Xid) -> Note:
    """A torn end is left out, and a note that is gone says nothing."""
    try:
        handle = store.files.disk.open(layout.note(xid))
    except FileNotFoundError:
        return Note(0, [])
    try:
        data = store.files.disk.read_at(handle, 0, min(store.files.disk.handle_identity(handle).size, _MAX_NOTE_BYTES))
    finally:
        store.files.disk.close(handle)
    note = Note(0, [])
    unpacker = msgpack.Unpacker(max_buffer_size=0, max_array_len=6, max_map_len=0)
    unpacker.feed(data)
    try:
        while True:
            start = unpacker.tell()
            record = unpacker.unpack()
            packed = data[start : unpacker.tell()]
            if unpacker.unpack() != zlib.crc32(packed):
                break
            if start == 0:
                note = _first(*record)
            else:
                note.ranges.append(_range(*record))
    except (msgpack.UnpackException, ValueError, TypeError, LookupError, OverflowError):
        pass
    return note


def _first(name: Any, version: Any, owner: Any, pid: Any, program: Any, since: Any) -> Note:
    """Read a note's first record; ValueError if it is none, or of another version."""
    if [name, version] != [_NAME, _VERSION]:
        raise ValueError("no note of claims")
    return Note(
        int(owner),
        [],
        pid if isinstance(pid, int) else None,
        program if isinstance(program, str) else None,
        since if isinstance(since, float) else None,
    )


def _range(number: int, first: int, count: int) -> tuple[int, int, int]:
    if not 0 < number <= layout.MAX_NUMBER or not 0 <= first < first + count <= layout.MAX_ORDINAL + 1:
        raise ValueError("a note of no messages")
    return int(number), int(first), int(count)


def count_note(store: Store, xid: Xid, deadline: Deadline) -> bool:
    """Count a dead owner's note and remove it; waits while somebody else is at it. False if it lives after all."""
    byte = xid_byte(xid)
    for _ in deadline.polls():
        if not store.files.disk.exists(layout.note(xid)):
            return True
        if store.shared.xids.try_lock(byte):
            break
    else:
        return False
    try:
        ranges = read_note(store, xid).ranges
        if not store.files.disk.exists(
            layout.prepared(xid)
        ):  # a branch that voted holds them by its file, and is not dead
            settle_all(store, deadline)
            catch_up(store)
            retries.count_failures(store, _live(store, ranges), "the process that held it died", deadline)
        for name in (layout.note(xid), layout.active(xid)):
            _unlink(store, name)
        return True
    finally:
        store.shared.xids.unlock(byte)


def _live(store: Store, ranges: Iterable[tuple[int, int, int]]) -> list[Position]:
    """Which of them are there, each once: a note may say anything."""
    found: list[Position] = []
    seen, done = 0, 0
    with store.view.mutex:
        for number, first, count in sorted(ranges):
            ordinal, end = max(first, done if number == seen else 0), first + count
            seen, done = number, max(ordinal, end)
            while ordinal < end:
                run, stop = store.view.index.messages.run_from(number, ordinal, end)
                if run is not None:
                    found += [Position(number, one) for one in range(ordinal, stop)]
                ordinal = stop
    return found


def reap_orphans(store: Store, deadline: Deadline) -> None:
    """What dead processes left in ``active/``: their claims are counted, their unfinished branches removed.

    An opener that is alone does it too; this is for spaces that are never closed by everybody.
    """
    for xid in all_notes(store):
        if store.shared.xids.is_free(xid_byte(xid)):
            count_note(store, xid, deadline)
    for name in store.files.disk.names(layout.ACTIVE):
        branch = layout.parse_xid(name)
        if (
            branch is None
            or not _is_regular(store, layout.active(branch))
            or not store.shared.xids.try_lock(xid_byte(branch))
        ):
            continue
        try:
            _unlink(store, f"{layout.ACTIVE}/{name}")
        finally:
            store.shared.xids.unlock(xid_byte(branch))


def _unlink(store: Store, name: str) -> None:
    try:
        store.files.disk.unlink(name)
    except FileNotFoundError:
        pass
