"""Decide whether a step of the housekeeper is due, only by numbers, without a disk or a clock."""

from typing import NamedTuple

from spool.disk import recycler

FLUSH_COMMITS = 1_024  # a flush is due at this number of unflushed commits; at four times the number, callers must wait
FLUSHED_AT_THE_END = 64  # the most files that a close flushes, because a close of many seconds would seem to hang
RECLAIM_EVERY_COMMITS = 512
# The recycler has few large files: a writer finds a file only if reclaim returns files as fast as writers take them.
RECLAIM_LARGE_EVERY_COMMITS, RECLAIM_BYTES = 16, recycler.MAX_BYTES // 2
# While other processes have the space open, this many of the newest commit files remain. If a reader's next file was
# deleted, the reader must list the whole directory again, which costs far more than these files.
RETAINED_FOR_READERS = 512
# The last process that closes the space reclaims if at least so many idle files or bytes exist. An earlier one leaves
# fewer than ``RECLAIM_EVERY_COMMITS`` files to the others.
TIDY_FROM, TIDY_BYTES = 64, 1 << 20
CHECKPOINT_FROM = 256  # a checkpoint is due if an opener would read this many files, and as many commits are new
_SEGMENT_COSTS = 256  # one segment's table takes as long to read as this many small files


class IndexSize(NamedTuple):
    """The size of an index or a checkpoint: the number of its last commit, and how many files and segments it has."""

    applied: int = 0
    files: int = 0
    segments: int = 0


def is_flush_due(unflushed: int, *, due: bool) -> bool:
    """Return whether a round flushes commits that were published without a flush.

    Args:
        unflushed: the number of these commits.
        due: whether this round includes the steps that are done every few seconds.
    """
    return unflushed >= FLUSH_COMMITS or (due and unflushed > 0)


def is_reclaim_due(idle: int, *, compacted: bool, quiet: bool) -> bool:
    """Return whether a round reclaims files.

    Args:
        idle: the number of files that are not needed.
        compacted: whether this round has superseded files.
        quiet: whether no process has committed since the last round. In a quiet space, a few idle files are enough.
    """
    return compacted or idle >= (TIDY_FROM if quiet else RECLAIM_EVERY_COMMITS)


def retained(*, quiet: bool) -> int:
    """Return the number of newest files that a round leaves for other processes."""
    return 0 if quiet else RETAINED_FOR_READERS


def is_checkpoint_due(now: IndexSize, saved: IndexSize, least: int, *, lasting: bool) -> bool:
    """Return whether the next opener must read many files, and the last checkpoint does not cover many of these files.

    Args:
        saved: the extent of the last checkpoint.
        least: a checkpoint is due if at least this many files must be read, and at least this many files are new.
        lasting: whether probably no file will be reclaimed soon. Then a checkpoint is also due if only reclaim has
            changed the files since the last checkpoint.
    """
    to_read = now.files + _SEGMENT_COSTS * now.segments
    new = now.applied - saved.applied + _SEGMENT_COSTS * (now.segments - saved.segments)
    if lasting and now.files != saved.files:
        new = to_read
    return to_read >= least and new >= least


def checkpoint_from(files: int) -> int:
    """Return the argument ``least`` of `is_checkpoint_due` for a space in use. If more files exist, checkpoints are
    rarer."""
    return CHECKPOINT_FROM + files // 4
