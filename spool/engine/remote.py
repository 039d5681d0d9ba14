"""The verbs of processes that have not opened the space, e.g. of the tasks of a Spark job.

A process that has not opened the space has no index, and takes no claims. Another process, which has the space open,
lists the places of messages. The process without an index reads the messages at these places, and writes a branch. Then
the coordinator's process commits the branch.

* ``RemoteBranch``: one branch of a coordinator. The branch reads the messages that the coordinator holds, records puts
  and outcomes, and votes.
* ``MessageReader``: reads messages in bulk without taking them. ``Engine.backlog`` returns the places of the messages.
* ``StoredRun``: neighbouring messages, with the places of the messages. ``cut``: a function that divides runs into
  parts.
* ``Coordinator``, ``BatchOf``, ``Backlog``: types that ``Engine`` takes and returns.
"""

from spool.disk.advice import space_of
from spool.disk.disk import Disk
from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace
from spool.index.commit import FileRef
from spool.index.stored_run import StoredRun, cut
from spool.policies.applications import BatchOf
from spool.policies.attempt_journal import CallMarks
from spool.reading.backlog import Backlog, CommitSize
from spool.reading.message_reader import MessageReader, ReadMessages
from spool.reading.places import Compacted, Item, Missing
from spool.remote.remote_branch import (
    DamagedMessage,
    EndedCall,
    ReadMessage,
    RemoteBranch,
    Vote,
    check_place,
    decoded,
    identity_of,
    origin_of,
    without_body,
)
from spool.transactions.coordinated import Coordinator

__all__ = [
    "Backlog", "BatchOf", "BodyPlace", "CallMarks", "CommitSize", "Compacted", "Coordinator", "DamagedMessage",
    "EndedCall", "FileRef", "Item", "MessageReader", "Missing", "ReadMessage", "ReadMessages", "RemoteBranch",
    "SectionEntry", "StoredRun", "Vote", "boot_id", "check_place", "cut", "decoded", "identity_of", "origin_of",
    "space_of", "without_body",
]  # fmt: skip


def boot_id() -> str:
    """Return the id of this boot of this machine. No other machine, and no other boot, has the same id."""
    return Disk(".").boot_id()
