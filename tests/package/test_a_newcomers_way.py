"""A newcomer runs every block of the pages with an installed wheel, without the repository."""

from pathlib import Path

import pytest

from tests import pages
from tests.package.conftest import Installation

FURTHER = ("workers", "dropping-files", "transactions-and-xa", "operations")


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "name",
    [
        "install",
        "first-steps",
        "services",
        "forwarding",
        *(pytest.param(each, marks=pytest.mark.slow) for each in FURTHER),
    ],
)
def test_a_newcomers_way_leads_where_the_pages_say(name: str, installation: Installation, tmp_path: Path) -> None:
    for block in pages.programs(_page(installation, name)):
        pages.run(block, tmp_path, installation.environment)


def test_the_first_steps_are_the_whole_way(installation: Installation) -> None:
    """A first message, a worker, a dropped file, a failed message that is found and sent back."""
    text = "\n".join(block.text for block in pages.programs(_page(installation, "first-steps")))
    for one in ("message put", "spool-worker", "drop/orders", "spool-intake", "message list errors", "message redrive"):
        assert one in text


@pytest.mark.slow
@pytest.mark.spark
def test_a_newcomers_services_are_called_through_spark(installation_with_spark: Installation, tmp_path: Path) -> None:
    for block in pages.programs(_page(installation_with_spark, "forwarding"), spark=True):
        pages.run(block, tmp_path, installation_with_spark.environment)


def _page(installation: Installation, name: str) -> Path:
    return installation.root / "share" / "doc" / "xaspool" / "docs" / f"{name}.md"
