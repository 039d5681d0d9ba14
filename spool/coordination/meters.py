"""Meters: counts and states that all processes with a space open share, for people who watch the space.

A process counts in its own memory first. Its housekeeper then takes one of the files ``run/meters-00`` to
``run/meters-31``, and holds a byte lock on the file until it closes the space. From then on, each count is stored in
the file, too: at once if processes share memory, otherwise at each call of ``share``. Commits are only noted, and
counted at each call of ``share``, so that they take no longer.

A file outlives its owner, and the next owner continues its counts. So the sum over all files never decreases while
``run/`` exists. If somebody removes the file, its owner takes another one at the next call of ``share``. A state, e.g.
"the route is down", is valid only while its owner lives.

Meters are no part of the protocol: no decision depends on them. A process that gets no file, because all are in use or
the disk is full, counts for itself.
"""

import struct
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from spool.disk.content import opened
from spool.disk.disk import Disk
from spool.disk.memory import SharedBytes
from spool.disk.stat import FileIdentity
from spool.errors import SpoolError
from spool.model import layout
from spool.model.durations import BOUNDS_SECONDS

Key = tuple[str, ...]
"""The name of a meter, then the values of its labels."""

Duration = tuple[Sequence[Key], float]
"""The result of ``duration_keys``, and a time in seconds."""

CommitNote = tuple[int, float, float | None]
"""The number of puts, gets and transactions in a commit, the seconds of the commit, and those of its flush, if any."""

_NANOSECONDS = 1_000_000_000
NUMBER_OF_BUCKETS = len(BOUNDS_SECONDS) + 1
TOTAL = "total"  # the label of the cell with the sum of all durations, in nanoseconds

# A file has cells. A cell has a value of 8 bytes, a kind of 1 byte, the length of the key, and the key.
_CELLS, _CELL_BYTES = 1_024, 256
_VALUE = struct.Struct("<q")
_MOST = 2**58  # a larger value in a file is damage; the sum over all files has 63 bits
_KIND, _LENGTH, _KEY_AT = 8, slice(10, 12), 12
_MOST_KEY_BYTES = _CELL_BYTES - _KEY_AT
_FILE_BYTES = _CELLS * _CELL_BYTES
_COUNT, _STATE = 1, 2
_MOST_NOTES = 1 << 16  # of commits since the last call of ``share``, some five seconds ago
_SEPARATOR = "\x1f"


class Reading(NamedTuple):
    """The meters of all processes at one moment.

    counts: the sums of the counts, since ``run/`` was created.
    states: the states that live processes report.
    """

    counts: dict[Key, int]
    states: dict[Key, int]


class _OwnFile(NamedTuple):
    """The file of which this process is the owner."""

    name: str
    handle: int
    identity: FileIdentity


class _Cell:
    """A meter of this process. ``place``: the bytes of its value in the file; None without a place."""

    __slots__ = ("kind", "place", "value")

    def __init__(self, kind: int, value: int = 0, place: slice | None = None) -> None:
        self.kind = kind
        self.value = value
        self.place = place


class Meters:
    """The meters of this process in one open space. Any thread may count; a method never raises an error of the
    disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._mutex = threading.Lock()
        self._cells: dict[Key, _Cell] = {}
        self._memory: SharedBytes | None = None  # in which each count is stored at once
        self._own: _OwnFile | None = None
        self._file: SharedBytes | None = None  # the bytes of this file
        self._used = 0  # the bytes of the file's cells
        self._commits: deque[CommitNote] = deque(maxlen=_MOST_NOTES)
        # (an attribute, not a method: counting at once would cost each put and get 2 %)
        self.note_commit: Callable[[CommitNote], None] = self._commits.append

    def add(self, *key: str, number: int = 1) -> None:
        """Add to a count."""
        self.record([(key, number)])

    def change(self, *key: str, by: int) -> None:
        """Add to a state that this process reports. The state ends at 0, and when this process closes the space."""
        with self._mutex:
            self._add(key, _STATE, by)
        if self._memory is None:
            self.share()  # (states change rarely, and people look at them at once)

    def record(self, counts: Iterable[tuple[Key, int]] = (), durations: Iterable[Duration] = ()) -> None:
        """Add to several counts, and count several durations."""
        with self._mutex:
            self._record(counts, durations)

    def _record(self, counts: Iterable[tuple[Key, int]], durations: Iterable[Duration]) -> None:
        changes = Counter(dict(counts))
        for keys, seconds in durations:
            changes[keys[bisect_left(BOUNDS_SECONDS, seconds)]] += 1
            changes[keys[-1]] += int(seconds * _NANOSECONDS)
        for key, more in changes.items():
            self._add(key, _COUNT, more)

    def _add(self, key: Key, kind: int, more: int) -> None:
        cell = self._cell(key, kind)
        cell.value = min(cell.value + more, _MOST)
        if self._memory is not None and cell.place is not None:
            try:
                self._memory[cell.place] = _VALUE.pack(cell.value)
            except ValueError:
                self._memory = None  # the space was closed meanwhile

    def _count_commits(self) -> None:
        """Count the noted commits. Caller holds the mutex."""
        notes = [self._commits.popleft() for _ in range(len(self._commits))]
        if notes:
            requests = sum(note[0] for note in notes)
            commits = [(_COMMIT_SECONDS, note[1]) for note in notes]
            flushes = [(_FLUSH_SECONDS, note[2]) for note in notes if note[2] is not None]
            self._record([(_REQUESTS, requests)], commits + flushes)

    def disown(self) -> None:
        """Forget everything in a forked child, which has only copies: another thread of the parent may have held the
        mutex, and the file belongs to the parent."""
        self._mutex = threading.Lock()
        self._memory = self._file = self._own = None
        self._cells, self._used = {}, 0
        self._commits.clear()

    def share(self) -> None:
        """Store the counts where other processes find them. Only a process without a simulated disk calls this."""
        with self._mutex, suppress(OSError, SpoolError, ValueError):
            self._count_commits()
            if self._own is not None and not self._disk.same_file(self._own.name, self._own.identity):
                self._leave(self._own)
            if self._file is None and self._cells:
                self._take()
            if self._file is not None and self._memory is None:
                for cell in self._cells.values():
                    if cell.place is not None:
                        self._file[cell.place] = _VALUE.pack(cell.value)

    def read(self) -> Reading:
        """Return the meters of all processes. A file that cannot be read is left out."""
        self.share()
        counts, states = Counter[Key](), Counter[Key]()
        with self._mutex:
            for key, cell in self._cells.items():
                if cell.place is None:  # the file has no room, or this process has no file
                    (counts if cell.kind == _COUNT else states)[key] += cell.value
        for name in sorted(self._disk.names(layout.RUN)):
            if layout.is_meters_file(name):
                for kind, key, value in self._cells_of(f"{layout.RUN}/{name}"):
                    (counts if kind == _COUNT else states)[key] += value
        return Reading(dict(counts), {key: value for key, value in states.items() if value})

    def _cell(self, key: Key, kind: int) -> _Cell:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell(kind)
            if self._file is not None:
                with suppress(OSError, ValueError):
                    self._place(key, cell)
        return cell

    def _take(self) -> None:
        """Take a file, if one is free, and continue its counts. Caller holds the mutex."""
        taken = self._take_file()
        if taken is None:
            return
        self._own, data = taken
        self._file = self._disk.map(self._own.handle, _FILE_BYTES)
        for start, kind, key, value in _decode(data):
            cell = self._cells.setdefault(key, _Cell(kind))
            if kind == _COUNT:  # (a state of the last owner has ended)
                cell.value = min(cell.value + value, _MOST)
            cell.place = slice(start, start + _VALUE.size)
            self._used = start + _CELL_BYTES
        for key, cell in self._cells.items():
            if cell.place is None:
                self._place(key, cell)
            if cell.place is not None:
                self._file[cell.place] = _VALUE.pack(cell.value)
        if self._file.wakes:
            self._memory = self._file

    def _leave(self, own: _OwnFile) -> None:
        """Give up a file that was removed. The next file gets its counts. Caller holds the mutex."""
        self._memory = self._file = self._own = None
        self._used = 0
        for cell in self._cells.values():
            cell.place = None
        self._disk.close(own.handle)

    def _place(self, key: Key, cell: _Cell) -> None:
        """Give the meter a cell of the file, if the file has room. Caller holds the mutex."""
        data, start = _SEPARATOR.join(key).encode("utf-8", "replace"), self._used
        if self._file is None or start >= _FILE_BYTES or len(data) > _MOST_KEY_BYTES:
            return
        self._file[start + _KEY_AT : start + _KEY_AT + len(data)] = data
        self._file[start + _LENGTH.start : start + _LENGTH.stop] = len(data).to_bytes(2, "little")
        self._file[start + _KIND : start + _KIND + 1] = bytes((cell.kind,))  # (last: now the cell is in use)
        self._used += _CELL_BYTES
        cell.place = slice(start, start + _VALUE.size)

    def _take_file(self) -> tuple[_OwnFile, bytes] | None:
        for index in range(layout.METERS_FILES):
            name = layout.meters_file(index)
            found = self._disk.identity(name)
            if found is not None and not found.is_plain:
                continue  # the next recovery reports the file
            handle = self._disk.create(name) if found is None else self._disk.open(name, write=True)
            try:
                if self._disk.lock(handle, 0):
                    data = self._disk.read_at(handle, 0, _FILE_BYTES)
                    # (also a whole file is written: a mapped file must have all its blocks, and a copy may have holes)
                    data = data if len(data) == _FILE_BYTES else bytes(_FILE_BYTES)
                    self._disk.write_at(handle, 0, data)
                    return _OwnFile(name, handle, self._disk.handle_identity(handle)), data
            except BaseException:
                self._disk.close(handle)
                raise
            self._disk.close(handle)
        return None

    def _cells_of(self, name: str) -> Iterator[tuple[int, Key, int]]:
        try:
            if (found := self._disk.identity(name)) is None or not found.is_plain:
                return
            with opened(self._disk, name) as handle:
                data = self._disk.read_at(handle, 0, _FILE_BYTES)
                is_owned = self._disk.some_lock(handle, 0, 1) is not None
        except (OSError, SpoolError):
            return
        for _, kind, key, value in _decode(data):
            if kind == _COUNT or is_owned:
                yield kind, key, value


def duration_keys(*key: str) -> tuple[Key, ...]:
    """Return the keys of a histogram: a key for each bucket, then the key of the sum in nanoseconds."""
    labels = [*(f"{bound:g}" for bound in BOUNDS_SECONDS), "inf", TOTAL]
    return tuple((*key, label) for label in labels)


_COMMIT_SECONDS, _FLUSH_SECONDS = duration_keys("commit_seconds"), duration_keys("flush_seconds")
_REQUESTS = ("commit_requests",)


def _decode(data: bytes) -> Iterator[tuple[int, int, Key, int]]:
    """Yield the offset, the kind, the key and the value of each cell. A damaged file may have any bytes."""
    for place in range(0, len(data) - _CELL_BYTES + 1, _CELL_BYTES):
        cell = data[place : place + _CELL_BYTES]
        length = int.from_bytes(cell[_LENGTH], "little")
        if cell[_KIND] not in (_COUNT, _STATE) or not 0 < length <= _MOST_KEY_BYTES:
            return
        text = cell[_KEY_AT : _KEY_AT + length].decode("utf-8", "replace")
        value = _VALUE.unpack_from(cell)[0]
        yield place, cell[_KIND], tuple(text.split(_SEPARATOR)), value if 0 <= value <= _MOST else 0
