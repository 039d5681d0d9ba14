"""The table of docs/metrics.md. People write the other text of the page."""

import re

from tests.reference_pages.markdown import table
from xaspool_scripts.watch.prometheus import METRICS

_TABLE = re.compile(r"^\| metric \| .*?(?=^(?!\|)|\Z)", re.MULTILINE | re.DOTALL)


def with_table(page: str) -> str:
    """Return the page with the current table."""
    rows = [
        (f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.help) for each in METRICS
    ]
    return _TABLE.sub(lambda _: table(("metric", "kind", "labels", "meaning"), rows) + "\n", page, count=1)
