"""Claims: a message held by one live transaction, as a byte lock that the kernel drops when the process dies.

The byte of message (number, ordinal) is ``number << 24 | ordinal`` in one of 64 files: a lock file's locks are a
list in the kernel, and 20,000 scattered ones in one file take forty times longer. Number 0 has no messages; its bytes
are the owners' (see ``claim_journal``): each claim file carries its owner's byte on the same descriptor, so the kernel
drops both at once: a process that wins a dead owner's claim finds the owner's byte free.

Of a group of messages one transaction at a time may have some: ``GroupLocks`` are those that it holds.
"""

import threading
from collections.abc import Collection

from spool.coordination.locks import LockFile, deleted_error, group_byte, open_shared
from spool.disk.disk import Disk
from spool.disk.stat import FileIdentity
from spool.errors import SpaceStopped
from spool.model import layout
from spool.model.layout import CLAIM_FILES, MAX_ORDINAL, ORDINAL_BITS
from spool.model.position import Position, PositionRanges, positions

_NAMES = tuple(map(layout.claim_file, range(CLAIM_FILES)))

GroupName = tuple[str, str]  # queue, group


class Claims:
    """The claims of this process. Nothing here waits: a claim is got at once or not at all.

    held: by number, the ordinals of the messages that this process has claimed.
    """

    def __init__(self, disk: Disk, *, make: bool) -> None:
        self.disk = disk
        if make:  # all at once: a file that is opened late and missing is known to be deleted
            for name in _NAMES:
                found = disk.identity(name)
                if found is None or not found.is_plain:
                    disk.close(open_shared(disk, name, make=True))
        self.owner = 0
        self._handles: dict[int, int] = {}
        self._identities: dict[int, FileIdentity] = {}
        self.held: dict[int, set[int]] = {}
        self._mutex = threading.Lock()

    def claim(self, number: int, first: int, count: int) -> list[tuple[int, int]]:
        """Claim a range of messages as far as it is free.

        Returns:
            (first, count) of the pieces that were claimed; what is claimed already is left out.

        Raises:
            SpaceStopped: the claim file is not the one under its name any more.
        """
        got: list[tuple[int, int]] = []
        index = number % CLAIM_FILES
        with self._mutex:
            handle = self._handles[index] if index in self._handles else self._handle(index)
            held = self.held.setdefault(number, set())
            start, end = first, first + count
            while start < end:
                stop = start
                while stop < end and stop not in held:
                    stop += 1
                if stop > start:
                    if self.disk.lock(handle, (number << ORDINAL_BITS) + start, stop - start):
                        got.append((start, stop - start))
                    else:
                        got += self._lock_range(handle, number, start, stop)
                start = stop + 1
            for piece, length in got:
                held.update(range(piece, piece + length))
            if not held:
                del self.held[number]
        if got:
            try:
                if not self.disk.same_file(_NAMES[index], self._identities[index]):
                    raise deleted_error(_NAMES[index])
            except BaseException:
                for piece, length in got:
                    self.release(number, piece, length)
                raise
        return got

    def _lock_range(self, handle: int, number: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Lock the ordinals from ``start`` to ``stop`` around what other processes hold; returns the pieces."""
        base = number << ORDINAL_BITS
        while start < stop:
            if self.disk.lock(handle, base + start, stop - start):
                return [(start, stop - start)]
            conflict = self.disk.some_lock(handle, base + start, stop - start)
            if conflict is not None:  # (else it was let go of between the two calls: try again)
                theirs, end = max(start, conflict[0] - base), min(stop, conflict[0] + conflict[1] - base)
                left = self._lock_range(handle, number, start, theirs)
                return left + self._lock_range(handle, number, end, stop)
        return []

    def release(self, number: int, first: int, count: int) -> None:
        """Release exactly a range that ``claim`` returned."""
        with self._mutex:
            self.disk.unlock(self._handles[number % CLAIM_FILES], (number << ORDINAL_BITS) + first, count)
            held = self.held[number]
            held.difference_update(range(first, first + count))
            if not held:
                del self.held[number]

    def become_owner(self, owner: int) -> None:
        """Take the owner's byte in every claim file, which tells its claim journals from a dead process's."""
        with self._mutex:
            for index in range(CLAIM_FILES):
                handle = self._handle(index)
                if not self.disk.lock(handle, owner):
                    raise SpaceStopped(
                        f"the owner number {owner} is in use: close the space in every process and open it again"
                    )
            self.owner = owner

    def is_owner_dead(self, owner: int, number: int) -> bool:
        """Whether the owner let go of the claim file of that number, by its death or by closing the space."""
        return owner != self.owner and self.disk.some_lock(self._handle(number), owner, 1) is None

    def claims_elsewhere(self) -> PositionRanges:
        """Return every claim of other processes."""
        found: PositionRanges = []
        for index in range(CLAIM_FILES):
            handle, unseen = self._handle(index), [(1 << ORDINAL_BITS, 2**63 - 1)]
            while unseen:
                start, end = unseen.pop()
                lock = self.disk.some_lock(handle, start, end - start) if start < end else None
                if lock is not None:
                    first, count = max(start, lock[0]), lock[1]
                    found.append((first >> ORDINAL_BITS, first & MAX_ORDINAL, count))
                    unseen += [(start, first), (first + count, end)]
        return found

    def numbers(self) -> set[int]:
        """Return the numbers of the commits of which any process has claimed messages."""
        return {number for number, _ in self._held_here()} | {number for number, _, _ in self.claims_elsewhere()}

    def positions(self) -> set[Position]:
        """Return the messages that any process has claimed, this one included."""
        return {*self._held_here(), *positions(self.claims_elsewhere())}

    def _held_here(self) -> list[Position]:
        with self._mutex:
            return [Position(number, ordinal) for number, held in self.held.items() for ordinal in held]

    def _handle(self, number: int) -> int:
        index = number % CLAIM_FILES
        handle = self._handles.get(index)
        if handle is None:
            handle = open_shared(self.disk, _NAMES[index], make=False)
            self._identities[index] = self.disk.handle_identity(handle)
            self._handles[index] = handle
        return handle


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
