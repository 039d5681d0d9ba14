"""What a newcomer does with an installed wheel and its pages, without the repository: each block, to the letter."""

from pathlib import Path

import pytest

from tests import pages
from tests.package.conftest import Installation

WAY = ("install", "first-steps", "operations")


@pytest.mark.parametrize("name", WAY)
def test_a_newcomers_way_leads_where_the_pages_say(name: str, installation: Installation, tmp_path: Path) -> None:
    for block in pages.programs(_page(installation, name)):
        pages.run(block, tmp_path, installation.environment)


def _page(installation: Installation, name: str) -> Path:
    return installation.root / "share" / "doc" / "xaspool" / "docs" / f"{name}.md"
