"""The checkpoint of the index, which saves the next opener from reading all commit files.

The checkpoint lies in ``run/``, is never flushed, and may be lost at any time. An opener uses the checkpoint only if

* the checksum of the checkpoint is right,
* the files of the covered commits are exactly the files that the checkpoint lists, each with the same inode, size, time
  and link count,
* all of these files had been flushed before the checkpoint was written, so no power cut can have changed them.

Otherwise the opener reads the files.
"""

import zlib
from array import array
from collections.abc import Iterable
from typing import Any

import msgpack

from spool.coordination.counters import Counters
from spool.disk.content import read_start, unlink_if_there, write_new
from spool.disk.disk import Disk
from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace
from spool.index.commit import FileRef, Retention
from spool.index.index import Index
from spool.index.run import Lengths, Run
from spool.index.segment import Segment
from spool.model import layout
from spool.model.xid import Xid
from spool.store.parts import Files, View
from spool.store.settings import Settings
from spool.store.store import log

_VERSION = 2
_MAX_BYTES = 512 << 20
_TEMPORARY = f"{layout.CHECKPOINT}.tmp"

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
        adopted = {number: len(state.adopted) for number, state in index.files.items()}
        names = (layout.committed(number, place) for number in adopted for place in range(adopted[number] + 1))
        if {name.rpartition("/")[2] for name in names} != files.keys():
            return False  # an adopted branch has not been moved yet, or other programs changed files
        packed: bytes = msgpack.packb(_state(index, files, _orders(view.settings)))
    data = zlib.crc32(packed).to_bytes(4, "big") + packed
    unlink_if_there(disk, _TEMPORARY)
    write_new(disk, _TEMPORARY, data, durable=False)
    disk.rename(_TEMPORARY, layout.CHECKPOINT)
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
    except _UNREADABLE as error:
        log.info("the checkpoint is not used: %s", error)
        return None


_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, msgpack.UnpackException)


def _read(disk: Disk) -> dict[str, Any] | None:
    identity = disk.identity(layout.CHECKPOINT)
    if identity is None or not identity.is_plain or identity.size > _MAX_BYTES:
        return None
    data = read_start(disk, layout.CHECKPOINT, identity.size)
    if len(data) < 4 or zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
        return None
    state: dict[str, Any] = msgpack.unpackb(data[4:], strict_map_key=False)
    return state if state["version"] == _VERSION else None


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


def _state(index: Index, files: Identities, orders: dict[str, list[Any]]) -> dict[str, Any]:
    runs = [run for runs in index.messages.runs.values() for run in runs]
    entries: list[Run | Segment] = [*runs, *index.messages.segments]
    sources = {source: place for place, source in enumerate(dict.fromkeys(entry.file for entry in entries))}
    lengths: dict[int, tuple[int, bytes]] = {}
    for run in runs:
        if not isinstance(run.lengths, int):
            lengths.setdefault(id(run.lengths), (len(lengths), run.lengths.tobytes()))
    return {
        "version": _VERSION,
        "applied": index.applied,
        "files": files,
        "orders": orders,
        "sources": [[s.number, s.adoption, None if s.xid is None else str(s.xid), s.checksum] for s in sources],
        "lengths": [packed for _, packed in lengths.values()],
        "states": {number: _packed_state(state) for number, state in index.files.items()},
        "idle": [*index.idle, *index.unread],  # (``facts`` say which of these commits a subscription retains)
        "folded": list(index.retired),
        "facts": index.facts,
        "taken": list(index.captured),
        "runs": [
            [
                run.queue.name, sources[run.file], list(run.bodies), run.base, run.number, run.first, run.live,
                run.attributes, run.committed_at,
                run.lengths if isinstance(run.lengths, int) else [lengths[id(run.lengths)][0]],
                run.branch, run.begin,
            ]
            for run in runs
        ],
        "segments": [
            [
                segment.queue.name, sources[segment.file], list(segment.entry), segment.rows,
                segment.live, segment.bytes, bytes(segment.removed), segment.next_row, segment.oldest, segment.low,
                segment.high, segment.correlated, segment.expires, segment.delayed, segment.cuts,
                list(segment.key),
            ]
            for segment in index.messages.segments
        ],
    }  # fmt: skip


def _packed_state(state: Retention) -> list[Any]:
    return [
        [str(xid) for xid in state.adopted], state.body_bytes, list(state.addressed),
        None if state.supersedes is None else state.supersedes.tolist(), state.superseded_by, state.span,
        state.captured, state.facts, state.mergeable, dict(state.tally),
    ]  # fmt: skip


def _filled(index: Index, state: dict[str, Any]) -> Index:
    index.applied = index.restored = state["applied"]
    for number, packed in state["states"].items():
        _add_state(index, number, packed)
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
        shared = attributes.setdefault(msgpack.packb(fields), fields) if fields else attributes.setdefault(b"", {})
        weights: Lengths = length if isinstance(length, int) else lengths[length[0]]
        order = index.messages.queue(queue).order
        _restore(index, Run(order, sources[source], bodies, base, number, first, count, shared, at, weights, *origin))
    for packed in state["segments"]:
        _add_segment(index, sources, packed)
    return index


def _add_state(index: Index, number: int, packed: list[Any]) -> None:
    adopted, body_bytes, addressed, supersedes, superseded_by, span, taken, facts, mergeable, tally = packed
    index.files[number] = Retention(
        adopted=tuple(map(Xid.parse, adopted)),
        body_bytes=body_bytes,
        addressed=frozenset(addressed),
        supersedes=None if supersedes is None else array("Q", supersedes),
        superseded_by=superseded_by,
        span=None if span is None else (span[0], span[1]),
        captured=tuple((directory, name) for directory, name in taken),
        facts=facts,
        mergeable=mergeable,
        tally=tally,
    )
    index.adopted.update((xid, number) for xid in index.files[number].adopted)


def _add_segment(index: Index, sources: list[FileRef], packed: list[Any]) -> None:
    queue, source, entry, *rest = packed
    segment = Segment.__new__(Segment)
    segment.queue, segment.file = index.messages.queue(queue).order, sources[source]
    segment.entry = SectionEntry(*entry)
    segment.rows, segment.live, segment.bytes, left, segment.next_row, segment.oldest, *rest = rest
    segment.low, segment.high, segment.correlated, segment.expires, segment.delayed, cuts, key = rest
    segment.cuts = [(number, ordinal) for number, ordinal in cuts]
    segment.removed, segment.key, segment.prefixes = bytearray(left), tuple(key), {}
    _restore(index, segment)


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
