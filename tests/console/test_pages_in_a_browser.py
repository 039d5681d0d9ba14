"""The pages in a real browser: accessibility, a phone, no script, and a hostile space."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spool
import xa
from spool.model import layout
from tests.at_once import AT_ONCE
from tests.console import sample
from tests.console.conftest import Opened, Served, failed_id, log_in, serving
from tests.strides import Stride
from xaspool_console.quarantine_pages import token_of

pytestmark = pytest.mark.chromium

PHONE = {"viewport": {"width": 375, "height": 700}}
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>\x1b[31mred\x07 \u202ecod.exe\u2066 \x00"
)
HOSTILE_FILE = "<img src=x onerror=hacked=1>\x1b[2J\u202egnp.exe"
LONG = "q" * 127


def addresses(served: Served) -> list[str]:
    """Return the addresses of every kind of page."""
    id, path = failed_id(served.space), Path(served.space.path)
    (path / "quarantine" / "left.txt").write_bytes(b"some text")
    found = [
        "/", "/?q=zzz", "/flow", "/transactions", "/activity", "/recovery", "/quarantine", "/queues/errors",
        "/queues/errors?id=1", f"/messages/{id}", f"/quarantine/{token_of('left.txt')}", "/nothing",
    ]  # fmt: skip
    questions = [f"/messages/{id}/move", f"/transactions/{sample.XID}/commit", "/login"]
    return [*found, *(questions if served.console.allows_changes else [])]


# -- accessibility -----------------------------------------------------------------------------------------------------


def test_axe_finds_nothing_serious_in_light_or_dark_pages(changing: Served, opened: Opened, stride: Stride) -> None:
    """On each page with --long, and on every eighth without."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = log_in(opened, changing)
    found = []
    for address in addresses(changing)[:: stride(8)]:
        page.emulate_media(color_scheme="light")
        page.goto(changing.root + address)
        violations = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        page.emulate_media(color_scheme="dark")  # (only the colours differ)
        dark = "axe.run({resultTypes: ['violations'], runOnly: ['color-contrast']})"
        violations += page.evaluate(dark)["violations"]
        for violation in violations:
            if violation["impact"] in ("serious", "critical"):
                found.append((address, violation["id"], violation["nodes"][0]["html"]))
    assert found == []


def test_a_phone_scrolls_no_page_sideways(changing: Served, opened: Opened, stride: Stride) -> None:
    changing.space.create_queue(LONG)
    page = log_in(opened, changing, **PHONE)
    for address in [f"/queues/{LONG}", *addresses(changing)][:: stride(4)]:
        page.goto(changing.root + address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, address


@pytest.mark.slow
def test_a_list_of_messages_fits_on_a_screen_and_the_body_gets_the_room(reading: Served, opened: Opened) -> None:
    words = "a sentence with many words " * 5
    sample.fail(reading.space, "labels", {"order": words}, correlation_id=words)
    page = opened(viewport={"width": 1200, "height": 800})
    page.goto(f"{reading.url}/queues/errors")
    region = page.get_by_role("region", name="Messages")
    assert region.evaluate("each => each.scrollWidth - each.clientWidth") == 0
    assert page.locator("td.piece").last.evaluate("each => each.clientWidth") >= 220
    page.goto(f"{reading.url}/queues/orders")
    assert region.evaluate("each => each.scrollWidth - each.clientWidth") == 0
    assert page.locator("td.piece").first.evaluate("each => each.clientWidth") >= 350


@pytest.mark.slow
def test_a_phone_shows_each_reason_of_an_error_queue_and_each_connection(changing: Served, opened: Opened) -> None:
    reason = "HTTP 503 Service Unavailable from https://erp.bakery.example/invoices, at the last of many attempts " * 3
    for number in range(30):
        sample.fail(changing.space, "labels", {"order": number}, reason=f"{number}: {reason}")
    page = log_in(opened, changing, viewport={"width": 390, "height": 844})
    page.goto(f"{changing.root}/queues/errors")
    rows = page.locator("table.messages tbody tr")
    box = "each => each.getBoundingClientRect()"
    places = rows.evaluate_all(
        f"rows => rows.map(row => [row, ...['.reason', 'th.id a'].map(each => row.querySelector(each))].map({box}))"
    )
    assert len(places) == 25
    for row, reason_box, message in places:
        assert (reason_box["left"] >= 0, reason_box["right"] <= 390, reason_box["top"] > message["top"]) == (True,) * 3
        assert row["height"] < 130
    assert page.evaluate("document.documentElement.scrollHeight") < 3_700
    page.goto(f"{changing.root}/flow")
    assert not page.locator("svg.flow").is_visible()
    connections = page.get_by_role("region", name="Connections")
    assert connections.evaluate("each => each.scrollWidth - each.clientWidth") == 0
    assert "service python:bakery.labels:print_label" in connections.inner_text()
    page.goto(f"{changing.root}/")
    assert page.get_by_role("region", name="Queues").evaluate("each => each.scrollWidth - each.clientWidth") == 0


@pytest.mark.slow
def test_findings_look_like_links_and_charts_and_buttons_begin_where_tables_do(reading: Served, opened: Opened) -> None:
    page = opened(viewport={"width": 1280, "height": 800})
    page.goto(reading.url)
    for link in page.locator(".findings a").all():
        assert link.evaluate("each => getComputedStyle(each).textDecorationLine") == "underline"
    table = page.get_by_role("region", name="Queues").bounding_box()
    chart = page.locator("svg.chart").bounding_box()
    button = page.get_by_role("button", name="Pause refreshing").bounding_box()
    assert button is not None
    assert (chart["x"], chart["width"]) == (table["x"], table["width"])
    assert button["x"] == table["x"]


@pytest.mark.slow
def test_a_failed_message_shows_its_reason_before_everything_else(changing: Served, opened: Opened) -> None:
    page = log_in(opened, changing, viewport={"width": 390, "height": 844})
    page.goto(f"{changing.root}/messages/{failed_id(changing.space)}")
    lines = [line for line in page.locator("main").inner_text().splitlines() if line]
    assert lines[2].startswith("Failed in queue invoices after 1 attempt at 20")
    assert lines[3] == "RuntimeError: the customer number 77-Ω is unknown"
    words = page.locator("main").inner_text()
    assert words.index("1 in queue invoices, 0 in queue errors") > words.index("Café Lumière")


def test_every_page_can_be_read_without_script(reading: Served, opened: Opened, stride: Stride) -> None:
    page, id = opened(java_script_enabled=False), failed_id(reading.space)
    expected = {
        "/": "Error queue errors has 1 failed message", "/flow": "service is DOWN",
        "/transactions": str(sample.XID), "/activity": "18,204", "/quarantine": "Quarantine is empty",
        "/queues/errors": id, f"/messages/{id}": '"customer": "Café Lumière"',
    }  # fmt: skip
    for address, words in [*expected.items()][:: stride(3)]:
        page.goto(reading.url + address)
        assert words in (page.locator("main").text_content() or ""), address
    page.goto(reading.url)
    page.get_by_label("Find a queue").fill("oven")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=oven")
    assert page.locator("tbody a.row").all_inner_texts() == ["oven"]


# -- a hostile space ---------------------------------------------------------------------------------------------------


@contextmanager
def hostile(path: Path) -> Iterator[Served]:
    """Serve a space in which each text of others is an attack."""
    with spool.create(path, defaults=AT_ONCE) as space:
        space.engine.deliver_stored_bytes()
        space.create_queue("errors")
        space.create_queue(LONG, error_queue="errors", retries=0)
        headers = {HOSTILE: HOSTILE, "huge": "x" * 7_000}
        bodies: list[Any] = [
            HOSTILE,
            HOSTILE.encode(),
            {"key": HOSTILE},
            [HOSTILE] * 9_000,
            os.urandom(9_000),
            "y" * 300_000,
        ]
        bodies += [b"[" * 60_000, b"\xff\xfe<script>", ""]
        space.put_many(LONG, bodies, headers=headers, correlation_id=HOSTILE, client_id=HOSTILE, group=HOSTILE)
        space.put(LONG, b"<script>window.hacked = 1</script>", content_type="text/html")
        sample.fail(space, LONG, HOSTILE, headers=headers, correlation_id=HOSTILE)
        sample.prepare_in(space, LONG, xa.Xid(1, b"<script>hacked=1</script>", b"\x1b\xff" * 32))
        for name in (HOSTILE_FILE, os.fsdecode(b"\xff\xfe" * 100)):
            (path / layout.QUARANTINE / name).write_text(HOSTILE)
        space.engine.meters.change("route", LONG, HOSTILE, by=1)
        space.engine.meters.change("route_down", LONG, HOSTILE, by=1)
        space.engine.meters.add("outcomes", HOSTILE, LONG, HOSTILE)
        with serving(space, changes=True) as served:
            yield served


def test_a_hostile_space_runs_no_script_and_breaks_no_page(memory: Path, opened: Opened, stride: Stride) -> None:
    with hostile(memory / "space") as served:
        page = log_in(opened, served, bypass_csp=True)  # (so the templates alone must prevent it)
        space = served.space
        ids = [entry.id for queue in (LONG, "errors") for entry in space.entries(queue)]
        assert len(ids) == 11
        tokens = [token_of(finding.name.rpartition("/")[2]) for finding in space.quarantined()]
        assert len(tokens) == 2
        pages = [
            "/flow", "/", "/transactions", "/activity", f"/queues/{LONG}", "/quarantine", "/recovery", "/queues/errors",
            *(f"/messages/{id}" for id in ids), *(f"/quarantine/{token}" for token in tokens),
            f"/quarantine/{tokens[0]}/delete", f"/?q={HOSTILE}", f"/flow?q={HOSTILE}", f"/queues/{HOSTILE}",
        ]  # fmt: skip
        for address in pages[:: stride(4)]:
            answer = page.goto(served.root + address.replace("#", "%23").replace("\x00", "%00"))
            assert answer.status in (200, 404), address
            assert page.evaluate("window.hacked") is None, address
            assert page.locator("main script, main img").count() == 0, address
            words = page.locator("main").text_content() or ""
            assert not {"\x1b", "\x07", "\x00", "\u202e", "\u2066"} & set(words), address
            assert len(words) < 200_000, address
        page.goto(f"{served.root}/messages/{ids[0]}")
        assert "\\x1b[31mred\\x07 \\u202ecod.exe\\u2066" in (page.locator("#body").text_content() or "")


@pytest.mark.slow
def test_a_browser_keeps_the_bytes_of_a_body_as_a_file(memory: Path, opened: Opened) -> None:
    with hostile(memory / "space") as served:
        page = log_in(opened, served)
        [id] = [e.id for e in served.space.entries(LONG) if e.message and e.message.content_type == "text/html"]
        page.goto(f"{served.root}/messages/{id}")
        with page.expect_download() as waiting:
            page.get_by_role("link", name="Download the bytes").click()
        assert Path(waiting.value.path()).read_bytes() == b"<script>window.hacked = 1</script>"
        assert waiting.value.suggested_filename == f"{id}.bin"
