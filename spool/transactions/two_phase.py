"""Two-phase outcomes: who commits or rolls back a prepared branch, and how two who decide at once agree.

Its rules stand in docs/architecture.md, "The rules that keep processes apart".

The decision is a numbered file that adopts the branch; commit and rollback of one xid meet under the number lock, after
every issued number was applied. Only who was told the vote adopts a branch as it lies: for anybody else its bytes may
not be durable yet, so they are copied and flushed first.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spool.coordination.locks import NUMBER, PREPARED_LIST, LockFile, coordinator_byte, xid_byte
from spool.disk.disk import Disk, FlushFailed
from spool.errors import CommitUnknown, SpoolError
from spool.format.batch import CommitBatch
from spool.format.reader import FileContents
from spool.format.writer import CommitFileWriter
from spool.index.index import Index
from spool.log.commit import commit, commit_batch, own_file
from spool.log.quota import added_by, check_adoption, settle_and_catch_up
from spool.log.sequence import copy_over, settle_all, with_number_lock
from spool.log.visibility import catch_up, list_prepared, prepared_image, revalidate
from spool.model import layout
from spool.model.position import Position
from spool.model.xid import FORMAT_ROUND, FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies import retries
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import Shared, View, targets
from spool.store.settings import Settings, check_targets
from spool.store.store import Store

log = logging.getLogger("spool")


class UnknownBranch(SpoolError):
    """No prepared branch has this xid (any more). ``committed_by``: the commit that adopted it, or None."""

    def __init__(self, xid: Xid, committed_by: int | None) -> None:
        was = (
            f"it was committed as number {committed_by}"
            if committed_by is not None
            else "it was rolled back, or never prepared"
        )
        super().__init__(f"there is no prepared branch {xid}: {was}")
        self.xid = xid
        self.committed_by = committed_by


def vote(store: Store, file: CommitFileWriter, xid: Xid, check: Callable[[], None] | None = None) -> None:
    """Phase one: the finished file becomes ``prepared/<xid>``, durable. The caller holds the xid's byte.

    ``check`` runs under the number lock and raises if the branch must not vote yes. FileExistsError if a branch of that
    xid is prepared already. A vote that cannot be made durable is withdrawn and
    raises what the disk said; CommitUnknown if not even that is possible.
    """
    if check is None:
        _list_as_prepared(store, file, xid)
    else:
        with_number_lock(store.shared.control, store.deadline())
        try:
            check()
            _list_as_prepared(store, file, xid)
        finally:
            store.shared.control.unlock(NUMBER)
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
    store.shared.control.lock(PREPARED_LIST, store.deadline(), "the list of prepared branches")
    try:
        check_targets(store.settings.current(), file.tables)
        store.shared.counters.bump_prepared()
        store.files.disk.rename_new(file.name, layout.prepared(xid))
    finally:
        store.shared.control.unlock(PREPARED_LIST)


def _withdraw(store: Store, xid: Xid, why: OSError) -> None:
    """Nobody was told of this vote, and nobody shall find it: its coordinator takes it for rolled back."""
    try:
        _take_away(store.files.disk, store.shared, xid, store.deadline())
    except (OSError, WaitExpired) as error:
        text = f"branch {xid} could not be made durable ({why}) and is still listed ({error}): roll it back later"
        raise CommitUnknown(text) from error


def _take_away(disk: Disk, shared: Shared, xid: Xid, deadline: Deadline) -> None:
    shared.control.lock(PREPARED_LIST, deadline, "the list of prepared branches")
    try:
        shared.counters.bump_prepared()
        disk.unlink(layout.prepared(xid))
    finally:
        shared.control.unlock(PREPARED_LIST)


def adopt(store: Store, file: CommitFileWriter, batch: CommitBatch, xids: Sequence[Xid], deadline: Deadline) -> int:
    """Phase two: one numbered file commits prepared branches together with the caller's own batch; returns its number.

    The caller was told the branches' votes, or made them durable. UnknownBranch if one is not there to be committed,
    Full if there is no room for what the tasks of a round answered: nothing was done. When this returns, the commit is
    published.
    """
    images = [_voted_image(store, xid) for xid in xids]
    for image in images:
        batch.adopt(image)
    still_prepared = _still_prepared(store, xids, images, deadline)
    # A task of a round does not know the space; whoever else voted was asked then, and nothing is refused after a vote.
    voted = zip(xids, images, strict=True)
    unchecked = [table for xid, image in voted if xid.format_id == FORMAT_ROUND for table in image.tables]

    def check(settings: Settings) -> None:
        still_prepared(settings)
        if settings.config.limited:
            settle_and_catch_up(store, deadline)
            check_adoption(store.view, settings, file.tables, unchecked)

    return commit(store, file, batch, deadline, check=check)


def commit_prepared(store: Store, xid: Xid, deadline: Deadline, *, told: bool, draft: CommitBatch | None = None) -> int:
    """Commit one prepared branch, alone or with facts about it; returns the number.

    ``told``: the caller was told its vote. UnknownBranch if it is not there to be committed.
    """
    if not told:
        make_durable(store, xid, deadline)
    batch = draft or CommitBatch()
    with own_file(store.files.disk, store.shared.xids, deadline) as file:
        batch.begin_branch(file.xid, file.xid.gtrid)
        number = adopt(store, file, batch, [xid], deadline)
    move_adopted(store, number, [(1, xid)])
    return number


def _voted_image(store: Store, xid: Xid) -> FileContents:
    image = prepared_image(store.files.disk, store.view.prepared, xid)
    if image is None:
        catch_up(store)
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    return image


def _still_prepared(
    store: Store, xids: Sequence[Xid], images: Sequence[FileContents], deadline: Deadline
) -> Callable[[Settings], None]:
    """Under the number lock: nobody decided any of the branches meanwhile, by a commit or by a fact."""

    def check(_: Settings) -> None:
        settle_all(store, deadline)
        catch_up(store)
        for xid, image in zip(xids, images, strict=True):
            found = prepared_image(store.files.disk, store.view.prepared, xid)
            decided = xid in store.view.index.adopted or heuristic_fact(store.view.index, xid) is not None
            if decided or found is None or found.header.checksum != image.header.checksum:
                raise UnknownBranch(xid, store.view.index.adopted.get(xid))

    return check


def make_durable(store: Store, xid: Xid, deadline: Deadline) -> None:
    """For who was not told the vote: wait for the owner's flush, then copy the file: its bytes are surely there."""
    byte = xid_byte(xid)
    store.shared.xids.lock(byte, deadline, f"the branch {xid}")
    try:
        with_number_lock(store.shared.control, deadline)
        try:
            settle_all(store, deadline)
            catch_up(store)
            # A branch that was adopted is on its way to its committed name: a copy could bring it back behind that.
            if xid not in store.view.index.adopted and store.files.disk.exists(layout.prepared(xid)):
                copy_over(store.files.disk, layout.prepared(xid))
        except FlushFailed:
            store.stop()
            raise
        finally:
            store.shared.control.unlock(NUMBER)
    finally:
        store.shared.xids.unlock(byte)


def rollback_prepared(
    store: Store, xid: Xid, deadline: Deadline, reason: str = "its transaction was rolled back", *, count: bool = True
) -> None:
    """Undo a prepared branch: its puts never were, its messages are free again, a try counted. No flush.

    ``count=False``: it was not the messages' fault. UnknownBranch if it is not there to be rolled back.
    """
    failed = _held_by(store, xid, deadline)
    # Counted while the branch still holds them: nobody may take a message before its count is visible.
    if count:
        retries.count_failures(store, failed, reason, deadline, held_by=xid)
    with_number_lock(store.shared.control, deadline)
    try:
        settle_all(store, deadline)
        catch_up(store)
        if xid in store.view.index.adopted or not store.files.disk.exists(layout.prepared(xid)):
            raise UnknownBranch(xid, store.view.index.adopted.get(xid))
        _take_away(store.files.disk, store.shared, xid, deadline)
    finally:
        store.shared.control.unlock(NUMBER)
    list_prepared(store)


def _held_by(store: Store, xid: Xid, deadline: Deadline) -> list[Position]:
    settle_all(store, deadline)
    catch_up(store)
    image = prepared_image(store.files.disk, store.view.prepared, xid)
    if image is None or xid in store.view.index.adopted:
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    return list(targets(image))


def move_adopted(store: Store, number: int, places: Iterable[tuple[int, Xid]]) -> None:
    """Give adopted branches their committed names: housekeeping, since an adopted file is committed wherever it lies.

    ``places``: (k, xid), k counting the head's adoptions from 1. The head is durable and published.
    """
    pairs = [(layout.prepared(xid), layout.committed(number, k)) for k, xid in places]
    try:
        if not store.files.disk.ordered and store.shared.counters.read().suspect:
            return  # a new name that is there already may not be on the disk, and the old one is
        if store.files.disk.ordered:
            for source, target in pairs:
                if store.files.disk.exists(target):  # after a power cut, one inode in two stages: the later one counts
                    _unless_gone(store.files.disk.unlink, source)
                else:
                    _unless_gone(store.files.disk.rename, source, target)
            return
        # Nothing orders renames here: the new name must be durable before the old one goes (strict POSIX).
        linked = [source for source, target in pairs if _unless_gone(store.files.disk.link, source, target)]
        if linked:
            store.files.disk.flush_directory(layout.COMMITTED)
        for source in linked:
            _unless_gone(store.files.disk.unlink, source)
    except FlushFailed:
        store.stop()
    except OSError as error:
        log.warning("commit %d stays where it was prepared: %s", number, error)


def _unless_gone(move: Callable[..., None], *names: str) -> bool:
    """Somebody else may have moved it already."""
    try:
        move(*names)
    except FileNotFoundError:
        return False
    except FileExistsError:
        return True
    return True


def resolve_orphans(store: Store, deadline: Deadline) -> list[Xid]:
    """Roll back undecided branches of our own coordinators that are gone, and what an administrator decided to roll
    back and left there; returns their xids.

    First the coordinator's lock is tested, then the decision is looked for: the other way round, a coordinator that
    decides and ends in between would be taken for one that never decided.
    """
    revalidate(store, deadline)
    done = []
    for xid in list(store.view.prepared.images):
        reason = _why_settled(store.shared.xids, store.view, xid)
        if reason is None:
            continue
        try:
            # A forwarder that was killed says nothing about the messages of its round.
            rollback_prepared(store, xid, deadline, reason, count=xid.format_id != FORMAT_ROUND)
            done.append(xid)
        except UnknownBranch:
            continue
    return done


def _why_settled(xids: LockFile, view: View, xid: Xid) -> str | None:
    if heuristic_fact(view.index, xid) == ROLLED_BACK:
        return _BY_ADMINISTRATOR
    if xid.format_id in FORMATS_BOUND_TO_A_LIFE and xids.is_free(coordinator_byte(xid.gtrid)):
        return "its coordinator is gone"
    return None


def finish_moves(store: Store) -> list[Xid]:
    """Move branches whose committer died between its commit and the move."""
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


# -- questions of a resource manager ----------------------------------------------------------------------------------


def is_prepared(store: Store, xid: Xid) -> bool:
    """Whether the branch is prepared and undecided, as far as can be seen now."""
    catch_up(store)
    return xid not in store.view.index.adopted and store.files.disk.exists(layout.prepared(xid))


def has_owner(xids: LockFile, xid: Xid) -> bool:
    """Whether a live process holds the branch, which is not (yet) prepared, or just being so."""
    return not xids.is_free(xid_byte(xid))


def in_doubt(store: Store, deadline: Deadline, *, told: Collection[Xid] = ()) -> list[Xid]:
    """Prepared, undecided branches that wait for a coordinator, each durable: those whose vote the caller was not
    told are copied and flushed first. Branches whose owner is still voting when the deadline passes, and those whose
    coordinator is one of ours that lives, are left out."""
    resolve_orphans(store, deadline)
    found = []
    for xid in sorted(store.view.prepared.images):
        if xid.format_id in FORMATS_BOUND_TO_A_LIFE:
            continue
        if xid not in told:
            try:
                make_durable(store, xid, deadline)
            except WaitExpired:
                if has_owner(store.shared.xids, xid):
                    continue
                raise
        if is_prepared(store, xid):
            found.append(xid)
    return found


@dataclass(frozen=True)
class InDoubt:
    """What a branch in doubt would do. ``puts`` and ``takes``: messages by queue; what it moves is in both.
    ``prepared_at``: seconds since the epoch; ``writer``: the process that prepared it."""

    xid: str
    prepared_at: float
    writer: Mapping[str, Any]
    puts: Mapping[str, int]
    takes: Mapping[str, int]


def describe(store: Store, xid: Xid) -> InDoubt:
    """UnknownBranch if it is not prepared (any more)."""
    catch_up(store)
    list_prepared(store)
    image = store.view.prepared.images.get(xid)
    if image is None:
        raise UnknownBranch(xid, store.view.index.adopted.get(xid))
    puts = Counter({queue: load.messages for queue, load in added_by(image.tables).items()})
    takes: Counter[str] = Counter()
    with store.view.mutex:
        for position in targets(image):
            run = store.view.index.messages.find(position)
            if run is not None:
                takes[run.queue.name] += 1
    for table in image.tables:
        for command in table.commands:
            if command[0] == "update" and "queue" in command[4]:
                puts[command[4]["queue"]] += command[3]
    header = image.header
    return InDoubt(str(xid), header.time, header.writer, dict(puts), dict(takes))


# -- an administrator's decisions, facts until the coordinator forgets them --------------------------------------------

COMMITTED, ROLLED_BACK = "committed", "rolled back"
_BY_ADMINISTRATOR = "an administrator rolled it back"


_FACT = "heuristic:"


def _fact_key(xid: Xid) -> str:
    return f"{_FACT}{xid}"


def heuristic_fact(index: Index, xid: Xid) -> str | None:
    """What an administrator decided about the branch, as far as the index knows, or None."""
    found = index.facts.get(_fact_key(xid))
    return None if found is None else str(found[1])


def heuristic_outcome(store: Store, xid: Xid) -> str | None:
    """What an administrator decided, or None."""
    catch_up(store)
    return heuristic_fact(store.view.index, xid)


def heuristic_outcomes(store: Store) -> dict[str, str]:
    """By xid as text, what an administrator decided; each is there until it is forgotten."""
    catch_up(store)
    with store.view.mutex:
        found = [(key, str(value)) for key, (_, value, _) in store.view.index.facts.items() if key.startswith(_FACT)]
    return {key.removeprefix(_FACT): outcome for key, outcome in sorted(found)}


def decide_heuristically(store: Store, xid: Xid, deadline: Deadline, *, commit: bool) -> None:
    """Decide in the coordinator's place. The fact is the decision: a commit adopts the branch with it in one file; a
    rollback is decided once it is published, and who dies behind that leaves the rest to whoever looks next."""
    draft = CommitBatch()
    draft.fact(_fact_key(xid), COMMITTED if commit else ROLLED_BACK)
    if commit:
        commit_prepared(store, xid, deadline, told=False, draft=draft)
        return
    undecided = _still_prepared(store, [xid], [_voted_image(store, xid)], deadline)
    commit_batch(store, draft, deadline, flush=True, check=undecided)
    _finish_rollback(store, xid, deadline)


def _finish_rollback(store: Store, xid: Xid, deadline: Deadline) -> None:
    with suppress(UnknownBranch):  # somebody finished it already
        rollback_prepared(store, xid, deadline, _BY_ADMINISTRATOR)


def forget(store: Store, xid: Xid, deadline: Deadline) -> bool:
    """Drop the fact, once it has been acted on; False if there is none."""
    outcome = heuristic_outcome(store, xid)
    if outcome is None:
        return False
    if outcome == ROLLED_BACK:
        _finish_rollback(store, xid, deadline)
    draft = CommitBatch()
    draft.fact(_fact_key(xid), None)
    commit_batch(store, draft, deadline, flush=True)
    return True
