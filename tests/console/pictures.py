"""Make the pictures of docs/console.md again: ``python -m tests.console.pictures [DIRECTORY]``."""

import sys
import tempfile
from pathlib import Path

from tests.console import sample
from tests.console.conftest import chromium, log_in, serving


def main(directory: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as made,
        sample.build(Path(made) / "bakery") as space,
        serving(space, changes=True) as served,
        chromium() as browser,
    ):
        served.console.title = "/var/spool/bakery"
        sample.with_history(served.console)
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        log_in(page, served)
        page.screenshot(path=directory / "console-overview.png")
        (failed,) = [entry.id for entry in space.entries("errors")]
        page.goto(f"{served.root}/messages/{failed}")
        page.screenshot(path=directory / "console-message.png")
        page.goto(f"{served.root}/flow")
        page.screenshot(path=directory / "console-flow.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs")
