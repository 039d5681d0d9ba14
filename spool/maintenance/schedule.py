"""Decide when a step of the housekeeper is due, from numbers alone, without a disk or a clock."""

from typing import NamedTuple

from spool.disk import recycler

FLUSH_COMMITS = 1_024  # a flush is due at this number of unflushed commits; at four times the number, callers wait
FLUSHED_AT_THE_END = 64  # the most files that a close flushes: a close that takes seconds would look stuck
RECLAIM_EVERY_COMMITS = 512
# The recycler holds few large files: a writer finds one only if reclaim returns files as fast as writers take them.
RECLAIM_LARGE_EVERY_COMMITS, RECLAIM_BYTES = 16, recycler.MAX_BYTES // 2
# This many of the newest commit files remain while other processes have the space open. A reader whose next file was
# deleted must list the whole directory again, which costs far more than these files.
RETAINED_FOR_READERS = 512
TIDY_FROM, TIDY_BYTES = 64, 1 << 20  # from so many idle files or bytes on, a process that ends reclaims them
CHECKPOINT_FROM = 256  # a checkpoint needs this many files that an opener would read, and as many new commits
_SEGMENT_COSTS = 256  # reading the table of one segment takes as long as reading this many small files


class IndexSize(NamedTuple):
    """The extent of an index or a checkpoint: the number of its last commit, and how many files and segments it has."""

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
        idle: how many files are not needed.
        compacted: whether this round has superseded files.
        quiet: whether no process has committed since the last round. In a quiet space, a few idle files are enough.
    """
    return compacted or idle >= (TIDY_FROM if quiet else RECLAIM_EVERY_COMMITS)


def retained(*, quiet: bool) -> int:
    """Return how many of the newest files a round leaves for other processes."""
    return 0 if quiet else RETAINED_FOR_READERS


def is_checkpoint_due(now: IndexSize, saved: IndexSize, least: int, *, lasting: bool) -> bool:
    """Return whether the next opener would have to read many files, many of which the last checkpoint does not cover.

    Args:
        saved: the extent of the last checkpoint.
        least: a checkpoint is due if at least this many files must be read, and at least as many are new.
        lasting: whether no file is likely to be reclaimed soon. If so, a checkpoint is also due if only reclaim has
            changed the files since the last checkpoint.
    """
    to_read = now.files + _SEGMENT_COSTS * now.segments
    new = now.applied - saved.applied + _SEGMENT_COSTS * (now.segments - saved.segments)
    if lasting and now.files != saved.files:
        new = to_read
    return to_read >= least and new >= least


def checkpoint_from(files: int) -> int:
    """Return the argument ``least`` of `is_checkpoint_due` while the space is used. The more files exist, the rarer
    checkpoints are."""
    return CHECKPOINT_FROM + files // 4
