"""docs/performance.md: hand-written text around a block that runs write.

A run replaces the rows and charts of its cases. Those of other cases stay if they were measured on the same machine and
with the same sizes: contenders are compared within a case, never across cases.
"""

import re
from pathlib import Path

from bench import charts
from bench.table import COLUMNS, PEER_COLUMNS, Earlier, Report, Verdict, markdown

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN = "<!-- begin: written by python -m bench --write; do not edit -->"
END = "<!-- end -->"


def block(text: str) -> str:
    """What lies between the markers; ValueError unless there is exactly one pair."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the document needs one line {BEGIN!r} and one {END!r}")
    before, _, rest = text.partition(BEGIN)
    inside, mark, _ = rest.partition(END)
    if not mark or END in before:
        raise ValueError(f"{END!r} must come after {BEGIN!r}")
    return inside


def replaced(text: str, inside: str) -> str:
    """The document with another block."""
    block(text)
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{inside.strip()}\n\n{END}{rest.partition(END)[2]}"


def rows_that_were_ok(document: Path = DOCUMENT) -> set[tuple[str, str]]:
    """Case and target of each row to which the document says ok."""
    rows = _rows(block(document.read_text()), len(COLUMNS))
    return {(row[0], row[1]) for row in rows if row[3] == Verdict.OK.value}


def _rows(inside: str, columns: int) -> list[list[str]]:
    """The cells of all lines of tables that have so many, but for those of their heads."""
    lines = (line.strip().strip("|") for line in inside.splitlines() if line.startswith("|"))
    found = ([cell.strip() for cell in line.split(" | ")] for line in lines)
    heads = [*COLUMNS], [*PEER_COLUMNS], ["---"] * columns
    return [row for row in found if len(row) == columns and row not in heads]


def earlier(inside: str, setting: dict[str, str]) -> Earlier:
    """What the block says of runs on the same machine; nothing if it is of another."""
    if not set(setting.items()) <= {(row[0], row[1]) for row in _rows(inside, 2)}:
        return Earlier()
    rows = {(row[0], row[1]): row for row in _rows(inside, len(COLUMNS)) if row[-1]}
    peers = {row[0]: row for row in _rows(inside, len(PEER_COLUMNS))}
    sections = re.split(r"^(?=### )", inside, flags=re.MULTILINE)[1:]
    pictures = {found[1]: text.strip() for text in sections if (found := re.search(r"\(performance-(.+)\.svg\)", text))}
    return Earlier(rows, peers, pictures)


def write(report: Report, document: Path = DOCUMENT) -> None:
    """The block, and the charts beside the document; those that it does not show any more go."""
    text = document.read_text()
    inside = markdown(report, earlier(block(text), report.setting))
    for chart in report.charts:
        charts.draw(chart, str(document.parent / f"performance-{chart.key}.svg"))
    for there in document.parent.glob("performance-*.svg"):
        if there.name not in inside:
            there.unlink()
    document.write_text(replaced(text, inside))
