"""When any process commits, wake the calls that wait for a message.

A call that waits for the head of a queue sleeps on a word of shared memory (``Wakeups``). So a commit wakes at most
one waiting call for each message. All other calls watch the file ``run/counters``: a process that publishes a commit
writes to this file, and the kernel notifies the watchers (``CommitNotifier``).

A notification is only a hint, because it may be lost, or wake a process that then dies or is stopped. So a waiting call
also polls now and then (see ``waiting.pauses``). A poll that finds no message counts for all processes for a moment.
"""

import struct
import sys
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial

from spool.disk.disk import Disk
from spool.disk.memory import ALL_THREADS, CLEAR, FUTEX_BYTES, WORD_BYTES, SharedBytes, time_word
from spool.model.layout import COUNTERS
from spool.model.position import PositionRanges
from spool.runtime.clock import POLL_MAX_SECONDS


class CommitNotifier:
    """Notifies waiting threads of commits.

    ``generation`` counts the notifications. A thread that reads the count before it searches for a message misses no
    notification in its later wait.
    """

    def __init__(self, disk: Disk) -> None:
        self.generation = 0
        self._disk = disk
        self._handle: int | None = None
        self._listening = False
        self._turn = threading.Condition(threading.Lock())

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait until the count exceeds ``seen`` or the time is over. Return whether the count exceeds ``seen``.

        If the kernel cannot notify this process, wait a few milliseconds, and count that as a notification.
        """
        with self._turn:
            if self._handle is None:
                with suppress(OSError):  # if the kernel grants no watch, the next wait tries again
                    self._handle = self._disk.watch(COUNTERS)
                    self.generation += 1  # commits before the watch were not noticed: search again
            if self.generation != seen:
                return True
            listens = self._handle is not None and not self._listening
            self._listening |= listens
        if self._handle is None:
            self._disk.clock.sleep(min(seconds, POLL_MAX_SECONDS))
            with self._turn:
                self.generation += 1
        elif listens:
            self._listen(self._handle, seconds)
        else:
            self._disk.clock.wait(partial(self._wait_for_listener, seen), seconds)
        return self.generation != seen

    def _listen(self, handle: int, seconds: float) -> None:
        notified = False
        try:
            notified = self._disk.clock.wait(partial(self._disk.wait_for_change, handle), seconds)
        finally:
            with self._turn:
                self._listening = False
                self.generation += notified
                if notified:
                    self._turn.notify_all()
                else:
                    self._turn.notify()  # the next listener

    def _wait_for_listener(self, seen: int, seconds: float) -> bool:
        """Wait until the listening thread is notified, or stops listening."""
        with self._turn:
            if self.generation == seen and self._listening:
                self._turn.wait(seconds)
            return self.generation != seen


# A poll that found no message counts for all calls that wait for the queue, for this time since its begin.
POLLED_MILLISECONDS = 250
_POLL = struct.Struct("=4sI")  # the mark of a queue, and the time of a poll in milliseconds
_WORDS = 1 << 32  # the number of values of a word

_SEVERAL = b"\xff" * WORD_BYTES


def _with_parity(time: bytes, parity: int) -> bytes:
    return (int.from_bytes(time, sys.byteorder) & ~1 | parity).to_bytes(WORD_BYTES, sys.byteorder)


def _left_messages(before: bytes, after: bytes) -> bool:
    """Return whether a process has stored a new time, and the kernel then woke fewer calls than messages had
    arrived."""
    return after != before and bool(int.from_bytes(after, sys.byteorder) & 1)


@lru_cache(maxsize=1024)
def _bucket_of(queue: str, first: int, count: int) -> tuple[int, bytes]:
    """Return the offset of a queue's bucket, and the queue's mark, which is neither 0 nor ``_SEVERAL``."""
    checksum = zlib.crc32(queue.encode())
    return first + checksum % count * FUTEX_BYTES, (checksum % (_WORDS - 2) + 1).to_bytes(WORD_BYTES, sys.byteorder)


class Wakeups:
    """Wakes the calls of all processes that wait for the head of a queue.

    Many queues share a bucket of two words: a mark, and a time. A waiting call stores the mark of its queue; if another
    queue's mark is stored, the call stores ``_SEVERAL``. The call remembers the time, searches once more, and sleeps
    while the time is unchanged. A process that commits messages stores the time, and wakes one call for each message.
    In a bucket of several queues, the process wakes all calls, because the kernel could choose a call that waits for
    another queue. If a bucket has no mark, a commit only reads the bucket.

    A stored time is odd. If the kernel woke a call for each message, the process makes the time even. If a call that
    was not sleeping finds an even time, it need not search, because the woken calls get the messages.

    Two other words have the mark of a queue, and the time of the last poll of the queue that found no message. Queues
    that share these words replace each other's marks, and then poll more often.

    ``wakes``: whether a call can sleep on a word of the memory. Otherwise the call uses the ``CommitNotifier``.
    """

    def __init__(self, memory: SharedBytes, first: int, count: int, polls: tuple[int, int] = (0, 1)) -> None:
        """``first``: the offset of the buckets in the memory. ``polls``: the offset and the number of the words of
        polls."""
        self._memory, self._polls = memory, polls
        self._first = first
        self._count = count
        self.wakes = memory.wakes

    def expect(self, queue: str) -> Callable[[float], bool]:
        """Ask to be woken for messages of the queue. The caller searches once more, and then waits.

        Returns:
            A function with the argument ``seconds``, the longest time to wait. If messages arrived since this call, the
            function returns at once. The function returns whether the caller was woken, after it has asked to be woken
            again.
        """
        at, mark = _bucket_of(queue, self._first, self._count)
        kept = self._expect(at, mark)

        def wait(seconds: float) -> bool:
            nonlocal kept
            before, kept = kept, self._expect(at, mark)
            if _left_messages(before, kept):
                return True
            before, woken = kept, self._memory.sleep(at + WORD_BYTES, kept, seconds)
            kept = self._expect(at, mark)
            return woken or _left_messages(before, kept)

        return wait

    def watch(self, queue: str) -> Callable[[], bool]:
        """Return a function that returns whether messages of the queue were announced since its last call.

        Messages of another queue may also count.
        """
        at, mark = _bucket_of(queue, self._first, self._count)
        kept = self._expect(at, mark)

        def has_changed() -> bool:
            nonlocal kept
            before, kept = kept, self._expect(at, mark)
            return before != kept

        return has_changed

    def _expect(self, at: int, mark: bytes) -> bytes:
        there = self._memory[at : at + WORD_BYTES]
        if there not in (mark, _SEVERAL):
            self._memory.store(at, mark if there == CLEAR else _SEVERAL)
        return self._memory[at + WORD_BYTES : at + FUTEX_BYTES]

    def announce(self, arrived: Mapping[str, int]) -> None:
        """Wake one call for each message. ``arrived``: by queue, the number of messages that any call can take now."""
        for queue in arrived if self.wakes else ():
            at, mark = _bucket_of(queue, self._first, self._count)
            there = self._memory[at : at + WORD_BYTES]
            if there != CLEAR:
                calls = arrived[queue] if there == mark else ALL_THREADS
                time, word = _with_parity(time_word(), 1), slice(at + WORD_BYTES, at + FUTEX_BYTES)
                if self._memory.change(word.start, time, calls) == calls and self._memory[word] == time:
                    # (no other process has announced messages meanwhile)
                    self._memory.store(word.start, _with_parity(time, 0))

    def announce_all(self) -> None:
        """Wake all calls, because any message may have become free."""
        there = self._memory[self._first : self._first + self._count * FUTEX_BYTES]
        for at in range(0, len(there), FUTEX_BYTES) if self.wakes else ():
            if there[at : at + WORD_BYTES] != CLEAR:
                self._memory.change(self._first + at + WORD_BYTES, _with_parity(time_word(), 1))

    def poll(self, queue: str, search: Callable[[], PositionRanges], now: float) -> PositionRanges:
        """Search the queue for a call that was not woken, unless another process has just done so and found nothing.

        If each of many processes searched, each would apply all commits, and find no message.

        ``now``: the time by the monotonic clock, in seconds.
        """
        at, mark = _bucket_of(queue, *self._polls)
        polled, time = _POLL.unpack(self._memory[at : at + FUTEX_BYTES])
        begun = int(1000 * now) % _WORDS
        if polled == mark and (begun - time) % _WORDS < POLLED_MILLISECONDS:
            return []
        if not (found := search()):
            self._memory[at : at + FUTEX_BYTES] = _POLL.pack(mark, begun)
        return found
