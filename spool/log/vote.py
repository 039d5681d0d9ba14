"""The withdrawal of votes: of one that could not be made durable, and of one that is rolled back (Rule 7).

``log.write`` makes votes.
"""

from spool.coordination.locks import PREPARED_LIST
from spool.disk.content import opened
from spool.errors import CommitUnknown
from spool.format.header import VOTE, stamp
from spool.format.reader import read_header
from spool.model import layout
from spool.model.xid import Xid
from spool.runtime.async_exceptions import raise_if_torn
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.store import Store


def withdraw(store: Store, xid: Xid, why: OSError) -> Exception:
    """Delete a branch after its vote failed; return the error of the vote.

    The coordinator gets no vote, so it counts the branch as rolled back.
    """
    try:
        unlist(store, xid, store.deadline())
    except (OSError, WaitExpired) as error:
        raise_if_torn(error)
        text = f"branch {xid} could not be made durable ({why}) and is still listed ({error}): roll it back later"
        return unknown(text, error)
    return why


def unknown(text: str, cause: BaseException) -> CommitUnknown:
    """Return the error of a write whose outcome is unknown."""
    error = CommitUnknown(text)
    error.__cause__ = cause
    return error


def unlist(store: Store, xid: Xid, deadline: Deadline) -> None:
    """Remove a prepared branch that was not committed."""
    with store.shared.control.holding(PREPARED_LIST, deadline, "the list of prepared branches"):
        store.shared.counters.bump_prepared(store.shared.counters.read())
        store.files.copies.withdraw_vote(xid)
        store.files.disk.unlink(layout.prepared(xid))
    store.shared.counters.wakeups.announce_all()  # the messages that the branch took are free


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
            with store.stopping():
                disk.make_durable(handle, layout.PREPARED, stamped=True)
