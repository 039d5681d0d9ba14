"""docs/performance.md has hand-written text, and a block that the runs write.

A run replaces the rows and charts of its cases. The rows and charts of other cases are kept if they were measured on
the same machine and with the same sizes. Rows of several runs may stand together, because contenders are compared only
within a case.
"""

import re
from pathlib import Path

from bench import charts
from bench.table import COLUMNS, PEER_COLUMNS, Earlier, Report, Verdict, markdown

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN = "<!-- begin: written by python -m bench --write; do not edit -->"
END = "<!-- end -->"


def block(text: str) -> str:
    """Return the text between the markers. ValueError unless the document has exactly one pair of markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the document needs one line {BEGIN!r} and one {END!r}")
    before, _, rest = text.partition(BEGIN)
    inside, mark, _ = rest.partition(END)
    if not mark or END in before:
        raise ValueError(f"{END!r} must come after {BEGIN!r}")
    return inside


def replaced(text: str, inside: str) -> str:
    """Return the document with another block."""
    block(text)
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{inside.strip()}\n\n{END}{rest.partition(END)[2]}"


def rows_that_were_ok(document: Path = DOCUMENT) -> set[tuple[str, str]]:
    """Return the case and the target of each row that is ok in the document."""
    rows = _rows(block(document.read_text()), len(COLUMNS))
    return {(row[0], row[1]) for row in rows if row[3] == Verdict.OK.value}


def _rows(inside: str, columns: int) -> list[list[str]]:
    """Return the cells of all table lines with this number of columns, except for the heads."""
    lines = (line.strip().strip("|") for line in inside.splitlines() if line.startswith("|"))
    found = ([cell.strip() for cell in line.split(" | ")] for line in lines)
    heads = [*COLUMNS], [*PEER_COLUMNS], ["---"] * columns
    return [row for row in found if len(row) == columns and row not in heads]


def earlier(inside: str, setting: dict[str, str]) -> Earlier:
    """Return the results in the block if they are from the same machine; otherwise return no results."""
    if not set(setting.items()) <= {(row[0], row[1]) for row in _rows(inside, 2)}:
        return Earlier()
    rows = {(row[0], row[1]): row for row in _rows(inside, len(COLUMNS)) if row[-1]}
    peers = {row[0]: row for row in _rows(inside, len(PEER_COLUMNS))}
    sections = re.split(r"^(?=### )", inside, flags=re.MULTILINE)[1:]
    pictures = {found[1]: text.strip() for text in sections if (found := re.search(r"\(performance-(.+)\.svg\)", text))}
    return Earlier(rows, peers, pictures)


def write(report: Report, document: Path = DOCUMENT) -> None:
    """Write the block into the document, and the charts beside it. Remove charts that the document no longer shows."""
    text = document.read_text()
    inside = markdown(report, earlier(block(text), report.setting))
    for chart in report.charts:
        charts.draw(chart, str(document.parent / f"performance-{chart.key}.svg"))
    for there in document.parent.glob("performance-*.svg"):
        if there.name not in inside:
            there.unlink()
    document.write_text(replaced(text, inside))
