"""Commits by the engine itself, outside of the leader: each in its own file, and raising its error.

``commit`` commits what streamed to its own file; ``commit_batch`` and ``commit_if`` commit changes that no caller has
asked for, e.g. counted attempts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Unpack

from spool.coordination.locks import xid_byte
from spool.log.commit_file import CommitFileWriter
from spool.log.visibility import apply_up_to
from spool.log.write import Conditions, Write, write
from spool.log.write_set import WriteSet
from spool.model.xid import new_local_xid
from spool.runtime.clock import Deadline
from spool.store.store import Store


def commit(store: Store, file: CommitFileWriter, batch: WriteSet, **conditions: Unpack[Conditions]) -> int:
    """Write a batch into its own file, as a commit or as a vote, and return the number. The caller holds the byte of
    the file's xid.

    ``conditions``: see ``log.write.Conditions``.

    Raises:
        CommitUnknown: a step failed after the number was issued. After any other error nothing has happened.
        LockTimeout, WaitExpired: a lock did not become free in time.
        Overtaken: the batch supersedes commits, and other processes commit too fast.
    """
    batch.file = file
    write(Write(store, [batch], file, **conditions))
    if batch.error is not None:
        raise batch.error
    assert batch.number is not None
    return batch.number


@contextmanager
def own_file(store: Store, deadline: Deadline, supersedes: int = 0) -> Iterator[CommitFileWriter]:
    """Create a file in ``active/`` and hold the byte of its xid; at the end an uncommitted file is removed.

    Args:
        supersedes: the greatest number of commits that the file will supersede. The header has the numbers of these
            commits, and is written last, under the number lock. If the header became too large for its reserved space,
            all sections would have to move.
    """
    xid = new_local_xid()
    with store.shared.xids.holding(xid_byte(xid), deadline, f"the branch {xid}"):
        file = CommitFileWriter(store.files.disk, xid, (16 << 10) + 10 * supersedes if supersedes else None)
        try:
            yield file
        finally:
            if file.number is None:
                file.abandon()


def commit_batch(store: Store, batch: WriteSet, deadline: Deadline, **conditions: Unpack[Conditions]) -> int:
    """Commit a batch of the engine itself, outside of any transaction; return the number.

    Afterwards the index of this process has the commit. For the arguments and errors, see ``commit``.
    """
    conditions["seconds"] = deadline.seconds
    with own_file(store, deadline) as file:
        number = commit(store, file, batch, **conditions)
    apply_up_to(store, number)  # (a space that stops now makes the commit no failure)
    return number


class _Outdated(Exception):
    """The condition of ``commit_if`` does not hold any more."""


def commit_if(store: Store, batch: WriteSet, holds: Callable[[], bool]) -> int | None:
    """Commit a batch as ``commit_batch`` does, with a flush, if a condition holds; return the number, or None.

    The condition is checked under the number lock, once every issued commit is applied. So no other commit can change
    the result.
    """

    def check(_: object) -> None:
        if not holds():
            raise _Outdated

    try:
        return commit_batch(store, batch, store.deadline(), flush=True, check=check, settled=True)
    except _Outdated:
        return None
