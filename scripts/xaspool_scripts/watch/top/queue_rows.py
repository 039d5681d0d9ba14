"""The figures of ``spool-admin top``: rates, latencies, troubles in words, and a row for each queue. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spool.model.settings import STATE, WORK
from spool.watch.health import Cause, Rates, queue_causes, rates_between, troubles
from spool.watch.histograms import Histogram
from spool.watch.sentences import told
from spool.watch.units import size
from xaspool_scripts.watch.top.texts import cut, number, old, rate

if TYPE_CHECKING:
    from spool import QueueStats, SpaceMetrics

_NAMED = 60  # the most columns of a name in a sentence
_QUARANTINE, _TRANSACTIONS = "spool-admin quarantine list", "spool-admin transaction list"
_COMMANDS = {
    Cause.DAMAGE: _QUARANTINE, Cause.QUARANTINE: _QUARANTINE, Cause.REFUSED: _QUARANTINE,
    Cause.IN_DOUBT: _TRANSACTIONS, Cause.DECISIONS: _TRANSACTIONS, Cause.UNREADABLE: "spool-admin check",
}  # fmt: skip
_WORST_LAST = list(Cause)[::-1]


@dataclass(frozen=True)
class Sample:
    """The metrics of one moment.

    moment: the monotonic time of the read in seconds; for published metrics, the time of the publication.
    """

    metrics: "SpaceMetrics"
    moment: float


@dataclass(frozen=True)
class TopRow:
    """A queue. ``troubles``: the causes of its troubles, with the worst first."""

    name: str
    stats: "QueueStats"
    rates: Rates
    troubles: tuple[Cause, ...]
    role: str = WORK


# -- rates and latencies -----------------------------------------------------------------------------------------------


def queue_rates(new: Sample, old_sample: Sample | None) -> dict[str, Rates]:
    """Return the rates of each queue between two samples."""
    if old_sample is None or new.moment <= old_sample.moment:
        return {}
    before, seconds = old_sample.metrics.queues, new.moment - old_sample.moment
    queues = new.metrics.queues.items()
    return {name: rates_between(before[name], now, seconds) for name, now in queues if name in before}


def total_rates(rates: Mapping[str, Rates]) -> Rates:
    """Return the sums of the rates of all queues."""
    if not rates:
        return Rates()
    return Rates(*(sum(each or 0.0 for each in column) for column in zip(*rates.values(), strict=True)))


def quantiles(now: Histogram, before: Histogram) -> tuple[float | None, float | None]:
    """Return the upper bounds of the median and of the 99th percentile, in seconds.

    The bounds are computed from the durations between two reads, or without such durations, from all of ``now``.
    """
    counted = Histogram(now.buckets - before.buckets or now.buckets)
    return counted.quantile(0.5), counted.quantile(0.99)


# -- troubles ----------------------------------------------------------------------------------------------------------


def make_rows(metrics: "SpaceMetrics", rates: Mapping[str, Rates]) -> list[TopRow]:
    """Return a row for each queue."""
    causes = queue_causes(metrics, rates)
    return [
        TopRow(name, stats, rates.get(name, Rates()), causes.get(name, ()), metrics.roles.get(name, WORK))
        for name, stats in metrics.queues.items()
    ]


def findings(metrics: "SpaceMetrics", rates: Mapping[str, Rates], now: float) -> list[str]:
    """Return the sentences of the verdict, with the worst first, and with the commands for the next steps."""
    return [
        f"{sentence.removesuffix('.')}: {_COMMANDS[trouble.cause]}" if trouble.cause in _COMMANDS else sentence
        for trouble, sentence in told(troubles(metrics, now, rates), lambda name: cut(name, _NAMED))
    ]


# -- columns and order -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the queues.

    order: the value by which the rows are sorted, with the greatest first unless ``is_ascending``.
    text: the text of a cell.
    """

    name: str
    width: int
    order: Callable[[TopRow], float | str | tuple[float, ...]]
    text: Callable[[TopRow], str]
    is_ascending: bool = False


def _trouble_order(row: TopRow) -> tuple[float, ...]:
    rank = _WORST_LAST.index(row.troubles[0]) if row.troubles else -1
    return (rank, row.stats.oldest_age or 0.0, row.stats.ready)


# The columns in the order of the picture. The first column is the default order.
COLUMNS = (
    Column("trouble", 10, _trouble_order, lambda row: row.troubles[0].value if row.troubles else ""),
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
# An order by the rate of puts and gets together. No picture has this column.
RATE = Column("rate", 0, lambda row: (row.rates.enqueued or 0) + (row.rates.dequeued or 0), lambda row: "")
_ORDERS = {column.name: column for column in (COLUMNS[0], NAME, *COLUMNS[1:], RATE)}
SORTABLE = tuple(_ORDERS)


def ordered(rows: list[TopRow], sort: str, *, is_reversed: bool) -> list[TopRow]:
    """Return the rows in an order of ``SORTABLE``, but state queues last. Rows that are equal in this order are sorted
    by name."""
    column = _ORDERS[sort]
    by_name = sorted(rows, key=lambda row: row.name)
    in_order = sorted(by_name, key=column.order, reverse=column.is_ascending == is_reversed)
    return sorted(in_order, key=lambda row: row.role == STATE)
