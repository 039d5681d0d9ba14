"""The moments in which a death is most dangerous, recognised from the disk calls that an engine makes.

``WindowDisk`` is the real disk, watched: it writes down claims and numbers, knows which window the process is in, and
can hold the process there, so that the parent can kill it. The engine knows nothing of it.
"""

import os
import random
from collections.abc import Callable, Mapping

from spool import layout
from spool.disk import Disk
from spool.layout import MAX_ORDINAL, ORDINAL_BITS

TO_FLUSH = "rename to publication"
TO_PUBLICATION = "flush to publication"
TO_SECOND_LOOK = "claim to second look"
TO_UNLOCK = "prepare to unlock"
TO_MOVE = "decision to move"
TO_REMOVAL = "commit to removal of the dropped file"
WINDOWS = (TO_FLUSH, TO_PUBLICATION, TO_SECOND_LOOK, TO_UNLOCK, TO_MOVE, TO_REMOVAL)

PUBLISHED_OFFSETS = (128 + 2 * 16, 128 + 3 * 16)  # the two copies of *published* in run/counters


class Recogniser:
    """Which window a process is in, from its disk calls in order. ``call`` returns it, or None.

    Every call is told of after it was made: (method, name or names, offset or start of bytes).
    """

    def __init__(self) -> None:
        self.window: str | None = None
        self._adopts = False

    def call(self, method: str, name: str, other: str = "", offset: int = 0) -> str | None:
        self.window = self._next(method, name, other, offset)
        return self.window

    def _next(self, method: str, name: str, other: str, offset: int) -> str | None:
        window = self.window
        if method == "rename_new" and name.startswith(layout.ACTIVE) and other.startswith(layout.COMMITTED):
            return TO_FLUSH
        if method == "rename_new" and other.startswith(layout.PREPARED):
            return TO_UNLOCK
        if method == "lock" and name.startswith(f"{layout.RUN}/claims-") and offset > MAX_ORDINAL:
            return TO_SECOND_LOOK if window is None else window
        if window == TO_FLUSH and method == "flush" and name.startswith(layout.COMMITTED):
            return TO_PUBLICATION
        if window in (TO_FLUSH, TO_PUBLICATION) and self._published(method, name, offset):
            return TO_MOVE if self._adopts else None
        return window
