"""Two-phase commit of a branch: its vote, and the commit or rollback of a prepared branch.

Invariants ("rule" means a rule of docs/architecture.md, "The rules that keep processes apart"):

1. The decision to commit is a numbered file that adopts the branch. A commit and a rollback of one branch exclude each
   other: both are decided under the number lock, after every issued number was applied (rule 5).
2. A process that got the vote adopts the branch's file unchanged. Any other process cannot know whether the file's
   bytes are durable, so that process copies and flushes the file first.
3. A vote whose flush fails is withdrawn (rule 7).
4. A rollback counts its attempts before it releases the messages.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from spool.coordination.counters import CounterPage, Counters
from spool.coordination.locks import PREPARED_LIST, LockFile, xid_byte
from spool.disk.content import unlink_unless_gone
from spool.disk.disk import Disk, FlushFailed
from spool.disk.durability import Move
from spool.errors import CommitUnknown, SpoolError
from spool.format.batch import CommitBatch
from spool.format.reader import FileContents
from spool.format.writer import CommitFileWriter
from spool.log.commit import check_destinations, commit
from spool.log.commit_queue import CommitRequest
from spool.log.quota import check_adoption, settle_and_catch_up
from spool.log.sequence import copy_over, number_locked, settle_all
from spool.log.visibility import catch_up, list_prepared, prepared_contents
from spool.model import layout
from spool.model.position import Position
from spool.model.xid import FORMAT_ROUND, FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies import retries
from spool.policies.heuristics import heuristic_fact
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import Shared, addressed_positions
from spool.store.settings import Settings
from spool.store.store import Store
from spool.transactions.core import Core

log = logging.getLogger("spool")


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
    """Delete a branch after its vote failed: the coordinator, without the vote, counts it as rolled back."""
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

    Raises:
        UnknownBranch: one of the branches was rolled back or committed; nothing was done.
        Full: the messages of a coordinator's tasks do not fit; nothing was done.
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
    """A request to commit a prepared branch, with facts about the branch if there are any.

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
    """Commit one prepared branch, with facts about the branch if there are any: see ``Engine.commit_branch``."""
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
    """Make a prepared branch, whose vote is not known, durable: wait for its owner, then copy and flush its file."""
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

    For a branch of our own coordinator no attempt is counted. The calls with its messages had ended before the vote,
    and the coordinator's end alone is the reason of the rollback.
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
    """Give adopted branches their committed names. An adopted file counts under either name, so errors are only logged.

    Args:
        number: the number of the commit that adopted the branches; the commit is durable and published.
        places: for each branch, its place among the branches that the commit adopts, from 1, and its xid.
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
        except FileExistsError:  # after a power cut the file may have both names: the committed one counts
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


# -- the state of a branch --------------------------------------------------------------------------------------------


def is_prepared(store: Store, xid: Xid) -> bool:
    """Return whether the branch is prepared and undecided, as far as this process can see now."""
    catch_up(store)
    return xid not in store.view.index.adopted and store.files.disk.exists(layout.prepared(xid))


def has_owner(xids: LockFile, xid: Xid) -> bool:
    """Return whether a live process holds the xid, since its branch is not prepared yet or is being prepared."""
    return not xids.is_free(xid_byte(xid))
