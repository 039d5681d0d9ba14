"""Two-phase commit of a branch: its vote, and the commit or rollback of a prepared branch.

If one of our coordinators ends before it decides, its branches are rolled back. A branch of a foreign coordinator
remains in doubt until the coordinator decides, or an administrator decides in its place. The administrator's decision
is recorded as a fact, and kept until the coordinator forgets the decision.

Invariants ("rule" means a rule of docs/architecture.md, "The rules that keep processes apart"):

1. The decision to commit is a numbered file that adopts the branch. A commit and a rollback of one branch exclude each
   other: both are decided under the number lock, after every issued number was applied (rule 5).
2. A process that got the vote adopts the branch's file unchanged. Any other process cannot know whether the file's
   bytes are durable, so that process copies and flushes the file first.
3. A vote whose flush fails is withdrawn (rule 7).
4. A rollback counts its attempts before it releases the messages.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from spool.coordination.locks import coordinator_byte, xid_byte
from spool.disk.content import chunks, opened, replacement
from spool.disk.disk import FlushFailed, is_full
from spool.format.reader import FileContents
from spool.log.adoption import UnknownBranch, adoption, fact_key, heuristic_fact, move_adopted, refusal, voted_contents
from spool.log.commit import commit, commit_batch
from spool.log.commit_file import CommitFileWriter
from spool.log.deciding import settled
from spool.log.quota import added_by
from spool.log.sequence import finish_dead_writers, settle_all
from spool.log.visibility import catch_up, list_prepared, prepared_contents
from spool.log.vote import unlist, unmark
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.message import message_id
from spool.model.position import Position
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, FORMATS_USED_ONCE, Xid, new_local_xid
from spool.policies import retries
from spool.policies.heuristics import COMMITTED, ROLLED_BACK, heuristic_outcome
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import addressed_positions, attempted_positions
from spool.store.settings import Settings
from spool.store.store import Store
from spool.transactions.core import Core

log = logging.getLogger("spool")

_BY_ADMINISTRATOR = "an administrator rolled it back"


def adopt(
    store: Store,
    file: CommitFileWriter,
    batch: WriteSet,
    xids: Sequence[Xid],
    deadline: Deadline,
    also: Callable[[Settings], object] | None = None,
    copied: Sequence[Xid] = (),
) -> int:
    """Commit prepared branches together with a batch, in one numbered file; returns the number.

    The caller got the branches' votes, or made the branches durable.

    Args:
        also: a function that raises if the commit must not happen. ``also`` is called under the number lock, once every
            issued number is settled.
        copied: the prepared branches whose contents were copied into the batch.
    """
    if any(xid not in store.view.prepared.branches for xid in xids):  # otherwise each file would be read twice
        list_prepared(store)
    known = store.view.prepared.branches
    branches = [
        (known.get(xid) if xid.format_id in FORMATS_USED_ONCE else None) or voted_contents(store, xid) for xid in xids
    ]
    for contents in branches:
        batch.adopt(contents)
    batch.rounds = {xid.gtrid for xid in copied}
    return commit(store, file, batch, seconds=deadline.seconds, check=also, limited=True)


def commit_prepared(core: Core, xid: Xid, *, vote_known: bool, facts: WriteSet | None = None) -> int:
    """Commit one prepared branch, together with ``facts`` about the branch: see ``Engine.commit_branch``."""
    store = core.store
    if not vote_known:
        make_durable(store, xid, store.deadline())
    contents = store.view.prepared.branches.get(xid) if vote_known else None
    request = adoption(contents or voted_contents(store, xid), facts)
    core.group_commit.commit(request)
    assert request.number is not None
    return request.number


def make_durable(store: Store, xid: Xid, deadline: Deadline) -> None:
    """Make a prepared branch durable: wait for its owner, then copy and flush its file.

    A process that did not get the vote of the branch calls this function.
    """
    with store.shared.xids.holding(xid_byte(xid), deadline, f"the branch {xid}"):
        try:
            _replace_by_copy(store, xid, deadline)
        except FlushFailed:
            store.stop()
            raise


def _replace_by_copy(store: Store, xid: Xid, deadline: Deadline) -> None:
    """Replace the file of a prepared branch by a durable copy, unless the branch was decided meanwhile.

    The file may be large, so it is copied without the number lock.
    """
    disk, name, temporary = store.files.disk, layout.prepared(xid), layout.copy(new_local_xid())
    copies = store.files.copies
    with ExitStack() as files:
        try:
            source = files.enter_context(opened(disk, name))
        except FileNotFoundError:
            return
        take_name = files.enter_context(replacement(disk, chunks(disk, source), temporary))
        is_copied = copies.write_vote(xid)
        with settled(store, deadline):
            # Another process may be moving an adopted branch to its committed name: a copy could restore the old name.
            if xid not in store.view.index.adopted and disk.exists(name):
                take_name(name)
                if is_copied:
                    copies.name_vote(xid)
                return
        disk.unlink(temporary)
        copies.drop_copy(xid)


def rollback_prepared(
    store: Store,
    xid: Xid,
    deadline: Deadline,
    reason: str = "its transaction was rolled back",
    *,
    counted: bool | None = None,
) -> None:
    """Roll back a prepared branch: see ``Engine.roll_back_branch``.

    ``counted``: whether an attempt is counted for each message that the branch took. By default, no attempt is counted
    for a branch of our own coordinator. The calls with its messages had ended before the vote, and the branch is rolled
    back only because the coordinator has ended.
    """
    failed = _attempted_by(store, xid, deadline)
    # Count the attempts while the branch still holds the messages: no process may take a message before its new count
    # is visible.
    if counted or (counted is None and xid.format_id not in FORMATS_BOUND_TO_A_LIFE):
        retries.count_failures(store, failed, reason, deadline, held_by=xid)
    with settled(store, deadline):
        if xid in store.view.index.adopted or not store.files.disk.exists(layout.prepared(xid)):
            raise UnknownBranch(xid, store.view.index.adopted.get(xid))
        if xid.format_id not in FORMATS_USED_ONCE:  # the coordinator may use the xid for a new branch
            unmark(store, xid)
        unlist(store, xid, deadline)
    list_prepared(store)


def _attempted_by(store: Store, xid: Xid, deadline: Deadline) -> list[Position]:
    settle_all(store, deadline)
    catch_up(store)
    contents = prepared_contents(store.files.disk, store.view.prepared, xid)
    if contents is None or xid in store.view.index.adopted:
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    return attempted_positions(contents)


def is_prepared(store: Store, xid: Xid) -> bool:
    """Return whether the branch is prepared and undecided, as far as this process can see now."""
    catch_up(store)
    return xid not in store.view.index.adopted and store.files.disk.exists(layout.prepared(xid))


# -- prepared branches without their coordinator --------------------------------------------------------------------


def resolve_orphans(store: Store, deadline: Deadline) -> list[Xid]:
    """Roll back the orphaned branches; returns their xids.

    An orphan is an undecided branch whose coordinator was one of ours and has ended. A branch that an administrator
    decided to roll back is also an orphan. This function tests the coordinator's lock first, and then looks for the
    coordinator's decision. In the reverse order, a coordinator that decides and ends between the two steps would seem
    undecided.
    """
    catch_up(store, finish_dead_writers(store, list_prepared(store).check()))
    done = []
    for xid in list(store.view.prepared.branches):
        is_ours = xid.format_id in FORMATS_BOUND_TO_A_LIFE
        is_orphan = is_ours and store.shared.xids.is_free(coordinator_byte(xid.gtrid))
        if is_orphan or heuristic_fact(store.view.index, xid) == ROLLED_BACK:
            try:
                # (a branch of our own coordinator counts no attempt, and so does not use the reason)
                rollback_prepared(store, xid, deadline, _BY_ADMINISTRATOR)
                done.append(xid)
            except UnknownBranch:
                pass
            except OSError as error:
                if not is_full(error):
                    raise
                log.warning("branch %s is rolled back later: %s", xid, error)
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
                if not store.shared.xids.is_free(xid_byte(xid)):
                    continue  # its process is still voting
                raise
        if is_prepared(store, xid) and prepared_contents(store.files.disk, store.view.prepared, xid) is not None:
            found.append(xid)
    return found


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
    if contents is None or xid in store.view.index.adopted:
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
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
        and xid not in store.view.index.adopted
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
            run = messages.find(position)
            if run is not None:
                takes[run.queue.name] += 1
                if len(taken_ids) < MOST_IDS:
                    taken_ids.append(message_id(*messages.branch_of(position)))
    for table in contents.tables:
        for command in table.commands:
            if command.name == "update" and "queue" in command.changes:
                puts[command.changes["queue"]] += command.length
    header = contents.header
    put_ids = [
        message_id(branch.id, ordinal) for branch in header.branches for ordinal in range(min(branch.count, MOST_IDS))
    ][:MOST_IDS]
    return InDoubt(str(xid), header.time, header.writer, dict(puts), dict(takes), put_ids, taken_ids)


# -- an administrator's decisions --------------------------------------------------------------------------------------


def decide_heuristically(core: Core, xid: Xid, deadline: Deadline, *, commit: bool) -> None:
    """Decide a branch in the place of its coordinator.

    A fact records the decision. If the decision is to commit, one file adopts the branch and contains the fact. A
    rollback is decided once the fact is published. If this process then dies, the next process that resolves orphans
    finishes the rollback.
    """
    store, batch = core.store, WriteSet()
    batch.fact(fact_key(xid), COMMITTED if commit else ROLLED_BACK)
    if commit:
        commit_prepared(core, xid, vote_known=False, facts=batch)
        return
    voted = voted_contents(store, xid)

    def check(_: Settings) -> None:
        if error := refusal(store, store.shared.counters.read(), xid, voted):
            raise error

    commit_batch(store, batch, deadline, check=check, settled=True)
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
        store.files.disk.flush_directory(layout.PREPARED)  # otherwise a power cut could bring the branch back
        store.files.copies.flush_withdrawals()
    batch = WriteSet()
    batch.fact(fact_key(xid), None)
    commit_batch(store, batch, deadline, flush=True)
    return True
