"""Slots in shared memory, in which a process posts the commits that another process should make.

``run/requests`` has ``SLOTS`` slots. A process owns a slot while it holds the slot's byte of ``run/xids``. One process
at a time leads: it holds the byte ``_LEAD`` of ``run/requests``, takes the posted requests into its own commit, and
answers them. The states of a slot:

* *empty*: the owner may post.
* *posted*: the slot has the owner's request. The owner may withdraw the request.
* *joined*: a leader reads the request. The owner can no longer withdraw the request.
* *taken*: the request is part of the commit whose number the slot has, if this commit happens.
* *done*: the slot has the answer.

The owner stores *empty* and *posted*. The process that leads stores all other states. To change *posted* to *joined* or
to *empty*, a process locks a byte of the slot, so only one of the two changes happens (rule 22).

A posted, joined or taken request *stands*, even if its owner has died, until a leader commits or cancels it (rule 20).

Each slot has a word, on which the owner sleeps. The word has the state, and a checksum of the slot, the state and the
row of the request. A slot is *damaged* if the word does not fit the row. No process commits the request of a damaged
slot, and the owner of the request does not know the outcome (rule 23). If a request stands,
the highest bit is set in all bytes of the word, otherwise in no byte. So a process can scan all slots by these bits.
"""

import struct
import sys
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from spool.coordination.locks import LockFile, request_slot_byte, write_whole
from spool.disk.descriptors import not_open
from spool.disk.disk import Disk
from spool.disk.memory import CLEAR, WORD_BYTES, SharedBytes, time_word
from spool.model.layout import REQUESTS
from spool.runtime.clock import Deadline

P = ParamSpec("P")
T = TypeVar("T")

SLOTS = 256  # after its first post, a process needs one slot as long as it has the space open
# The states, which are the first bytes of words. A change of one bit never turns a state into another state.
EMPTY, POSTED, JOINED, TAKEN, DONE = 0x00, 0x83, 0x85, 0x86, 0x09
DAMAGED = 0xFF  # never stored
BODY_BYTES, ANSWER_BYTES = 14 << 10, 2 << 10

# The bytes of run/requests: the lead; the first slot; the process that looks for a slot.
_LEAD, _SLOT_BYTES, _SEARCH = 0, 1, 1 + SLOTS
# The places in the file: a mark, which is set while a process leads; a word, which changes when the requests that a
# leader waits for are posted; the states; the rows; the requests and answers.
_MARK, _POSTS = slice(0, WORD_BYTES), slice(WORD_BYTES, 2 * WORD_BYTES)
_LEADS, _GATHERS = 1, 256  # values of the mark; a leader that waits for n requests stores _GATHERS + n
_STATES = slice(64, 64 + SLOTS * WORD_BYTES)
_ROWS_AT, _ROW_BYTES, _CONTENT_AT = 2048, 64, 20480
_CONTENT_BYTES = BODY_BYTES + ANSWER_BYTES
_POSTED_ROW = struct.Struct("=IIQQ")  # of a request: its length, its checksum, the first and the last removed message
_TAKEN_ROW = struct.Struct("=IIQ")  # of an answer: its length, its checksum, the number of the commit
_TAKEN_ROW_AT = _POSTED_ROW.size
_ROW_END = _TAKEN_ROW_AT + _TAKEN_ROW.size
_STANDS, _STANDING_BITS, _CHECKSUM_BITS = 0x80, 0x80808000, 0x7F7F7F00  # the bits of a word
_CALM = bytes(range(_STANDS))  # the bytes of words whose requests do not stand
_READS = 5  # the most reads of a slot whose word does not fit the row; another process may be changing both


class RemovedSpan(NamedTuple):
    """The first and the last message that a request removes or changes, each as ``number << 24 | ordinal``.

    A request that removes nothing has the span (1, 0).
    """

    first: int = 1
    last: int = 0


def _while_open(method: Callable[P, T]) -> Callable[P, T]:
    """Raise OSError (EBADF) if the space was closed meanwhile, because its memory is then released."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except ValueError:
            raise not_open() from None

    return call


class RequestSlots:
    """The slots of one open space. Without shared memory, or without room on the disk, no process posts requests."""

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
        """Empty all slots. Only the first opener may call this method, because then no process waits for an answer."""
        write_whole(self._disk, self._locks.handle, bytes(_CONTENT_AT + SLOTS * _CONTENT_BYTES))
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
    def none_stand(self) -> bool:
        """Whether each slot is empty or done, so that no request stands."""
        try:
            return self._memory is None or self._memory[_STATES].isascii()
        except ValueError:
            raise not_open() from None

    @_while_open
    def standing(self) -> list[int]:
        """Return the slots whose requests stand: posted, joined or taken. The list may include damaged slots."""
        if self._memory is None:
            return []
        states = self._memory[_STATES].rstrip(_CALM)  # (most often only the first few slots are in use)
        places = enumerate(range(0, len(states), WORD_BYTES))
        return [slot for slot, at in places if not states[at : at + WORD_BYTES].isascii()]

    @_while_open
    def word(self, slot: int) -> bytes:
        """Return the word of a slot, for ``wait``."""
        at = _state_at(slot)
        return self._shared()[at : at + WORD_BYTES]

    def state(self, slot: int) -> int:
        """Return the state of a slot, which may be DAMAGED."""
        return self._read(slot)[0]

    @_while_open
    def _read(self, slot: int) -> tuple[int, bytes]:
        """Return the state and the row of a slot. If the word does not fit the row, the state is DAMAGED. Rule 23."""
        memory, at, row_at = self._shared(), _state_at(slot), _ROWS_AT + slot * _ROW_BYTES
        for _ in range(_READS):
            word, row = memory[at : at + WORD_BYTES], memory[row_at : row_at + _ROW_END]
            if word == _word(slot, word[0], row):
                return word[0], row
        return DAMAGED, row

    def number(self, slot: int) -> int:
        """Return the number of the commit that took a request; 0 if no commit has taken the request."""
        state, row = self._read(slot)
        number: int = _TAKEN_ROW.unpack_from(row, _TAKEN_ROW_AT)[2]
        return number if state in (TAKEN, DONE) else 0

    def taken_numbers(self) -> list[int]:
        """Return the numbers of commits that have taken requests. The files of these commits must remain (rule 21)."""
        return [number for slot in self.standing() if (number := self.number(slot))]

    @_while_open
    def standing_within(self, span: RemovedSpan) -> list[int]:
        """Return the slots whose requests stand, and may remove or change a message of the span."""
        found = []
        for slot in self.standing():
            state, row = self._read(slot)
            _, _, first, last = _POSTED_ROW.unpack_from(row)
            if state == DAMAGED or (first <= span.last and span.first <= last):
                found.append(slot)
        return found

    def request(self, slot: int) -> bytes | None:
        """Return a slot's request, or None if its bytes are damaged."""
        state, row = self._read(slot)
        length, checksum, _, _ = _POSTED_ROW.unpack_from(row)
        return None if state == DAMAGED else self._proven(_content_at(slot), length, checksum, BODY_BYTES)

    def answer(self, slot: int) -> tuple[int, bytes] | None:
        """Return the number of the commit that has a slot's request, and the answer; None if the bytes are damaged."""
        state, row = self._read(slot)
        length, checksum, number = _TAKEN_ROW.unpack_from(row, _TAKEN_ROW_AT)
        data = self._proven(_content_at(slot) + BODY_BYTES, length, checksum, ANSWER_BYTES)
        return None if data is None or state != DONE else (number, data)

    @_while_open
    def _proven(self, at: int, length: int, checksum: int, most: int) -> bytes | None:
        data = self._shared()[at : at + min(length, most)]
        return data if zlib.crc32(data) == checksum else None

    # -- owning a slot ------------------------------------------------------------------------------------------------

    def own(self, deadline: Deadline) -> int | None:
        """Take a slot without an owner and without a standing request.

        A process takes the byte of a slot only if it then owns the slot. Otherwise a dead process's request would seem
        to have an owner for a moment (rule 20). So one process at a time looks for a slot, and asks the kernel for held
        bytes.

        Returns:
            None if all slots are in use, or if another process looks for a slot until the deadline.
        """
        for _ in deadline.polls():
            with self._locks.trying(_SEARCH) as alone:
                if alone:
                    return next(filter(self._take_free, range(self._count)), None)
        return None

    def _take_free(self, slot: int) -> bool:
        byte = request_slot_byte(slot)
        if not self._owners.is_free(byte) or slot in self.standing() or not self._owners.try_lock(byte):
            return False
        self.clear(slot)
        return True

    def disown(self, slot: int) -> None:
        """Give up a slot. A request that stands in the slot remains."""
        self._owners.unlock(request_slot_byte(slot))

    def is_owned(self, slot: int) -> bool:
        """Return whether a live process, this one or another, owns the slot."""
        return not self._owners.is_free(request_slot_byte(slot))

    @_while_open
    def post(self, slot: int, request: bytes, span: RemovedSpan) -> bool:
        """Post a request in an owned slot. Return False if no process leads, so that the caller tries to lead."""
        memory, at, row_at = self._shared(), _content_at(slot), _ROWS_AT + slot * _ROW_BYTES
        row = _POSTED_ROW.pack(len(request), zlib.crc32(request), *span)
        memory[at : at + len(request)] = request
        memory[row_at : row_at + len(row)] = row
        self._store(slot, POSTED, row)
        mark = int.from_bytes(memory[_MARK], sys.byteorder)
        if mark > _GATHERS and self._posted() >= mark - _GATHERS:
            memory.change(_POSTS.start, time_word())
        return mark != 0

    @_while_open
    def wait(self, slot: int, word: bytes, seconds: float) -> bool:
        """Sleep until the slot's word changes or a leader wakes the owner. Return False if the time is over."""
        return self._shared().wait(_state_at(slot), word, seconds)

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

    def lead_within(self, deadline: Deadline) -> bool:
        """Wait for the lead until the deadline; return whether this process leads."""
        return self.try_lead() or any(self.try_lead() for _ in self._locks.pauses(_LEAD, deadline))

    @_while_open
    def end_lead(self, answered: Iterable[int] = ()) -> None:
        """Release the lead. Wake the owners of ``answered`` slots, and the owner of one standing request as the next
        leader."""
        memory = self._shared()
        memory.store(_MARK.start, CLEAR)
        self._locks.unlock(_LEAD)
        for slot in (*self.standing()[:1], *answered):
            memory.wake(_state_at(slot))

    @_while_open
    def gather(self, count: int, seconds: float) -> None:
        """Wait until ``count`` requests are posted, but at most ``seconds``. The caller leads."""
        memory = self._shared()
        self._mark(_GATHERS + count)
        seen = memory[_POSTS]
        if self._posted() < count:
            memory.wait(_POSTS.start, seen, seconds)  # the process that posts the last request wakes this thread
        self._mark(_LEADS)

    def _posted(self) -> int:
        return self._shared()[_STATES][::WORD_BYTES].count(POSTED)

    @_while_open
    def _mark(self, value: int) -> None:
        self._shared().store(_MARK.start, value.to_bytes(WORD_BYTES, sys.byteorder))

    def change_posted(self, slot: int, state: int) -> bool:
        """Join a posted request, as the leader (JOINED), or withdraw it, as its owner (EMPTY). Return False if the
        other process was first. Rule 22."""
        handle, byte = self._locks.handle, _SLOT_BYTES + slot
        if not self._disk.lock(handle, byte):  # (held only for a moment, and by no other thread of this process)
            return False
        try:
            return self.change(slot, (POSTED,), state)
        finally:
            self._disk.unlock(handle, byte)

    @_while_open
    def take(self, slot: int, number: int, answer: bytes, become: int = TAKEN) -> None:
        """Mark a joined request as taken by the commit with this number. The number is issued, but no file has it yet.
        Rule 18.

        A slot that was damaged meanwhile remains damaged.

        Args:
            become: the new state: TAKEN; or DONE, for an answer that leaves the request to its owner.
        """
        state, row = self._read(slot)
        if state != JOINED:
            return
        memory, at = self._shared(), _content_at(slot) + BODY_BYTES
        row_at = _ROWS_AT + slot * _ROW_BYTES + _TAKEN_ROW_AT
        taken = _TAKEN_ROW.pack(len(answer), zlib.crc32(answer), number)
        memory[at : at + len(answer)] = answer
        memory[row_at : row_at + len(taken)] = taken
        self._store(slot, become, row[:_TAKEN_ROW_AT] + taken)

    def end(self, slot: int, number: int | None, no_answer: bytes) -> None:
        """Mark a request as done, if the commit with this number has taken it. If no commit has taken it, store
        ``no_answer``. The caller leads."""
        state, row = self._read(slot)
        if state == TAKEN and number == _TAKEN_ROW.unpack_from(row, _TAKEN_ROW_AT)[2]:
            self._store(slot, DONE, row)
        elif state == JOINED:
            self.take(slot, 0, no_answer, DONE)

    def change(self, slot: int, states: Collection[int], state: int) -> bool:
        """Store a state if the slot has one of ``states``, and return whether it had. The call wakes no thread."""
        found, row = self._read(slot)
        if found not in states:
            return False
        self._store(slot, state, row)
        return True

    def clear(self, slot: int) -> None:
        """Store that a slot is empty. Only the owner, or a process that leads, calls this method."""
        self._store(slot, EMPTY, b"")

    @_while_open
    def _store(self, slot: int, state: int, row: bytes) -> None:
        self._shared().store(_state_at(slot), _word(slot, state, row))


def _word(slot: int, state: int, row: bytes) -> bytes:
    """Return the word for a slot, state and row. ``row``: for a posted or joined request, the row's beginning."""
    if state == EMPTY:
        return CLEAR
    checksum = zlib.crc32(row[:_TAKEN_ROW_AT] if state in (POSTED, JOINED) else row, slot << 8 | state)
    standing = _STANDING_BITS if state & _STANDS else 0
    return (checksum & _CHECKSUM_BITS | standing | state).to_bytes(WORD_BYTES, "little")


def _state_at(slot: int) -> int:
    return _STATES.start + slot * WORD_BYTES


def _content_at(slot: int) -> int:
    return _CONTENT_AT + slot * _CONTENT_BYTES
