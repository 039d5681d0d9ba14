"""The groups of which one transaction at a time may have messages, as byte locks."""

from collections.abc import Collection

from spool.coordination.locks import LockFile, group_byte
from spool.model.position import Position, PositionRanges, positions

GroupName = tuple[str, str]  # queue, group


class GroupLocks:
    """The groups that one transaction holds. ``claims``: the list in which the transaction keeps its claims. (The
    branch itself would be a reference cycle, which lives until Python's collector runs.)"""

    __slots__ = ("_claims", "_held", "_locks", "names")

    def __init__(self, locks: LockFile, claims: PositionRanges) -> None:
        self._locks = locks
        self._claims = claims
        self._held: dict[GroupName, int] = {}
        self.names: Collection[GroupName] = self._held

    def claimed(self) -> set[Position]:
        """Return the positions of all messages that the transaction has claimed."""
        return set(positions(self._claims))

    def acquire(self, name: GroupName) -> bool:
        """Lock a group; False if another transaction holds it."""
        if name in self._held:
            return True
        byte = group_byte(*name)
        if not self._locks.try_lock(byte):
            return False
        self._held[name] = byte
        return True

    def release(self, but: Collection[GroupName] = ()) -> None:
        """Unlock all groups but these."""
        for name in [name for name in self._held if name not in but]:
            self._locks.unlock(self._held.pop(name))
