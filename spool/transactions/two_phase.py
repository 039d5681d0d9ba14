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
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext

from spool.coordination.locks import coordinator_byte, xid_byte
from spool.disk.content import chunks, opened, replacement
from spool.disk.disk import raise_unless_full
from spool.log.adoption import UnknownBranch, adoption, heuristic_fact, move_adopted, voted_contents
from spool.log.commit_file import CommitFileWriter
from spool.log.engine_commit import commit
from spool.log.sequence import finish_dead_writers, settle_all
from spool.log.settled_lock import settled
from spool.log.visibility import catch_up, list_prepared, prepared_contents
from spool.log.vote import unlist, unmark
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, FORMATS_USED_ONCE, Xid, new_local_xid
from spool.policies import retries
from spool.policies.heuristics import ROLLED_BACK
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import attempted_positions
from spool.store.settings_reader import Settings
from spool.store.store import Store
from spool.transactions.core import Core

log = logging.getLogger("spool")

BY_ADMINISTRATOR = "an administrator rolled it back"


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
    for contents in [
        (known.get(xid) if xid.format_id in FORMATS_USED_ONCE else None) or voted_contents(store, xid) for xid in xids
    ]:
        batch.adopt(contents)
    batch.rounds = {xid.gtrid for xid in copied}
    return commit(store, file, batch, seconds=deadline.seconds, check=also, limited=True)


def commit_prepared(core: Core, xid: Xid, *, vote_known: bool, facts: WriteSet | None = None) -> int:
    """Commit one prepared branch, together with ``facts`` about the branch: see ``Engine.commit_branch``."""
    store = core.store
    if not vote_known:
        make_durable(store, xid, store.deadline())
    contents = store.view.prepared.branches.get(xid) if vote_known else None
    request = adoption(store.shared.counters.read(), contents or voted_contents(store, xid), facts)
    core.leader.commit(request)
    assert request.number is not None
    return request.number


def make_durable(store: Store, xid: Xid, deadline: Deadline) -> None:
    """Make a prepared branch durable: wait for its owner, then copy and flush its file.

    A process that did not get the vote of the branch calls this function.
    """
    with store.shared.xids.holding(xid_byte(xid), deadline, f"the branch {xid}"), store.stopping():
        _replace_by_copy(store, xid, deadline)


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
            if is_prepared(store, xid):
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
    settle_all(store, deadline)
    catch_up(store)
    contents = prepared_contents(store.files.disk, store.view.prepared, xid)
    if contents is None or store.view.index.has_adopted(contents):
        raise UnknownBranch(xid, store.view.index.adopter(xid))
    # Count the attempts while the branch still holds the messages: no process may take a message before its new count
    # is visible.
    if counted or (counted is None and xid.format_id not in FORMATS_BOUND_TO_A_LIFE):
        retries.count_failures(store, attempted_positions(contents), reason, deadline, held_by=xid)
    with settled(store, deadline):
        if not is_prepared(store, xid):
            raise UnknownBranch(xid, store.view.index.adopter(xid))
        if xid.format_id not in FORMATS_USED_ONCE:  # the coordinator may use the xid for a new branch
            unmark(store, xid)
        unlist(store, xid, deadline)
    list_prepared(store)
    store.wake()  # (the queues with the branch's puts may have fallen to their low marks)


def is_prepared(store: Store, xid: Xid) -> bool:
    """Return whether the branch is prepared and undecided, as far as this process can see now.

    A coordinator may use the xid of a committed branch for another branch.
    """
    catch_up(store)
    if xid not in store.view.index.adopted:
        return store.files.disk.exists(layout.prepared(xid))
    contents = prepared_contents(store.files.disk, store.view.prepared, xid)
    return contents is not None and not store.view.index.has_adopted(contents)


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
                rollback_prepared(store, xid, deadline, BY_ADMINISTRATOR)
                done.append(xid)
            except UnknownBranch:
                pass
            except OSError as error:
                raise_unless_full(error)
                log.warning("branch %s is rolled back later: %s", xid, error)
    return done


def finish_moves(store: Store, *, reclaim_locked: bool = False) -> list[Xid]:
    """Move each adopted branch whose committing process died between the commit and the move; returns their xids.

    A reclaimed branch's xid may be used again, so no branch is moved while another process reclaims.

    Args:
        reclaim_locked: whether the caller holds the reclaim lock.
    """
    moved = []
    disk = store.files.disk
    with nullcontext(True) if reclaim_locked else disk.exclusively(layout.RECLAIM_LOCK) as ours:
        catch_up(store)
        adopted = dict(store.view.index.adopted)
        for name in disk.names(layout.PREPARED) if ours else ():
            xid = layout.parse_xid(name)
            if xid is not None and xid in adopted and not is_prepared(store, xid):
                number, place, _ = adopted[xid]
                move_adopted(store, number, [(place, xid)])
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
