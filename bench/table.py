"""The table: the target of each case, and the reached value. This module does not depend on the measurements."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.figures import Figure


class Verdict(enum.Enum):
    """The verdict about one row. UNKNOWN: the row was not measured as its target requires; the note has the reason."""

    OK = "ok"
    NOT_OK = "not reached"
    UNKNOWN = "–"

    @classmethod
    def of(cls, reached: bool) -> "Verdict":
        return cls.OK if reached else cls.NOT_OK


@dataclass(frozen=True)
class Row:
    """A row of the table: a case and its target."""

    key: str
    case: str
    target: str


@dataclass
class Outcome:
    """The outcome of a row."""

    row: Row
    reached: str
    verdict: Verdict
    ours: Figure | None = None
    others: Sequence[Figure] = ()
    note: str = ""
    against: Figure | None = None  # the figure of the contender that the target names


_UNMEASURED = "not measured"


def unmeasured(row: Row, why: str) -> Outcome:
    return Outcome(row, _UNMEASURED, Verdict.UNKNOWN, note=why)


@dataclass
class Chart:
    """A chart with bars of one case, for the document."""

    key: str
    title: str
    figures: Sequence[Figure]


@dataclass
class Report:
    """All results of a run."""

    setting: dict[str, str]
    command: str
    outcomes: list[Outcome] = field(default_factory=list)
    peers: list[tuple[str, ...]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    measured: str = ""  # the version and the day of the run


@dataclass
class Earlier:
    """The text of earlier runs in a document: rows by case and target, contenders by name, and charts by key."""

    rows: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    peers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    charts: Mapping[str, str] = field(default_factory=dict)


# -- as text, for a terminal ------------------------------------------------------------------------------------------


def line_of(outcome: Outcome) -> str:
    """Return the lines about a row that are printed after its measurement."""
    figures = [figure for figure in (outcome.ours, *outcome.others) if figure is not None]
    lines = [f"[{outcome.verdict.value:^11}] {outcome.row.case}: {outcome.row.target}"]
    lines.append(f"           reached: {outcome.reached}{f'; {outcome.note}' if outcome.note else ''}")
    lines += [f"           {figure.who:28} {figure.spread():>30} {figure.unit}{mark(figure)}" for figure in figures]
    return "\n".join(lines)


def summary(report: Report) -> str:
    """Return a line for each measured row: the verdict, the case, the target, and the reached value."""
    done = [outcome for outcome in report.outcomes if outcome.reached != _UNMEASURED]
    rows = [(outcome.verdict.value, outcome.row.case, outcome.row.target, outcome.reached) for outcome in done]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows)


def no_longer_ok(report: Report, were_ok: set[tuple[str, str]]) -> list[str]:
    """Return a line for each row that was ok before and is not ok now."""
    return [
        f"It was ok before: {outcome.row.case}: {outcome.row.target}; now {outcome.reached}"
        for outcome in report.outcomes
        if outcome.verdict is Verdict.NOT_OK and (outcome.row.case, outcome.row.target) in were_ok
    ]


def mark(figure: Figure) -> str:
    return "  * not durable" if figure.durable is False else ""


# -- as Markdown, for docs/performance.md -----------------------------------------------------------------------------

_NOT_DURABLE = " \\*"
COLUMNS = ("case", "target", "reached", "", "least / median / most: ours", "theirs", "measured")
PEER_COLUMNS = ("contender", "version", "durable here", "how it flushes", "flushes a put", "flushes a get")
FIGURE_COLUMNS = ("", "least", "median", "most")


def markdown(report: Report, earlier: Earlier | None = None) -> str:
    """Return the generated part of the document. A row that was not measured now keeps its earlier text."""
    earlier = earlier or Earlier()
    rows = [_row(outcome, report, earlier) for outcome in report.outcomes]
    peers = {**earlier.peers, **{row[0]: row for row in report.peers}}
    charts = {**earlier.charts, **{chart.key: _section(chart) for chart in report.charts}}
    parts = [f"The last run: `{report.command}`.", _table(("", ""), report.setting.items()), _table(COLUMNS, rows)]
    if peers:
        parts.append(_table(PEER_COLUMNS, peers.values()))
    parts += [f"Not measured: {line}." for line in report.skipped]
    return "\n\n".join([*parts, *charts.values()])


def _row(outcome: Outcome, report: Report, earlier: Earlier) -> Sequence[str]:
    before = earlier.rows.get((outcome.row.case, outcome.row.target))
    if outcome.reached == _UNMEASURED and before is not None:
        return before
    return (
        outcome.row.case,
        outcome.row.target,
        outcome.reached + (f" ({outcome.note})" if outcome.note else ""),
        outcome.verdict.value,
        "" if outcome.ours is None else f"{outcome.ours.spread()} {outcome.ours.unit}",
        "<br>".join(map(str, [outcome.against] if outcome.against else outcome.others)),
        "" if outcome.reached == _UNMEASURED else report.measured,
    )


def _section(chart: Chart) -> str:
    title, picture = f"{chart.title[0].upper()}{chart.title[1:]}", f"![{chart.title}](performance-{chart.key}.svg)"
    figures = _table(FIGURE_COLUMNS, [_cells(figure) for figure in chart.figures])
    return f"### {title}\n\n{picture}\n\n{figures}"


def _cells(figure: Figure) -> tuple[str, ...]:
    star = _NOT_DURABLE if figure.durable is False else ""
    return figure.who + star, *figure.spread().split(" / ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
