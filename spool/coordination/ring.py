"""The ring of slots in ``run/feed``: short notes about commits, by number, in memory that all processes share.

The slot of number n is slot n modulo the number of slots, so a later number overwrites it. A slot says for which number
it was written, in which life of the ring, and has a checksum: one that is torn, overwritten or older counts as none. So
nothing may depend on a slot being there.
"""

import os
import struct
import zlib

from spool.coordination.locks import open_shared
from spool.disk.descriptors import not_open
from spool.disk.disk import Disk
from spool.disk.memory import SharedBytes
from spool.errors import NO_ROOM
from spool.model.layout import FEED

SLOTS = 2048
SLOT_BYTES = 512
_CHECKSUM = struct.Struct("<I")
_FRONT = struct.Struct("<I8sQ")  # behind the checksum of all that follows: bytes of the note, life, number
_NOTE_AT = _CHECKSUM.size + _FRONT.size
NOTE_BYTES = SLOT_BYTES - _NOTE_AT
_LIFE_BYTES = 8
_SLOTS_AT = SLOT_BYTES  # the life stands in front, in the room of a slot


class Ring:
    """The slots. Where the disk had no room for them when the first process opened the space, there are none."""

    def __init__(self, disk: Disk, *, make: bool) -> None:
        """Open the ring. ``make``: see ``open_shared``; the opener that is alone then calls ``start``."""
        self.disk = disk
        self._handle = open_shared(disk, FEED, make=make)
        self._memory: SharedBytes | None = None
        self._slots = 0
        self._life = b""
        if not make:
            self._share()

    def start(self) -> None:
        """Begin a new life: no slot that was written before is there any more. Only an opener that is alone may.

        What a power cut left of the file proves nothing, and a number may be given out again after it.
        """
        if self.disk.handle_identity(self._handle).size != _SLOTS_AT + SLOTS * SLOT_BYTES:
            try:
                self.disk.truncate(self._handle, 0)
                self.disk.write_at(self._handle, 0, bytes(_SLOTS_AT + SLOTS * SLOT_BYTES))
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.disk.truncate(self._handle, 0)
                return
        self.disk.write_at(self._handle, 0, os.urandom(_LIFE_BYTES))
        self._share()

    def _share(self) -> None:
        size = self.disk.handle_identity(self._handle).size
        self._slots = (size - _SLOTS_AT) // SLOT_BYTES
        if self._slots > 0:
            self._memory = self.disk.map(self._handle, size)
            self._life = self._memory[0:_LIFE_BYTES]

    def write(self, number: int, note: bytes) -> None:
        """Write the note of a number. Caller holds the number's byte.

        Raises OSError if that fails and an earlier note of the number may still be there.
        """
        if self._memory is None:
            return
        start = _SLOTS_AT + number % self._slots * SLOT_BYTES
        proven = _FRONT.pack(len(note), self._life, number) + note
        try:
            self._memory[start : start + _CHECKSUM.size + len(proven)] = _CHECKSUM.pack(zlib.crc32(proven)) + proven
        except ValueError:
            raise not_open() from None
        except OSError:
            if self.read(number) is not None:
                raise

    def read(self, number: int) -> bytes | None:
        """Return the note of a number; None if it is not there."""
        if self._memory is None:
            return None
        start = _SLOTS_AT + number % self._slots * SLOT_BYTES
        try:
            slot = self._memory[start : start + SLOT_BYTES]
            length, life, found = _FRONT.unpack_from(slot, _CHECKSUM.size)
        except ValueError:
            raise not_open() from None
        except struct.error:
            return None  # it ends here
        if found != number or life != self._life or length > NOTE_BYTES:
            return None
        if zlib.crc32(slot[_CHECKSUM.size : _NOTE_AT + length]) != _CHECKSUM.unpack_from(slot)[0]:
            return None
        return slot[_NOTE_AT : _NOTE_AT + length]
