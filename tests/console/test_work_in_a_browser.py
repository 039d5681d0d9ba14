"""The work of an administrator in a real browser."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.console import sample
from tests.console.conftest import Opened, Served, failed_id, log_in

pytestmark = pytest.mark.chromium


def test_a_stuck_message_is_found_looked_into_and_redriven(changing: Served, opened: Opened) -> None:
    page, id = log_in(opened, changing), failed_id(changing.space)
    page.get_by_role("link", name="Error queue errors has 1 failed message").click()
    assert "the customer number 77-Ω is unknown" in page.get_by_role("region", name="Messages").inner_text()
    page.locator(f"a[title='{id}']").click()
    assert page.locator("#body").inner_text() == sample.shown(sample.STUCK)
    assert "RuntimeError: the customer number 77-Ω is unknown" in page.locator("main").inner_text()
    assert "harbour" in page.get_by_role("region", name="Headers").inner_text()
    page.get_by_role("link", name="Redrive…").click()
    page.get_by_text("to its original queue invoices, and is ready at once").wait_for()
    page.get_by_role("button", name="Redrive").click()
    page.get_by_text(f"Message {id} is back in its original queue invoices.").wait_for()
    entry = changing.space.entry(id)
    assert (entry.message.queue, entry.state) == ("invoices", "ready")
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("heading", name="Findings").wait_for()
    assert "Error queue" not in page.locator("main").inner_text()


@pytest.mark.every(2)
@pytest.mark.parametrize(("link", "button", "count"), [("Commit…", "Commit", 1), ("Roll back…", "Roll back", 0)])
def test_a_transaction_in_doubt_is_decided_and_forgotten(
    changing: Served, opened: Opened, link: str, button: str, count: int
) -> None:
    page = log_in(opened, changing)
    page.get_by_role("link", name="1 transaction is in doubt").click()
    row = page.get_by_role("row").filter(has_text=str(sample.XID))
    assert "tills: 1" in row.inner_text()
    row.get_by_role("link", name=link).click()
    page.get_by_role("button", name=button).click()
    page.get_by_text("No transaction is in doubt.").wait_for()
    assert changing.space.stats("tills").ready == count
    assert str(sample.XID) in changing.space.engine.decisions()
    page.get_by_role("link", name="Forget…").click()
    page.get_by_role("button", name="Forget").click()
    page.get_by_text("No decision waits for a coordinator.").wait_for()
    assert not changing.space.engine.decisions()


@pytest.mark.slow
def test_a_destination_that_is_down_is_seen_in_words(reading: Served, opened: Opened) -> None:
    page = opened()
    page.goto(reading.url)
    page.get_by_role("link", name=f"The service {sample.ERP} of queue invoices is down; 318 messages wait.").click()
    picture = page.get_by_role("region", name="Picture of orders")
    words = picture.text_content() or ""
    assert f"service {sample.ERP}: service is DOWN" in words
    assert words.count("DOWN") == 2, "one title and one text"
    assert "calls 318" in words
    assert page.get_by_role("row").filter(has_text=sample.ERP).get_by_role("cell").last.inner_text() == "down"
    reading.space.engine.meters.change("route_down", "invoices", sample.ERP, by=-1)
    reading.console.samples.forget()
    page.reload()
    assert "DOWN" not in (picture.text_content() or "")


def test_the_figures_move_while_the_page_is_visible_and_only_then(reading: Served, opened: Opened) -> None:
    page = opened()
    page.add_init_script("Object.defineProperty(document, 'visibilityState', {get: () => window.seen || 'visible'})")
    page.clock.install()
    page.goto(f"{reading.url}/queues/oven")
    page.locator("dl.figures").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.evaluate("window.seen = 'hidden'; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.fast_forward(3_600_000)
    page.evaluate("fetch('/static/console.css').then(() => 0)")
    assert [url.rpartition("/")[2] for url in asked] == ["console.css"]
    asked.clear()

    reading.space.put_many("oven", ["more bread"] * 100)
    reading.console.samples.forget()
    page.evaluate("window.seen = 'visible'; document.dispatchEvent(new Event('visibilitychange'))")
    page.locator("dl.figures > div:first-child > dd", has_text="107").wait_for()
    page.locator("html[data-refreshed='1']").wait_for()
    page.clock.fast_forward(5_500)
    page.locator("html[data-refreshed='2']").wait_for()
    page.get_by_role("button", name="Pause refreshing").click()
    count = len(asked)
    page.clock.fast_forward(60_000)
    page.evaluate("0")
    assert len(asked) == count == 2


@pytest.mark.slow
def test_a_page_that_was_opened_in_the_background_asks_for_nothing(reading: Served, opened: Opened) -> None:
    page = opened()
    page.add_init_script("Object.defineProperty(document, 'visibilityState', {get: () => 'hidden'})")
    page.clock.install()
    page.goto(reading.url)
    page.get_by_role("button", name="Pause refreshing").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(3_600_000)
    page.evaluate("fetch('/static/console.css').then(() => 0)")  # (a request that would come after those of the page)
    assert [url for url in asked if not url.endswith(".css")] == []
    assert len(asked) == 1


@pytest.mark.slow
def test_the_keyboard_reaches_the_search_the_content_and_the_rows(reading: Served, opened: Opened) -> None:
    page, id = opened(), failed_id(reading.space)
    page.goto(reading.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    page.keyboard.type("lab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=lab")
    assert page.locator("tbody a.row").all_inner_texts() == ["labels"]
    page.locator("tbody a.row").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/labels")
    page.keyboard.press("/")
    page.keyboard.type(id)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/messages/{id}")


@pytest.mark.slow
def test_a_form_of_another_site_changes_nothing(changing: Served, opened: Opened) -> None:
    page, id = log_in(opened, changing), failed_id(changing.space)
    page.route(
        "http://attacker.example/**",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<form method="post" action="{changing.root}/messages/{id}/delete"><button>Win</button></form>',
        ),
    )
    page.goto("http://attacker.example/")
    page.get_by_role("button", name="Win").click()
    page.get_by_text("the request comes from another site").wait_for()
    assert changing.space.entry(id).state == "ready"


@pytest.mark.slow
def test_no_server_of_another_port_gets_the_cookie_or_the_address_of_a_login(changing: Served, opened: Opened) -> None:
    """Another user of the machine serves a page, and the administrator opens it from a tab with a login."""
    asked: list[str] = []

    class Thief(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    page = log_in(opened, changing)
    secrets = [changing.root.rpartition("/")[2], *(each["value"] for each in page.context.cookies(changing.root + "/"))]
    assert len(secrets) == 2
    with HTTPServer(("127.0.0.1", 0), Thief) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        there = f"http://127.0.0.1:{server.server_port}"
        page.evaluate("address => { location.href = address }", f"{there}/from-the-console")
        page.wait_for_url(f"{there}/**")
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0
        for path in ("/", "/s/", "/login", "/messages/"):
            page.goto(there + path)
        server.shutdown()
        serving.join()
    assert len([each for each in asked if "favicon" not in each]) == 5
    assert not [secret for secret in secrets for each in asked if secret in each]


@pytest.mark.slow
def test_a_new_tab_finds_the_login_until_it_ends(changing: Served, opened: Opened) -> None:
    page = log_in(opened, changing)
    tab = page.context.new_page()
    tab.goto(f"{changing.url}/queues/oven")
    tab.wait_for_url(f"{changing.root}/queues/oven")
    tab.get_by_role("button", name="Log out").click()
    tab.wait_for_url(f"{changing.url}/login")
    tab.wait_for_function("localStorage.getItem('login') === null")
    page.goto(f"{changing.root}/flow")
    page.get_by_role("heading", name="Log in").wait_for()
