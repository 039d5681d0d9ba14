"""Count failures by kind, so that a thousand failed messages are reported in a few lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_KINDS = 100
_OTHERS = "others"


class Failure(NamedTuple):
    """A kind of failure, with its last reason and the number of its messages."""

    effect: str
    reason: str
    messages: int


@dataclass
class Failures:
    """The failures of one queue.

    Reasons that differ only in digits are one kind. After the first hundred kinds, all other failures are one kind.
    """

    kinds: dict[tuple[str, str], Failure] = field(default_factory=dict)

    def add(self, effect: str, reason: str, messages: int = 1) -> bool:
        """Count a failure; return whether the failure is the first of its kind."""
        kind = str(effect), re.sub(r"[0-9]+", "0", reason)
        if len(self.kinds) >= _MAX_KINDS and kind not in self.kinds:
            kind = str(effect), _OTHERS
        before = self.kinds.get(kind)
        self.kinds[kind] = Failure(kind[0], reason, messages + (before.messages if before else 0))
        return before is None

    def merge(self, other: "Failures") -> list[Failure]:
        """Add all failures of `other`; return the failures whose kind is new here."""
        return [failure for failure in other if self.add(*failure)]

    def last(self, effect: str) -> str | None:
        """Return the reason of the newest kind of failure with the given effect, or None."""
        return next((failure.reason for failure in reversed(list(self)) if failure.effect == effect), None)

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.kinds.values())
