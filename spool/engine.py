"""The engine of an open space: what transactions, workers, the XA resource manager and the forwarder work with.

``Space.engine`` has it, for the packages that are built upon the library. Applications call the space's own methods.
"""

from functools import partial
from typing import NamedTuple, Self

from spool.log.group_commit import GroupCommit
from spool.maintenance.reclaim import reclaim
from spool.policies.claim_journal import Owners
from spool.store.store import Store


class Engine(NamedTuple):
    """One open space's parts.

    ``store``: the files, the shared counters and locks, and this process's index. ``group_commit``: what joins commits
    of threads and tasks. ``owners``: counts an attempt of the messages that a process held as it died.
    """

    store: Store
    group_commit: GroupCommit
    owners: Owners

    @classmethod
    def of(cls, store: Store) -> Self:
        """Make the engine of a new store. The store's guard closes the space; it also ends the group commit."""
        group_commit = GroupCommit(store, partial(reclaim, store))
        store.at_end[group_commit.end] = None
        return cls(store, group_commit, Owners(store))
