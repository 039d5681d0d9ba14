"""Depth charts as inline SVG. The server draws them, so that they need no script."""

from collections.abc import Sequence

from markupsafe import Markup

from xaspool_console.formatting import number

_Points = Sequence[tuple[float, int]]


def spark(points: _Points, seconds: float) -> Markup:
    """Return a small chart for a row of a table. Screen readers skip the chart, because the row has the figures."""
    width, height = 96, 20
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return Markup(f'<svg class="spark" {size} aria-hidden="true">{_line(points, seconds, width, height)}</svg>')


def chart(points: _Points, seconds: float, name: str, height: int = 140) -> Markup:
    """Return a chart with a scale, and with its figures as text for screen readers."""
    width = 640
    values = [value for _, value in points] or [0]
    low, high = min(values), max(values)
    label = f"{name} in the last {seconds / 60:.0f} minutes: now {values[-1]:,}, lowest {low:,}, highest {high:,}"
    frame = Markup(
        '<line class="grid" x1="0" y1="{top}" x2="{w}" y2="{top}"/><line class="grid" x1="0" y1="{base}" x2="{w}" '
        'y2="{base}"/><text x="4" y="{text}">{high}</text><text x="4" y="{h}">{minutes} minutes ago</text>'
        '<text x="{w}" y="{h}" text-anchor="end">now</text>'
    ).format(w=width, top=2, base=height, text=16, h=height + 16, high=number(high), minutes=f"{seconds / 60:.0f}")
    whole = Markup('<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{frame}{line}</svg>')
    line = _line(points, seconds, width, height)
    return whole.format(w=width, h=height + 20, label=label, frame=frame, line=line)


def _line(points: _Points, seconds: float, width: int, height: int) -> Markup:
    """Draw the points, which are all numbers: no text of others can be in the result."""
    if not points:
        return Markup()
    end, most = points[-1][0], max(1, *(value for _, value in points))
    shown = [(at, value) for at, value in points if at >= end - seconds]
    places = [(width * (1 - (end - at) / seconds), height - 1 - (height - 3) * value / most) for at, value in shown]
    (first, y), last = places[0], places[-1][0]
    if len(places) == 1:
        return Markup(f'<circle class="line" cx="{first - 2:.1f}" cy="{y:.1f}" r="1.5"/>')
    line = " ".join([f"{x:.1f},{y:.1f}" for x, y in places])
    area = f"{first:.1f},{height} {line} {last:.1f},{height}"
    return Markup(f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>')
