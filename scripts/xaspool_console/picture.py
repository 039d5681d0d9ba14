"""The picture of a part of the flow, with boxes in columns, and arrows that cross neither boxes nor words.

All arrows of one kind to a box join before the box, and end in one straight line, which has the words of the arrows. An
arrow to a later column passes each column in between on a line between the boxes. An arrow to an earlier column passes
below all boxes.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from xaspool_console.flow import Component, Edge, Node
from xaspool_console.formatting import short
from xaspool_console.troubles import queue_link

if TYPE_CHECKING:
    from spool import SpaceMetrics

_WIDTH, _HEIGHT, _GAP, _MARGIN = 204, 48, 24, 20
_LINE = 16  # the distance between two parallel lines
_TURN = 60  # the room in which arrows cross
_STEP = 5  # the distance between two vertical lines
_MOST_STEPS = 8
_LETTER = 6.3  # the width of a letter of the words at an arrow
_TIP = 14
_LETTERS, _SMALL_LETTERS = 24, 31  # in a box: of the name, and of the line below
_MOST_FITTED = 1_500  # a wider picture would have too small letters if it fitted into a window


class _End(NamedTuple):
    """The last straight line of all arrows of one kind to a box."""

    target: Node
    words: str
    look: str


class _Lane(NamedTuple):
    """The line on which the arrows to one end pass a column."""

    end: _End
    column: int


_Item = Node | _Lane


@dataclass
class _Layout:
    """The places of a picture.

    columns: the column of each box.
    ends: for each end, the edges that arrive at it.
    x: the left side of the boxes of each column.
    join: the place before each column at which arrows join.
    y: the upper side of each box, and the height of each line between boxes.
    """

    columns: dict[Node, int]
    ends: dict[_End, list[Edge]]
    x: list[int] = field(default_factory=list)
    join: list[int] = field(default_factory=list)
    y: dict[_Item, int] = field(default_factory=dict)

    def column(self, item: _Item) -> int:
        return item.column if isinstance(item, _Lane) else self.columns[item]

    def middle(self, item: _Item) -> int:
        return self.y[item] + self.height(item) // 2

    def height(self, item: _Item) -> int:
        if isinstance(item, _Lane):
            return 0
        return max(_HEIGHT, _LINE * (1 + sum(end.target == item for end in self.ends)))

    def end_y(self, end: _End) -> int:
        others = [each for each in self.ends if each.target == end.target]
        return self.y[end.target] + self.height(end.target) * (others.index(end) + 1) // (len(others) + 1)

    def bottom(self) -> int:
        return max(y + self.height(item) for item, y in self.y.items())

    def is_back(self, edge: Edge) -> bool:
        return self.columns[edge.target] <= self.columns[edge.source]


def draw(metrics: "SpaceMetrics", part: Component) -> Markup:
    """Return the picture of a part as SVG."""
    layout = _laid_out(part)
    tip = f"tip-{part.name}"
    arrows = Markup().join([*_arrows(layout), *_back_arrows(layout)])
    ends = Markup().join(_end(layout, end, tip) for end in layout.ends)
    boxes = Markup().join(_box(metrics, node, layout, node in part.bad) for node in sorted(part.nodes))
    width = layout.x[-1] + _WIDTH + _MARGIN + (_TURN if any(map(layout.is_back, part.edges)) else 0)
    height = layout.bottom() + _MARGIN + _LINE * len(_back_ends(layout))
    return Markup(
        '<svg class="{look}" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="group" aria-label="Flow of {name}">'
        '<defs><marker id="{tip}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
        "{arrows}{ends}{boxes}</svg>"
    ).format(
        look="flow" if width <= _MOST_FITTED else "flow wide",
        w=width,
        h=height,
        name=part.name,
        tip=tip,
        arrows=arrows,
        ends=ends,
        boxes=boxes,
    )


# -- the places --------------------------------------------------------------------------------------------------------


def _laid_out(part: Component) -> _Layout:
    layout = _Layout(_columns(part.nodes, part.edges), _ends(part.edges))
    _place_columns(layout)
    _place_rows(layout, part.edges)
    return layout


def _ends(edges: list[Edge]) -> dict[_End, list[Edge]]:
    kinds: dict[tuple[Node, tuple[str, ...], str], list[Edge]] = defaultdict(list)
    for edge in edges:
        kinds[edge.target, edge.kinds, edge.look].append(edge)
    found = {}
    for (target, words, look), arriving in kinds.items():
        # The arrows to a service have the messages of the queues that call it, and the arrows to an error queue the
        # messages that failed in each queue. All other arrows to a queue have the same waiting messages.
        is_sum = target[0] != "queue" or words == ("errors",)
        depth = sum(edge.depth for edge in arriving) if is_sum else arriving[0].depth
        found[_End(target, f"{' + '.join(words)} {depth:,}", look)] = arriving
    return found


def _columns(nodes: set[Node], edges: list[Edge]) -> dict[Node, int]:
    """Return the column of each node: one more than the largest column of its sources. Ignore arrows that close a
    circle."""
    targets: dict[Node, list[Node]] = defaultdict(list)
    entered = {edge.target for edge in edges}
    for edge in edges:
        targets[edge.source].append(edge.target)
    done: list[Node] = []
    state: dict[Node, int] = {}  # 1: on the path, 2: done
    back: set[tuple[Node, Node]] = set()
    for root in sorted(nodes, key=lambda node: (node in entered, node)):
        stack = [(root, iter(targets[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                state[node] = 2
                done.append(node)
            elif state.get(following) == 1:
                back.add((node, following))
            elif following not in state:
                state[following] = 1
                stack.append((following, iter(targets[following])))
    column = dict.fromkeys(nodes, 0)
    for node in reversed(done):
        for target in targets[node]:
            if (node, target) not in back:
                column[target] = max(column[target], column[node] + 1)
    return column


def _place_columns(layout: _Layout) -> None:
    """Place each column after the room for the arrows to the column and for the words at the arrows' ends."""
    right = _MARGIN - _TURN
    for column in range(max(layout.columns.values()) + 1):
        words = [len(end.words) for end in layout.ends if layout.columns[end.target] == column]
        if words or column:
            layout.join.append(right + _TURN + (_TURN if column == 0 else 0))
            layout.x.append(layout.join[-1] + int(max(words, default=0) * _LETTER) + 2 * _TIP)
        else:
            layout.join.append(_MARGIN)
            layout.x.append(_MARGIN)
        right = layout.x[-1] + _WIDTH


def _place_rows(layout: _Layout, edges: list[Edge]) -> None:
    """Place the items of each column in the order of their sources, and at the height of the sources if possible."""
    sources: dict[_Item, list[_Item]] = defaultdict(list)
    for end, arriving in layout.ends.items():
        for before, item in chain.from_iterable(pairwise(_way(layout, end, edge)) for edge in arriving):
            sources[item].append(before)
    items: dict[int, set[_Item]] = defaultdict(set)
    for item in [*layout.columns, *sources]:
        items[layout.column(item)].add(item)
    leaving = {edge.source for edge in edges if edge.look != "errors"}

    def wanted(item: _Item) -> float:
        above = [layout.y[each] + layout.height(each) / 2 for each in sources[item]]
        return sum(above) / len(above) - layout.height(item) / 2 if above else 0.0

    for column in range(len(layout.x)):
        free = _MARGIN
        for item in sorted(items[column], key=lambda item: (wanted(item), item not in leaving, str(item))):
            layout.y[item] = max(free, round(wanted(item)))
            free = layout.y[item] + layout.height(item) + _GAP


def _way(layout: _Layout, end: _End, edge: Edge) -> list[_Item]:
    """Return the items on the way of an arrow: its source, the lines that pass columns, and its target. Return no items
    for an arrow to an earlier column."""
    if layout.is_back(edge):
        return []
    passed = range(layout.columns[edge.source] + 1, layout.columns[edge.target])
    return [edge.source, *(_Lane(end, column) for column in passed), edge.target]


# -- the drawing -------------------------------------------------------------------------------------------------------


def _arrows(layout: _Layout) -> list[Markup]:
    """Draw the arrows up to the places at which they join the ends. A line that several arrows share is drawn once."""
    drawn: dict[Markup, None] = {}
    for end, arriving in layout.ends.items():
        for before, item in chain.from_iterable(pairwise(_way(layout, end, edge)) for edge in arriving):
            x, y = layout.x[layout.column(before)] + _WIDTH, layout.middle(before)
            join, bend = layout.join[layout.column(item)], x + _TURN // 2
            is_lane = isinstance(item, _Lane)
            to_y = layout.middle(item) if is_lane else layout.end_y(end)
            path = f"M{x} {y}C{bend} {y} {bend} {to_y} {join} {to_y}"
            path += f"H{layout.x[layout.column(item)] + _WIDTH}" if is_lane else ""
            drawn[_line(end.look, path)] = None
    return list(drawn)


def _back_ends(layout: _Layout) -> list[_End]:
    return [end for end, arriving in layout.ends.items() if any(map(layout.is_back, arriving))]


def _back_arrows(layout: _Layout) -> list[Markup]:
    """Draw the arrows to earlier columns: down beside the box, then left below all boxes, then up to the end."""
    drawn = []
    for number, end in enumerate(_back_ends(layout)):
        low, beside = layout.bottom() + _LINE * (number + 1), _STEP * (2 + number % _MOST_STEPS)
        join = layout.join[layout.columns[end.target]]
        for edge in filter(layout.is_back, layout.ends[end]):
            x, y = layout.x[layout.columns[edge.source]] + _WIDTH, layout.middle(edge.source)
            path = f"M{x} {y}H{x + beside}V{low}H{join - beside}V{layout.end_y(end)}H{join}"
            drawn.append(_line(end.look, path))
    return drawn


def _line(look: str, path: str) -> Markup:
    return Markup('<path class="arrow {look}" d="{path}"/>').format(look=look, path=path)


def _end(layout: _Layout, end: _End, tip: str) -> Markup:
    column, y = layout.columns[end.target], layout.end_y(end)
    x = layout.x[column]
    return Markup(
        '<path class="arrow {look}" d="M{join} {y}H{x}" marker-end="url(#{tip})"/>'
        '<text class="label" x="{at}" y="{above}" text-anchor="end">{words}</text>'
    ).format(look=end.look, join=layout.join[column], y=y, x=x, tip=tip, at=x - _TIP, above=y - 4, words=end.words)


def _box(metrics: "SpaceMetrics", node: Node, layout: _Layout, is_bad: bool) -> Markup:
    kind, name = node
    x, y, height = layout.x[layout.columns[node]], layout.y[node], layout.height(node)
    stats = metrics.queues.get(name) if kind == "queue" else None
    if kind != "queue":
        about = "service is DOWN" if is_bad else "service"
    elif stats is None:
        about = "no such queue"
    else:
        about = f"{stats.ready:,} ready" + (f", {stats.delayed:,} delayed" if stats.delayed else "")
        about += f", {stats.claimed:,} claimed" if stats.claimed else ""
        about += " (trouble)" if is_bad and len(about) + len(" (trouble)") <= _SMALL_LETTERS else ""
    shown = name.removeprefix("https://").removeprefix("http://")
    box = Markup(
        '<rect class="{look}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{round}"/><title>{title}</title>'
        '<text class="name" x="{tx}" y="{ty}">{name}</text><text class="about" x="{tx}" y="{by}">{about}</text>'
    ).format(
        look=f"{kind} bad" if is_bad else kind, x=x, y=y, w=_WIDTH, h=height, round=6 if kind == "queue" else 24,
        tx=x + 12, ty=y + height // 2 - 4, by=y + height // 2 + 14,
        title=f"{kind} {short(name, 300)}: {about}", name=short(shown, _LETTERS), about=short(about, _SMALL_LETTERS),
    )  # fmt: skip
    if stats is None:
        return Markup("<g>{box}</g>").format(box=box)
    return Markup('<a href="{link}">{box}</a>').format(link=queue_link(name), box=box)
