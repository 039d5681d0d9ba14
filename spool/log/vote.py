"""The vote of a branch: the branch's finished file becomes ``prepared/<xid>``, durably.

Threads that vote at the same time vote together. One thread writes the files of all branches, gives each file its name
in ``prepared/``, and then flushes the files one after another. The other threads sleep meanwhile, so they do not
compete for the interpreter at each disk call.

Like a commit, a vote overwrites a consumed file. Once the file has its name in ``prepared/``, it is marked as a vote.
After a power cut, recovery finds a vote without its name by this mark (Rule 13).

A vote whose flush fails is withdrawn (Rule 7 of docs/architecture.md).
"""

import copy
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from spool.coordination.locks import PREPARED_LIST
from spool.disk.content import opened
from spool.disk.disk import FlushFailed
from spool.errors import CommitUnknown
from spool.format.header import VOTE, stamp
from spool.format.reader import read_header
from spool.log.commit import Rooms, check_destinations, no_rooms, write
from spool.log.commit_file import CommitFileWriter
from spool.log.deciding import settled
from spool.log.sequence import number_locked
from spool.log.write_set import WriteSet, destinations_of
from spool.model import layout
from spool.model.xid import Xid
from spool.runtime.clock import Deadline, WaitExpired
from spool.runtime.tearing import raise_if_torn
from spool.store.store import Store

log = logging.getLogger("spool")


@dataclass(slots=True)
class Preparation:
    """The way of a branch's write set into ``prepared/``. The caller holds the byte of the branch's xid.

    file: the branch's file. The file may have a part of the messages already.
    check: a function that raises if the branch must not vote yes. It is called under the number lock.
    rooms: see ``log.commit.commit``.
    settled: whether ``check`` needs every issued commit to be applied. The process of a task has no index, so it would
        read every commit of the space again for each vote.
    is_listed, is_durable: whether the file has its name in ``prepared/``, and whether it is durable.
    """

    file: CommitFileWriter
    check: Callable[[], object] | None = None
    rooms: Rooms = no_rooms
    settled: bool = False
    is_listed: bool = False
    is_durable: bool = False


def vote_together(store: Store, write_sets: Sequence[WriteSet]) -> None:
    """Vote for the branches of these write sets. Afterwards each has its vote, or its error.

    If an exception interrupts this function, the thread of each listed branch calls ``finish_vote`` for its own branch.
    """
    listed: list[WriteSet] = []
    for one in write_sets:
        try:
            _list(store, one, one.preparation)
            one.preparation.is_listed = True
            listed += (one,)
        except Exception as error:
            raise_if_torn(error)
            one.error = error
    if listed[1:]:
        for one in listed:
            store.files.disk.begin_flush(one.preparation.file.handle)
    failed: FlushFailed | None = None
    for one in listed:
        failed = _make_durable(store, one, failed)


def finish_vote(store: Store, write_set: WriteSet) -> None:
    """Close the branch's file, and remove the file unless the branch has a vote.

    If the thread that voted for the branch was interrupted, make the vote durable.

    Raises:
        FileExistsError: a branch with that xid is prepared already.
        OSError: the vote could not be made durable, and was withdrawn.
        CommitUnknown: the vote could be neither made durable nor withdrawn.
        Exception: the exception of ``check``.
    """
    way: Preparation = write_set.preparation
    try:
        if write_set.error is None and not way.is_durable:
            _make_durable(store, write_set)
    finally:
        if way.is_listed:
            way.file.close()
        else:
            way.file.abandon()
    if write_set.error is not None:
        raise write_set.error


def _make_durable(store: Store, write_set: WriteSet, failed: FlushFailed | None = None) -> FlushFailed | None:
    """Make a vote durable, or withdraw it and set its error.

    ``failed``: an earlier flush that failed, or None. After a failed flush nothing is flushed, because the next flush
    may find no name to write, and so report no error. Returns the flush that failed.
    """
    error: OSError
    try:
        if failed is None:
            file = write_set.preparation.file
            assert file.handle is not None
            store.files.copies.flush_vote(file.xid, file.handle, stamped=file.recycled != "")
            write_set.preparation.is_durable = True
            return None
        error = copy.copy(failed)
    except OSError as raised:
        raise_if_torn(raised)
        error = raised
        if isinstance(raised, FlushFailed):
            failed = raised
            store.stop()
    write_set.error = _withdraw(store, write_set.preparation.file.xid, error)
    return failed


def _list(store: Store, write_set: WriteSet, way: Preparation) -> None:
    """Write the rest of the branch's file, give the file its name in ``prepared/``, and mark it as a vote."""
    file = way.file
    write(store, file, write_set, write_set.page, recycle=True, rooms=way.rooms)
    destinations = destinations_of(file.tables)
    if way.check is None:
        _rename(store, file, destinations)
    else:
        deadline = store.deadline()
        with settled(store, deadline) if way.settled else number_locked(store.shared.control, deadline):
            way.check()
            _rename(store, file, destinations)
    if file.recycled:
        assert file.handle is not None
        try:
            store.files.disk.write_at(file.handle, *stamp(VOTE | layout.origin_in(file.recycled)))
        except OSError as error:
            raise_if_torn(error)
            raise _withdraw(store, file.xid, error) from error


def _rename(store: Store, file: CommitFileWriter, destinations: Collection[str]) -> None:
    control = store.shared.control
    if not control.try_lock(PREPARED_LIST):
        control.lock(PREPARED_LIST, store.deadline(), "the list of prepared branches")
    try:
        page = store.shared.counters.read()
        check_destinations(store.settings.current(page), destinations)
        version = store.shared.counters.bump_prepared(page)
        store.files.disk.rename_new(file.name, layout.prepared(file.xid))
        with store.view.mutex:
            store.view.prepared.add(version, file.xid, file.contents(0))
    finally:
        control.unlock(PREPARED_LIST)


def _withdraw(store: Store, xid: Xid, why: OSError) -> Exception:
    """Delete a branch after its vote failed; return the error of the vote.

    The coordinator gets no vote, so it counts the branch as rolled back.
    """
    try:
        unlist(store, xid, store.deadline())
    except (OSError, WaitExpired) as error:
        raise_if_torn(error)
        text = f"branch {xid} could not be made durable ({why}) and is still listed ({error}): roll it back later"
        unknown = CommitUnknown(text)
        unknown.__cause__ = error
        return unknown
    return why


def unlist(store: Store, xid: Xid, deadline: Deadline) -> None:
    """Remove a prepared branch that was not committed."""
    with store.shared.control.holding(PREPARED_LIST, deadline, "the list of prepared branches"):
        store.shared.counters.bump_prepared(store.shared.counters.read())
        store.files.copies.withdraw_vote(xid)
        store.files.disk.unlink(layout.prepared(xid))
    store.shared.counters.arrivals.announce_all()  # the messages that the branch took are free


def unmark(store: Store, xid: Xid) -> None:
    """Remove the mark of a prepared branch durably, before the branch is rolled back.

    Otherwise two files could have the mark of a vote for one xid after a power cut, if the xid is used again. A branch
    without a mark has a durable name, or was not acknowledged. The caller holds the number lock.
    """
    disk = store.files.disk
    if not disk.durability.restores_names:
        return
    with opened(disk, layout.prepared(xid), write=True) as handle:
        if read_header(disk, handle).number >= VOTE:
            disk.write_at(handle, *stamp(0))
            try:
                disk.make_durable(handle, layout.PREPARED, stamped=True)
            except FlushFailed:
                store.stop()
                raise
