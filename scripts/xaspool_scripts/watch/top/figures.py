"""The figures of ``spool-admin top``: rates, latencies, troubles in words, and a row for each queue. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spool.watch.health import Cause, Rates, queue_causes, rates_between, troubles
from spool.watch.sentences import told
from spool.watch.units import size
from xaspool_scripts.watch.top.texts import cut, number, old, rate

if TYPE_CHECKING:
    from spool import QueueStats, SpaceMetrics

Counts = Mapping[tuple[str, ...], int]

_NAMED = 60  # columns of a name in a sentence
_QUARANTINE, _TRANSACTIONS = "spool-admin quarantine list", "spool-admin transaction list"
_COMMANDS = {
    Cause.DAMAGE: _QUARANTINE, Cause.QUARANTINE: _QUARANTINE, Cause.REFUSED: _QUARANTINE,
    Cause.IN_DOUBT: _TRANSACTIONS, Cause.DECISIONS: _TRANSACTIONS,
}  # fmt: skip
_HISTOGRAMS = ("commit_seconds", "flush_seconds")


_RANKS = list(Cause)


@dataclass(frozen=True)
class Sample:
    """The metrics of one moment.

    moment: the time of the reading, in seconds, by a clock that differs between two samples as time does.
    """

    metrics: "SpaceMetrics"
    moment: float


@dataclass(frozen=True)
class Row:
    """A queue. ``troubles``: the causes of its troubles, the worst first."""

    name: str
    stats: "QueueStats"
    rates: Rates
    troubles: tuple[Cause, ...]

    @property
    def rank(self) -> int:
        """The place in the order of troubles; 0 without trouble."""
        return len(_RANKS) - _RANKS.index(self.troubles[0]) if self.troubles else 0


# -- rates and latencies -----------------------------------------------------------------------------------------------


def queue_rates(new: Sample, old_sample: Sample | None) -> dict[str, Rates]:
    """Return the rates of each queue between two samples."""
    seconds = new.moment - old_sample.moment if old_sample is not None else 0.0
    if old_sample is None or seconds <= 0:
        return {}
    before = old_sample.metrics.queues
    queues = new.metrics.queues.items()
    return {name: rates_between(before[name], now, seconds) for name, now in queues if name in before}


def total_rates(rates: Mapping[str, Rates]) -> Rates:
    """Return the sums of the rates of all queues."""
    if not rates:
        return Rates()
    return Rates(*(sum(each or 0.0 for each in column) for column in zip(*rates.values(), strict=True)))


def durations(counts: Counts) -> dict[tuple[str, ...], int]:
    """Return the histograms of commits and flushes: the count of each bucket."""
    return {key: count for key, count in counts.items() if len(key) == 2 and key[0] in _HISTOGRAMS}


def quantiles(now: Counts, before: Counts, name: str) -> tuple[float | None, float | None]:
    """Return the upper bounds of the median and of the 99th percentile, in seconds.

    The histogram has the durations between two readings; if there are none, all durations of ``now``.
    """
    everything = _buckets(now, name)
    recent = {bound: max(0, count - before.get((name, label), 0)) for bound, (label, count) in everything.items()}
    counted = recent if any(recent.values()) else {bound: count for bound, (_, count) in everything.items()}
    return _quantile(counted, 0.5), _quantile(counted, 0.99)


def _buckets(counts: Counts, name: str) -> dict[float, tuple[str, int]]:
    """Return the label and the count of each bucket, by its upper bound, in ascending order."""
    found = {}
    for key, count in counts.items():
        if len(key) == 2 and key[0] == name and count > 0:
            try:
                found[float(key[1])] = (key[1], count)
            except ValueError:
                continue  # the sum of all durations
    return dict(sorted(found.items()))


def _quantile(counted: Mapping[float, int], share: float) -> float | None:
    total, seen = sum(counted.values()), 0
    for bound, count in counted.items():
        seen += count
        if count and seen >= share * total:
            return bound
    return None


# -- troubles ----------------------------------------------------------------------------------------------------------


def make_rows(metrics: "SpaceMetrics", rates: Mapping[str, Rates]) -> list[Row]:
    """Return a row for each queue."""
    causes = queue_causes(metrics, rates)
    return [Row(name, stats, rates.get(name, Rates()), causes.get(name, ())) for name, stats in metrics.queues.items()]


def findings(metrics: "SpaceMetrics", rates: Mapping[str, Rates], now: float) -> list[str]:
    """Return the sentences of the verdict, the worst first, with the commands of the next steps."""
    return [
        f"{sentence.removesuffix('.')}: {_COMMANDS[trouble.cause]}" if trouble.cause in _COMMANDS else sentence
        for trouble, sentence in told(troubles(metrics, now, rates), lambda name: cut(name, _NAMED))
    ]


# -- columns and order -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the queues.

    order: the value by which the rows are sorted, the greatest first unless ``is_ascending``.
    text: the text of a cell.
    """

    name: str
    width: int
    order: Callable[[Row], float | str | tuple[float, ...]]
    text: Callable[[Row], str]
    is_ascending: bool = False


def _rank(row: Row) -> tuple[float, ...]:
    return (row.rank, row.stats.oldest_age or 0.0, row.stats.ready)


# In the order of the picture. The first is the default order.
COLUMNS = (
    Column("trouble", 10, _rank, lambda row: row.troubles[0].value if row.troubles else ""),
    Column("ready", 6, lambda row: row.stats.ready, lambda row: number(row.stats.ready)),
    Column("age", 6, lambda row: row.stats.oldest_age or -1.0, lambda row: old(row.stats.oldest_age)),
    Column("in/s", 6, lambda row: row.rates.enqueued or 0.0, lambda row: rate(row.rates.enqueued)),
    Column("out/s", 6, lambda row: row.rates.dequeued or 0.0, lambda row: rate(row.rates.dequeued)),
    Column("fail/s", 7, lambda row: row.rates.failed or 0.0, lambda row: rate(row.rates.failed)),
    Column("claimed", 8, lambda row: row.stats.claimed, lambda row: number(row.stats.claimed)),
    Column("doubt", 6, lambda row: row.stats.in_doubt, lambda row: number(row.stats.in_doubt)),
    Column("delayed", 8, lambda row: row.stats.delayed, lambda row: number(row.stats.delayed)),
    Column("bytes", 7, lambda row: row.stats.bytes, lambda row: size(row.stats.bytes)),
)
NAME = Column("queue", 12, lambda row: row.name, lambda row: row.name, is_ascending=True)
RATE = "rate"  # an order that is no column: puts and gets together
SORTABLE = ("trouble", "queue", *(column.name for column in COLUMNS[1:]), RATE)


def ordered(rows: list[Row], sort: str, *, is_reversed: bool) -> list[Row]:
    """Return the rows in an order of ``SORTABLE``. Rows that are equal in this order are sorted by name."""
    by_name = sorted(rows, key=lambda row: row.name)
    if sort == RATE:
        return sorted(
            by_name, key=lambda row: -((row.rates.enqueued or 0) + (row.rates.dequeued or 0)), reverse=is_reversed
        )
    column = next((each for each in (NAME, *COLUMNS) if each.name == sort), COLUMNS[0])
    return sorted(by_name, key=column.order, reverse=column.is_ascending == is_reversed)
