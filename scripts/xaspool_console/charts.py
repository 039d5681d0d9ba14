"""Depth charts as inline SVG. The server draws the charts, so that the browser needs no script."""

from collections.abc import Sequence

from markupsafe import Markup

from xaspool_console.formatting import age, number

_Points = Sequence[tuple[float, int]]
_WIDTH, _HEIGHT = 640, 90


def spark(points: _Points, seconds: float) -> Markup:
    """Return a small chart for a row of a table. Screen readers skip the chart, because the row has the figures."""
    width, height = 96, 20
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return Markup(f'<svg class="spark" {size} aria-hidden="true">{_line(points, seconds, width, height)}</svg>')


def chart(points: _Points, seconds: float, name: str) -> Markup:
    """Return a chart of the page's width, below a caption with the figures; no chart of a single point."""
    if len(points) < 2:
        return Markup()
    values = [value for at, value in points if at >= points[-1][0] - seconds] or [0]
    caption = f"{name}: {number(values[-1])} now"
    if min(values) < max(values):
        caption += f", between {number(min(values))} and {number(max(values))} in the last {age(seconds)}"
    return Markup(
        '<figure><figcaption>{caption}</figcaption><svg class="chart" viewBox="0 0 {w} {h}" preserveAspectRatio="none" '
        'aria-hidden="true">{line}</svg></figure>'
    ).format(caption=caption, w=_WIDTH, h=_HEIGHT, line=_line(points, seconds, _WIDTH, _HEIGHT))


def _line(points: _Points, seconds: float, width: int, height: int) -> Markup:
    """Draw the points. All points are numbers, so no user's text can be in the result."""
    if not points:
        return Markup()
    end, most = points[-1][0], max(1, *(value for _, value in points))
    shown = [(at, value) for at, value in points if at >= end - seconds]
    places = [(width * (1 - (end - at) / seconds), height - 2 - (height - 6) * value / most) for at, value in shown]
    (first, y), last = places[0], places[-1][0]
    if len(places) == 1:  # (a line without length is a dot, because its ends are round)
        return Markup(f'<path class="line dot" d="M{first - 2:.1f} {y:.1f}h0"/>')
    line = " ".join([f"{x:.1f},{y:.1f}" for x, y in places])
    area = f"{first:.1f},{height} {line} {last:.1f},{height}"
    return Markup(f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>')
