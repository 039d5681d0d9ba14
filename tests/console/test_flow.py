"""The pictures of the flow: every arrow is there, and no arrow crosses a word or a box."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import spool
from spool import SpaceMetrics
from spool.watch.health import queue_causes
from tests.console import sample
from tests.console.conftest import Opened, serving
from tests.console.test_pages import QUEUES, wide
from tests.strides import Stride
from xaspool_console import flow, picture

_LETTER = 6.0
_Box = tuple[float, float, float, float]
_Point = tuple[float, float]


def drawn(metrics: SpaceMetrics) -> str:
    (part,), others = flow.parts(metrics, flow.edges(metrics), queue_causes(metrics, {}), 5)
    assert (others, part.left_out) == (0, 0)
    return str(picture.draw(metrics, part))


def lines_of(svg: str) -> list[list[_Point]]:
    """Return points on each arrow, at most a few units apart."""
    found = []
    for path in re.findall(r'<path class="arrow[^"]*" d="([^"]*)"', svg):
        points: list[_Point] = []
        for command, text in re.findall(r"([MCHV])([-\d. ]*)", path):
            values = [float(each) for each in text.split()]
            if command == "M":
                points.append((values[0], values[1]))
                continue
            x, y = points[-1]
            if command == "C":
                x1, y1, x2, y2, x3, y3 = values
            else:
                x3, y3 = (values[0], y) if command == "H" else (x, values[0])
                x1, y1, x2, y2 = x, y, x3, y3
            for step in range(1, 201):
                t = step / 200
                a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
                points.append((a * x + b * x1 + c * x2 + d * x3, a * y + b * y1 + c * y2 + d * y3))
        found.append(points)
    return found


def words_of(svg: str) -> dict[str, _Box]:
    """Return the boxes around the words at the arrows."""
    found = {}
    for text in re.findall(r'<text class="label"([^>]*>[^<]*)<', svg):
        x, y = (float(re.findall(rf' {name}="([-\d.]+)"', text)[0]) for name in "xy")
        words = text.partition(">")[2]
        width = len(words) * _LETTER
        left = x - width if 'anchor="end"' in text else x - width / 2
        found[f"{words} at {x:g} {y:g}"] = (left, y - 8, left + width, y + 1)
    return found


def boxes_of(svg: str) -> dict[str, _Box]:
    """Return the boxes of the queues and services, without their edges."""
    found = {}
    for rect in re.findall(r"<rect([^>]*)>", svg):
        x, y, width, height = (
            float(re.findall(rf' {name}="([\d.]+)"', rect)[0]) for name in ("x", "y", "width", "height")
        )
        found[f"box at {x:g} {y:g}"] = (x + 1, y + 1, x + width - 1, y + height - 1)
    return found


def crossed(svg: str) -> list[str]:
    """Return the words and boxes that an arrow crosses."""
    inside = [
        name
        for name, (left, top, right, bottom) in {**words_of(svg), **boxes_of(svg)}.items()
        for line in lines_of(svg)
        if any(left < x < right and top < y < bottom for x, y in line)
    ]
    return sorted(set(inside))


def overlapping(svg: str) -> list[tuple[str, str]]:
    """Return the pairs of words and boxes that lie on each other."""
    all_ = {**words_of(svg), **boxes_of(svg)}
    return [
        (one, other)
        for one, (left, top, right, bottom) in all_.items()
        for other, (left2, top2, right2, bottom2) in all_.items()
        if one < other and left < right2 and left2 < right and top < bottom2 and top2 < bottom
    ]


def busy(space: spool.Space) -> SpaceMetrics:
    """Return the metrics of a flow with several queues, services, replies, an error queue and circles."""
    meters = space.engine.meters
    for name in ("errors", "answers", "late"):
        space.create_queue(name)
    names = [f"customer-{number:02}" for number in range(9)]
    for name in names:
        space.create_queue(name, error_queue="errors", reply_queue="answers")
        meters.change("destination", "incoming", name, by=1)
        meters.change("route", name, f"https://{name}.example/orders", by=1)
    space.create_queue("incoming", error_queue="errors", failure_queue="late")
    meters.change("destination", "answers", "incoming", by=1)
    meters.change("destination", "late", "late", by=1)
    meters.change("route", "answers", f"https://{names[0]}.example/orders", by=1)
    return space.metrics()


def test_no_arrow_of_the_flow_crosses_a_word_or_a_box(bakery: spool.Space, memory: Path, stride: Stride) -> None:
    with spool.create(memory / "busy") as space:
        pictures = [drawn(busy(space)), drawn(bakery.metrics())][:: stride(2)]
    for svg in pictures:
        assert len(words_of(svg)) >= 7
        assert len(boxes_of(svg)) >= 7
        assert crossed(svg) == []
        assert overlapping(svg) == []


def test_each_box_of_the_flow_and_each_word_lies_in_the_picture(memory: Path) -> None:
    with spool.create(memory / "busy") as space:
        svg = drawn(busy(space))
    width, height = (float(each) for each in re.findall(r'viewBox="0 0 (\d+) (\d+)" width', svg)[0])
    for left, top, right, bottom in [*words_of(svg).values(), *boxes_of(svg).values()]:
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height
    assert all(0 <= x <= width and 0 <= y <= height for line in lines_of(svg) for x, y in line)


def test_arrows_of_one_kind_to_a_box_have_one_tip_and_the_waiting_messages(bakery: spool.Space) -> None:
    svg = drawn(bakery.metrics())
    words = re.findall(r'class="label"[^>]*>([^<]*)<', svg)
    assert sorted(words) == sorted(
        ["delivers 318", "delivers 24", "delivers 7", "replies 0", "calls 318", "calls 24", "calls 7", "errors 1"]
    )
    assert svg.count("marker-end") == len(words)
    assert f"service {sample.ERP}: service is DOWN" in svg


def test_a_circle_of_queues_is_drawn(memory: Path) -> None:
    with spool.create(memory / "space") as space:
        for name in ("a", "b", "c"):
            space.create_queue(name)
        for name, target in (("a", "b"), ("b", "c"), ("c", "a")):
            space.change_queue(name, reply_queue=target)
        space.engine.meters.change("destination", "a", "a", by=1)
        svg = drawn(space.metrics())
    assert svg.count("marker-end") == 4
    assert crossed(svg) == []


def test_a_large_flow_is_cut_and_the_table_has_the_rest(memory: Path) -> None:
    with wide(memory / "space") as space:
        metrics = space.metrics()
        references = dict.fromkeys((f"queue-{number:03}" for number in range(QUEUES)), metrics.references["orders"])
        metrics = replace(metrics, references=references)
        with serving(space, metrics=lambda: metrics) as served, served.client() as client:
            text = client.get("/flow").text
            assert text.count("<rect") == 40
            assert "The picture leaves out 961 queues or services" not in text
            assert "The picture leaves out 961 queues and services" in text
            assert "The table leaves out 500 connections" in text
            assert client.get("/flow?q=nowhere").text.count("<rect") == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_box_with_many_kinds_of_arrows_has_room_for_their_words(memory: Path, count: int) -> None:
    kinds = ("reply_queue", "failure_queue", "error_queue")
    with spool.create(memory / "space") as space:
        space.create_queue("target")
        for number in range(count):
            space.create_queue(f"source-{number}", **{kinds[number % 3]: "target"})  # type: ignore[arg-type]
            if number > 2:
                space.engine.meters.change("destination", f"source-{number}", "target", by=1)
        svg = drawn(space.metrics())
    assert len(words_of(svg)) == count
    assert crossed(svg) == []
    assert overlapping(svg) == []


def test_x20_each_arrow_to_a_shared_error_queue_has_the_messages_that_failed_in_its_source(memory: Path) -> None:
    with spool.create(memory / "space") as space:
        space.create_queue("errors")
        for name in ("orders", "invoices", "labels"):
            space.create_queue(name, error_queue="errors", retries=0)
        for name, count in (("orders", 3), ("invoices", 95)):
            space.put_many(name, [b"x"] * count)
            with space.claims() as claims:
                claims.reject(claims.take(name, count), "HTTP 503").result()
        metrics = space.metrics()
    assert {edge.source[1]: edge.depth for edge in flow.edges(metrics)} == {"orders": 3, "invoices": 95, "labels": 0}
    assert "errors 98" in drawn(metrics)


def test_x20_the_flow_of_the_bakery_fits_into_a_window_of_1280_pixels(bakery: spool.Space, opened: Opened) -> None:
    with serving(bakery) as served:
        page = opened(viewport={"width": 1280, "height": 900})
        page.goto(f"{served.url}/flow")
        for region in page.locator(".scroll").all():
            assert region.evaluate("each => each.scrollWidth <= each.clientWidth")
