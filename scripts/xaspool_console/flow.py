"""The flow of messages between queues and services, as a graph and as pictures of its parts.

The edges come from the settings of the queues, and from the routes that running forwarders and workers report.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from spool.model.text import plural
from xaspool_console.findings import down_routes, queue_link, troubled, waiting
from xaspool_console.formatting import short

if TYPE_CHECKING:
    from spool import SpaceMetrics

_MOST_DRAWN = 40  # nodes of one picture
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 212, 48, 120, 30, 24
_LETTERS = 24
_QUEUE, _SERVICE = "queue", "service"
_ERRORS = "errors"
Node = tuple[str, str]
"""The kind of a node, and the name of the queue or service."""


@dataclass(frozen=True)
class Edge:
    """An arrow. kinds: the words at the arrow. depth: the messages that wait at its queue. is_down: the service of the
    arrow is down."""

    source: Node
    target: Node
    kinds: tuple[str, ...]
    depth: int
    is_down: bool = False


@dataclass(frozen=True)
class Part:
    """A connected part of the graph. left_out: the number of nodes that the picture does not have."""

    name: str
    picture: Markup
    left_out: int
    is_troubled: bool


def edges(metrics: "SpaceMetrics") -> list[Edge]:
    """Return the arrows of the whole space, in the order of their queues."""
    kinds: dict[tuple[Node, Node], list[str]] = {}
    down = set(down_routes(metrics))

    def add(queue: str, target: Node, kind: str) -> None:
        known = kinds.setdefault(((_QUEUE, queue), target), [])
        if kind not in known:
            known.append(kind)

    for key, value in metrics.states.items():
        if value and len(key) == 3 and key[0] in ("route", "route_down"):
            add(key[1], (_SERVICE, key[2]), "calls")
        elif value and len(key) == 3 and key[0] == "destination":
            add(key[1], (_QUEUE, key[2]), "delivers")
    for queue, role in metrics.roles.items():
        for target, kind in (
            (role.reply_queue, "replies"), (role.failure_queue, "failures"), (role.error_queue, _ERRORS)
        ):  # fmt: skip
            if target is not None:
                add(queue, (_QUEUE, target), kind)
    found = [
        Edge(source, target, tuple(words), waiting(metrics, source[1] if target[0] == _SERVICE else target[1]),
             (source[1], target[1]) in down and target[0] == _SERVICE)
        for (source, target), words in kinds.items()
    ]  # fmt: skip
    return sorted(found, key=lambda edge: (edge.source, edge.target))


def parts(metrics: "SpaceMetrics", drawn: Iterable[Edge], most: int) -> tuple[list[Part], int]:
    """Return the connected parts, those in trouble first, at most `most`; and the number of the other parts."""
    bad = {(_QUEUE, name) for name in troubled(metrics)}
    found = []
    for nodes, inside in _components(drawn):
        down = {edge.target for edge in inside if edge.is_down}
        found.append((not (down or bad & nodes), _name(nodes, inside), nodes, inside, down))
    found.sort(key=lambda part: part[:2])
    shown = []
    for is_fine, name, nodes, inside, down in found[:most]:
        chosen = _chosen(metrics, nodes, inside, bad | down)
        kept = [edge for edge in inside if edge.source in chosen and edge.target in chosen]
        picture = _picture(metrics, name, chosen, kept, bad | down)
        shown.append(Part(name, picture, len(nodes) - len(chosen), not is_fine))
    return shown, max(0, len(found) - most)


def near(drawn: Collection[Edge], text: str) -> list[Edge]:
    """Return the arrows of the connected parts that have a node with the text in its name."""
    wanted = text.lower()
    return [
        edge
        for nodes, inside in _components(drawn)
        if any(wanted in name.lower() for _, name in nodes)
        for edge in inside
    ]


def _components(drawn: Iterable[Edge]) -> list[tuple[set[Node], list[Edge]]]:
    leader: dict[Node, Node] = {}

    def lead(node: Node) -> Node:
        leader.setdefault(node, node)
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    listed = list(drawn)
    for edge in listed:
        leader[lead(edge.source)] = lead(edge.target)
    found: dict[Node, tuple[set[Node], list[Edge]]] = {}
    for edge in listed:
        nodes, inside = found.setdefault(lead(edge.source), (set(), []))
        nodes |= {edge.source, edge.target}
        inside.append(edge)
    return list(found.values())


def _is_delivery(edge: Edge) -> bool:
    return edge.kinds != (_ERRORS,)


def _name(nodes: set[Node], inside: list[Edge]) -> str:
    """Return the queue at which a part begins: no message arrives there, and most arrows leave it."""
    entered = {edge.target for edge in inside}
    leaving = Counter(edge.source for edge in inside if _is_delivery(edge))
    queues = [node for node in nodes if node[0] == _QUEUE]
    return min(queues, key=lambda node: (node in entered, -leaving[node], node))[1]


def _chosen(metrics: "SpaceMetrics", nodes: set[Node], inside: list[Edge], bad: set[Node]) -> set[Node]:
    """Return the nodes to draw. Of a large part these are the nodes in trouble, and those with most connections."""
    if len(nodes) <= _MOST_DRAWN:
        return nodes
    degree: dict[Node, int] = defaultdict(int)
    for edge in inside:
        degree[edge.source] += 1
        degree[edge.target] += 1

    def weight(node: Node) -> tuple[bool, int, int, Node]:
        return node not in bad, -degree[node], -waiting(metrics, node[1]), node

    return set(sorted(nodes, key=weight)[:_MOST_DRAWN])


# -- the picture -------------------------------------------------------------------------------------------------------


def _layers(nodes: set[Node], inside: list[Edge]) -> dict[Node, int]:
    """Return the column of each node: one more than the largest column of its sources, without the arrows that close a
    circle."""
    targets: dict[Node, list[Node]] = defaultdict(list)
    entered = {edge.target for edge in inside}
    for edge in inside:
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


def _places(nodes: set[Node], inside: list[Edge]) -> dict[Node, tuple[int, int]]:
    """Return the upper left corner of each node. Nodes of a column have the order of their sources."""
    column = _layers(nodes, inside)
    rows: dict[Node, float] = {}
    leaving = {edge.source for edge in inside if _is_delivery(edge)}
    places = {}
    for number in range(max(column.values()) + 1):

        def height(node: Node) -> tuple[float, bool, Node]:
            above = [rows[edge.source] for edge in inside if edge.target == node and edge.source in rows]
            return (sum(above) / len(above) if above else 0.0), node not in leaving, node

        for row, node in enumerate(sorted((node for node in nodes if column[node] == number), key=height)):
            rows[node] = row
            places[node] = (_MARGIN + number * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    return places


def _picture(metrics: "SpaceMetrics", name: str, nodes: set[Node], inside: list[Edge], bad: set[Node]) -> Markup:
    """Draw a part. ``bad``: the queues in trouble, and the services that are down."""
    places = _places(nodes, inside)
    width = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + _HEIGHT + _GAP_Y + _MARGIN
    arrows = Markup().join(_arrow(edge, places, f"tip-{name}") for edge in inside)
    boxes = Markup().join(_box(metrics, node, places[node], node in bad) for node in sorted(nodes))
    return Markup(
        '<svg class="flow" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="group" aria-label="Flow of {name}">'
        '<defs><marker id="tip-{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
        "{arrows}{boxes}</svg>"
    ).format(w=width, h=height, name=name, arrows=arrows, boxes=boxes)


def _arrow(edge: Edge, places: dict[Node, tuple[int, int]], tip: str) -> Markup:
    (x, y), (to_x, to_y) = places[edge.source], places[edge.target]
    if to_x > x:
        x, y, to_y = x + _WIDTH, y + _HEIGHT // 2, to_y + _HEIGHT // 2
        bend = (to_x - x) // 2
        path = f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
        label = (x + to_x) // 2, (y + to_y) // 2 - 5
    else:  # back to an earlier column: below the nodes
        x, to_x, y, to_y = x + _WIDTH // 2, to_x + _WIDTH // 2, y + _HEIGHT, to_y + _HEIGHT
        low = max(y, to_y) + _GAP_Y
        path = f"M{x} {y}C{x} {low} {to_x} {low} {to_x} {to_y}"
        label = (x + to_x) // 2, low - 6
    kind = "down" if edge.is_down else "plain" if _is_delivery(edge) else _ERRORS
    drawn = Markup('<path class="arrow {kind}" d="{path}" marker-end="url(#{tip})"/>')
    line = drawn.format(kind=kind, path=path, tip=tip)
    if kind == _ERRORS:
        return line  # (many arrows lead to one error queue, and its box has the number)
    words = f"{' + '.join(edge.kinds)} {edge.depth:,}"
    text = Markup('<text class="label" x="{x}" y="{y}" text-anchor="middle">{words}</text>')
    return line + text.format(x=label[0], y=label[1], words=words)


def _box(metrics: "SpaceMetrics", node: Node, place: tuple[int, int], is_bad: bool) -> Markup:
    kind, name = node
    x, y = place
    stats = metrics.queues.get(name) if kind == _QUEUE else None
    if kind == _SERVICE:
        about = "service is DOWN" if is_bad else "service"
    elif stats is None:
        about = "no such queue"
    else:
        about = f"{stats.ready:,} ready" + (f", {stats.delayed:,} delayed" if stats.delayed else "")
        about += f", {stats.claimed:,} claimed" if stats.claimed else ""
        about += " (trouble)" if is_bad else ""
    look = f"{kind} bad" if is_bad else kind
    box = Markup(
        '<rect class="{look}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{round}"/><title>{title}</title>'
        '<text class="name" x="{tx}" y="{ty}">{name}</text><text class="about" x="{tx}" y="{by}">{about}</text>'
    ).format(
        look=look, x=x, y=y, w=_WIDTH, h=_HEIGHT, round=6 if kind == _QUEUE else 24, tx=x + 12, ty=y + 20, by=y + 38,
        title=f"{kind} {short(name, 300)}: {about}", name=short(name, _LETTERS), about=about,
    )  # fmt: skip
    if stats is None:
        return Markup("<g>{box}</g>").format(box=box)
    return Markup('<a href="{link}">{box}</a>').format(link=queue_link(name), box=box)


def summary(count: int) -> str:
    """Return the sentence about the nodes that a picture leaves out."""
    return f"The picture leaves out {plural(count, 'queue or service', 'queues and services')}; the table has all."
