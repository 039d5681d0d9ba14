"""The figures of ``spool-admin top``: rates, latencies, troubles in words, and a row for each queue. Pure.

A rate is the difference of two successive samples. A count can become smaller, because a queue was deleted and created
again; its rate is then 0.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xaspool_scripts.top_texts import cut, number, old, rate, size
from xaspool_scripts.wording import plural

if TYPE_CHECKING:
    from spool import OpenTransaction, QueueStats, SpaceMetrics

Counts = Mapping[tuple[str, ...], int]

LATE_SECONDS = 300.0  # a queue is in trouble if its oldest ready message is older
STALE_SECONDS = 30.0  # published metrics are written every few seconds
_FEW_INODES = 1_000
_RECENT_SECONDS = 86_400.0  # the header names a recovery of the last day only
_NAMED = 60  # columns of a name in a sentence
_REFUSED = "refused"  # the reason of a dropped file that cannot become messages
_HISTOGRAMS = ("commit_seconds", "flush_seconds")


@dataclass(frozen=True)
class Sample:
    """The metrics of one moment.

    moment: the time of the reading, in seconds, by a clock that differs between two samples as time does.
    """

    metrics: "SpaceMetrics"
    moment: float


@dataclass(frozen=True)
class Rates:
    """Numbers per second. None: two samples are missing."""

    put: float | None = None
    taken: float | None = None
    failed: float | None = None


@dataclass(frozen=True)
class Row:
    """A queue. ``troubles``: words for its troubles, the worst first. ``rank``: 0 without trouble."""

    name: str
    stats: "QueueStats"
    rates: Rates
    troubles: tuple[str, ...]
    rank: int


# -- rates and latencies -----------------------------------------------------------------------------------------------


def per_second(now: float, before: float | None, seconds: float) -> float:
    """Return the rate of a count. ``before``: None if the count did not exist."""
    return max(0.0, now - (before or 0)) / seconds


def queue_rates(new: Sample, old_sample: Sample | None) -> dict[str, Rates]:
    """Return the rates of each queue between two samples."""
    seconds = new.moment - old_sample.moment if old_sample is not None else 0.0
    if old_sample is None or seconds <= 0:
        return {}
    found = {}
    for name, now in new.metrics.queues.items():
        if (was := old_sample.metrics.queues.get(name)) is not None:
            found[name] = Rates(
                per_second(now.enqueued, was.enqueued, seconds),
                per_second(now.dequeued, was.dequeued, seconds),
                per_second(now.failed, was.failed, seconds),
            )
    return found


def total_rates(rates: Mapping[str, Rates]) -> Rates:
    """Return the sums of the rates of all queues."""
    if not rates:
        return Rates()
    every = rates.values()
    return Rates(
        sum(each.put or 0 for each in every),
        sum(each.taken or 0 for each in every),
        sum(each.failed or 0 for each in every),
    )


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


def down_routes(metrics: "SpaceMetrics") -> list[tuple[str, str]]:
    """Return the queue and the service of each route whose service cannot be reached."""
    found = ((key, value) for key, value in metrics.states.items() if len(key) == 3 and value > 0)
    return sorted((key[1], key[2]) for key, _ in found if key[0] == "route_down")


def error_queues(metrics: "SpaceMetrics") -> set[str]:
    """Return the queues to which failed messages move."""
    return {role.error_queue for role in metrics.roles.values() if role.error_queue is not None}


def make_rows(metrics: "SpaceMetrics", rates: Mapping[str, Rates]) -> list[Row]:
    """Return a row for each queue."""
    errors, down = error_queues(metrics), {queue for queue, _ in down_routes(metrics)}
    rows = []
    for name, stats in metrics.queues.items():
        here = rates.get(name, Rates())
        kinds = (
            ("quarantine", stats.quarantined > 0), ("in doubt", stats.in_doubt > 0), ("route down", name in down),
            ("errors", name in errors and stats.ready > 0), ("failing", bool(here.failed)),
            ("late", (stats.oldest_age or 0.0) > LATE_SECONDS and name not in errors),
        )  # fmt: skip
        troubles = tuple(word for word, is_so in kinds if is_so)
        rank = next((len(kinds) - place for place, (_, is_so) in enumerate(kinds) if is_so), 0)
        rows.append(Row(name, stats, here, troubles, rank))
    return rows


def findings(metrics: "SpaceMetrics", rows: list[Row], now: float, *, is_published: bool) -> list[str]:
    """Describe the troubles of the space as sentences, the worst first."""
    return [
        *_of_the_space(metrics, now, is_published),
        *_of_transactions(metrics, now),
        *(f"The service {cut(service, _NAMED)} of queue {cut(queue, _NAMED)} is down."
          for queue, service in down_routes(metrics)),
        *_of_queues(rows),
        *_of_the_disk(metrics),
        *_of_decisions(metrics),
        *_of_recovery(metrics, now),
    ]  # fmt: skip


def _of_the_space(metrics: "SpaceMetrics", now: float, is_published: bool) -> Iterator[str]:
    if metrics.is_stopped:
        yield ("The space is STOPPED: a flush failed, and no process can commit. End all its programs, check the disk "
               "(dmesg), and run spool-recover.")  # fmt: skip
    if is_published and now - metrics.at > STALE_SECONDS:
        yield f"The published metrics are {old(now - metrics.at)} old: no process has the space open, or it hangs."
    if metrics.damaged:
        yield f"{plural(metrics.damaged, 'file')} in quarantine had acknowledged messages: spool-admin quarantine list"


def _of_transactions(metrics: "SpaceMetrics", now: float) -> Iterator[str]:
    doubts = [each for each in metrics.transactions if each.state == "in doubt"]
    if metrics.in_doubt:
        since = min((each.since for each in doubts if each.since is not None), default=None)
        age = "" if since is None else f", the oldest for {old(now - since)}"
        yield f"{plural(metrics.in_doubt, 'transaction')} in doubt{age}: the coordinator has not decided."


def _of_queues(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if "errors" in row.troubles:
            yield f"The error queue {cut(row.name, _NAMED)} has {plural(row.stats.ready, 'message')}."
    late = [row for row in rows if "late" in row.troubles]
    if late:
        worst = max(late, key=lambda row: row.stats.oldest_age or 0.0)
        others = f"; {plural(len(late) - 1, 'other queue')} also late" if len(late) > 1 else ""
        waited = old(worst.stats.oldest_age)
        yield f"The oldest message of queue {cut(worst.name, _NAMED)} has waited for {waited}{others}."


def _of_the_disk(metrics: "SpaceMetrics") -> Iterator[str]:
    backlog = sum(stats.bytes for stats in metrics.queues.values())
    if metrics.free_bytes < 2 * backlog:
        yield f"The disk has {size(metrics.free_bytes)} free, less than twice the backlog of {size(backlog)}."
    if metrics.free_inodes is not None and metrics.free_inodes < _FEW_INODES:
        yield f"The disk has only {plural(metrics.free_inodes, 'inode')} free."


def _of_decisions(metrics: "SpaceMetrics") -> Iterator[str]:
    if metrics.decisions:
        named = plural(len(metrics.decisions), "decision")
        yield f"No coordinator has acknowledged {named} of an administrator yet: spool-admin transaction list"


def _of_recovery(metrics: "SpaceMetrics", now: float) -> Iterator[str]:
    record = metrics.recovery
    if record is not None and now - record.at < _RECENT_SECONDS:
        yield f"The recovery {old(now - record.at)} ago reported {plural(len(record.findings), 'finding')}."
    others = metrics.quarantined - metrics.damaged
    if others > 0:
        refused = sum(finding.reason == _REFUSED for finding in metrics.quarantine)
        kind = "refused file" if refused == others else "other file" if metrics.damaged else "file"
        yield f"{plural(others, kind)} in quarantine: spool-admin quarantine list"


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
    Column("trouble", 10, _rank, lambda row: row.troubles[0] if row.troubles else ""),
    Column("ready", 6, lambda row: row.stats.ready, lambda row: number(row.stats.ready)),
    Column("age", 6, lambda row: row.stats.oldest_age or -1.0, lambda row: old(row.stats.oldest_age)),
    Column("in/s", 6, lambda row: row.rates.put or 0.0, lambda row: rate(row.rates.put)),
    Column("out/s", 6, lambda row: row.rates.taken or 0.0, lambda row: rate(row.rates.taken)),
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
        return sorted(by_name, key=lambda row: -((row.rates.put or 0) + (row.rates.taken or 0)), reverse=is_reversed)
    column = next((each for each in (NAME, *COLUMNS) if each.name == sort), COLUMNS[0])
    return sorted(by_name, key=column.order, reverse=column.is_ascending == is_reversed)


def identity(transaction: "OpenTransaction") -> tuple[object, ...]:
    """Return the values by which a transaction is found again in the next sample."""
    return (transaction.state, transaction.xid, transaction.pid, transaction.program, transaction.since)
