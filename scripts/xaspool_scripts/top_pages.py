"""The pages of ``spool-admin top`` besides the list of queues: lines of text for a queue, the transactions, the flows,
the recovery, and the keys. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spool.watch.health import routes
from spool.watch.units import size, span
from xaspool_scripts.output import moment
from xaspool_scripts.top_figures import Row, Sample, identity
from xaspool_scripts.top_texts import UNKNOWN, clean, fit, folded, number, old, rate

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
    Line("enter              show the selected queue, or the selected transaction"),
    Line("/ or F4            show only queues whose name has a text; escape shows all again"),
    Line("< > or F6          sort by the column before or after; F6 lists the columns"),
    Line("! N A R            sort by trouble, by ready messages, by age, by rate"),
    Line("F C D B            sort by failures, by claimed, by in doubt, by bytes"),
    Line("I                  reverse the order"),
    Line("Views", HEADING),
    Line("t                  transactions: who holds which messages, and for how long"),
    Line("f                  flows: routes, results of calls, subscriptions"),
    Line("r                  recovery and quarantine"),
    Line("tab                the next view"),
    Line("escape, backspace  back"),
    Line("h, ? or F1         these keys"),
    Line("Program", HEADING),
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


def queue_page(sample: Sample, rows: Mapping[str, Row], name: str, now: float) -> list[Line]:
    """Describe a queue: its counts, its troubles, its related queues, its routes, and the holders of its messages."""
    metrics, row = sample.metrics, rows.get(name)
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
        *(_or_nothing([*_routes(metrics, name), *_outcomes(metrics, None, 0.0, name)])),
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


# -- transactions ------------------------------------------------------------------------------------------------------

TRANSACTIONS_HEADING = f"{'state':8}  {'since':>6}  {'takes':>6}  {'puts':>6}  {'process':16}  {'queues':12}  xid"


def _age(transaction: "OpenTransaction", now: float) -> str:
    return UNKNOWN if transaction.since is None else old(now - transaction.since)


def _process(transaction: "OpenTransaction") -> str:
    pid = UNKNOWN if transaction.pid is None else str(transaction.pid)
    return f"{pid} {transaction.program or ''}".rstrip()


def transaction_line(transaction: "OpenTransaction", now: float) -> Line:
    """Return the line of a transaction in the list."""
    queues = ",".join(sorted({*transaction.takes, *transaction.puts}))
    is_in_doubt = transaction.state == "in doubt"
    parts = (
        fit(transaction.state, 8),
        fit(_age(transaction, now), 6, right=True),
        fit(number(sum(transaction.takes.values())), 6, right=True),
        fit(number(sum(transaction.puts.values())) if is_in_doubt else UNKNOWN, 6, right=True),
        fit(_process(transaction), 16),
        fit(queues, 12),
        clean(transaction.xid or UNKNOWN),
    )
    return Line("  ".join(parts), WARNING if is_in_doubt else PLAIN)


def transaction_page(sample: Sample, wanted: tuple[object, ...] | None, now: float, width: int) -> list[Line]:
    """Describe a transaction. Its xid is shown whole, for ``spool-admin transaction``."""
    found = next((each for each in sample.metrics.transactions if identity(each) == wanted), None)
    if found is None:
        return [Line("The transaction has ended.", WARNING)]
    since = UNKNOWN if found.since is None else f"{moment(found.since)} ({_age(found, now)} ago)"
    lines = [
        Line(f"Transaction, {clean(found.state)}", HEADING),
        _pair("since", since),
        _pair("process", UNKNOWN if found.pid is None else found.pid),
        _pair("program", found.program or UNKNOWN),
        Line("The xid", HEADING),
        *(Line(f"  {part}") for part in folded(found.xid or UNKNOWN, max(10, width - 2))),
    ]
    for title, counts in (("Takes, by queue", found.takes), ("Puts, by queue", found.puts)):
        lines += [Line(title, HEADING), *_or_nothing([_pair(queue, f"{count:,}") for queue, count in counts.items()])]
    if found.state == "in doubt":
        lines.append(Line("To decide: spool-admin transaction commit XID, or rollback XID.", WARNING))
    return lines


# -- flows -------------------------------------------------------------------------------------------------------------


def flows_page(sample: Sample, before: Sample | None) -> list[Line]:
    """Describe the routes, the outcomes of calls, and the subscriptions."""
    metrics, counts = sample.metrics, None
    seconds = sample.moment - before.moment if before is not None else 0.0
    if before is not None and seconds > 0:
        counts = before.metrics.counts
    subscriptions = [
        Line(
            f"  {fit(name, 24)}  unread {number(each.unread)}, keeps {size(each.kept_bytes)}, "
            f"ends in {old(each.expires_at - metrics.at)}, queues {clean(','.join(each.queues) or 'all')}"
        )
        for name, each in sorted(metrics.subscriptions.items())
    ]
    return [
        Line("Routes", HEADING),
        Line(f"  {'queue':24}  {'state':6}  service"),
        *_or_nothing(_routes(metrics)),
        Line("Outcomes of calls", HEADING),
        Line(f"  {'queue':24}  {'outcome':14}  {'count':>7}  {'per s':>6}  program"),
        *_or_nothing(_outcomes(metrics, counts, seconds)),
        Line("Subscriptions", HEADING),
        *_or_nothing(subscriptions),
    ]


def _routes(metrics: "SpaceMetrics", queue: str | None = None) -> list[Line]:
    lines = []
    for (name, service), is_down in routes(metrics).items():
        if queue in (None, name):
            state = "DOWN" if is_down else "up"
            lines.append(Line(f"  {fit(name, 24)}  {state:6}  {clean(service)}", WARNING if is_down else PLAIN))
    return lines


def _outcomes(
    metrics: "SpaceMetrics", before: Mapping[tuple[str, ...], int] | None, seconds: float, queue: str | None = None
) -> list[Line]:
    lines = []
    for key, count in sorted(metrics.counts.items()):
        if len(key) == 4 and key[0] == "outcomes" and queue in (None, key[2]):
            _, program, name, effect = key
            speed = max(0, count - before.get(key, 0)) / seconds if before is not None else None
            lines.append(
                Line(
                    f"  {fit(name, 24)}  {fit(effect, 14)}  {fit(number(count), 7, right=True)}  "
                    f"{fit(rate(speed), 6, right=True)}  {clean(program)}"
                )
            )
    return lines


# -- recovery and quarantine -------------------------------------------------------------------------------------------


def recovery_page(sample: Sample, troubles: Sequence[str], now: float, width: int) -> list[Line]:
    """Describe all troubles, the last recovery, the quarantine, the decisions, the processes and the directories."""
    metrics = sample.metrics
    record = metrics.recovery
    recovered = [Line("  no recovery has found anything")]
    if record is not None:
        when = f"{moment(record.at)} ({old(now - record.at)} ago), {span(record.seconds)}"
        recovered = [Line(f"  {when}"), *_findings(record.findings)]
    return [
        Line("Troubles", HEADING),
        *_or_nothing([Line(part, WARNING) for text in troubles for part in folded(f"! {text}", max(10, width))]),
        Line("The last recovery that found something", HEADING),
        *recovered,
        Line("Quarantine", HEADING),
        *_or_nothing(_findings(metrics.quarantine)),
        Line("Decisions of administrators", HEADING),
        *_or_nothing([_pair(decision, xid) for xid, decision in metrics.decisions.items()]),
        Line("Processes with the space open", HEADING),
        *_or_nothing([Line(f"  {clean(each)}") for each in metrics.processes[:_MOST_NAMED]]),
        Line("Files", HEADING),
        *(
            _pair(f"{name}/", f"{usage.files:,}" + ("" if usage.bytes is None else f", {size(usage.bytes)}"))
            for name, usage in metrics.folders.items()
        ),
        _pair("free inodes", "no limit" if metrics.free_inodes is None else f"{metrics.free_inodes:,}"),
        _pair("last commit", f"{metrics.commits:,}, of these {metrics.unflushed:,} that a power cut may lose"),
    ]


def _findings(found: "tuple[object, ...]") -> list[Line]:
    """Return the first findings. A finding begins with its kind."""
    lines = [
        Line(f"  {clean(str(each))}", WARNING if getattr(each, "kind", "") == "damaged" else PLAIN)
        for each in found[:_MOST_NAMED]
    ]
    return lines + ([Line(f"  and {len(found) - _MOST_NAMED:,} more")] if len(found) > _MOST_NAMED else [])
