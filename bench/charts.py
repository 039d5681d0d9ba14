"""Draw the charts of docs/performance.md as SVG: bars with medians, and lines from the least to the greatest value."""

import statistics
from collections.abc import Sequence

from bench.figures import Figure, number
from bench.table import Chart

_OURS, _LIMIT, _DURABLE, _NOT_DURABLE = "#1f6f8b", "#444444", "#8fb8c9", "#d9d9d9"


def draw(chart: Chart, path: str) -> None:
    """Draw a chart into a file. The same numbers give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "xaspool", "svg.fonttype": "none"})
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figures = list(reversed(chart.figures))
    drawing, axes = pyplot.subplots(figsize=(8, 0.8 + 0.42 * len(figures)), layout="constrained")
    places = range(len(figures))
    medians = [figure.median for figure in figures]
    bars = axes.barh(places, medians, color=[_colour(figure) for figure in figures], height=0.7)
    for bar, figure in zip(bars, figures, strict=True):
        if figure.durable is False:
            bar.set_hatch("///")
            bar.set_edgecolor("#999999")
        low, high = _tenths(figure.samples)
        axes.plot([low, high], [bar.get_y() + 0.35] * 2, color="#222222", linewidth=1, alpha=0.7)
    axes.set_yticks(places, [_label(figure) for figure in figures])
    for place, figure in zip(places, figures, strict=True):
        axes.annotate(
            number(figure.median), (max(_tenths(figure.samples)[1], figure.median), place), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(min(_tenths(f.samples)[0] for f in figures) / 2, max(max(f.samples) for f in figures) * 2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_title(chart.title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    drawing.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(drawing)


def _label(figure: Figure) -> str:
    return f"{figure.who} (not durable)" if figure.durable is False else figure.who


def _colour(figure: Figure) -> str:
    if figure.durable is False:
        return _NOT_DURABLE
    return {"xaspool": _OURS, "raw append": _LIMIT}.get(figure.who, _DURABLE)


def _tenths(samples: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the middle eight tenths of the samples. Single stalls would make the charts unreadable."""
    if len(samples) < 10:
        return min(samples), max(samples)
    found = statistics.quantiles(samples, n=10)
    return found[0], found[-1]
