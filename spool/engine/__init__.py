"""The interface of the engine, for its users: the packages ``xa``, the forwarder and the programs.

``engine`` has the verbs for an open space; ``remote`` has the verbs for processes that have not opened the space.
"""

from spool.admin.in_doubt import InDoubt
from spool.coordination.resumptions import READ_SECONDS, Resumptions
from spool.disk.advice import is_directory
from spool.disk.stat import is_same_original
from spool.engine.engine import BranchExists, Decision, Engine, RoomLeft, examine, examine_kind, local_file_system
from spool.index.commit import Subscription
from spool.log.adoption import UnknownBranch
from spool.runtime.call_guard import deferred
from spool.runtime.clock import Clock, WaitExpired
from spool.runtime.context import Joinable
from spool.store.meters import duration_keys
from spool.transactions.coordinated import CoordinatedTransaction

__all__ = [
    "READ_SECONDS", "BranchExists", "Clock", "CoordinatedTransaction", "Decision", "Engine", "InDoubt", "Joinable",
    "Resumptions", "RoomLeft", "Subscription", "UnknownBranch", "WaitExpired", "deferred", "duration_keys", "examine",
    "examine_kind", "is_directory", "is_same_original", "local_file_system",
]  # fmt: skip
