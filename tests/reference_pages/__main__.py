"""``scripts/reference``: write the reference pages into docs/."""

from tests.reference_pages import DOCS, PAGES

for name, generate in PAGES.items():
    (DOCS / name).write_text(generate(), encoding="utf-8")
    print(f"docs/{name}")
