"""What the housekeeper has to do: decisions on numbers alone, with no disk and no clock."""

from typing import NamedTuple

from spool.disk import recycler

FLUSH_COMMITS = 1_024  # by then the housekeeper flushes what was not; at four times as many, callers wait for that
FLUSHED_AT_THE_END = 64  # files, where each is flushed on its own: a close that took seconds would be taken for stuck
RECLAIM_EVERY_COMMITS = 512
# The recycler holds few large files: a writer finds one only if they come back as fast as they go.
RECLAIM_LARGE_EVERY_COMMITS, RECLAIM_BYTES = 16, recycler.MAX_BYTES // 2
# The newest commit files stay while other processes have the space open. A reader that finds its next file deleted must
# list the whole directory again, which costs far more than these files.
RETAINED_FOR_READERS = 512
TIDY_FROM = 64
CHECKPOINT_FROM = 256  # files that an opener would have to read, and commits since the last one
_SEGMENT_COSTS = 256  # small files: reading the table of a segment takes as long as reading so many


class Extent(NamedTuple):
    """How much the index holds, or a checkpoint covers: the number of the last commit, files, segments."""

    applied: int = 0
    files: int = 0
    segments: int = 0


def is_flush_due(unflushed: int, *, due: bool) -> bool:
    """Whether a round flushes what was published without a flush.

    Args:
        unflushed: how many commits that are.
        due: whether this process does what comes each few seconds.
    """
    return unflushed >= FLUSH_COMMITS or (due and unflushed > 0)


def is_reclaim_due(idle: int, *, compacted: bool, quiet: bool) -> bool:
    """Whether a round reclaims files.

    Args:
        idle: how many files nothing needs.
        compacted: whether this round has just superseded some.
        quiet: whether nothing was committed since the last round. Then few are enough.
    """
    return compacted or idle >= (TIDY_FROM if quiet else RECLAIM_EVERY_COMMITS)


def retained(*, quiet: bool) -> int:
    """Return how many of the newest files a round leaves for other processes."""
    return 0 if quiet else RETAINED_FOR_READERS


def is_checkpoint_due(now: Extent, saved: Extent, least: int, *, lasting: bool) -> bool:
    """Whether the next opener would have much to read, and much of it is new.

    Args:
        saved: what the last checkpoint covers.
        least: how many files there must be to read, and how many of them new.
        lasting: nothing is likely to be reclaimed soon. Then a checkpoint is also due if only reclaim has changed the
            files since the last one.
    """
    to_read = now.files + _SEGMENT_COSTS * now.segments
    new = now.applied - saved.applied + _SEGMENT_COSTS * (now.segments - saved.segments)
    if lasting and now.files != saved.files:
        new = to_read
    return to_read >= least and new >= least


def checkpoint_from(files: int) -> int:
    """Return the ``least`` of a checkpoint while the space is used: the more files, the more rarely it is written."""
    return CHECKPOINT_FROM + files // 4
