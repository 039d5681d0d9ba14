"""X20: the list of an error queue: one line a message, all of a page chosen at once, and no dead end."""

import re

import spool
from tests.console import sample
from tests.console.conftest import Opened, Served, log_in

REASON = "HTTP 503 Service Unavailable: the server of the customer says that the order has a line which it cannot read"


def fail(space: spool.Space, count: int) -> None:
    space.purge("errors")
    for number in range(count):
        sample.fail(space, "labels", f"label {number}", REASON)


def test_x20_a_list_tells_its_part_and_has_links_to_both_neighbours(changing: Served) -> None:
    fail(changing.space, 60)
    with changing.logged_in() as (client, _):
        parts = ["/queues/errors"]
        seen = []
        for _ in range(3):
            text = client.get(parts[-1]).text
            seen += re.findall(r"(\d+–\d+ of \d+)", text)
            links = re.findall(r'rel="next" href="([^"#]*)', text)
            parts += [f"/queues/errors{link.replace('&amp;', '&')}" for link in links]
        assert seen == ["1–25 of 60", "26–50 of 60", "51–60 of 60"]
        assert 'rel="prev" href="?after=25#messages"' in text
        assert "1–25 of 60" in client.get("/queues/errors?reason=HTTP+503").text
        assert "of 0" not in client.get("/queues/errors?reason=nothing").text


def test_x20_all_messages_of_a_page_are_chosen_without_a_script(changing: Served) -> None:
    fail(changing.space, 30)
    with changing.logged_in() as (client, _):
        text = client.get("/queues/errors").text
        (address,) = re.findall(r'class="button choose" href="([^"]*)"', text)
        assert text.count(" checked") == 0
        assert client.get(f"/queues/errors{address}").text.count(" checked") == 25


def test_x20_nothing_chosen_is_said_on_the_page_of_the_list(changing: Served) -> None:
    fail(changing.space, 30)
    with changing.logged_in() as (client, _):
        answer = client.get("/queues/errors/redrive?chosen=1&after=25")
        assert answer.status_code == 303
        address = answer.headers["location"]
        assert address.endswith("/queues/errors?after=25")
        text = client.get(address.partition("/s/")[2].partition("/")[2].join(["/", ""])).text
        assert "No message is chosen: choose messages in the list." in text
        assert "26–30 of 30" in text
        assert client.get("/quarantined/delete?chosen=1").headers["location"].endswith("/quarantine")


def test_x20_the_buttons_wait_for_a_choice_and_each_message_has_one_line(changing: Served, opened: Opened) -> None:
    fail(changing.space, 30)
    page = log_in(opened, changing, viewport={"width": 1280, "height": 900})
    page.goto(f"{changing.root}/queues/errors")
    redrive = page.get_by_role("button", name="Redrive the chosen messages…")
    assert redrive.is_disabled()
    heights = page.evaluate("[...document.querySelectorAll('tbody tr')].map((each) => each.offsetHeight)")
    assert len(heights) == 25
    assert max(heights) < 40
    assert page.evaluate("document.querySelector('td.reason').offsetWidth") > 500
    page.get_by_role("link", name="Choose all on this page").click()
    assert page.locator("tbody input:checked").count() == 25
    redrive.click()
    page.get_by_text("25 messages of queue errors (25 message ids) can return").wait_for()
    page.go_back()
    page.get_by_role("link", name="Choose none").click()
    assert redrive.is_disabled()
    page.locator("tbody input").nth(3).check()
    assert redrive.is_enabled()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
