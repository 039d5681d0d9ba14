"""The core of an open space, for its transactions. ``spool.engine`` is the interface for other packages."""

from functools import partial
from typing import NamedTuple, Protocol, Self

from spool.log.leader import Leader
from spool.maintenance.disk_space import rooms
from spool.policies.attempt_journal import Journal, Owners
from spool.store.store import Store


class Core(NamedTuple):
    """The parts of an open space that transactions use.

    store: the files, the shared counters and locks, and this process's index.
    leader: joins the commits of threads and tasks.
    owners: counts an attempt for each message that a process held when it died.
    journal: the attempts of this process that are in progress.
    """

    store: Store
    leader: Leader
    owners: Owners
    journal: Journal

    @classmethod
    def of(cls, store: Store) -> Self:
        """Create the core of a new store. When the store's guard closes the space, the leader also ends."""
        leader = Leader(store, partial(rooms, store))
        store.at_end[leader.end] = None
        journal = Journal(store)
        store.before_end[journal.close] = None
        return cls(store, leader, Owners(store, partial(rooms, store)), journal)


class HasCore(Protocol):
    """The part of ``spool.Space`` that this package and the packages above it use."""

    _core: Core


def core_of(opened: HasCore) -> Core:
    """Return the core of an open space, for modules of ``spool``."""
    return opened._core
