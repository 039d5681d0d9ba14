"""The texts of the packages point to no document or number that a user cannot look up."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "spool",
    "xa",
    "recovery",
    "forwarder",
    "scripts/xaspool_scripts",
    "scripts/xaspool_console",
    "scripts/dramatiq_xaspool",
    "scripts/django_xaspool",
    "bench",
)
FOREIGN = re.compile(r"\bDESIGN\b|\b(?:FEATURES|INTERFACE|STUMBLES)\.md\b|(?<![\w.])[A-Z]\d\d(?!\w)")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_comment_or_help_names_things_that_only_its_authors_know(package: str) -> None:
    found = [
        f"{module.relative_to(ROOT)}:{number}: {line.strip()}"
        for module in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert not found


def test_no_test_names_a_document_that_is_not_here() -> None:
    found = [path for path in sorted((ROOT / "tests").rglob("*.py")) if re.search(r"DESIGN\s§", path.read_text())]
    assert not found


def test_no_text_installs_an_extra_from_an_index() -> None:
    """The package is on no index, so anybody could take its name there."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    texts += [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in texts:
        assert not re.search(r"(?<![./\w])xaspool\[", path.read_text()), path
