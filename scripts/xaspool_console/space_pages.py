"""The pages about the whole space: overview, flow, transactions, activity and recovery.

Each page shows one snapshot of the metrics, and reads nothing else from the space.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from spool.model.settings import STATE, WORK
from spool.watch.health import Cause, Rates
from spool.watch.histograms import Histogram, histograms
from xaspool_console import flow, picture
from xaspool_console.charts import chart, spark
from xaspool_console.console import Console, page_routes
from xaspool_console.formatting import duration, moment, number, short, size
from xaspool_console.paging import page_of
from xaspool_console.queue_pages import as_message_id, is_part_of_id
from xaspool_console.samples import Snapshot
from xaspool_console.troubles import findings, queue_link

if TYPE_CHECKING:
    from spool import QueueStats, SpaceMetrics, SubscriptionState

_MOST_ROWS = 500
_MOST_PICTURES = 12
_SORTS: Mapping[str, str] = {"trouble": "trouble first", "name": "name", "depth": "depth", "oldest": "oldest message"}
_LISTED = ("outcomes", "rounds")  # the counts that have a separate table


@dataclass(frozen=True)
class QueueRow:
    """A queue in the overview.

    role: "work", "error" or "state". causes: the causes of its troubles. consumers: the number of processes that serve
    the queue.
    """

    name: str
    link: str
    stats: "QueueStats"
    rates: Rates
    spark: object
    role: str
    causes: tuple[Cause, ...]
    consumers: int


def routes(console: Console) -> list[BaseRoute]:
    return page_routes(console, {
        "/": overview, "/flow": flow_page, "/transactions": transactions, "/activity": activity, "/recovery": recovery,
    })  # fmt: skip


def overview(console: Console, request: Request) -> Response:
    """Return the page with the queues and the troubles of the space. A search for a message id shows the message."""
    text = request.query_params.get("q", "").strip()[:200]
    if console.space is not None and (message_id := as_message_id(text)) is not None:
        return console.redirect(request, f"/messages/{message_id}")
    snapshot = console.samples.snapshot()
    metrics, sort = snapshot.metrics, request.query_params.get("sort", "trouble")
    names = [name for name in metrics.queues if text.lower() in name.lower()]
    names.sort(key=_order(metrics, sort, snapshot.causes))
    names.sort(key=lambda name: metrics.roles.get(name) == STATE)  # these queues are a group after the others
    part = page_of(request, names)
    rows = [_row(snapshot, str(name)) for name in part.rows]
    total = chart(snapshot.totals(), snapshot.chart_seconds, "messages in all queues")
    return console.page(
        request, "overview.html", metrics=metrics, findings=findings(snapshot), part=part, rows=rows, q=text, sort=sort,
        sorts=_SORTS, total=total, chart_seconds=snapshot.chart_seconds, has_rates=len(snapshot.samples) > 1,
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


def _row(snapshot: Snapshot, name: str) -> QueueRow:
    drawn = spark(snapshot.depths(name), snapshot.chart_seconds)
    stats = snapshot.metrics.queues[name]
    rates, causes = snapshot.rates.get(name, Rates()), snapshot.causes.get(name, ())
    role = snapshot.metrics.roles.get(name, WORK)
    return QueueRow(name, queue_link(name), stats, rates, drawn, role, causes, len(snapshot.consumers.get(name, ())))


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


def activity(console: Console, request: Request) -> Response:
    """Return the page about forwarders, workers, subscriptions, processes, and the room on the disk."""
    metrics = console.samples.snapshot().metrics
    timed = histograms(metrics.counts)
    plain = sorted(item for item in metrics.counts.items() if item[0][:-1] not in timed)
    tables: dict[str, list[tuple[str, ...]]] = {
        "outcome": [(*key[1:], number(value)) for key, value in plain if key[0] == "outcomes" and len(key) == 4],
        "round": [(key[1], number(value)) for key, value in plain if key[0] == "rounds" and len(key) == 2],
        "other": [
            (short(" ".join((key[0].replace("_", " "), *key[1:])), 200), number(value))
            for key, value in plain
            if key[0] not in _LISTED
        ],
        "timing": [_timing(key, each) for key, each in sorted(timed.items())],
        "subscription": [_subscription(name, state) for name, state in sorted(metrics.subscriptions.items())],
        "process": [(short(each, 200),) for each in metrics.processes],
        "folder": [(name, number(use.files), size(use.bytes)) for name, use in metrics.folders.items()],
    }
    rows = {name: table[:_MOST_ROWS] for name, table in tables.items()}
    return console.page(request, "activity.html", metrics=metrics, rows=rows)


def _subscription(name: str, state: "SubscriptionState") -> tuple[str, ...]:
    queues = short(", ".join(state.queues), 200) or "all queues"
    return short(name, 100), queues, number(state.unread), size(state.kept_bytes), moment(state.expires_at)


def _timing(key: tuple[str, ...], durations: Histogram) -> tuple[str, ...]:
    count, most = durations.buckets.total(), durations.quantile(0.95)
    mean = durations.total / count if count else None
    within = most if most is not None and most < math.inf else None
    name, labels = key[0].removesuffix("_seconds").replace("_", " "), short(", ".join(key[1:]), 200)
    return name, labels, number(count), duration(mean), duration(within)


# -- recovery ----------------------------------------------------------------------------------------------------------


def recovery(console: Console, request: Request) -> Response:
    metrics = console.samples.snapshot().metrics
    found = metrics.recovery.findings[:_MOST_ROWS] if metrics.recovery is not None else ()
    return console.page(request, "recovery.html", metrics=metrics, found=found)
