"""docs/performance.md: hand-written text around a block that a run writes."""

from pathlib import Path

from bench import charts
from bench.table import Report, Verdict, markdown

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
    cells = (line.split(" | ") for line in block(document.read_text()).splitlines() if line.startswith("| "))
    return {(row[0].removeprefix("| "), row[1]) for row in cells if len(row) > 3 and row[3] == Verdict.OK.value}


def write(report: Report, document: Path = DOCUMENT) -> None:
    """The block, and the charts beside the document; those of an earlier run go."""
    for old in document.parent.glob("performance-*.svg"):
        old.unlink()
    for chart in report.charts:
        charts.draw(chart, str(document.parent / f"performance-{chart.key}.svg"))
    document.write_text(replaced(document.read_text(), markdown(report)))
