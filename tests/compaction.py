"""Compaction of a few messages, for tests: the product waits for many."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

FEW = {
    "spool.maintenance.compaction.MIN_MESSAGES": 2,
    "spool.maintenance.compaction.KEPT_MESSAGES": 1,
    "spool.maintenance.compaction.SEGMENT_MESSAGES": 4,
    "spool.maintenance.tombstones.MERGED_COMMITS": 2,
    "spool.index.index.LEAST_SEGMENT": 2,
    "spool.index.lookup.REFILL_MESSAGES": 2,
}


@contextmanager
def small_compactions() -> Iterator[None]:
    """A handful of messages is a slow queue, four are a segment, two commits that remove are merged."""
    with ExitStack() as patched:
        for name, value in FEW.items():
            patched.enter_context(mock.patch(name, value))
        yield
