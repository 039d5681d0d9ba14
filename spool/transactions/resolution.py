"""Resolution of prepared branches without their coordinator: orphans, branches in doubt, an administrator's decisions.

If one of our coordinators ends before it decides, its branches are rolled back. A branch of a foreign coordinator
remains in doubt until the coordinator decides, or an administrator decides in its place. The administrator's decision
is recorded as a fact, and kept until the coordinator forgets the decision.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spool.coordination.locks import coordinator_byte
from spool.format.batch import CommitBatch
from spool.log.commit import commit_batch
from spool.log.quota import added_by
from spool.log.sequence import finish_dead_writers
from spool.log.visibility import catch_up, list_prepared, prepared_contents
from spool.model import layout
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies.heuristics import COMMITTED, ROLLED_BACK, fact_key, heuristic_fact, heuristic_outcome
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import addressed_positions
from spool.store.store import Store
from spool.transactions.core import Core
from spool.transactions.two_phase import (
    UnknownBranch,
    commit_prepared,
    has_owner,
    is_prepared,
    make_durable,
    move_adopted,
    rollback_prepared,
    still_prepared,
    voted_contents,
)  # fmt: skip

_BY_ADMINISTRATOR = "an administrator rolled it back"


def resolve_orphans(store: Store, deadline: Deadline) -> list[Xid]:
    """Roll back the orphaned branches; returns their xids.

    An orphan is an undecided branch of one of our coordinators that has ended, or a branch that an administrator
    decided to roll back. This function tests the coordinator's lock first, and then looks for the coordinator's
    decision. In the reverse order, a coordinator that decides and ends between the two steps would seem undecided.
    """
    catch_up(store, finish_dead_writers(store, list_prepared(store).check()))
    done = []
    for xid in list(store.view.prepared.branches):
        is_ours = xid.format_id in FORMATS_BOUND_TO_A_LIFE
        is_orphan = is_ours and store.shared.xids.is_free(coordinator_byte(xid.gtrid))
        if is_orphan or heuristic_fact(store.view.index, xid) == ROLLED_BACK:
            with suppress(UnknownBranch):
                # (for a branch of our own coordinator, no attempt is counted, so its reason is not used)
                rollback_prepared(store, xid, deadline, _BY_ADMINISTRATOR)
                done.append(xid)
    return done


def finish_moves(store: Store) -> list[Xid]:
    """Move each adopted branch whose committing process died between the commit and the move; returns their xids."""
    catch_up(store)
    with store.view.mutex:
        adopted = dict(store.view.index.adopted)
        files = {number: store.view.index.files[number].adopted for number in set(adopted.values())}
    moved = []
    for name in store.files.disk.names(layout.PREPARED):
        xid = layout.parse_xid(name)
        if xid is not None and xid in adopted:
            number = adopted[xid]
            move_adopted(store, number, [(files[number].index(xid) + 1, xid)])
            moved.append(xid)
    return moved


# -- branches in doubt ------------------------------------------------------------------------------------------------


def in_doubt(store: Store, deadline: Deadline, *, known_votes: Collection[Xid] = ()) -> list[Xid]:
    """Return the branches that wait for a foreign coordinator: see ``Engine.in_doubt``."""
    resolve_orphans(store, deadline)
    found = []
    for xid in sorted(store.view.prepared.branches):
        if xid.format_id in FORMATS_BOUND_TO_A_LIFE:
            continue
        if xid not in known_votes:
            try:
                make_durable(store, xid, deadline)
            except WaitExpired:
                if has_owner(store.shared.xids, xid):
                    continue
                raise
        if is_prepared(store, xid) and prepared_contents(store.files.disk, store.view.prepared, xid) is not None:
            found.append(xid)
    return found


@dataclass(frozen=True)
class InDoubt:
    """The effects that a branch in doubt would have.

    ``puts`` and ``takes``: the number of messages by queue; a message that the branch moves counts in both.
    ``prepared_at``: the time of the vote, in seconds since the epoch. ``writer``: the process that prepared the branch.
    """

    xid: str
    prepared_at: float
    writer: Mapping[str, Any]
    puts: Mapping[str, int]
    takes: Mapping[str, int]


def describe(store: Store, xid: Xid) -> InDoubt:
    """Describe the effects of a prepared branch; raises UnknownBranch if none exists."""
    catch_up(store)
    list_prepared(store)
    contents = store.view.prepared.branches.get(xid)
    if contents is None:
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    puts = Counter({queue: load.messages for queue, load in added_by(contents.tables).items()})
    takes: Counter[str] = Counter()
    with store.view.mutex:
        for position in addressed_positions(contents):
            run = store.view.index.messages.find(position)
            if run is not None:
                takes[run.queue.name] += 1
    for table in contents.tables:
        for command in table.commands:
            if command[0] == "update" and "queue" in command[4]:
                puts[command[4]["queue"]] += command[3]
    header = contents.header
    return InDoubt(str(xid), header.time, header.writer, dict(puts), dict(takes))


# -- an administrator's decisions --------------------------------------------------------------------------------------


def decide_heuristically(core: Core, xid: Xid, deadline: Deadline, *, commit: bool) -> None:
    """Decide a branch in the place of its coordinator.

    A fact records the decision. To commit the branch, one file adopts the branch and contains the fact. A rollback is
    decided once the fact is published. If this process then dies, the next process that resolves orphans finishes the
    rollback.
    """
    store, batch = core.store, CommitBatch()
    batch.fact(fact_key(xid), COMMITTED if commit else ROLLED_BACK)
    if commit:
        commit_prepared(core, xid, vote_known=False, facts=batch)
        return
    undecided = still_prepared(store, [xid], [voted_contents(store, xid)], deadline)
    commit_batch(store, batch, deadline, flush=True, check=undecided)
    _finish_rollback(store, xid, deadline)


def _finish_rollback(store: Store, xid: Xid, deadline: Deadline) -> None:
    with suppress(UnknownBranch):  # another process finished it already
        rollback_prepared(store, xid, deadline, _BY_ADMINISTRATOR)


def forget(store: Store, xid: Xid, deadline: Deadline) -> bool:
    """Finish an administrator's decision, and delete its fact; returns False if no decision is recorded."""
    outcome = heuristic_outcome(store, xid)
    if outcome is None:
        return False
    if outcome == ROLLED_BACK:
        _finish_rollback(store, xid, deadline)
        store.files.disk.flush_directory(layout.PREPARED)  # else a power cut could bring the branch back
    batch = CommitBatch()
    batch.fact(fact_key(xid), None)
    commit_batch(store, batch, deadline, flush=True)
    return True
