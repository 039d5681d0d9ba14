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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spool.coordination.counters import CounterPage, Counters
from spool.coordination.locks import PREPARED_LIST, coordinator_byte, xid_byte
from spool.disk.content import unlink_unless_gone
from spool.disk.disk import Disk, FlushFailed
from spool.disk.durability import Move
from spool.errors import CommitUnknown, SpoolError
from spool.format.batch import CommitBatch
from spool.format.reader import FileContents
from spool.format.writer import CommitFileWriter
from spool.log.commit import check_destinations, commit, commit_batch
from spool.log.commit_request import CommitRequest
from spool.log.quota import added_by, check_adoption, settle_and_catch_up
from spool.log.sequence import copy_over, finish_dead_writers, number_locked, settle_all
from spool.log.visibility import catch_up, list_prepared, prepared_contents
from spool.model import layout
from spool.model.position import Position
from spool.model.xid import FORMAT_ROUND, FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies import retries
from spool.policies.heuristics import COMMITTED, ROLLED_BACK, fact_key, heuristic_fact, heuristic_outcome
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import Shared, addressed_positions
from spool.store.settings import Settings
from spool.store.store import Store
from spool.transactions.core import Core

log = logging.getLogger("spool")

_BY_ADMINISTRATOR = "an administrator rolled it back"


class UnknownBranch(SpoolError):
    """No prepared branch has this xid. ``committed_by``: the number of the commit that adopted the branch, or None."""

    def __init__(self, xid: Xid, committed_by: int | None, why: str = "it was rolled back, or never prepared") -> None:
        was = why if committed_by is None else f"it was committed as number {committed_by}"
        super().__init__(f"there is no prepared branch {xid}: {was}")
        self.committed_by = committed_by


def vote(store: Store, file: CommitFileWriter, xid: Xid, check: Callable[[], None] | None = None) -> None:
    """Vote: the finished file becomes ``prepared/<xid>``, durably. The caller holds the xid's byte.

    Args:
        check: a function that raises if the branch must not vote yes. It is called under the number lock.

    Raises:
        FileExistsError: a branch with that xid is prepared already.
        OSError: the vote could not be made durable, and was withdrawn.
        CommitUnknown: the vote could be neither made durable nor withdrawn.
    """
    if check is None:
        _list_as_prepared(store, file, xid)
    else:
        with number_locked(store.shared.control, store.deadline()):
            check()
            _list_as_prepared(store, file, xid)
    assert file.handle is not None
    try:
        store.files.disk.make_durable(file.handle, layout.PREPARED, new=True)
    except OSError as error:
        if isinstance(error, FlushFailed):
            store.stop()
        _withdraw(store, xid, error)
        raise
    finally:
        file.close()


def _list_as_prepared(store: Store, file: CommitFileWriter, xid: Xid) -> None:
    with store.shared.control.holding(PREPARED_LIST, store.deadline(), "the list of prepared branches"):
        page = store.shared.counters.read()
        check_destinations(store.settings.current(page), file.tables)
        version = store.shared.counters.bump_prepared(page)
        store.files.disk.rename_new(file.name, layout.prepared(xid))
        with store.view.mutex:
            store.view.prepared.add(version, xid, file.contents(0))


def _withdraw(store: Store, xid: Xid, why: OSError) -> None:
    """Delete a branch after its vote failed. The coordinator gets no vote, so it counts the branch as rolled back."""
    try:
        _unlist(store.files.disk, store.shared, xid, store.deadline())
    except (OSError, WaitExpired) as error:
        text = f"branch {xid} could not be made durable ({why}) and is still listed ({error}): roll it back later"
        raise CommitUnknown(text) from error


def _unlist(disk: Disk, shared: Shared, xid: Xid, deadline: Deadline) -> None:
    with shared.control.holding(PREPARED_LIST, deadline, "the list of prepared branches"):
        shared.counters.bump_prepared(shared.counters.read())
        disk.unlink(layout.prepared(xid))


def adopt(
    store: Store,
    file: CommitFileWriter,
    batch: CommitBatch,
    xids: Sequence[Xid],
    deadline: Deadline,
    also: Callable[[Settings], object] | None = None,
    copied: Sequence[Xid] = (),
) -> int:
    """Commit prepared branches together with a batch, in one numbered file; returns the number.

    The caller got the branches' votes, or made the branches durable.

    Args:
        also: a function that raises if the commit must not happen. It is called under the number lock, once every
            issued number is settled.
        copied: the prepared branches whose contents were copied into the batch.
    """
    branches = [voted_contents(store, xid) for xid in xids]
    for contents in branches:
        batch.adopt(contents)
    undecided = still_prepared(store, xids, branches, deadline)
    # A task of a forwarding round or a Spark write votes without a quota check; all other branches were checked when
    # they voted.
    voted = zip(xids, branches, strict=True)
    unchecked = [table for xid, contents in voted if xid.format_id == FORMAT_ROUND for table in contents.tables]
    coordinators = {xid.gtrid for xid in (*xids, *copied)}

    def check(settings: Settings) -> None:
        undecided(settings)
        if also is not None:
            also(settings)
        if settings.config.has_limits:
            settle_and_catch_up(store, deadline)
            check_adoption(store.view, settings, file.tables, unchecked, coordinators)

    return commit(store, file, batch, seconds=deadline.seconds, check=check)


class AdoptionRequest(CommitRequest):
    """A request to commit a prepared branch. The commit may also contain facts about the branch.

    ``place``: the place of the branch among the branches that the commit adopts, from 1.
    """

    place = 0

    def __init__(self, xid: Xid, contents: FileContents, facts: CommitBatch | None = None) -> None:
        self.page, self.messages, self.bytes = None, 0, 0
        self.adopts = self.xid = xid
        self.contents = contents
        self.facts = facts

    def append_to(self, batch: CommitBatch) -> None:
        batch.adopt(self.contents)
        self.place = len(batch.adopts)
        if self.facts is not None:
            batch.append(self.facts)

    def refusal(self, store: Store, page: CounterPage, others: Collection[Xid]) -> Exception | None:
        if self.xid in others:
            return UnknownBranch(self.xid, None, "another thread commits it at this moment")
        index = store.view.index
        if self.xid in index.adopted or heuristic_fact(index, self.xid) is not None or not self._is_there(store, page):
            return UnknownBranch(self.xid, index.adopted.get(self.xid))
        return None

    def _is_there(self, store: Store, page: CounterPage) -> bool:
        """Return whether the branch's file exists, unchanged since it was read."""
        disk, prepared = store.files.disk, store.view.prepared
        with store.view.mutex:
            is_known = page.prepared == prepared.version and prepared.branches.get(self.xid) is self.contents
        if is_known:  # no branch was added or removed since
            return disk.exists(layout.prepared(self.xid))
        found = prepared_contents(disk, prepared, self.xid)
        return found is not None and found.header.checksum == self.contents.header.checksum


def commit_prepared(core: Core, xid: Xid, *, vote_known: bool, facts: CommitBatch | None = None) -> int:
    """Commit one prepared branch, together with ``facts`` about the branch: see ``Engine.commit_branch``."""
    store = core.store
    if not vote_known:
        make_durable(store, xid, store.deadline())
    contents = store.view.prepared.branches.get(xid) if vote_known else None
    request = AdoptionRequest(xid, contents or voted_contents(store, xid), facts)
    core.group_commit.commit(request)
    assert request.number is not None
    move_adopted(store, request.number, [(request.place, xid)])
    return request.number


def voted_contents(store: Store, xid: Xid) -> FileContents:
    """Read a prepared branch; raises UnknownBranch if the branch does not exist."""
    contents = prepared_contents(store.files.disk, store.view.prepared, xid)
    if contents is None:
        catch_up(store)
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    return contents


def still_prepared(
    store: Store, xids: Sequence[Xid], branches: Sequence[FileContents], deadline: Deadline
) -> Callable[[Settings], None]:
    """Return a function that raises if one of the branches was decided; call it under the number lock (rule 5)."""

    def check(_: Settings) -> None:
        page = settle_all(store, deadline)
        catch_up(store, page)
        for xid, contents in zip(xids, branches, strict=True):
            error = AdoptionRequest(xid, contents).refusal(store, page, ())
            if error is not None:
                raise error

    return check


def make_durable(store: Store, xid: Xid, deadline: Deadline) -> None:
    """Make a prepared branch durable: wait for its owner, then copy and flush its file.

    A process that did not get the vote of the branch calls this function.
    """
    what = f"the branch {xid}"
    with store.shared.xids.holding(xid_byte(xid), deadline, what), number_locked(store.shared.control, deadline):
        try:
            settle_all(store, deadline)
            catch_up(store)
            # Another process may be moving an adopted branch to its committed name: a copy could restore the old name.
            if xid not in store.view.index.adopted and store.files.disk.exists(layout.prepared(xid)):
                copy_over(store.files.disk, layout.prepared(xid))
        except FlushFailed:
            store.stop()
            raise


def rollback_prepared(
    store: Store, xid: Xid, deadline: Deadline, reason: str = "its transaction was rolled back"
) -> None:
    """Roll back a prepared branch: see ``Engine.roll_back_branch``.

    For a branch of our own coordinator no attempt is counted. The calls with its messages had ended before the vote.
    The branch is rolled back only because the coordinator has ended.
    """
    failed = _held_by(store, xid, deadline)
    # Count the attempts while the branch still holds the messages: no process may take a message before its new count
    # is visible.
    if xid.format_id not in FORMATS_BOUND_TO_A_LIFE:
        retries.count_failures(store, failed, reason, deadline, held_by=xid)
    with number_locked(store.shared.control, deadline):
        settle_all(store, deadline)
        catch_up(store)
        if xid in store.view.index.adopted or not store.files.disk.exists(layout.prepared(xid)):
            raise UnknownBranch(xid, store.view.index.adopted.get(xid))
        _unlist(store.files.disk, store.shared, xid, deadline)
    list_prepared(store)


def _held_by(store: Store, xid: Xid, deadline: Deadline) -> list[Position]:
    settle_all(store, deadline)
    catch_up(store)
    contents = prepared_contents(store.files.disk, store.view.prepared, xid)
    if contents is None or xid in store.view.index.adopted:
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    return list(addressed_positions(contents))


def move_adopted(store: Store, number: int, places: Iterable[tuple[int, Xid]]) -> None:
    """Give adopted branches their committed names.

    An adopted file counts under its old name, too, so errors are only logged.

    Args:
        number: the number of the commit that adopted the branches; the commit is durable and published.
        places: for each branch, its place (from 1) among the branches that the commit adopts, and its xid.
    """
    disk, counters = store.files.disk, store.shared.counters
    moves = [_Adopted(disk, layout.prepared(xid), layout.committed(number, k), counters) for k, xid in places]
    try:
        disk.durability.move(moves)
    except FlushFailed:
        store.stop()
    except OSError as error:
        log.warning("commit %d keeps the name of its prepared branch: %s", number, error)


class _Adopted(Move):
    """The move of an adopted branch's file; another process may have moved the file meanwhile."""

    disk: Disk

    def __init__(self, disk: Disk, source: str, target: str, counters: Counters) -> None:
        super().__init__(disk, source, target)
        self._counters = counters

    def rename(self) -> None:
        try:
            self.disk.rename_new(self.source, self.target)
        except FileExistsError:  # after a power cut the file may have both names: the committed name counts
            self.release()
        except FileNotFoundError:
            pass

    def link(self) -> bool:
        if self._counters.read().is_suspect:  # after a failed flush, the disk may not have the new name
            return False
        try:
            self.disk.link(self.source, self.target)
        except FileNotFoundError:
            return False
        except FileExistsError:
            pass
        return True

    def release(self) -> None:
        unlink_unless_gone(self.disk, self.source)


def is_prepared(store: Store, xid: Xid) -> bool:
    """Return whether the branch is prepared and undecided, as far as this process can see now."""
    catch_up(store)
    return xid not in store.view.index.adopted and store.files.disk.exists(layout.prepared(xid))


# -- prepared branches without their coordinator --------------------------------------------------------------------


def resolve_orphans(store: Store, deadline: Deadline) -> list[Xid]:
    """Roll back the orphaned branches; returns their xids.

    An orphan is an undecided branch whose coordinator was one of ours and has ended. A branch that an administrator
    decided to roll back is an orphan, too. This function tests the coordinator's lock first, and then looks for the
    coordinator's decision. In the reverse order, a coordinator that decides and ends between the two steps would seem
    undecided.
    """
    catch_up(store, finish_dead_writers(store, list_prepared(store).check()))
    done = []
    for xid in list(store.view.prepared.branches):
        is_ours = xid.format_id in FORMATS_BOUND_TO_A_LIFE
        is_orphan = is_ours and store.shared.xids.is_free(coordinator_byte(xid.gtrid))
        if is_orphan or heuristic_fact(store.view.index, xid) == ROLLED_BACK:
            with suppress(UnknownBranch):
                # (a branch of our own coordinator counts no attempt, and so does not use the reason)
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

    A fact records the decision. If the decision is to commit, one file adopts the branch and contains the fact. A
    rollback is decided once the fact is published. If this process then dies, the next process that resolves orphans
    finishes the rollback.
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
