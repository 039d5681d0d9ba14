"""The reference pages of docs/, generated from the code: ``scripts/reference`` writes them.

The generator lies beside the tests, as those of ``scripts/mutate`` and ``scripts/pins`` do, because it is a tool of
this repository: no installed program needs it, and ``tests/test_reference.py`` compares the pages with its result.

The generator reads names and docstrings from the imported packages, and signatures from the source text. So
Python 3.11, 3.12 and 3.13 generate the same text.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.reference_pages import commands, errors, python_api, settings

DOCS = Path(__file__).parents[2] / "docs"

PAGES: Mapping[str, Callable[[], str]] = {
    "reference-python.md": python_api.page,
    "reference-commands.md": commands.page,
    "reference-errors.md": errors.page,
    "reference-settings.md": settings.page,
}
"""The functions that generate the pages, by the names of the files."""
