"""The moments in which a death is most dangerous, recognised from the disk calls that the engine makes.

``WindowDisk`` is the real disk, watched: it writes claims and numbers into the worker's log, knows which window the
process is in, and holds the process there now and then, so that its parent can kill it. The engine knows nothing of it.
"""

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

from spool.coordination import counters
from spool.coordination.request_slots import EMPTY, JOINED, POSTED
from spool.disk import Disk
from spool.disk.memory import SharedBytes
from spool.model import layout
from spool.model.layout import MAX_ORDINAL, ORDINAL_BITS
from tests.torture.history import Log

RENAME_TO_PUBLICATION = "rename to publication"
FLUSH_TO_PUBLICATION = "flush to publication"
CLAIM_TO_SECOND_LOOK = "claim to second look"
PREPARE_TO_UNLOCK = "prepare to unlock"
DECISION_TO_MOVE = "decision to move"
COMMIT_TO_REMOVAL = "commit to removal of the dropped file"
POST_TO_ANSWER = "post to answer"
JOIN_TO_RENAME = "join to rename"
WINDOWS = (
    RENAME_TO_PUBLICATION, FLUSH_TO_PUBLICATION, CLAIM_TO_SECOND_LOOK, PREPARE_TO_UNLOCK, DECISION_TO_MOVE,
    COMMIT_TO_REMOVAL, POST_TO_ANSWER, JOIN_TO_RENAME,
)  # fmt: skip

_SHARED = {POSTED: POST_TO_ANSWER, JOINED: JOIN_TO_RENAME}
_MAX_STEP = 6
_STAMP = b"\xa6number\xcf"  # the beginning of a stamp; the number follows
_LAST_PUBLISHED_COPY = counters._PUBLISHED.stop - counters._PAIR.size // 2
_CLAIM_FILES = f"{layout.RUN}/claims-"
_TAKEN = f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}"
_FIRST_NAME = "/.first."  # of a file that was linked into its capture directory; it goes before the commit


class Recogniser:
    """The window that a process is in. Pure: it gets each call, before and after, and nothing else.

    A call is a method's name and its arguments, with names of files in the place of handles.
    """

    def __init__(self) -> None:
        self.window: str | None = None
        self._number = 0
        self._looked = False

    def before(self, method: str, *args: Any) -> None:
        """These two windows end with the call, so the process is in them until it is made."""
        if method in ("rename_new", "link") and args[0].startswith(layout.PREPARED):
            self.window = DECISION_TO_MOVE
        elif method == "unlink" and args[0].startswith(_TAKEN) and _FIRST_NAME not in args[0]:
            self.window = COMMIT_TO_REMOVAL

    def after(self, method: str, result: Any, *args: Any) -> None:
        if self.window in (DECISION_TO_MOVE, COMMIT_TO_REMOVAL):
            self.window = None
        elif method == "store" and args[0] == layout.REQUESTS:
            if args[2][0] in _SHARED:
                self.window = _SHARED[args[2][0]]
            elif args[2][0] == EMPTY and self.window == POST_TO_ANSWER:
                self.window = None
        elif method == "rename_new":
            self._renamed(args[1])
        elif method == "lock" and is_claim(args[0], args[1]):
            if result and self.window is None:
                self.window, self._looked = CLAIM_TO_SECOND_LOOK, False
        elif self.window == CLAIM_TO_SECOND_LOOK:
            self._look(method, args[0])
        elif self.window == PREPARE_TO_UNLOCK:
            if method == "unlock" and args[0] == layout.XIDS:
                self.window = None
        elif self.window is not None:
            self._towards_publication(method, *args)

    def _renamed(self, target: str) -> None:
        if target.startswith(layout.PREPARED):
            self.window = PREPARE_TO_UNLOCK
        elif target.startswith(layout.COMMITTED):
            self.window, self._number = RENAME_TO_PUBLICATION, number_of(target)

    def _look(self, method: str, name: str) -> None:
        """The second look ends with reading the counters after looking for numbers that were just issued."""
        if method == "exists" and name.startswith(layout.COMMITTED):
            self._looked = True
        elif self._looked and method == "read_at" and name == layout.COUNTERS:
            self.window = None

    def _towards_publication(self, method: str, *args: Any) -> None:
        if method == "make_durable" and args[1] == layout.COMMITTED:
            self.window = FLUSH_TO_PUBLICATION
        elif method == "write_at" and args[0] == layout.COUNTERS and _stores_published(*args[1:]) >= self._number:
            self.window = None


def _stores_published(offset: int, data: bytes) -> int:
    """The number that becomes the published one with this write to the counters, or 0."""
    place = _LAST_PUBLISHED_COPY - offset
    return int.from_bytes(data[place : place + 8], "little") if 0 <= place < len(data) else 0


def is_claim(name: str, start: int) -> bool:
    """Return whether a lock is a message's, not an owner's."""
    return name.startswith(_CLAIM_FILES) and start > MAX_ORDINAL


def number_of(name: str) -> int:
    parsed = layout.parse_committed(name.rpartition("/")[2])
    return 0 if parsed is None else parsed.number


def _is_worker() -> bool:
    """Return whether this is the worker's thread, and not the housekeeper's, which makes separate commits."""
    return threading.current_thread() is threading.main_thread()


def _watched(method: str) -> Callable[..., Any]:
    def call(self: "WindowDisk", *args: Any, **options: Any) -> Any:
        described = (self.names_of.get(args[0], args[0]), *args[1:])
        self.is_about_to(method, *described)
        result = getattr(Disk, method)(self, *args, **options)
        self.has_done(method, result, *described)
        return result

    return call


class WatchedMemory:
    """Memory that processes share; its disk sees the reads, and the stores of words."""

    def __init__(self, disk: "WindowDisk", name: str, memory: SharedBytes) -> None:
        self._disk, self._name, self._memory = disk, name, memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def __getitem__(self, place: slice) -> bytes:
        found = self._memory[place]
        self._disk.has_done("read_at", found, self._name, place.start)
        return found

    def __setitem__(self, place: slice, data: bytes) -> None:
        self._memory[place] = data

    def store(self, at: int, word: bytes) -> None:
        self._disk.is_about_to("store", self._name, at, word)
        self._memory.store(at, word)
        self._disk.has_done("store", None, self._name, at, word)


class WindowDisk(Disk):
    """The real disk, watched. ``odds``: for each window, how likely the process is held in it; ``hold`` holds it."""

    def __init__(self, root: str, log: Log, rng: random.Random, odds: Mapping[str, float], hold: Callable[[str], None]):
        super().__init__(root)
        self.names_of: dict[Any, str] = {}
        self._log = log
        self._rng = rng
        self._odds = odds
        self._hold = hold
        self._recogniser = Recogniser()
        self._window: str | None = None
        self._steps = -1

    exists = _watched("exists")
    link = _watched("link")
    lock = _watched("lock")
    make_durable = _watched("make_durable")
    names = _watched("names")
    read_at = _watched("read_at")
    rename_new = _watched("rename_new")
    unlink = _watched("unlink")
    unlock = _watched("unlock")
    write_at = _watched("write_at")

    def map(self, handle: int, length: int) -> "WatchedMemory":
        return WatchedMemory(self, self.names_of[handle], super().map(handle, length))

    def create(self, name: str) -> int:
        handle = super().create(name)
        self.names_of[handle] = name
        return handle

    def open(self, name: str, *, write: bool = False) -> int:
        handle = super().open(name, write=write)
        self.names_of[handle] = name
        return handle

    def open_directory(self, name: str) -> int:
        handle = super().open_directory(name)
        self.names_of[handle] = name
        return handle

    def close(self, handle: int) -> None:
        self.names_of.pop(handle, None)
        super().close(handle)

    def is_about_to(self, method: str, *args: Any) -> None:
        if method == "lock" and is_claim(args[0], args[1]):
            self._log.write("try", **_claim(*args[1:]))
        elif method == "rename_new" and args[0].startswith(layout.ACTIVE) and number_of(args[1]) and _is_worker():
            # From now on it may be committed; if it is not stamped, a branch may be committed later, by another number.
            self._log.write("number", number=None, file=args[0])
        elif method == "store" and args[0] == layout.REQUESTS and _is_worker():
            if args[2][0] == POSTED:  # from now on, another process may commit it
                self._log.write("number", number=None, file=None)
            elif args[2][0] == JOINED:
                self._log.write("joined")
        self._recogniser.before(method, *args)
        self._step()

    def has_done(self, method: str, result: Any, *args: Any) -> None:
        if method == "lock" and result and is_claim(args[0], args[1]):
            self._log.write("claimed", **_claim(*args[1:]))
        elif method == "write_at" and args[2].startswith(_STAMP) and _is_worker():
            self._log.write("number", number=int.from_bytes(args[2][len(_STAMP) :][:8], "big"), file=args[0])
        self._recogniser.after(method, result, *args)
        self._step()

    def _step(self) -> None:
        """Draw lots when a window opens; hold the process some calls later if it is still in it."""
        window = self._recogniser.window
        if window != self._window:
            self._window = window
            held = window is not None and self._rng.random() < self._odds.get(window, 0.0)
            self._steps = self._rng.randrange(_MAX_STEP) if held and window not in _POINTS else 0 if held else -1
        if self._steps == 0 and window is not None:
            self._hold(window)
        self._steps -= 1


_POINTS = (DECISION_TO_MOVE, COMMIT_TO_REMOVAL)  # windows that are recognised by the call that ends them


def _claim(start: int, length: int = 1) -> dict[str, int]:
    return {"number": start >> ORDINAL_BITS, "first": start & MAX_ORDINAL, "count": length}
