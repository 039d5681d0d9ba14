"""Numbers of one contender, and what becomes of them: least, median, most; ratios of medians."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """What was measured of one contender, several times, in one unit. ``durable``: None where that says nothing."""

    who: str
    samples: Sequence[float]
    unit: str
    durable: bool | None = None

    @property
    def low(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def high(self) -> float:
        return max(self.samples)

    def spread(self) -> str:
        """The three of them, e.g. ``120 / 4,100 / 5,200``."""
        return " / ".join(number(value) for value in (self.low, self.median, self.high))

    def __str__(self) -> str:
        return f"{self.who} {self.spread()} {self.unit}"


def number(value: float) -> str:
    """With three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1g}"


def ratio(over: Figure, under: Figure) -> float:
    """Of the medians."""
    return over.median / under.median if under.median else float("inf")


def in_turns(steps: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each contender does one step a round, alternately, so that noise hits all alike; what each step returned."""
    found: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            found[who].append(step())
    return found
