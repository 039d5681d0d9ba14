"""Slots in shared memory, in which processes post the commits that they want another process to make.

``run/requests`` has ``SLOTS`` slots. A process owns a slot while it holds the slot's byte of ``run/xids``. One process
at a time leads: it holds the byte ``_LEAD`` of ``run/requests``, takes the posted requests into its own commit, and
answers them. The states of a slot:

* *empty*: the owner may post.
* *posted*: the slot has a request of its owner. The owner may withdraw the request.
* *joined*: a leader reads the request. The owner can withdraw the request no more.
* *taken*: the request is part of the commit whose number the slot has, if this commit happens.
* *done*: the slot has the answer.

The owner stores *empty* and *posted*. All other states are stored by the process that leads. A request changes from
*posted* to *joined* or to *empty* under a further byte of the slot, so that only one of the two happens (rule 22).

A request outlives its owner. It stands until a leader commits or cancels it (rule 20).
"""

import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from spool.coordination.locks import LockFile, request_slot_byte
from spool.disk.descriptors import not_open
from spool.disk.disk import Disk
from spool.disk.memory import CLEAR, WORD_BYTES, SharedBytes
from spool.errors import NO_ROOM
from spool.model.layout import REQUESTS
from spool.runtime.clock import Deadline

P = ParamSpec("P")
T = TypeVar("T")

SLOTS = 64
EMPTY, POSTED, JOINED, TAKEN, DONE = (state.to_bytes(WORD_BYTES, sys.byteorder) for state in range(5))
BODY_BYTES, ANSWER_BYTES = 14 << 10, 2 << 10

_LEAD, _SLOT_BYTES = 0, 1  # the bytes of run/requests: that of the lead, and the first of the slots
# The places in the file: a mark that is set while a process leads; a word that changes when a gathering leader has its
# requests; the states; the rows; the requests and answers.
_MARK, _POSTS = slice(0, WORD_BYTES), slice(WORD_BYTES, 2 * WORD_BYTES)
_LEADS, _GATHERS = 1, 256  # values of the mark; a leader that waits for n posted requests stores _GATHERS + n
_STATES = slice(64, 64 + SLOTS * WORD_BYTES)
_ROWS_AT, _ROW_BYTES, _CONTENT_AT = 512, 64, 8192
_CONTENT_BYTES = BODY_BYTES + ANSWER_BYTES
_POSTED_ROW = struct.Struct("=IIQQ")  # of the request: length, checksum, first and last message that it removes
_TAKEN_ROW = struct.Struct("=IIQ")  # of the answer: length, checksum; the number of the commit
_TAKEN_ROW_AT = _POSTED_ROW.size
_CALM = bytes(state[byte] for state in (EMPTY, DONE) for byte in range(WORD_BYTES))


class RemovedSpan(NamedTuple):
    """The first and the last message that a request removes or changes, each as ``number << 24 | ordinal``.

    A request that removes nothing has the span (1, 0).
    """

    first: int = 1
    last: int = 0


def _while_open(method: Callable[P, T]) -> Callable[P, T]:
    """Raise OSError (EBADF) if the space was closed meanwhile, and its memory released."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except ValueError:
            raise not_open() from None

    return call


class RequestSlots:
    """The slots of one open space. Where no memory is shared, or the disk has no room, no process posts."""

    def __init__(self, disk: Disk, owners: LockFile, *, make: bool) -> None:
        """Open the file. ``make``: see ``open_shared``; the first opener then calls ``start``.

        Args:
            owners: the locks of ``run/xids``.
        """
        self._disk = disk
        self._owners = owners
        self._locks = LockFile(disk, REQUESTS, make=make)
        self._memory: SharedBytes | None = None
        self._count = 0  # the number of slots
        self.were_there = not make  # another process had the space open when this process opened it
        if not make:
            self._share()

    def start(self) -> None:
        """Empty all slots. Only the first opener may call this: no process waits for an answer."""
        handle, disk = self._locks.handle, self._disk
        size = _CONTENT_AT + SLOTS * _CONTENT_BYTES
        try:
            if disk.handle_identity(handle).size != size:
                disk.truncate(handle, 0)
                disk.write_at(handle, 0, bytes(size))
            else:
                disk.write_at(handle, 0, bytes(_CONTENT_AT))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            disk.truncate(handle, 0)
        self._share()

    def _share(self) -> None:
        size = self._disk.handle_identity(self._locks.handle).size
        self._count = max(0, size - _CONTENT_AT) // _CONTENT_BYTES
        if self._count > 0:
            memory = self._disk.map(self._locks.handle, size)
            self._memory = memory if memory.wakes else None

    @property
    def exist(self) -> bool:
        """Whether processes can post requests."""
        return self._memory is not None

    def _shared(self) -> SharedBytes:
        if self._memory is None:
            raise not_open()
        return self._memory

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def are_calm(self) -> bool:
        """Whether each slot is empty or done: no request stands."""
        try:
            return self._memory is None or not self._memory[_STATES].translate(None, _CALM)
        except ValueError:
            raise not_open() from None

    @_while_open
    def standing(self) -> list[int]:
        """Return the slots whose requests stand: they are posted, joined or taken."""
        if self._memory is None:
            return []
        states = self._memory[_STATES].rstrip(_CALM)  # (most often few slots are in use, and these are the first ones)
        places = enumerate(range(0, len(states), WORD_BYTES))
        return [slot for slot, at in places if states[at : at + WORD_BYTES].translate(None, _CALM)]

    @_while_open
    def state(self, slot: int) -> bytes:
        at = _state_at(slot)
        return self._shared()[at : at + WORD_BYTES]

    def number(self, slot: int) -> int:
        """Return the number for which a request is taken."""
        number: int = _TAKEN_ROW.unpack(self._row(slot)[_TAKEN_ROW_AT : _TAKEN_ROW_AT + _TAKEN_ROW.size])[2]
        return number

    def taken_numbers(self) -> list[int]:
        """Return the numbers for which requests are taken. Their files must remain: rule 21."""
        return [self.number(slot) for slot in self.standing() if self.state(slot) == TAKEN]

    @_while_open
    def standing_within(self, span: RemovedSpan) -> list[int]:
        """Return the slots whose requests stand, and may remove or change a message of the span."""
        standing = self.standing()
        rows = self._shared()[_ROWS_AT : _ROWS_AT + (standing[-1] + 1) * _ROW_BYTES] if standing else b""
        found = []
        for slot in standing:
            _, _, first, last = _POSTED_ROW.unpack_from(rows, slot * _ROW_BYTES)
            if first <= span.last and span.first <= last:
                found.append(slot)
        return found

    def request(self, slot: int) -> bytes | None:
        """Return a slot's request, or None if its bytes are damaged."""
        length, checksum, _, _ = _POSTED_ROW.unpack_from(self._row(slot))
        return self._proven(_content_at(slot), length, checksum, BODY_BYTES)

    def answer(self, slot: int) -> bytes | None:
        """Return a slot's answer, or None if its bytes are damaged."""
        length, checksum, _ = _TAKEN_ROW.unpack_from(self._row(slot), _TAKEN_ROW_AT)
        return self._proven(_content_at(slot) + BODY_BYTES, length, checksum, ANSWER_BYTES)

    @_while_open
    def _row(self, slot: int) -> bytes:
        at = _ROWS_AT + slot * _ROW_BYTES
        return self._shared()[at : at + _ROW_BYTES]

    @_while_open
    def _proven(self, at: int, length: int, checksum: int, most: int) -> bytes | None:
        data = self._shared()[at : at + min(length, most)]
        return data if zlib.crc32(data) == checksum else None

    # -- owning a slot ------------------------------------------------------------------------------------------------

    def own(self) -> int | None:
        """Take a slot without an owner and without a standing request; return None if there is none."""
        standing = set(self.standing())
        for slot in range(self._count):
            if slot not in standing and self._owners.try_lock(request_slot_byte(slot)):
                if self.state(slot) in (EMPTY, DONE):
                    return slot
                self.disown(slot)
        return None

    def disown(self, slot: int) -> None:
        """Give up a slot. A request that stands in the slot remains."""
        self._owners.unlock(request_slot_byte(slot))

    def is_owned(self, slot: int) -> bool:
        """Return whether a live process owns the slot, this process included."""
        return not self._owners.is_free(request_slot_byte(slot))

    @_while_open
    def post(self, slot: int, request: bytes, span: RemovedSpan) -> bool:
        """Post a request in an own slot. Return False if no process leads, so that the caller tries to lead."""
        memory, at, row = self._shared(), _content_at(slot), _ROWS_AT + slot * _ROW_BYTES
        memory[at : at + len(request)] = request
        memory[row : row + _POSTED_ROW.size] = _POSTED_ROW.pack(len(request), zlib.crc32(request), *span)
        self.store(slot, POSTED)
        mark = int.from_bytes(memory[_MARK], sys.byteorder)
        if mark > _GATHERS and memory[_STATES].count(POSTED) >= mark - _GATHERS:
            memory.change(_POSTS.start, struct.pack("=I", time.monotonic_ns() & 0xFFFFFFFF))
        return mark != 0

    def withdraw(self, slot: int) -> bool:
        """Withdraw a posted request; return False if a leader has joined it. Rule 22."""
        return self._change_posted(slot, EMPTY)

    @_while_open
    def wait(self, slot: int, state: bytes, seconds: float) -> bool:
        """Sleep until the slot's state changes, or the owner shall try to lead; return False if the time is over."""
        return self._shared().wait(_state_at(slot), state, seconds)

    # -- leading ------------------------------------------------------------------------------------------------------

    def try_lead(self) -> bool:
        """Take the lead; return False if another process leads."""
        if not self._locks.try_lock(_LEAD):
            return False
        self._mark(_LEADS)
        return True

    def lead(self, deadline: Deadline) -> None:
        """Wait for the lead. Raises WaitExpired at the deadline."""
        self._locks.lock(_LEAD, deadline, "the lead of common commits")
        self._mark(_LEADS)

    @_while_open
    def end_lead(self, answered: Iterable[int] = ()) -> None:
        """Release the lead. Wake the owner of a standing request, which then leads, and the owners of answered ones."""
        memory = self._shared()
        memory[_MARK] = CLEAR
        self._locks.unlock(_LEAD)
        for slot in self.standing()[:1]:
            memory.wake(_state_at(slot))
        for slot in answered:
            memory.wake(_state_at(slot))

    @_while_open
    def gather(self, count: int, seconds: float) -> None:
        """Wait until ``count`` requests are posted, at most ``seconds``. The caller leads."""
        memory = self._shared()
        self._mark(_GATHERS + count)
        seen = memory[_POSTS]
        if memory[_STATES].count(POSTED) < count:
            memory.wait(_POSTS.start, seen, seconds)  # the process that posts the last of them wakes this thread
        self._mark(_LEADS)

    @_while_open
    def _mark(self, value: int) -> None:
        self._shared()[_MARK] = value.to_bytes(WORD_BYTES, sys.byteorder)

    def join(self, slot: int) -> bool:
        """Mark a posted request as joined; return False if its owner withdraws it. Rule 22."""
        return self._change_posted(slot, JOINED)

    def _change_posted(self, slot: int, state: bytes) -> bool:
        handle, byte = self._locks.handle, _SLOT_BYTES + slot
        if not self._disk.lock(handle, byte):  # (held for a moment only, and by no other thread of this process)
            return False
        try:
            if self.state(slot) != POSTED:
                return False
            self.store(slot, state)
            return True
        finally:
            self._disk.unlock(handle, byte)

    @_while_open
    def take(self, slot: int, number: int, answer: bytes) -> None:
        """Mark a joined request as taken for a number that is issued and not stamped. Rule 18."""
        memory, at = self._shared(), _content_at(slot) + BODY_BYTES
        row = _ROWS_AT + slot * _ROW_BYTES + _TAKEN_ROW_AT
        memory[at : at + len(answer)] = answer
        memory[row : row + _TAKEN_ROW.size] = _TAKEN_ROW.pack(len(answer), zlib.crc32(answer), number)
        self.store(slot, TAKEN)

    @_while_open
    def store(self, slot: int, state: bytes) -> None:
        """Store a state, and wake nobody."""
        at = _state_at(slot)
        self._shared()[at : at + WORD_BYTES] = state


def _state_at(slot: int) -> int:
    return _STATES.start + slot * WORD_BYTES


def _content_at(slot: int) -> int:
    return _CONTENT_AT + slot * _CONTENT_BYTES
