"""Which branch a message came with: its id is its branch's 96-bit id and its ordinal there.

Ids of one branch are a run, so they cost one entry a branch and none a message.
"""

from bisect import bisect_right


class Branches:
    """Of the messages that lie in runs. A branch's messages keep their distance, so where it begins says all."""

    def __init__(self) -> None:
        self.places: dict[bytes, tuple[int, int]] = {}  # id: (number, ordinal there of the branch's first message)
        self.in_number: dict[int, list[tuple[int, bytes, int]]] = {}  # (from this ordinal on, id, its first ordinal)

    def add(self, number: int, first: int, branch: bytes, begin: int) -> None:
        """From ordinal ``first`` of a commit on, messages are of that branch, which begins at ``begin``."""
        self.places[branch] = (number, begin)
        known = self.in_number.setdefault(number, [])
        at = bisect_right(known, first, key=_from)
        if not at or known[at - 1][1:] != (branch, begin):
            known.insert(at, (first, branch, begin))

    def of(self, number: int, ordinal: int) -> tuple[bytes, int]:
        """(branch id, ordinal in the branch)."""
        known = self.in_number[number]
        _, branch, begin = known[bisect_right(known, ordinal, key=_from) - 1]
        return branch, ordinal - begin

    def find(self, branch: bytes, ordinal: int) -> tuple[int, int] | None:
        """(number, ordinal in the commit) where a message may be."""
        number, begin = self.places.get(branch, (0, 0))
        if not number or self.of(number, begin + ordinal) != (branch, ordinal):
            return None
        return number, begin + ordinal

    def forget(self, number: int) -> None:
        """None of the commit's messages lies in a run any more."""
        for _, branch, _ in self.in_number.pop(number, ()):
            self.places.pop(branch, None)


def _from(entry: tuple[int, bytes, int]) -> int:
    return entry[0]
