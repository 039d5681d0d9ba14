"""Free the disk space of deleted messages before a call ends, not seconds later in the background.

An administrator may empty a queue on a full disk while no other program runs, so no program would free the space later.
"""

from itertools import islice

from spool.disk.disk import FlushFailed
from spool.disk.recycler import QUIET_BYTES, STOCKED_BYTES
from spool.errors import NO_ROOM, SpoolError
from spool.maintenance.compaction import Compactor
from spool.maintenance.reclaim import failures_logged, in_turns, reclaim
from spool.maintenance.tombstones import MOST_MERGED
from spool.model import layout
from spool.runtime.clock import Deadline
from spool.store.store import Store

SHORT_BYTES = 64 << 20  # a disk with less free room is short of room
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
            if error.errno not in NO_ROOM or isinstance(error, SpoolError | FlushFailed):
                raise
            store.files.recycler.trim(0)
            _rewrite(store, wait, _FEW, steps=1)
            _rewrite(store, wait)
        if store.files.disk.file_system().free_bytes < SHORT_BYTES:
            _free_all(store, wait)


def _free_all(store: Store, wait: Deadline) -> None:
    _trim(store, STOCKED_BYTES)
    for _ in in_turns(store, Compactor(store).rewrite_all_waste(), wait):
        _remove_files(store, wait, STOCKED_BYTES)


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
