"""Free disk space before a call ends, not seconds later in the background: of deleted messages, and for a commit.

An administrator may empty a queue on a full disk while no other program runs, so no program would free the space later.
"""

from collections.abc import Iterator
from itertools import islice

from spool.disk.disk import raise_unless_full
from spool.disk.recycler import QUIET_BYTES, STOCKED_BYTES
from spool.maintenance.compaction import Compactor
from spool.maintenance.reclaim import failures_logged, in_turns, reclaim
from spool.maintenance.tombstones import MOST_MERGED
from spool.model import layout
from spool.runtime.clock import Deadline
from spool.store.store import Store

SHORT_BYTES = 64 << 20  # a disk with less free room is short of room
_OTHERS_SECONDS = 1.0
_FEW = 128  # the recycler keeps files for a full disk; the facts of so many commits fit into one such file


def free_room(store: Store) -> None:
    """Remove every file that the space does not need, even if other processes have the space open.

    Some files are kept for a few messages or facts. If these files waste much room, they are rewritten without the
    deleted messages. On a disk that is short of room, nearly all wasteful files are rewritten, and the recycler keeps
    few files. A failure is only logged, because the messages are already deleted, and the next reclaim removes the
    files.
    """
    wait = store.deadline()
    _remove_files(store, wait)
    with failures_logged(store):
        try:
            _rewrite(store, wait)
        except OSError as error:
            raise_unless_full(error)
            store.files.recycler.trim(0)
            _rewrite(store, wait, _FEW, steps=1)
            _rewrite(store, wait)
        if store.files.disk.file_system().free_bytes < SHORT_BYTES:
            _trim(store, STOCKED_BYTES)
            for _ in in_turns(store, Compactor(store).rewrite_all_waste(), wait):
                _remove_files(store, wait, STOCKED_BYTES)


def rooms(store: Store) -> Iterator[object]:
    """Yield each time when a commit that found the disk full may find room: first after a reclaim, then as long as
    other processes commit or reclaim, but at most for a second.

    On a full disk, a few kept files serve the commits of all processes in turn.
    """
    settled = None
    for _ in store.deadline(_OTHERS_SECONDS).polls():
        reclaim(store)
        store.files.recycler.refresh()  # another process may have given files, too
        yield True
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            is_alone = ours and not any(map(layout.parse_xid, store.files.disk.names(layout.ACTIVE)))
        page = store.shared.counters.read()
        found = page.issued if is_alone and page.issued == page.published else None
        if found is not None and found == settled:
            return
        settled = found


def _remove_files(store: Store, wait: Deadline, spares: int = QUIET_BYTES) -> None:
    """Remove the files that are not needed. ``spares``: how many bytes the recycler keeps for later commits."""
    reclaim(store, wait=wait)
    _trim(store, spares)


def _trim(store: Store, spares: int) -> None:
    with failures_logged(store):
        store.files.recycler.trim(spares)
        store.files.disk.flush_directory(layout.FREE)  # (ext4 frees removed files when its journal commits)


def _rewrite(store: Store, wait: Deadline, most: int = MOST_MERGED, steps: int | None = None) -> None:
    """Rewrite wasteful files, in at most ``steps`` steps, and remove the old files."""
    if sum(in_turns(store, islice(Compactor(store).rewrite_wasteful(most), steps), wait)):
        _remove_files(store, wait)
