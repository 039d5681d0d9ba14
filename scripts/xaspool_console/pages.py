"""The pages about the whole space: overview, flow, transactions, activity and recovery.

Each page shows one snapshot of the metrics, and asks the space for nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spool.watch.health import Cause, Rates, error_queues
from xaspool_console import flow, picture
from xaspool_console.charts import chart, spark
from xaspool_console.console import Console
from xaspool_console.findings import findings, queue_link
from xaspool_console.formatting import duration, moment, number, short, size
from xaspool_console.messages import as_message_id, is_part_of_id
from xaspool_console.paging import page_of
from xaspool_console.samples import CHART_SECONDS, Snapshot

if TYPE_CHECKING:
    from spool import QueueStats, SpaceMetrics, SubscriptionState

_MOST_ROWS = 500
_MOST_PICTURES = 12
_SORTS: Mapping[str, str] = {"trouble": "trouble first", "name": "name", "depth": "depth", "oldest": "oldest message"}
_TOTAL = "total"
_LISTED = ("outcomes", "rounds")  # the counts that have a table of their own
_Key = tuple[str, ...]


@dataclass(frozen=True)
class QueueRow:
    """A queue in the overview. is_error: the queue is the error queue of another queue. causes: of its troubles."""

    name: str
    link: str
    stats: "QueueStats"
    rates: Rates
    spark: object
    is_error: bool
    causes: tuple[Cause, ...]


def routes(console: Console) -> list[BaseRoute]:
    pages: dict[str, Callable[[Console, Request], Response]] = {
        "/": overview, "/flow": flow_page, "/transactions": transactions, "/activity": activity,
        "/recovery": recovery,
    }  # fmt: skip
    return [Route(path, _bound(console, page)) for path, page in pages.items()]


def _bound(console: Console, page: Callable[[Console, Request], Response]) -> Callable[[Request], Response]:
    """Return the page as a plain function, which Starlette runs in a thread, because calls of the engine block."""
    return lambda request: page(console, request)


def overview(console: Console, request: Request) -> Response:
    """The queues, and the troubles of the space. The search for a message id leads to the message."""
    text = request.query_params.get("q", "").strip()[:200]
    if console.space is not None and (message_id := as_message_id(text)) is not None:
        return console.redirect(request, f"/messages/{message_id}")
    snapshot = console.samples.snapshot()
    metrics, sort = snapshot.metrics, request.query_params.get("sort", "trouble")
    names = [name for name in metrics.queues if text.lower() in name.lower()]
    names.sort(key=_order(metrics, sort, snapshot.causes))
    part, errors = page_of(request, names), error_queues(metrics)
    rows = [_row(snapshot, str(name), errors) for name in part.rows]
    total = chart(snapshot.totals(), CHART_SECONDS, "messages in all queues")
    return console.page(
        request, "overview.html", metrics=metrics, findings=findings(snapshot), part=part, rows=rows, q=text, sort=sort,
        sorts=_SORTS, total=total, has_rates=len(snapshot.samples) > 1,
        is_part_of_id=is_part_of_id(text),
    )  # fmt: skip


def _order(metrics: "SpaceMetrics", sort: str, bad: Collection[str]) -> "Callable[[str], tuple[float, str]]":
    def depth(name: str) -> float:
        stats = metrics.queues[name]
        return stats.ready + stats.delayed + stats.claimed + stats.in_doubt

    def key(name: str) -> tuple[float, str]:
        if sort == "depth":
            return -depth(name), name
        if sort == "oldest":
            return -(metrics.queues[name].oldest_age or 0.0), name
        return 0.0 if sort == "name" or name in bad else 1.0, name

    return key


def _row(snapshot: Snapshot, name: str, errors: Collection[str]) -> QueueRow:
    drawn = spark(snapshot.depths(name), CHART_SECONDS)
    stats = snapshot.metrics.queues[name]
    rates, causes = snapshot.rates.get(name, Rates()), snapshot.causes.get(name, ())
    return QueueRow(name, queue_link(name), stats, rates, drawn, name in errors, causes)


def flow_page(console: Console, request: Request) -> Response:
    snapshot, text = console.samples.snapshot(), request.query_params.get("q", "").strip()[:200]
    metrics = snapshot.metrics
    arrows = flow.edges(metrics)
    arrows = flow.near(arrows, text) if text else arrows
    parts, others = flow.parts(metrics, arrows, snapshot.causes, _MOST_PICTURES)
    drawn = [(part, picture.draw(metrics, part)) for part in parts]
    joined = {name for edge in flow.edges(metrics) for kind, name in (edge.source, edge.target) if kind == "queue"}
    return console.page(
        request, "flow.html", metrics=metrics, drawn=drawn, others=others, arrows=arrows[:_MOST_ROWS], q=text,
        left_out=max(0, len(arrows) - _MOST_ROWS), alone=len(metrics.queues.keys() - joined), queue_link=queue_link,
        summary=flow.summary,
    )  # fmt: skip


def transactions(console: Console, request: Request) -> Response:
    metrics = console.samples.snapshot().metrics
    doubts = [each for each in metrics.transactions if each.state == "in doubt"]
    claims = page_of(request, [each for each in metrics.transactions if each.state != "in doubt"])
    return console.page(
        request, "transactions.html", metrics=metrics, doubts=doubts[:_MOST_ROWS], claims=claims,
        decisions=list(metrics.decisions.items())[:_MOST_ROWS], queue_link=queue_link,
    )  # fmt: skip


# -- activity ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Durations that a meter counted. most: an upper bound of 95 % of the durations, None if they exceed all bounds."""

    name: str
    labels: str
    count: int
    mean: float | None
    most: float | None


def activity(console: Console, request: Request) -> Response:
    """The work of forwarders and workers, the subscriptions, the processes, and the room on the disk."""
    metrics = console.samples.snapshot().metrics
    timed, plain = _timings(metrics.counts)
    tables: dict[str, list[tuple[str, ...]]] = {
        "outcome": [(*key[1:], number(value)) for key, value in plain if key[0] == "outcomes" and len(key) == 4],
        "round": [(key[1], number(value)) for key, value in plain if key[0] == "rounds" and len(key) == 2],
        "other": [
            (short(" ".join((key[0].replace("_", " "), *key[1:])), 200), number(value))
            for key, value in plain
            if key[0] not in _LISTED
        ],
        "timing": [(t.name, short(t.labels, 200), number(t.count), duration(t.mean), duration(t.most)) for t in timed],
        "subscription": [_subscription(name, state) for name, state in sorted(metrics.subscriptions.items())],
        "process": [(short(each, 200),) for each in metrics.processes],
        "folder": [(name, number(use.files), size(use.bytes)) for name, use in metrics.folders.items()],
    }
    rows = {name: table[:_MOST_ROWS] for name, table in tables.items()}
    return console.page(request, "activity.html", metrics=metrics, rows=rows)


def _subscription(name: str, state: "SubscriptionState") -> tuple[str, ...]:
    queues = short(", ".join(state.queues), 200) or "all queues"
    return short(name, 100), queues, number(state.unread), size(state.kept_bytes), moment(state.expires_at)


def _timings(counts: Mapping[_Key, int]) -> tuple[list[Timing], list[tuple[_Key, int]]]:
    """Split the counts into durations and other counts. The last label of a duration is a bound, or ``total``."""
    families = {key[:-1] for key in counts if key[-1] == _TOTAL and len(key) > 1}
    buckets: dict[_Key, dict[float, int]] = defaultdict(dict)
    plain: dict[_Key, int] = {}
    for key, value in counts.items():
        bound = _bound_of(key[-1]) if key[:-1] in families else None
        if bound is not None:
            buckets[key[:-1]][bound] = value
        elif key[:-1] not in families:
            plain[key] = value
    timed = [_timing(family, buckets[family], counts[*family, _TOTAL]) for family in sorted(families)]
    return timed, sorted(plain.items())


def _bound_of(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def _timing(family: _Key, buckets: Mapping[float, int], total: int) -> Timing:
    count, reached, most = sum(buckets.values()), 0, None
    for bound in sorted(buckets):
        reached += buckets[bound]
        if reached >= 0.95 * count:
            most = bound if bound < float("inf") else None
            break
    mean = total / 1e9 / count if count else None
    return Timing(family[0].removesuffix("_seconds").replace("_", " "), ", ".join(family[1:]), count, mean, most)


# -- recovery ----------------------------------------------------------------------------------------------------------


def recovery(console: Console, request: Request) -> Response:
    metrics = console.samples.snapshot().metrics
    found = metrics.recovery.findings[:_MOST_ROWS] if metrics.recovery is not None else ()
    return console.page(request, "recovery.html", metrics=metrics, found=found)
