"""A file as memory that processes share. All processes see a write immediately, without a system call.

A thread can sleep until a thread of any process changes a word of the shared memory (futex(2)).

If a page of a mapped file cannot be written or read, the kernel kills the process (SIGBUS). So a file is mapped only if
the file system overwrites blocks in place: then a write needs no free room. On other file systems, system calls read
and write the bytes. A failed call raises OSError.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, Protocol

WORD_BYTES = 4
FUTEX_BYTES = 2 * WORD_BYTES
CLEAR, SET = bytes(WORD_BYTES), (1).to_bytes(WORD_BYTES, sys.byteorder)
ALL_THREADS = (1 << 31) - 1

# The numbers of the system call futex(2), for which glibc has no function. On machines that are not listed, no thread
# is woken.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX = _NUMBERS.get(os.uname().machine, 0) if sys.maxsize > 1 << 32 else 0
_WAIT, _WAKE = 0, 1
_TIME = struct.Struct("qq")  # seconds, nanoseconds
_NO_FUTEX_SECONDS = 0.001  # the sleep of a thread that the kernel cannot wake
_futex = ctypes.CDLL(None, use_errno=True).syscall
_futex.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int
)  # fmt: skip


class SharedBytes(Protocol):
    """The first bytes of a file, read and written as slices.

    A process may see half of a change that another process makes. A word has ``WORD_BYTES`` bytes, and the offset of a
    word is a multiple of this size. ``wakes``: whether threads can sleep until a word changes.
    """

    @property
    def wakes(self) -> bool: ...

    def __getitem__(self, place: slice, /) -> bytes: ...

    def __setitem__(self, place: slice, data: bytes, /) -> None:
        """Write bytes. Each byte may be stored twice, because the C library copies a few bytes by two stores that
        overlap. If another process has changed the bytes between the two stores, its change is lost."""

    def store(self, at: int, word: bytes) -> None:
        """Store a word once and in one step. Use this if other processes also change the word."""

    def wait(self, at: int, value: bytes, seconds: float) -> bool:
        """Sleep at most ``seconds`` while the word has this value.

        Return whether the word changed or a thread woke this thread. A signal ends the sleep.
        """

    def sleep(self, at: int, value: bytes, seconds: float) -> bool:
        """Sleep like ``wait``. Return whether a thread woke this thread, or the word had another value before the
        sleep."""

    def change(self, at: int, value: bytes, threads: int = ALL_THREADS) -> int:
        """Store a value in the word, and wake at most ``threads`` threads that sleep on the word.

        Return the number of threads that were woken.
        """

    def wake(self, at: int) -> None:
        """Wake one thread that sleeps on the word. The word keeps its value."""

    def close(self) -> None:
        """Release the memory; a later use raises ValueError."""


class FileCalls(Protocol):
    """The calls of ``Disk`` that read and write the bytes of an open file."""

    def read_at(self, handle: int, offset: int, length: int) -> bytes: ...

    def write_at(self, handle: int, offset: int, data: bytes) -> None: ...


class Mapped(mmap.mmap):
    """The bytes of a mapped file."""

    wakes = _FUTEX != 0

    @cached_property
    def _words(self) -> memoryview:
        return memoryview(self)[: len(self) // WORD_BYTES * WORD_BYTES].cast("I")

    def store(self, at: int, word: bytes) -> None:
        self._words[at // WORD_BYTES] = int.from_bytes(word, sys.byteorder)

    def close(self) -> None:
        self.__dict__.setdefault("_words", memoryview(b"")).release()  # (a later ``store`` raises ValueError)
        super().close()

    @cached_property
    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))

    def wait(self, at: int, value: bytes, seconds: float) -> bool:
        return self.sleep(at, value, seconds) or self[at : at + WORD_BYTES] != value

    def sleep(self, at: int, value: bytes, seconds: float) -> bool:
        limit = _TIME.pack(int(seconds), int(seconds % 1 * 1e9))
        expected = int.from_bytes(value, sys.byteorder, signed=True)
        refused = _futex(_FUTEX, self._address + at, _WAIT, expected, limit, None, 0) < 0
        error = ctypes.get_errno() if refused else 0
        if error not in (0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            time.sleep(min(seconds, _NO_FUTEX_SECONDS))
        return error in (0, errno.EAGAIN)

    def change(self, at: int, value: bytes, threads: int = ALL_THREADS) -> int:
        self.store(at, value)
        woken: int = _futex(_FUTEX, self._address + at, _WAKE, threads, None, None, 0)
        return woken

    def wake(self, at: int) -> None:
        _futex(_FUTEX, self._address + at, _WAKE, 1, None, None, 0)


class ByCalls:
    """The bytes of an open file, read and written by system calls."""

    wakes: ClassVar[bool] = False

    def __init__(self, disk: FileCalls, handle: int) -> None:
        self._disk = disk
        self._handle = handle

    def __getitem__(self, place: slice) -> bytes:
        return self._disk.read_at(self._handle, place.start, place.stop - place.start)

    def __setitem__(self, place: slice, data: bytes) -> None:
        self._disk.write_at(self._handle, place.start, data)

    def store(self, at: int, word: bytes) -> None:
        self[at : at + WORD_BYTES] = word

    def wait(self, at: int, value: bytes, seconds: float) -> bool:
        time.sleep(seconds)
        return self[at : at + WORD_BYTES] != value

    sleep = wait

    def change(self, at: int, value: bytes, threads: int = ALL_THREADS) -> int:
        self.store(at, value)
        return 0

    def wake(self, at: int) -> None:
        """Do nothing. A sleeping thread checks again by itself."""

    def close(self) -> None:
        """Do nothing. The handle remains open, because it belongs to the caller."""


def time_word() -> bytes:
    """Return the current time as a word. Two calls nearly always return different words."""
    return struct.pack("=I", time.monotonic_ns() & 0xFFFFFFFF)


class Futexes:
    """Words that wake waiting threads. A thread that releases a byte lock wakes all threads that wait for the byte, in
    any process.

    A futex is two words: a mark, and a time. A waiting thread remembers the time, sets the mark, checks whether the
    byte is free, and sleeps while the time is unchanged. A thread that releases the byte reads the mark. The mark is
    rarely set, so a release usually costs only one read of memory. If the mark is set, the thread clears the mark,
    stores the current time, and wakes the sleepers. Then a thread that was about to sleep finds another time, even if a
    third thread has set the mark again.

    Many bytes share a futex, so a woken thread must check its byte again. A process that dies with a lock wakes no
    thread, so a waiting thread also wakes by itself after a short sleep.
    """

    def __init__(self, memory: SharedBytes, first: int, count: int) -> None:
        """``first``: the offset of the futexes in the memory."""
        self.memory = memory
        self.first = first
        self.count = count

    def expect(self, byte: int) -> Callable[[float], bool]:
        """Ask to be woken by the thread that releases the byte. The caller checks the byte once more, and then waits.

        Returns:
            A function with the argument ``seconds``, the longest time to wait until the byte is released. If the byte
            was released since this call, the function returns at once. The function returns whether the byte was
            released, after it has asked to be woken again.
        """
        mark = self._at(byte)
        kept = self._expect(mark)

        def wait(seconds: float) -> bool:
            nonlocal kept
            woken = self.memory.wait(mark + WORD_BYTES, kept, seconds)
            kept = self._expect(mark)
            return woken

        return wait

    def _expect(self, mark: int) -> bytes:
        # Read the time before setting the mark, because a waking thread clears the mark before it stores the time.
        kept = self.memory[mark + WORD_BYTES : mark + FUTEX_BYTES]
        self.memory.store(mark, SET)
        return kept

    def wake(self, byte: int) -> None:
        """Wake the threads that wait for the byte. The caller has released the byte, and found the mark set."""
        mark = self._at(byte)
        self.memory.store(mark, CLEAR)
        self.memory.change(mark + WORD_BYTES, time_word())

    def _at(self, byte: int) -> int:
        return self.first + byte % self.count * FUTEX_BYTES
