"""Branches in doubt, for an administrator: the effects that a branch would have, and decisions in the place of its
coordinator. A fact records a decision until the coordinator forgets it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spool.coordination.locks import xid_byte
from spool.format.reader import FileContents
from spool.log.adoption import UnknownBranch, fact_key, refusal, voted_contents
from spool.log.engine_commit import commit_batch
from spool.log.quota import added_by
from spool.log.visibility import catch_up, list_prepared
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.message import message_id
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies.heuristics import COMMITTED, ROLLED_BACK, heuristic_outcome
from spool.runtime.clock import Deadline
from spool.store.parts import addressed_positions
from spool.store.settings_reader import Settings
from spool.store.store import Store
from spool.transactions.core import Core
from spool.transactions.two_phase import BY_ADMINISTRATOR, commit_prepared, rollback_prepared


@dataclass(frozen=True)
class InDoubt:
    """The effects that a branch in doubt would have.

    ``puts`` and ``takes``: the number of messages by queue; a message that the branch moves counts in both.
    ``prepared_at``: the time of the vote, in seconds since the epoch. ``writer``: the process that prepared the branch.
    ``put_ids`` and ``taken_ids``: the ids of the first ``MOST_IDS`` of these messages.
    """

    xid: str
    prepared_at: float
    writer: Mapping[str, Any]
    puts: Mapping[str, int]
    takes: Mapping[str, int]
    put_ids: Sequence[str]
    taken_ids: Sequence[str]


MOST_IDS = 100


def describe(store: Store, xid: Xid) -> InDoubt:
    """Describe the effects of a prepared branch; raises UnknownBranch if none exists."""
    catch_up(store, list_prepared(store))
    contents = store.view.prepared.branches.get(xid)
    if contents is None or store.view.index.has_adopted(contents):
        raise UnknownBranch(xid, store.view.index.adopter(xid))
    return _described(store, xid, contents)


def describe_all(store: Store) -> list[InDoubt]:
    """Describe the branches that wait for foreign coordinators, the oldest first. Nothing is made durable.

    Branches whose processes are still voting are left out.
    """
    catch_up(store, list_prepared(store))
    found = [
        _described(store, xid, contents)
        for xid, contents in sorted(store.view.prepared.branches.items())
        if xid.format_id not in FORMATS_BOUND_TO_A_LIFE
        and not store.view.index.has_adopted(contents)
        and store.shared.xids.is_free(xid_byte(xid))
    ]
    return sorted(found, key=lambda one: one.prepared_at)


def _described(store: Store, xid: Xid, contents: FileContents) -> InDoubt:
    puts = Counter({queue: load.messages for queue, load in added_by(contents.tables).items()})
    takes: Counter[str] = Counter()
    taken_ids: list[str] = []
    with store.view.mutex:
        messages = store.view.index.messages
        for position in addressed_positions(contents):
            if (run := messages.find(position)) is not None:
                takes[run.queue.name] += 1
                if len(taken_ids) < MOST_IDS:
                    taken_ids.append(run.id_of(position.ordinal))
    for table in contents.tables:
        for command in table.commands:
            if command.name == "update" and "queue" in command.changes:
                puts[command.changes["queue"]] += command.length
    header = contents.header
    put_ids = [
        message_id(branch.id, ordinal) for branch in header.branches for ordinal in range(min(branch.count, MOST_IDS))
    ][:MOST_IDS]
    return InDoubt(str(xid), header.time, header.writer, dict(puts), dict(takes), put_ids, taken_ids)


# -- decisions ---------------------------------------------------------------------------------------------------------


def decide_heuristically(core: Core, xid: Xid, deadline: Deadline, *, commit: bool) -> None:
    """Decide a branch in the place of its coordinator.

    A fact records the decision. If the decision is to commit, one file adopts the branch and contains the fact. A
    rollback is decided once the fact is published. If this process then dies, the next process that resolves orphans
    finishes the rollback.
    """
    store, fact = core.store, WriteSet().fact(fact_key(xid), COMMITTED if commit else ROLLED_BACK)
    if commit:
        commit_prepared(core, xid, vote_known=False, facts=fact)
        return
    voted = voted_contents(store, xid)

    def check(_: Settings) -> None:
        if error := refusal(store, store.shared.counters.read(), xid, voted):
            raise error

    commit_batch(store, fact, deadline, check=check, settled=True)
    _finish_rollback(store, xid, deadline)


def _finish_rollback(store: Store, xid: Xid, deadline: Deadline) -> None:
    with suppress(UnknownBranch):  # another process finished it already
        rollback_prepared(store, xid, deadline, BY_ADMINISTRATOR)


def forget(store: Store, xid: Xid, deadline: Deadline) -> bool:
    """Finish an administrator's decision, and delete its fact; returns False if no decision is recorded."""
    if (outcome := heuristic_outcome(store, xid)) is None:
        return False
    if outcome == ROLLED_BACK:
        _finish_rollback(store, xid, deadline)
        store.files.disk.flush_directory(layout.PREPARED)  # otherwise a power cut could bring the branch back
        store.files.copies.flush_withdrawals()
    commit_batch(store, WriteSet().fact(fact_key(xid), None), deadline, flush=True)
    return True
