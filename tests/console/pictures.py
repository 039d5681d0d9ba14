"""Make every picture of docs/ again: ``python -m tests.console.pictures [DIRECTORY]``. The pages show a bakery.

The pictures are in the format WebP, which needs half the bytes of PNG.
"""

import base64
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import spool
from tests.console import sample
from tests.console.conftest import chromium, failed_id, log_in, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, _MOST_HEIGHT = 1180, 1000
_QUALITY = 80


NAMES = ("overview", "flow", "message", "quarantine", "errors", "tasks")


def _addresses(space: spool.Space) -> dict[str, str]:
    """Return the addresses of the pages by the names of their pictures."""
    addresses = ("/", "/flow", f"/messages/{failed_id(space)}", "/quarantine", "/queues/errors", "/tasks")
    return dict(zip(NAMES, addresses, strict=True))


def main(directory: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as made,
        sample.build(Path(made) / "bakery") as space,
        serving(space, changes=True) as served,
        chromium() as browser,
    ):
        served.console.title = "/var/spool/bakery"
        addresses = _addresses(space)
        for number in range(8):
            reason = "HTTP 503 Service Unavailable" if number % 3 else "five soups are no order"
            sample.fail(space, "invoices", {"order": 1300 + number}, reason, correlation_id=f"order-{1300 + number}")
        sample.refuse(space, wrong=3, large=5)
        sample.with_history(served.console)
        page = log_in(browser.new_page, served, viewport={"width": WIDTH, "height": 600})
        for name, address in addresses.items():
            with sample.with_tasks(space) if name == "tasks" else nullcontext():
                served.console.samples.forget()
                page.goto(served.root + address)
                _take(page, directory / f"console-{name}.webp")


def _take(page: "Page", path: Path) -> None:
    """Write a picture of the page, without the empty space below its content."""
    page.set_viewport_size({"width": WIDTH, "height": 600})
    bottom = page.evaluate("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)")
    height = min(_MOST_HEIGHT, bottom)
    page.set_viewport_size({"width": WIDTH, "height": height})
    options = {"format": "webp", "quality": _QUALITY}
    answer = page.context.new_cdp_session(page).send("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(answer["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs")
