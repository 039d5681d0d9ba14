"""X20: one console for several spaces: the first page has their verdicts, and each space has its pages."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import spool
from forwarder.web.sockets import listening
from tests.console import sample
from tests.console.conftest import TOKEN, Opened, httpx
from xaspool_console.access import Access, known_hosts
from xaspool_console.app import application_of_several
from xaspool_console.console import Console
from xaspool_console.server import ConsoleServer


@contextmanager
def serving(memory: Path, token: str | None) -> Iterator[tuple[str, list[spool.Space], list[Console]]]:
    """Serve a bakery with troubles, and a shop without."""
    with ExitStack() as opened:
        spaces = [
            opened.enter_context(sample.build(memory / "bakery")), opened.enter_context(spool.create(memory / "shop"))
        ]  # fmt: skip
        spaces[1].engine.deliver_stored_bytes()
        spaces[1].create_queue("orders")
        spaces[1].put("orders", "tea & bread")
        listeners = listening("127.0.0.1", 0)
        port = listeners[0].getsockname()[1]
        access = Access(known_hosts("127.0.0.1", port, ()), token)
        consoles = [
            Console(each.path, each.metrics, each, access, token is not None, name=Path(each.path).name)
            for each in spaces
        ]
        server = ConsoleServer(application_of_several(consoles), listeners, consoles[0].refuse)
        try:
            yield f"http://127.0.0.1:{port}", spaces, consoles
        finally:
            assert server.close()


def test_x20_the_first_page_lists_the_spaces_with_their_verdicts(memory: Path) -> None:
    with serving(memory, None) as (url, _, consoles), httpx.Client(base_url=url, verify=False, timeout=30) as client:
        text = client.get("/").text
        assert re.findall(r'class="row" href="([^"]*)"', text) == ["/space/bakery/", "/space/shop/"]
        assert "transaction is in doubt" in text
        assert "Nothing needs your attention." in text
        consoles[1].samples.forget()
        consoles[1].samples._metrics = lambda: spool.read_metrics(memory / "nowhere")
        assert "The space cannot be read: " in client.get("/").text


def test_x20_each_space_has_its_pages_below_its_name(memory: Path) -> None:
    with serving(memory, None) as (url, _, _), httpx.Client(base_url=url, verify=False, timeout=30) as client:
        text = client.get("/space/shop/").text
        assert 'href="/space/shop/queues/orders"' in text
        assert 'href="/space/shop/tasks"' in text
        assert 'href="/static/console.css"' in text
        assert 'href="/">Spaces</a>' in text
        assert "invoices" not in text
        assert "tea &amp; bread" in client.get("/space/shop/queues/orders").text
        assert "invoices" in client.get("/space/bakery").text
        for address in ("/space/nowhere/", "/space", "/queues/orders", "/space/shop/queues/invoices"):
            assert client.get(address).status_code == 404, address
        assert client.get("/static/console.js").status_code == 200


def test_x20_a_person_logs_in_once_and_changes_each_space(memory: Path, opened: Opened) -> None:
    with serving(memory, TOKEN) as (url, (_, shop), _):
        page = opened(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/space/shop/queues/orders")
        page.get_by_label("token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="orders").wait_for()
        page.get_by_role("link", name="Choose all", exact=False).count()
        page.locator("tbody input").check()
        page.get_by_role("button", name="Delete the chosen messages…").click()
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("Deleted 1 message of queue orders").wait_for()
        assert shop.stats("orders").ready == 0
        page.get_by_role("link", name="Spaces").click()
        page.get_by_role("heading", name="Spaces").wait_for()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name="bakery", exact=True).click()
        page.get_by_role("heading", name="Overview").wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("token").wait_for()
        tab = page.context.new_page()
        tab.goto(url)
        tab.get_by_label("token").wait_for()


@pytest.mark.parametrize("name", ["a/b", "%2e%2e", ""])
def test_x20_the_name_of_a_space_is_no_path(memory: Path, name: str) -> None:
    with serving(memory, None) as (url, _, _), httpx.Client(base_url=url, verify=False, timeout=30) as client:
        assert client.get(f"/space/{name}/").status_code == 404
