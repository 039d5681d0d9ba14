"""Queues with backlogs for tests of compaction, and compactions of a few messages: the product waits for many."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import spool
from spool.model import layout
from tests import door

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


MANY = 200


def fill(space: spool.Space, queue: str = "orders", many: int = MANY, **options: object) -> list[str]:
    return [space.put(queue, b"%d" % n, **options) for n in range(many)]


def tidy(space: spool.Space) -> int:
    """Compact and reclaim; how many files were written."""
    done = door.compact(space)
    door.reclaim(space)
    return done


def files(space: spool.Space) -> list[str]:
    return [name for name in os.listdir(f"{space.path}/{layout.COMMITTED}") if "-" not in name]


def drain(space: spool.Space, queue: str = "orders", at_once: int = 7) -> list[bytes]:
    found: list[bytes] = []
    while True:
        try:
            found += [message.body for message in space.get_many(queue, at_once)]
        except spool.Empty:
            return found


def bodies(numbers: range | list[int]) -> list[bytes]:
    return [b"%d" % n for n in numbers]
