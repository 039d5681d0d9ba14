"""The pages of ``spool-admin top`` besides the list of queues: the details of a queue, and the keys. Pure."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from spool.watch.health import routes
from spool.watch.units import size
from xaspool_scripts.watch.top.figures import Row
from xaspool_scripts.watch.top.texts import UNKNOWN, clean, fit, number, old, rate

if TYPE_CHECKING:
    from spool import OpenTransaction, QueueStats, SpaceMetrics

HEADING, WARNING, PLAIN = "heading", "warning", ""
_LAST_FUNCTION_KEY = 10
_LABEL = 19  # columns
_MOST_NAMED = 20  # processes, holders and findings that a page lists


class Line(NamedTuple):
    """A line of a page, in printable characters. ``kind``: HEADING, WARNING or PLAIN."""

    text: str
    kind: str = PLAIN


HELP = (
    Line("Queues", HEADING),
    Line("up down, k j       move the selection; page up, page down, home, end"),
    Line("enter              show the details of the selected queue"),
    Line("escape, backspace  back"),
    Line("/ or F4            show only queues whose name has a text; escape shows all again"),
    Line("< >                sort by the column before or after; F6 like >"),
    Line("! N A R            sort by trouble, by ready messages, by age, by rate"),
    Line("F C D B            sort by failures, by claimed, by in doubt, by bytes"),
    Line("I                  reverse the order"),
    Line("Program", HEADING),
    Line("h, ? or F1         these keys"),
    Line("space or p         pause, and go on"),
    Line("s or d             change the interval"),
    Line("Ctrl-L             draw the picture again"),
    Line(f"{f'q or F{_LAST_FUNCTION_KEY}':17}  quit"),
    Line("Signs", HEADING),
    Line("!                  a queue with a trouble; the column trouble names the worst"),
    Line("quarantine         a message is damaged, or a dropped file was refused"),
    Line("in doubt           a prepared transaction holds messages, and its coordinator has not decided"),
    Line("route down         the service of the queue cannot be reached"),
    Line("errors             an error queue has messages"),
    Line("failing            messages failed for good since the sample before"),
    Line("late               the oldest ready message has waited for more than 5 minutes"),
    Line("-                  not known, e.g. a rate before the second sample"),
    Line("failed ever        messages that failed for good since their queues were created"),
)


def _pair(label: str, value: object, kind: str = PLAIN) -> Line:
    return Line(f"  {fit(label, _LABEL)}  {clean(str(value))}", kind)


# -- one queue ---------------------------------------------------------------------------------------------------------


def queue_page(metrics: "SpaceMetrics", rows: Mapping[str, Row], name: str, now: float) -> list[Line]:
    """Describe a queue: its counts, its troubles, its related queues, its routes, and the holders of its messages."""
    row = rows.get(name)
    if row is None:
        return [Line(f"The queue {clean(name)} does not exist any more.", WARNING)]
    stats, rates = row.stats, row.rates
    return [
        Line(f"Queue {clean(name)}", HEADING),
        *(_pair("trouble", trouble, WARNING) for trouble in row.troubles),
        _pair("oldest ready", old(stats.oldest_age)),
        _pair("per second", f"put {rate(rates.enqueued)}, taken {rate(rates.dequeued)}, failed {rate(rates.failed)}"),
        Line("Messages", HEADING),
        *_counts(stats, "ready", "delayed", "claimed", "in doubt"),
        _pair("bytes", f"{stats.bytes:,} ({size(stats.bytes)})"),
        Line("Since the space was created", HEADING),
        *_counts(stats, "enqueued", "dequeued", "failed", "expired", "deleted", "quarantined"),
        Line("Related queues", HEADING),
        *_roles(metrics, name),
        Line("Routes and outcomes", HEADING),
        *_or_nothing([*_routes(metrics, name), *_outcomes(metrics, name)]),
        Line("Holders", HEADING),
        *_or_nothing(_holders(metrics, name, now)),
    ]  # fmt: skip


def _counts(stats: "QueueStats", *labels: str) -> Iterator[Line]:
    for label in labels:
        yield _pair(label, f"{getattr(stats, label.replace(' ', '_')):,}")


def _or_nothing(lines: list[Line]) -> list[Line]:
    return lines or [Line("  none")]


def _roles(metrics: "SpaceMetrics", name: str) -> Iterator[Line]:
    role = metrics.roles.get(name)
    for label in ("error_queue", "reply_queue", "failure_queue"):
        yield _pair(label.replace("_", " "), getattr(role, label, None) or "none")
        users = [other for other, each in sorted(metrics.roles.items()) if getattr(each, label) == name]
        if users:
            yield _pair(f"is {label.split('_')[0]} queue of", ", ".join(users[:_MOST_NAMED]))


def _holders(metrics: "SpaceMetrics", name: str, now: float) -> list[Line]:
    here = [each for each in metrics.transactions if name in each.takes or name in each.puts]
    lines = [
        Line(
            f"  {fit(each.state, 8)}  {fit(_age(each, now), 6, right=True)}  takes {each.takes.get(name, 0):,}, "
            f"puts {each.puts.get(name, 0):,}  {clean(_process(each))}  {clean(each.xid or '')}",
            WARNING if each.state == "in doubt" else PLAIN,
        )
        for each in here[:_MOST_NAMED]
    ]
    return lines + ([Line(f"  and {len(here) - _MOST_NAMED:,} more")] if len(here) > _MOST_NAMED else [])


def _age(transaction: "OpenTransaction", now: float) -> str:
    return UNKNOWN if transaction.since is None else old(now - transaction.since)


def _process(transaction: "OpenTransaction") -> str:
    pid = UNKNOWN if transaction.pid is None else str(transaction.pid)
    return f"{pid} {transaction.program or ''}".rstrip()


def _routes(metrics: "SpaceMetrics", queue: str) -> list[Line]:
    found = [(service, is_down) for (name, service), is_down in routes(metrics).items() if name == queue]
    return [
        Line(f"  {'DOWN' if is_down else 'up':8}  {clean(service)}", WARNING if is_down else PLAIN)
        for service, is_down in found
    ]


def _outcomes(metrics: "SpaceMetrics", queue: str) -> list[Line]:
    return [
        Line(f"  {fit(key[3], 14)}  {fit(number(count), 7, right=True)}  {clean(key[1])}")
        for key, count in sorted(metrics.counts.items())
        if len(key) == 4 and key[0] == "outcomes" and key[2] == queue
    ]
