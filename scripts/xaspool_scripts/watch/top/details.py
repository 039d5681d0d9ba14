"""The pages of ``spool-admin top`` besides the list of queues: the details of a queue, and the keys. No I/O."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from spool.model.text import plural
from spool.watch.consumers import consumers
from spool.watch.health import routes
from spool.watch.units import size
from xaspool_scripts.watch.top.queue_rows import TopRow
from xaspool_scripts.watch.top.texts import UNKNOWN, clean, fit, number, old, rate

if TYPE_CHECKING:
    from spool import QueueStats, SpaceMetrics

HEADING, WARNING = "bold", "bold red"
_LABEL = 19  # the width of a label, in columns
_MOST_NAMED = 20  # the most queues and holders that a page lists

HELP = f"""\
up down, k j       move the selection; page up, page down, home, end
enter              show the details of the selected queue
escape, backspace  back
/ or F4            show only queues whose name has a text; escape shows all again
< >                sort by the column before or after; F6 like >
! N A R            sort by trouble, by ready messages, by age, by rate
F C D B            sort by failures, by claimed, by in doubt, by bytes
I                  reverse the order
h, ? or F1         these keys
space or p         pause, and go on
s or d             change the interval
Ctrl-L             draw the picture again
q or F{10}           quit"""


def queue_page(metrics: "SpaceMetrics", rows: Mapping[str, TopRow], name: str, now: float) -> list[Text]:
    """Describe a queue: its counts, its troubles, its related queues, its routes, and the holders of its messages."""
    row = rows.get(name)
    if row is None:
        return [Text(f"The queue {clean(name)} does not exist any more.", WARNING)]
    stats, rates = row.stats, row.rates
    return [
        Text(f"Queue {clean(name)}", HEADING),
        *(_pair("trouble", trouble, WARNING) for trouble in row.troubles),
        _pair("role", row.role),
        _pair("oldest ready", old(stats.oldest_age)),
        _pair("per second", f"put {rate(rates.enqueued)}, taken {rate(rates.dequeued)}, failed {rate(rates.failed)}"),
        Text("Messages", HEADING),
        *_counts(stats, "ready", "delayed", "claimed", "in doubt"),
        _pair("bytes", f"{stats.bytes:,} ({size(stats.bytes)})"),
        Text("Since the space was created", HEADING),
        *_counts(stats, "enqueued", "dequeued", "failed", "expired", "deleted", "quarantined"),
        Text("Related queues", HEADING),
        *_references(metrics, name),
        Text("Routes and outcomes", HEADING),
        *([*_routes(metrics, name), *_outcomes(metrics, name)] or [Text("  none")]),
        Text("Failures of the last day", HEADING),
        *_first(_failures(metrics, name, now)),
        Text("Consumers", HEADING),
        *_first(_consumers(metrics, name, now)),
        Text("Holders", HEADING),
        *_first(_holders(metrics, name, now)),
    ]


def _first(lines: Iterator[Text]) -> list[Text]:
    """Return the first lines, and the number of the others."""
    found = list(lines) or [Text("  none")]
    rest = [Text(f"  and {len(found) - _MOST_NAMED:,} more")] if len(found) > _MOST_NAMED else []
    return found[:_MOST_NAMED] + rest


def _pair(label: str, value: object, style: str = "") -> Text:
    return Text(f"  {fit(label, _LABEL)}  {clean(str(value))}", style)


def _counts(stats: "QueueStats", *labels: str) -> Iterator[Text]:
    for label in labels:
        yield _pair(label, f"{getattr(stats, label.replace(' ', '_')):,}")


def _references(metrics: "SpaceMetrics", name: str) -> Iterator[Text]:
    references = metrics.references.get(name)
    for label in ("error_queue", "reply_queue", "failure_queue"):
        yield _pair(label.replace("_", " "), getattr(references, label, None) or "none")
        users = [other for other, each in sorted(metrics.references.items()) if getattr(each, label) == name]
        if users:
            yield _pair(f"is {label.split('_')[0]} queue of", ", ".join(users[:_MOST_NAMED]))


def _holders(metrics: "SpaceMetrics", name: str, now: float) -> Iterator[Text]:
    here = [each for each in metrics.transactions if name in each.takes or name in each.puts]
    for each in here:
        age = old(None if each.since is None else now - each.since)
        takes, puts = each.takes.get(name, 0), each.puts.get(name, 0)
        process = f"{UNKNOWN if each.pid is None else each.pid} {each.program or ''}".rstrip()
        yield Text(
            f"  {fit(each.state, 8)}  {fit(age, 6, right=True)}  takes {takes:,}, puts {puts:,}  "
            f"{clean(process)}  {clean(each.xid or '')}",
            WARNING if each.state == "in doubt" else "",
        )


def _failures(metrics: "SpaceMetrics", name: str, now: float) -> Iterator[Text]:
    here = [each for each in metrics.failures if name in (each.queue, each.kept_in)]
    for each in here:
        last = f"{old(now - each.last_at)} ago"
        yield Text(
            f"  {fit(number(each.count), 6, right=True)}  {fit(last, 10)}  {clean(each.task or 'no task')}  "
            f"{clean(each.cause)}"
        )


def _consumers(metrics: "SpaceMetrics", name: str, now: float) -> Iterator[Text]:
    for each in consumers(metrics.states, metrics.transactions).get(name, []):
        held = f"busy, holds {each.held:,}" if each.is_busy else "idle"
        threads = plural(each.threads, "thread or call", "threads or calls")
        yield Text(f"  {each.pid} {clean(each.program)}  {threads} for {old(now - each.since)}  {held}")


def _routes(metrics: "SpaceMetrics", queue: str) -> Iterator[Text]:
    for (name, service), is_down in routes(metrics).items():
        if name == queue:
            yield Text(f"  {'DOWN' if is_down else 'up':8}  {clean(service)}", WARNING if is_down else "")


def _outcomes(metrics: "SpaceMetrics", queue: str) -> Iterator[Text]:
    for key, count in sorted(metrics.counts.items()):
        if len(key) == 4 and key[0] == "outcomes" and key[2] == queue:
            yield Text(f"  {fit(key[3], 14)}  {fit(number(count), 7, right=True)}  {clean(key[1])}")
