"""Requests of administrators to end the pauses of a queue's workers and routes: the file ``run/resumed``.

A worker or route pauses while it cannot reach its service, or while a queue has no room. An administrator who has
removed the cause asks for an attempt at once. The file has 512 words. The name of a queue determines a word. A request
writes a random word. A program that pauses reads the word twice a second, and ends its pause if the word has changed.
If two queues share a word, programs of the other queue also make an early attempt.

The file is no part of the protocol: a lost request costs only the rest of a pause. So the file is not flushed.
"""

import os
from contextlib import suppress
from zlib import crc32

from spool.disk.content import opened
from spool.disk.disk import Disk
from spool.errors import SpoolError
from spool.model import layout

_WORDS, _WORD_BYTES = 512, 8
READ_SECONDS = 0.5


def _offset(queue: str) -> int:
    return crc32(queue.encode()) % _WORDS * _WORD_BYTES


def request_resumption(disk: Disk, queue: str) -> None:
    """Ask all workers and routes of a queue to end their pauses. Raises OSError."""
    with suppress(FileExistsError):  # an earlier request has created the file
        disk.close(disk.create(layout.RESUMED))
    with opened(disk, layout.RESUMED, write=True) as handle:
        disk.write_at(handle, _offset(queue), os.urandom(_WORD_BYTES))


class Resumptions:
    """The requests for one queue, for a worker or route that pauses."""

    def __init__(self, disk: Disk, queue: str) -> None:
        self._disk, self._offset = disk, _offset(queue)
        self._word, self._next_read = self._read(), 0.0

    def is_requested(self) -> bool:
        """Return whether a request was made since the last reported request, or since the creation of this object. A
        request from before a pause also ends the pause, because the failed attempt may have begun before the
        request."""
        now = self._disk.clock.monotonic()
        if now < self._next_read:
            return False
        self._next_read = now + READ_SECONDS
        before, self._word = self._word, self._read()
        return self._word != before

    def _read(self) -> bytes:
        data = b""
        with suppress(OSError, SpoolError), opened(self._disk, layout.RESUMED) as handle:
            data = self._disk.read_at(handle, self._offset, _WORD_BYTES)
        return data.ljust(_WORD_BYTES, b"\0")
