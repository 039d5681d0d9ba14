"""The numbers of one contender: least, median and greatest value; and ratios of medians."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """Several measurements of one contender in one unit. ``durable``: None if durability does not apply."""

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
        """Return least, median and greatest value as text, e.g. ``120 / 4,100 / 5,200``."""
        return " / ".join(number(value) for value in (self.low, self.median, self.high))

    def __str__(self) -> str:
        return f"{self.who} {self.spread()} {self.unit}"


def number(value: float) -> str:
    """Return a number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1g}"


def ratio(over: Figure, under: Figure) -> float:
    """Return the ratio of the medians."""
    return over.median / under.median if under.median else float("inf")


def in_turns(steps: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Let each contender make one step per round, so that noise affects all alike; return the results of the steps."""
    found: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            found[who].append(step())
    return found
