"""The checkpoint of the index, which saves the next opener from reading all commit files.

The checkpoint lies in ``run/``, is never flushed, and may be lost at any time. An opener uses the checkpoint only if

* the checksum of the checkpoint is right,
* the files of the covered commits are exactly the files that the checkpoint lists, each with the same inode, size, time
  and link count,
* all of these files had been flushed before the checkpoint was written, so no power cut can have changed them.

Otherwise the opener reads the files.
"""

from array import array
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgpack

from spool.coordination.counters import Counters
from spool.disk.disk import Disk
from spool.format.header import UNREADABLE, SectionEntry
from spool.format.reader import BodyPlace
from spool.index.commit import FileRef, Retention
from spool.index.index import Index
from spool.index.run import Lengths, Run
from spool.index.segment import Segment
from spool.model import layout
from spool.model.xid import Xid
from spool.store import run_files
from spool.store.parts import Files, View
from spool.store.settings_reader import Settings
from spool.store.store import log

_VERSION = 3
_MAX_BYTES = 512 << 20

Identities = dict[str, list[int]]


def save(disk: Disk, counters: Counters, view: View) -> bool:
    """Write a checkpoint of the index; return False if no opener could use the checkpoint.

    The caller holds the reclaim lock.
    """
    page = counters.read()
    with view.mutex:
        index = view.index
        if index.damage or index.applied > page.durable or page.is_suspect or page.is_stopped:
            return False
        files = _identities(disk, disk.names(layout.COMMITTED), index.applied)
        names = (layout.committed(n, k) for n, kept in index.files.items() for k in range(len(kept.adopted) + 1))
        if {name.rpartition("/")[2] for name in names} != files.keys():
            return False  # an adopted branch has not been moved yet, or other programs changed files
        packed: bytes = msgpack.packb(_state(index, files, _orders(view.settings)), default=_plain)
    run_files.replace(disk, layout.CHECKPOINT, packed)
    return True


def load(files: Files, counters: Counters, settings: Settings) -> Index | None:
    """Read the index from the checkpoint; return None if no usable checkpoint exists."""
    page = counters.read()
    if page.is_suspect or page.is_stopped:
        return None
    try:
        state = _read(files.disk)
        if state is None or state["applied"] > page.published:
            return None
        if _identities(files.disk, files.disk.names(layout.COMMITTED), state["applied"]) != state["files"]:
            return None
        index = Index(files.cache, settings.config.queues)
        return _filled(index, state) if state["orders"] == _orders(settings) else None
    except (OSError, *UNREADABLE) as error:
        log.info("the checkpoint is not used: %s", error)
        return None


def _read(disk: Disk) -> dict[str, Any] | None:
    identity = disk.identity(layout.CHECKPOINT)
    if identity is None or not identity.is_plain or identity.size > _MAX_BYTES:
        return None
    packed = run_files.proven(disk, layout.CHECKPOINT, identity.size)
    state: dict[str, Any] | None = None if packed is None else msgpack.unpackb(packed, strict_map_key=False)
    return state if state is not None and state["version"] == _VERSION else None


def _identities(disk: Disk, names: Iterable[str], applied: int) -> Identities:
    """Return the inode, size, time and link count of each file of the commits up to ``applied``, by file name."""
    found = {}
    for name in names:
        parsed = layout.parse_committed(name)
        identity = disk.identity(f"{layout.COMMITTED}/{name}") if parsed and parsed.number <= applied else None
        if identity is not None:
            found[name] = [identity.inode, identity.size, identity.modified_ns, identity.links]
    return found


def _orders(settings: Settings) -> dict[str, list[Any]]:
    return {name: [*queue.order, queue.ordered] for name, queue in settings.config.queues.items()}


# -- the state as plain values, and back ------------------------------------------------------------------------------

# The fields of one entry, in the order of the checkpoint.
_RETENTION = (
    "body_bytes", "addressed", "supersedes", "superseded_by", "span", "captured", "facts", "mergeable", "tally",
)  # fmt: skip
_RUN = ("bodies", "base", "number", "first", "live", "attributes", "committed_at")
_SEGMENT = (
    "entry", "rows", "live", "bytes", "removed", "next_row", "oldest", "low", "high", "correlated", "expires",
    "delayed", "cuts", "key",
)  # fmt: skip
_of_retention, _of_segment = attrgetter(*_RETENTION), attrgetter(*_SEGMENT)
_of_run, _origin_of = attrgetter(*_RUN), attrgetter("branch", "begin")


def _plain(value: Any) -> Any:
    """Return a set, an array or a mapping in a form that msgpack encodes."""
    return dict(value) if isinstance(value, Mapping) else list(value)


def _state(index: Index, files: Identities, orders: dict[str, list[Any]]) -> dict[str, Any]:
    runs = [run for runs in index.messages.runs.values() for run in runs]
    segments = index.messages.segments
    entries: list[Run | Segment] = [*runs, *segments]
    sources = {source: place for place, source in enumerate(dict.fromkeys(entry.file for entry in entries))}
    lengths = {id(run.lengths): run.lengths for run in runs if not isinstance(run.lengths, int)}
    places = {one: [place] for place, one in enumerate(lengths)}
    return {
        "version": _VERSION,
        "applied": index.applied,
        "files": files,
        "orders": orders,
        "sources": [[s.number, s.adoption, None if s.xid is None else str(s.xid), s.checksum] for s in sources],
        "lengths": [one.tobytes() for one in lengths.values()],
        "states": {n: [list(map(str, state.adopted)), *_of_retention(state)] for n, state in index.files.items()},
        "adopted": [[str(xid), *found] for xid, found in index.adopted.items()],
        "idle": [*index.idle, *index.unread],  # (``facts`` say which of these commits a subscription retains)
        "folded": list(index.retired),
        "facts": index.facts,
        "taken": list(index.captured),
        "runs": [
            [
                one.queue.name,
                sources[one.file],
                *_of_run(one),
                places.get(id(one.lengths), one.lengths),
                *_origin_of(one),
            ]
            for one in runs
        ],
        "segments": [[one.queue.name, sources[one.file], *_of_segment(one)] for one in segments],
    }


def _filled(index: Index, state: dict[str, Any]) -> Index:
    index.applied = index.restored = state["applied"]
    for number, (adopted, *values) in state["states"].items():
        index.files[number] = _retention(tuple(map(Xid.parse, adopted)), values)
    index.adopted.update((Xid.parse(xid), tuple(found)) for xid, *found in state["adopted"])
    for number in state["idle"]:
        index.mark_idle(number)
    index.retired.update(state["folded"])
    for key, (owner, value, expiry) in state["facts"].items():
        index.keep_fact(key, owner, value, expiry)
    index.captured.update((directory, name) for directory, name in state["taken"])
    sources = [FileRef(n, a, None if x is None else Xid.parse(x), c) for n, a, x, c in state["sources"]]
    lengths = [array("I", packed) for packed in state["lengths"]]
    attributes: dict[bytes, Any] = {}
    sections: dict[SectionEntry, SectionEntry] = {}
    for queue, source, where, base, number, first, count, fields, at, length, *origin in state["runs"]:
        if len(where) == len(BodyPlace._fields):
            bodies: BodyPlace | SectionEntry = BodyPlace(*where)
        else:
            section = SectionEntry(*where)
            bodies = sections.setdefault(section, section)
        shared = attributes.setdefault(msgpack.packb(fields) if fields else b"", fields)
        weights: Lengths = length if isinstance(length, int) else lengths[length[0]]
        order = index.messages.queue(queue).order
        _restore(index, Run(order, sources[source], bodies, base, number, first, count, shared, at, weights, *origin))
    for queue, source, *values in state["segments"]:
        segment = _segment(values)
        segment.queue, segment.file = index.messages.queue(queue).order, sources[source]
        _restore(index, segment)
    return index


def _retention(adopted: tuple[Xid, ...], values: list[Any]) -> Retention:
    kept: dict[str, Any] = dict(zip(_RETENTION, values, strict=True))
    kept["addressed"], kept["captured"] = frozenset(kept["addressed"]), tuple(map(tuple, kept["captured"]))
    kept["supersedes"] = None if kept["supersedes"] is None else array("Q", kept["supersedes"])
    kept["span"] = None if kept["span"] is None else tuple(kept["span"])
    return Retention(adopted, **kept)


def _segment(values: list[Any]) -> Segment:
    segment = Segment.__new__(Segment)
    for name, value in zip(_SEGMENT, values, strict=True):
        setattr(segment, name, value)
    segment.counted = -1  # (the messages of ``oldest`` are not in the file)
    segment.entry, segment.key, segment.prefixes = SectionEntry(*segment.entry), tuple(segment.key), {}
    segment.removed, segment.cuts = bytearray(segment.removed), [(number, ordinal) for number, ordinal in segment.cuts]
    return segment


def _restore(index: Index, entry: Run | Segment) -> None:
    """Add an entry to the index. The index has the entry's commit already."""
    state, queue = index.files[entry.file.number], index.messages.queues[entry.queue.name]
    size = entry.bytes if isinstance(entry, Segment) else entry.bytes_of(entry.first, entry.live)
    state.live += entry.live
    state.live_bytes += size
    queue.live += entry.live
    queue.bytes += size
    if isinstance(entry, Segment):
        index.messages.add_segment(entry)
    else:
        index.messages.add(entry)
