"""Failures by kind: what a thousand messages failed of is a few kinds, and a few lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_MOST_KINDS = 100
_OTHERS = "others"


class Failure(NamedTuple):
    """A kind of failure. ``reason``: the last one of it."""

    effect: str
    reason: str
    messages: int


@dataclass
class Failures:
    """Failures of one queue; reasons that differ in numbers only are of one kind, and so are all after the first
    hundred kinds."""

    kinds: dict[tuple[str, str], Failure] = field(default_factory=dict)

    def add(self, effect: str, reason: str, messages: int = 1) -> bool:
        """Whether it is the first of its kind."""
        kind = str(effect), re.sub(r"[0-9]+", "0", reason)
        if len(self.kinds) >= _MOST_KINDS and kind not in self.kinds:
            kind = str(effect), _OTHERS
        before = self.kinds.get(kind)
        self.kinds[kind] = Failure(kind[0], reason, messages + (before.messages if before else 0))
        return before is None

    def merge(self, other: "Failures") -> list[Failure]:
        """Add all of the other's; returns those whose kind is new."""
        return [failure for failure in other if self.add(*failure)]

    def last(self, effect: str) -> str | None:
        """The reason of the kind that came last with that effect."""
        return next((failure.reason for failure in reversed(list(self)) if failure.effect == effect), None)

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.kinds.values())
