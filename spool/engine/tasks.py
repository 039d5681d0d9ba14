"""The verbs of processes that have not opened the space, e.g. of the tasks of a Spark job.

Such a process has no index and takes no claims. It reads messages at places that a process with the space open has
listed, and writes a branch, which the coordinator's process commits.

* ``RemoteBranch``: one branch of a coordinator. It reads the messages that the coordinator holds, records puts and
  outcomes, and votes.
* ``reader``: reads messages in bulk without taking them; the places come from ``Engine.backlog``.
* ``Stretch``, ``cut``: neighbouring messages with their place, and a function that divides stretches into parts.
* ``Coordinator``, ``BatchOf``, ``Backlog``: types that ``Engine`` takes and returns.
"""

from collections.abc import Callable

from spool.disk.advice import space_of
from spool.disk.disk import Disk
from spool.index.stretch import Stretch, cut
from spool.policies.applications import BatchOf
from spool.policies.claim_journal import CallMarks
from spool.reading.backlog import Backlog, CommitSize
from spool.reading.places import Item, Missing
from spool.reading.reader import MessageReader, OpenedSpace, ReadMessages
from spool.remote.branch import DamagedMessage, ReadMessage, RemoteBranch, Vote, check_place, identity_of
from spool.remote.coordinator import Coordinator

__all__ = [
    "Backlog", "BatchOf", "CallMarks", "CommitSize", "Coordinator", "DamagedMessage", "Item", "MessageReader",
    "Missing", "ReadMessage", "ReadMessages", "RemoteBranch", "Stretch", "Vote", "boot_id", "check_place", "cut",
    "identity_of", "reader", "space_of",
]  # fmt: skip


def boot_id() -> str:
    """Return the id of this boot of this machine. No other machine, and no other boot, has the same id."""
    return Disk(".").boot_id()


def reader(
    path: str,
    open_space: Callable[[], OpenedSpace],
    *,
    with_body: bool,
    missing: Missing = Missing.RELOCATE,
    largest_body: int | None = None,
) -> MessageReader:
    """Return a reader of messages at their places, for a process that has not opened the space; the caller closes it.

    Args:
        path: the directory of the space.
        open_space: opens the space; called when a message is not at its place.
        with_body: whether the reader reads bodies.
        missing: the action for messages that are not at their places.
        largest_body: the size, in bytes, of the largest body that the caller accepts; None: no limit.
    """
    return MessageReader(Disk(path), open_space, with_body=with_body, missing=missing, largest_body=largest_body)
