"""``scripts/reference``: write the reference pages into docs/."""

from tests.reference_pages import DOCS, PAGES, metrics

for name, generate in PAGES.items():
    (DOCS / name).write_text(generate(), encoding="utf-8")
    print(f"docs/{name}")
(DOCS / "metrics.md").write_text(metrics.with_table((DOCS / "metrics.md").read_text()), encoding="utf-8")
