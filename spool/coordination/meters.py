"""Meters: counts and states that all processes with a space open keep in shared memory, for people who watch the space.

Each process owns one of the files ``run/meters-00`` to ``run/meters-31`` from its first count until it closes the
space; it holds a byte lock on the file. A file outlives its owner, and the next owner continues its counts. So the sum
over all files never decreases while ``run/`` exists, and a process that dies loses no count. A state, e.g. "the route
is down", is valid only while its owner lives.

Meters are no part of the protocol: no decision depends on them. A process that gets no file, because all are in use or
the disk is full, counts for itself.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spool.disk.content import opened
from spool.disk.disk import Disk
from spool.disk.memory import SharedBytes
from spool.errors import SpoolError
from spool.model import layout

Key = tuple[str, ...]
"""The name of a meter, then the values of its labels."""

# The upper bounds of the buckets in which durations are counted, in seconds.
BOUNDS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_NANOSECONDS = 1_000_000_000
NUMBER_OF_BUCKETS = len(BOUNDS_SECONDS) + 1
TOTAL = "total"  # the label of the cell with the sum of all durations, in nanoseconds

# A file has cells. A cell has a value of 8 bytes, a kind of 1 byte, the length of the key, and the key.
_CELLS, _CELL_BYTES = 128, 512
_VALUE_BYTES, _KIND, _LENGTH, _KEY_AT = 8, 8, slice(10, 12), 12
_MOST_KEY_BYTES = _CELL_BYTES - _KEY_AT
_FILE_BYTES = _CELLS * _CELL_BYTES
_COUNT, _STATE = 1, 2
_SEPARATOR = "\x1f"


class Reading(NamedTuple):
    """The meters of all processes at one moment.

    counts: the sums of the counts, since ``run/`` was created.
    states: the states that live processes report.
    """

    counts: dict[Key, int]
    states: dict[Key, int]


class Meters:
    """The meters of this process in one open space. Any thread may count; a method never raises an error of the
    disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._memory: SharedBytes | None = None
        self._handle: int | None = None
        self._is_open = False  # whether this process has asked for a file
        self._places: dict[Key, int] = {}  # the offset of the cell of each key; -1 without a cell
        self._values: Counter[Key] = Counter()
        self._mutex = threading.Lock()

    def add(self, *key: str, number: int = 1) -> None:
        """Add to a count."""
        with self._mutex:
            self._store(key, self._values[key] + number, _COUNT)

    def set(self, *key: str, value: int) -> None:
        """Report a state, until this process closes the space or dies. The value 0 means that the state has ended."""
        with self._mutex:
            self._store(key, value, _STATE)

    def observe(self, keys: Sequence[Key], seconds: float) -> None:
        """Count a duration. ``keys``: the result of ``duration_keys``."""
        with self._mutex:
            bucket = keys[bisect_left(BOUNDS_SECONDS, seconds)]
            self._store(bucket, self._values[bucket] + 1, _COUNT)
            self._store(keys[-1], self._values[keys[-1]] + int(seconds * _NANOSECONDS), _COUNT)

    def read(self) -> Reading:
        """Return the meters of all processes. A file that cannot be read is left out."""
        counts, states = Counter[Key](), Counter[Key]()
        with self._mutex:
            if self._handle is None:  # this process counts for itself
                counts.update(self._values)
        for name in sorted(self._disk.names(layout.RUN)):
            if layout.is_meters_file(name):
                for kind, key, value in self._cells_of(f"{layout.RUN}/{name}"):
                    (counts if kind == _COUNT else states)[key] += value
        return Reading(dict(counts), {key: value for key, value in states.items() if value})

    def _store(self, key: Key, value: int, kind: int) -> None:
        if not self._is_open:
            value += self._open(key, kind)
        place = self._places.get(key)
        if place is None:
            place = self._new_cell(key, kind)
        self._values[key] = value
        if place >= 0 and self._memory is not None:
            try:
                self._memory[place : place + _VALUE_BYTES] = value.to_bytes(_VALUE_BYTES, "little", signed=True)
            except (OSError, ValueError):
                self._memory = None  # the disk failed, or the space was closed meanwhile

    def _new_cell(self, key: Key, kind: int) -> int:
        """Return the offset of a new cell, or -1 if the file is full or the key is too long."""
        data, place = _SEPARATOR.join(key).encode("utf-8", "replace"), len(self._places) * _CELL_BYTES
        if self._memory is None or place >= _FILE_BYTES or len(data) > _MOST_KEY_BYTES:
            return -1
        try:
            self._memory[place + _KEY_AT : place + _KEY_AT + len(data)] = data
            self._memory[place + _LENGTH.start : place + _LENGTH.stop] = len(data).to_bytes(2, "little")
            self._memory[place + _KIND : place + _KIND + 1] = bytes((kind,))  # (last: now the cell is in use)
        except (OSError, ValueError):
            self._memory = None
            return -1
        self._places[key] = place
        return place

    def _open(self, key: Key, kind: int) -> int:
        """Take a file, if one is free. Returns the value that the file has for a count."""
        self._is_open = True
        try:
            taken = self._take_file()
        except (OSError, SpoolError):
            return 0
        if taken is None:
            return 0
        self._handle, data = taken
        self._memory = self._disk.map(self._handle, _FILE_BYTES)
        for place, found, name, value in _decode(data):
            self._places[name] = place
            if found == _COUNT:
                self._values[name] = value
            else:
                self._memory[place : place + _VALUE_BYTES] = bytes(_VALUE_BYTES)
        return self._values[key] if kind == _COUNT else 0

    def _take_file(self) -> tuple[int, bytes] | None:
        for index in range(layout.METERS_FILES):
            name = layout.meters_file(index)
            found = self._disk.identity(name)
            if found is not None and not found.is_plain:
                continue  # the next recovery reports the file
            handle = self._disk.create(name) if found is None else self._disk.open(name, write=True)
            if self._disk.lock(handle, 0):
                data = self._disk.read_at(handle, 0, _FILE_BYTES)
                if len(data) < _FILE_BYTES:
                    data = bytes(_FILE_BYTES)
                    self._disk.write_at(handle, 0, data)  # (a mapped file must have all its blocks)
                return handle, data
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
    """Return the keys of a histogram: a key for each bucket, then the key of the sum."""
    labels = [*(f"{bound:g}" for bound in BOUNDS_SECONDS), "inf", TOTAL]
    return tuple((*key, label) for label in labels)


def _decode(data: bytes) -> Iterator[tuple[int, int, Key, int]]:
    """Yield the offset, the kind, the key and the value of each cell. A damaged file may have any bytes."""
    for place in range(0, len(data) - _CELL_BYTES + 1, _CELL_BYTES):
        cell = data[place : place + _CELL_BYTES]
        length = int.from_bytes(cell[_LENGTH], "little")
        if cell[_KIND] not in (_COUNT, _STATE) or not 0 < length <= _MOST_KEY_BYTES:
            return
        text = cell[_KEY_AT : _KEY_AT + length].decode("utf-8", "replace")
        value = int.from_bytes(cell[:_VALUE_BYTES], "little", signed=True)
        yield place, cell[_KIND], tuple(text.split(_SEPARATOR)), value
