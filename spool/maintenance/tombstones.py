"""Tombstone merging: write the removals and facts of many commits again in one file.

A commit without live messages is kept for its facts. The commit is also kept for its removals (tombstones), as long as
files of the removed messages may exist. When many such commits exist, one file repeats their removals and facts, and
supersedes their files. The repetition is safe, because a second removal of a message has no effect.
"""

import os
from itertools import accumulate
from typing import Any

from spool.disk.disk import Disk
from spool.format.commands import Remove
from spool.format.reader import contents_of
from spool.format.schema import TOTALS_FACT
from spool.index.index import Index
from spool.log.engine_commit import commit, own_file
from spool.log.settled_lock import Overtaken
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.xid import BRANCH_ID_BYTES
from spool.store.parts import View
from spool.store.settings_reader import Settings
from spool.store.store import Store

MERGED_COMMITS = 512
MOST_MERGED = 8_192  # the most commits in one file, and about as many facts; this limits the work under the number lock
_MAX_FACTS = 4_096
_MAX_TARGETS = 4_096  # a file with more tombstones is not merged again (a subscription may keep the addressed files)

Facts = dict[str, tuple[int, Any, float | None]]


def merge_tombstones(store: Store, most: int = MOST_MERGED, wasted: int | None = None) -> int:
    """Merge the tombstones of many commits into one file, if enough exist. Return how many files were written.

    The caller holds the reclaim lock, and has applied all published commits.

    Args:
        most: the greatest number of commits, and about the greatest number of facts, in one file.
        wasted: also merge few commits if their files have at least this many bytes of bodies.
    """
    with store.view.mutex:
        index = store.view.index
        index.forget_expired(store.clock.now())
        numbers = sorted(number for number in index.idle if _is_mergeable(index, number))
        if len(numbers) < MERGED_COMMITS and (
            wasted is None or sum(index.files[number].body_bytes for number in numbers) < wasted
        ):
            return 0
        facts = accumulate(index.files[number].facts for number in numbers)
        numbers = [number for number, sum_ in zip(numbers[:most], facts, strict=False) if sum_ <= most]
    if not numbers:
        return 0
    try:
        _merge(store, numbers)
    except Overtaken:
        return 0
    return 1


def _merge(store: Store, numbers: list[int]) -> None:
    removals, facts = _content_of(store.files.disk, store.view, numbers)
    batch = WriteSet(supersedes=tuple(numbers))

    def check(_: Settings) -> None:
        if any(store.view.index.facts.get(key) != fact for key, fact in facts.items()):
            raise Overtaken

    with own_file(store, store.deadline(), len(numbers)) as file:
        batch.begin_branch(file.xid, os.urandom(BRANCH_ID_BYTES))
        for removal in removals:
            batch.remove(removal.number, removal.first, removal.length, removal.why)
        for key, (_, value, expiry) in facts.items():
            batch.fact(key, value, expiry)
        batch.close_section()
        file.stream(batch)  # write and flush most bytes now, before the number lock makes other processes wait
        if file.handle is not None:
            store.files.disk.flush(file.handle)
        commit(store, file, batch, check=check)


def _is_mergeable(index: Index, number: int) -> bool:
    """Return whether a file is kept only for a few removals or facts. The totals file does not count, because reclaim
    renews it."""
    state = index.files[number]
    if not state.mergeable or state.facts > _MAX_FACTS or len(state.addressed) > _MAX_TARGETS:
        return False
    totals = index.facts.get(TOTALS_FACT)
    return bool(state.addressed or state.facts) and (totals is None or totals[0] != number)


def _content_of(disk: Disk, view: View, numbers: list[int]) -> tuple[list[Remove], Facts]:
    """Return the removals, sorted by position, and the facts that no later fact has replaced. Removals of messages
    whose files do not exist any more are left out."""
    removals: list[Remove] = []
    facts: Facts = {}
    for number in numbers:
        contents = contents_of(disk, layout.committed(number))
        if contents is None or contents.header.number != number:
            raise Overtaken
        with view.mutex:
            index = view.index
            addressed = index.files[number].addressed if number in index.files else ()
            compacted = any(target in index.files and index.files[target].span is not None for target in addressed)
            commands = [command for table in contents.tables for command in table.commands]
            found = [command for command in commands if command.name == "remove"]  # (there are only removals)
            removals += [removal for removal in found if compacted or removal.number in index.files]
            keys = [fact[0] for table in contents.tables for fact in table.facts]
            facts.update({key: index.facts[key] for key in keys if index.facts.get(key, (0,))[0] == number})
    return sorted(removals, key=lambda removal: (removal.number, removal.first)), facts
