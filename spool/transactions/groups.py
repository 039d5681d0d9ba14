"""Groups: messages of one group are delivered one at a time and in order, groups beside each other.

A queue that is ``ordered`` is one group. A group is held as a byte lock from the claim of its first message to the end
of the transaction that has it, so the kernel lets go of it with a process that dies. By its id or correlation id a
message is taken out of order, yet never while somebody else has its group.
"""

from collections.abc import Collection

from spool.coordination.locks import LockFile, group_byte
from spool.model.ranges import Ranges, positions

Name = tuple[str, str]  # queue, group


class GroupHolds:
    """The groups that one transaction has. ``claims``: the list in which it keeps its claims, as they come and go. (Not
    the transaction's branch itself, for a cycle would live until Python looks for those.)"""

    __slots__ = ("_claims", "_held", "_locks", "names")

    def __init__(self, locks: LockFile, claims: Ranges) -> None:
        self._locks = locks
        self._claims = claims
        self._held: dict[Name, int] = {}
        self.names: Collection[Name] = self._held.keys()

    def claims(self) -> set[tuple[int, int]]:
        """The messages that it has, each on its own."""
        return set(positions(self._claims))

    def hold(self, name: Name) -> bool:
        """Whether the group is this transaction's now."""
        if name in self._held:
            return True
        byte = group_byte(*name)
        if not self._locks.try_lock(byte):
            return False
        self._held[name] = byte
        return True

    def let_go(self, but: Collection[Name] = ()) -> None:
        """Of all but these."""
        for name in [name for name in self._held if name not in but]:
            self._locks.unlock(self._held.pop(name))
