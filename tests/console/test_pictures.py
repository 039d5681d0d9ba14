"""The pictures of docs/ that show pages: one program makes each again, and a page has each."""

import re
from pathlib import Path

from tests.console.pictures import NAMES

ROOT = Path(__file__).parents[2]
_KINDS = {".png", ".jpg", ".jpeg", ".gif", ".webp"}
_MOST_BYTES = 100_000


def test_each_picture_of_the_docs_is_made_by_the_program_small_and_on_a_page() -> None:
    pictures = {path.name: path for path in (ROOT / "docs").iterdir() if path.suffix in _KINDS}
    assert set(pictures) == {f"console-{name}.webp" for name in NAMES}
    for name, path in pictures.items():
        assert path.read_bytes()[8:12] == b"WEBP", name
        assert path.stat().st_size <= _MOST_BYTES, name
    linked = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        linked |= {name.rpartition("/")[2] for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())}
    assert set(pictures) <= linked
