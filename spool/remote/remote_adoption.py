"""Commit branches that were written without an index, and leave out messages whose deduplication keys were used before.

A process without an index cannot know which keys were used before. So the process writes the fact of the key beside
each message, as a put does, and the commit checks the keys. In nearly all cases, no message has to be left out, and the
commit adopts the branches' files unchanged.

A prepared file is never changed. So if a branch has a message to leave out, the commit copies the branch's other
messages into its own file. To keep the order, the commit also copies the messages of all earlier branches.

No key can be put unnoticed between the check and the commit:

1. The branches are prepared. A put that locks a key's byte from now on finds the key's fact in a prepared branch, and
   is refused.
2. A put that locked the byte earlier may have missed the branches, so the commit waits for the byte before the check.
3. Under the number lock, the commit sees every other commit of this kind. If such a commit has put one of the keys, the
   check is repeated.
"""

import logging
from collections.abc import Callable, Iterator, Sequence, Set

from spool.coordination.locks import LockFile, deduplication_byte
from spool.disk.content import opened
from spool.disk.disk import Disk
from spool.errors import MessageInUse, SpoolError
from spool.format.reader import FileContents
from spool.format.table import Table
from spool.index.body_files import read_bodies
from spool.log.adoption import voted_contents
from spool.log.visibility import revalidate
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.xid import Xid
from spool.policies.applications import BatchOf
from spool.policies.deduplication import parse_fact_key
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import View
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core

_COPIED_MESSAGES = 1024

log = logging.getLogger("spool")


class _CommittedBefore(Exception):
    """The application's batch was committed before."""


class _PutMeanwhile(Exception):
    """Another commit has put one of the keys since the check."""


# A deduplication key in a prepared branch: the key of its fact, and the ordinal of its message in the branch.
_Key = tuple[str, int]


def commit_branches(core: Core, xids: Sequence[Xid], batch: BatchOf | None = None) -> bool:
    """Commit prepared branches: see ``Engine.commit_branches``. The caller is inside a call of the space."""
    store = core.store

    def check() -> None:
        if batch is not None and batch.is_committed(store.view.index.facts, store.clock.now()):
            raise _CommittedBefore

    facts = None if batch is None else batch.fact(store.clock.now())
    try:
        while (number := _adopt(core, xids, facts, check)) is None:
            pass
    except _CommittedBefore:
        return False
    try:
        if batch is not None:
            batch.record_apart(store, number)  # if this fails, the next batch releases the files of this batch
    except (SpoolError, OSError) as error:
        log.warning("the files of commit %d remain until the next batch: %s", number, error)
    return True


def _adopt(core: Core, xids: Sequence[Xid], facts: WriteSet | None, check: Callable[[], object]) -> int | None:
    """Attempt the commit; returns its number, or None if another commit has put one of the keys since the check."""
    store = core.store
    transaction = CoordinatedTransaction(core, counted=False)
    try:
        contents = [voted_contents(store, xid) for xid in xids]
        keys = [list(_keys(file)) for file in contents]
        _wait_for_puts(store.shared.xids, store.deadline(), keys)
        revalidate(store)
        check()
        seen = store.view.index.applied
        left_out = _put_before(store.view, store.clock.now(), xids, keys)
        copied = max((place for place, found in enumerate(left_out, 1) if found), default=0)

        def record() -> None:
            for xid, file, missing in zip(xids[:copied], contents, left_out, strict=False):
                _copy(store.files.disk, transaction, xid, file, missing)
            if facts is not None:
                transaction.writes.append(facts)

        def recheck(_: object) -> None:
            check()
            if store.view.index.applied != seen:
                with store.view.mutex:
                    known = store.view.index.facts
                    if any(known.get(fact, (0,))[0] > seen for some in keys for fact, _ in some):
                        raise _PutMeanwhile

        transaction.commit(adopt=xids[copied:], record=record, check=recheck, copied=xids[:copied])
        return transaction.number
    except _PutMeanwhile:
        return None
    finally:
        transaction.abandon()


def _keys(contents: FileContents) -> Iterator[_Key]:
    for table in contents.tables:
        for fact, value, _ in table.facts:
            if parse_fact_key(fact) is not None:
                yield fact, int(str(value)[-8:], 16)


def _wait_for_puts(xids: LockFile, deadline: Deadline, keys: Sequence[Sequence[_Key]]) -> None:
    """Wait for the transactions that put one of these keys and began before the branches were prepared."""
    for fact, _ in (key for some in keys for key in some):
        queue, key = parse_fact_key(fact) or ("", "")
        byte = deduplication_byte(queue, key)
        if not xids.is_free(byte):
            try:
                xids.lock(byte, deadline, f"the deduplication key {key!r}")
            except WaitExpired as error:
                raise MessageInUse(f"{error}: try again later") from None
            xids.unlock(byte)


def _put_before(view: View, now: float, xids: Sequence[Xid], keys: Sequence[Sequence[_Key]]) -> list[set[int]]:
    """Return, for each branch, the ordinals of the messages whose deduplication keys were used before."""
    if not any(keys):
        return [set() for _ in keys]
    own = {xid.gtrid for xid in xids}
    with view.mutex:
        facts = view.index.facts
        before = {fact for fact, (_, _, expiry) in facts.items() if expiry is None or expiry > now}
        others = [(xid, contents) for xid, contents in view.prepared.branches.items() if xid.gtrid not in own]
    in_doubt = {fact: xid for xid, contents in others for fact, _ in _keys(contents)}
    found: list[set[int]] = []
    for some in keys:
        found.append(set())
        for fact, ordinal in some:
            if fact in before:
                found[-1].add(ordinal)
            elif fact in in_doubt:
                key, xid = (parse_fact_key(fact) or ("", ""))[1], in_doubt[fact]
                raise MessageInUse(f"a message with the deduplication key {key!r} is in doubt, in branch {xid}")
            before.add(fact)
    return found


def _copy(disk: Disk, transaction: CoordinatedTransaction, xid: Xid, contents: FileContents, without: Set[int]) -> None:
    """Copy the messages of a prepared branch, and their facts, into a transaction, except the messages ``without``."""
    writes = transaction.writes
    new_ids: dict[int, str] = {}
    ordinal = 0
    with opened(disk, layout.prepared(xid)) as handle:
        for entry, table in zip(contents.header.sections, contents.tables, strict=True):
            ends, row = table.ends(entry), 0
            for queue, attributes, count in _runs(table):
                stop = row + count
                rows = slice(row, stop)
                bodies = read_bodies(disk, handle, ends[rows], table.lengths[rows], table.checksums[rows], bytes)
                kept = [place for place in range(count) if ordinal + place not in without]
                first = writes.put(queue, [bodies[place] for place in kept], attributes) if kept else 0
                new_ids |= {ordinal + place: f"{writes.branch}{new:08x}" for new, place in enumerate(kept, first)}
                row, ordinal = stop, ordinal + count
                if writes.sections:
                    transaction.stream()
    for table in contents.tables:
        for fact, value, expiry in table.facts:
            if (new_id := new_ids.get(int(str(value)[-8:], 16))) is not None:
                writes.fact(fact, new_id, expiry)


def _runs(table: Table) -> Iterator[tuple[str, dict[str, object], int]]:
    """Yield (queue, control fields, count) of the runs, each of at most ``_COPIED_MESSAGES``."""
    for queue, attributes, count in table.runs:
        while count:
            part = min(count, _COPIED_MESSAGES)
            yield table.queues[queue], table.attributes[attributes], part
            count -= part
