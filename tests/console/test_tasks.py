"""X20: the page of tasks answers what waits, what runs, what failed and why, and who works; its history needs no
browser."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.console.conftest import Opened, Served, serving
from tests.watch.test_tasks import KOMBU
from xaspool_console.samples import Samples


@pytest.fixture
def shop(memory: Path) -> Iterator[spool.Space]:
    """A space with a task in each state, as Celery makes them."""
    with spool.create(memory / "shop", defaults=AT_ONCE) as space:
        space.engine.deliver_stored_bytes()
        space.create_queue("failed", role="error")
        space.create_queue("results", role="state")
        for queue in ("celery", "mail"):
            space.create_queue(queue, error_queue="failed", retries=0)
        for number, name in enumerate(["shop.bake"] * 5 + ["shop.label"] * 2):
            space.put("celery", json.dumps(KOMBU), correlation_id=f"task-{number}", headers={"task": name})
        space.put("celery", json.dumps(KOMBU), correlation_id="late", headers={"task": "shop.bake"}, delay=3600)
        space.put("mail", "plain")
        yield space


def text_of(served: Served, path: str = "/tasks") -> str:
    with served.client() as client:
        answer = client.get(path)
        assert answer.status_code == 200
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", answer.text)))


def test_x20_one_page_answers_what_an_operator_asks(shop: spool.Space) -> None:
    with shop.claims() as claims, shop.arrivals(["celery"]), serving(shop) as served:
        failed, running, _ = claims.take("celery", 3)
        claims.reject([failed], "ValueError: no flour").result()
        claims.begin(running)
        text = text_of(served)
    runs, _, rest = text.partition(" Failures of the last day")
    failures, _, rest = rest.partition(" Consumers")
    works, _, waits = rest.partition(" Waiting tasks")
    assert re.search(r"shop.bake running [\d.]+ s process \d+ \(.*\) celery 1, 'a', size='large'", runs)
    assert re.search(r"shop.bake reserved – process \d+ \(.*\) celery 1, 'a', size='large'", runs)
    assert re.search(r"shop.bake 1 \d+ s ago celery ValueError: no flour", failures)
    assert "task-0" in failures
    assert re.search(r"\d+ celery busy 2 1 20", works)
    assert "No process takes the ready messages of mail" in works
    assert re.search(r"shop.bake celery 2 1 \d+ s shop.label celery 2 0 \d+ s messages mail 1 0 \d+ s", waits)


def test_x20_the_page_of_an_idle_space_says_so(memory: Path) -> None:
    with spool.create(memory / "idle") as space, serving(space) as served:
        text = text_of(served)
    for sentence in (
        "No program holds a message of a work queue.", "Nothing failed in the last day.",
        "No process serves a work queue.", "No message waits in a work queue.",
    ):  # fmt: skip
        assert sentence in text


def test_x20_a_failure_leads_to_the_list_of_its_messages(shop: spool.Space) -> None:
    with shop.claims() as claims:
        for reason in ("ValueError: no flour", "ValueError: no salt", "KeyError: 7"):
            claims.reject(claims.take("celery"), reason).result()
    with serving(shop) as served, served.client() as client:
        links = re.findall(r'href="(/queues/failed[^"]*)"', client.get("/tasks").text)
        assert [len(re.findall('class="reason"', client.get(link.replace("&amp;", "&")).text)) for link in links] == [
            2, 1,
        ]  # fmt: skip


def test_x20_no_table_of_the_page_scrolls_sideways(shop: spool.Space, opened: Opened) -> None:
    with shop.claims() as claims, shop.arrivals(["celery", "mail"]), serving(shop) as served:
        failed, running = claims.take("celery", 2)
        claims.reject([failed], f"ValueError: {'no flour ' * 90}").result()
        claims.begin(running)
        for width in (1280, 390):
            page = opened(viewport={"width": width, "height": 900})
            page.goto(f"{served.url}/tasks")
            page.locator("details summary").click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for region in page.locator(".scroll").all():
                assert region.evaluate("each => each.scrollWidth <= each.clientWidth"), region
            first = page.locator("tbody tr").first.bounding_box()
            assert first is not None
            assert width < 1280 or first["height"] < 40


def test_x20_history_is_recorded_without_a_browser(shop: spool.Space) -> None:
    asked = threading.Semaphore(0)

    def metrics() -> spool.SpaceMetrics:
        asked.release()
        return shop.metrics()

    samples = Samples(metrics)
    with samples.recorded():
        assert asked.acquire(timeout=30)
    assert len(samples.snapshot().samples) >= 1


def test_x20_a_chart_without_history_is_hidden(shop: spool.Space) -> None:
    now = [shop.metrics().at]
    with serving(shop) as served, served.client() as client:
        assert "<figure>" not in client.get("/").text
        served.console.samples._clock = lambda: now[0] + 60.0
        served.console.samples._metrics = lambda: replace(shop.metrics(), at=now[0] + 60.0)
        assert "<figure>" in client.get("/").text
