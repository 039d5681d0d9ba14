"""Meters: counts and states that all processes with a space open share, for people who watch the space.

A process counts in its own memory. ``share`` writes all its counts and states into one of the files ``run/meters-00``
to ``run/meters-95``. The housekeeper calls it every few seconds and when the space closes. A state is shared as soon as
it changes.

A process holds a byte of ``run/control`` for its file until it closes the space. A file outlives its owner, and the
next owner continues its counts. So the sum over all files never decreases while ``run/`` exists. If somebody removes
the file, its owner writes it again. A state, e.g. "the route is down", is valid only while its owner lives. The
consumers of a process are among its states.

Meters are no part of the protocol: no decision depends on them. A process that gets no file, because all are in use or
the disk is full, counts for itself.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from spool.coordination.locks import METERS, LockFile
from spool.errors import SpoolError
from spool.model import layout
from spool.model.durations import BOUNDS_SECONDS
from spool.runtime.call_guard import CallGuard
from spool.store import run_files
from spool.store.consumer_registry import Consumers

Key = tuple[str, ...]
"""The name of a meter, then the values of its labels."""

Duration = tuple[Sequence[Key], float]
"""The result of ``duration_keys``, and a time in seconds."""

CommitNote = tuple[int, float, float | None]
"""The number of puts, gets and transactions in a commit, the seconds of the commit, and those of its flush, if any."""

_NANOSECONDS = 1_000_000_000
_MOST_NOTES = 1 << 16  # of commits since the last call of ``share``, some five seconds ago

# The limits of a file.
_MOST_BYTES = 1 << 20
_MOST_METERS, _MOST_KEY_BYTES = 1_024, 256
_MOST = 2**58  # a larger value is damage; the sum over all files has 63 bits
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

    def __init__(self, control: LockFile, guard: CallGuard) -> None:
        """``control``: the locks of ``run/control``. ``guard``: nothing is shared after it is closed."""
        self._control, self._guard, self._disk = control, guard, control.disk
        self._mutex = threading.Lock()
        self._counts, self._states = Counter[Key](), Counter[Key]()
        self._shown: dict[Key, int] = {}  # the states and the consumers, as they were shared last
        self._index: int | None = None  # of the file of this process
        self.consumers = Consumers(control.disk.clock, self.share)
        self._written: dict[str, dict[bytes, int]] = {}  # the content of this file
        self._commits: deque[CommitNote] = deque(maxlen=_MOST_NOTES)
        # (an attribute, not a method: counting at once would cost each put and get 2 %)
        self.note_commit: Callable[[CommitNote], None] = self._commits.append

    def add(self, *key: str, number: int = 1) -> None:
        """Add to a count."""
        self.record([(key, number)])

    def change(self, *key: str, by: int) -> None:
        """Add to a state that this process reports. The state ends at 0, and when this process closes the space."""
        with self._mutex:
            self._states[key] += by
        self.share()  # (states change rarely, and people look at them at once)

    def record(self, counts: Iterable[tuple[Key, int]] = (), durations: Iterable[Duration] = ()) -> None:
        """Add to several counts, and count several durations."""
        with self._mutex:
            self._record(counts, durations)

    def _record(self, counts: Iterable[tuple[Key, int]], durations: Iterable[Duration]) -> None:
        for key, number in counts:
            self._counts[key] += number
        for keys, seconds in durations:
            self._counts[keys[bisect_left(BOUNDS_SECONDS, seconds)]] += 1
            self._counts[keys[-1]] += int(seconds * _NANOSECONDS)

    def _count_commits(self) -> None:
        """Count the noted commits. Caller holds the mutex."""
        if notes := [self._commits.popleft() for _ in range(len(self._commits))]:
            requests = sum(note[0] for note in notes)
            commits = [(_COMMIT_SECONDS, note[1]) for note in notes]
            flushes = [(_FLUSH_SECONDS, note[2]) for note in notes if note[2] is not None]
            self._record([(_REQUESTS, requests)], commits + flushes)

    def disown(self) -> None:
        """Replace the mutex in a forked child, because another thread of the parent may have held it."""
        self._mutex = threading.Lock()
        self.consumers.disown()

    def share(self) -> None:
        """Store the meters where other processes find them. Only a process without a simulated disk calls this."""
        with suppress(OSError, SpoolError), self._guard.step, self._mutex:
            self._count_commits()
            self._shown = {**self._states, **self.consumers.states()}
            if self._index is not None:
                self._write(self._index, self._counts)
            elif self._counts or self._shown:
                self._take()

    def read(self) -> Reading:
        """Return the meters of all processes. A file that cannot be read is left out."""
        self.share()
        with self._mutex:
            counts, states = self._counts.copy(), Counter(self._shown)
            for index in range(layout.METERS_FILES):
                if index != self._index:
                    with suppress(OSError):
                        is_owned = self._control.is_held_elsewhere(METERS + index)
                        found, reported = self._read(index)
                        counts.update(found)
                        states.update(reported if is_owned else {})
        return Reading(dict(counts), dict(+states))

    def _take(self) -> None:
        """Take a file, if one is free, and continue its counts. Caller holds the mutex."""
        for index in range(layout.METERS_FILES):
            if self._control.try_lock(METERS + index):
                try:
                    found = self._disk.identity(_file(index))  # (if it is no plain file, the next recovery reports it)
                    if found is None or found.is_plain:
                        counts, _ = self._read(index)
                        counts.update(self._counts)
                        self._write(index, counts)
                        self._index, self._counts = index, counts
                        return
                finally:
                    if self._index is None:
                        self._control.unlock(METERS + index)

    def _write(self, index: int, counts: Mapping[Key, int]) -> None:
        content = {"counts": _packed(counts), "states": _packed(self._shown)}
        if content != self._written or not self._disk.exists(_file(index)):
            run_files.write(self._disk, _file(index), content)
            self._written = content

    def _read(self, index: int) -> tuple[Counter[Key], Counter[Key]]:
        """Return the counts and the states in a file. A missing or damaged file has none. Raises OSError."""
        try:
            value = run_files.read(self._disk, _file(index), _MOST_BYTES) or {"counts": {}, "states": {}}
            return _unpacked(value["counts"]), _unpacked(value["states"])
        except run_files.UNREADABLE:
            return Counter(), Counter()


def duration_keys(*key: str) -> tuple[Key, ...]:
    """Return the keys of a histogram: a key for each bucket, then the key of the sum in nanoseconds."""
    return tuple((*key, label) for label in (*(f"{bound:g}" for bound in BOUNDS_SECONDS), "inf", "total"))


_COMMIT_SECONDS, _FLUSH_SECONDS = duration_keys("commit_seconds"), duration_keys("flush_seconds")
_REQUESTS = ("commit_requests",)


def _file(index: int) -> str:
    return f"{layout.RUN}/meters-{index:02d}"


def _packed(values: Mapping[Key, int]) -> dict[bytes, int]:
    """Return values for a file, which has no long keys, and no more than ``_MOST_METERS``."""
    texts = ((_SEPARATOR.join(key).encode("utf-8", "replace"), min(value, _MOST)) for key, value in values.items())
    return dict(islice((pair for pair in texts if len(pair[0]) <= _MOST_KEY_BYTES), _MOST_METERS))


def _unpacked(values: Mapping[Any, Any]) -> Counter[Key]:
    """Return the values of a file. A foreign file may have any keys and values."""
    return Counter({
        tuple(text.decode("utf-8", "replace").split(_SEPARATOR)): value
        for text, value in islice(values.items(), _MOST_METERS)
        if type(value) is int and 0 <= value <= _MOST
    })  # fmt: skip
