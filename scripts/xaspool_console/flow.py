"""The flow of messages between queues and services, as a graph and its connected parts. ``picture`` draws the parts.

The edges come from the settings of the queues, and from the routes that running forwarders and workers report.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spool.model.text import plural
from spool.watch.health import down_routes, routes, waiting

if TYPE_CHECKING:
    from spool import SpaceMetrics

_MOST_DRAWN = 40  # the most nodes of one picture
_QUEUE, _SERVICE = "queue", "service"
_ERRORS = "errors"
Node = tuple[str, str]
"""A node: its kind, and the name of the queue or service."""


@dataclass(frozen=True)
class Edge:
    """An arrow.

    kinds: its words. depth: the messages that wait at its queue, see ``_depth``. is_down: whether its service is down.
    """

    source: Node
    target: Node
    kinds: tuple[str, ...]
    depth: int
    is_down: bool = False

    @property
    def look(self) -> str:
        """The style of the arrow: "down", "errors" or "plain"."""
        return "down" if self.is_down else _ERRORS if self.kinds == (_ERRORS,) else "plain"


@dataclass(frozen=True)
class Component:
    """A connected component of the graph.

    nodes, edges: the nodes and arrows to draw.
    bad: the queues in trouble, and the services that are down.
    left_out: the number of nodes that are not drawn.
    """

    name: str
    nodes: set[Node]
    edges: list[Edge]
    bad: set[Node]
    left_out: int


def edges(metrics: "SpaceMetrics") -> list[Edge]:
    """Return the arrows of the whole space, in the order of the queues."""
    kinds: dict[tuple[Node, Node], list[str]] = {}
    down = set(down_routes(metrics))

    def add(queue: str, target: Node, kind: str) -> None:
        known = kinds.setdefault(((_QUEUE, queue), target), [])
        if kind not in known:
            known.append(kind)

    for queue, service in routes(metrics):
        add(queue, (_SERVICE, service), "calls")
    for key, value in metrics.states.items():
        if value and len(key) == 3 and key[0] == "destination":
            add(key[1], (_QUEUE, key[2]), "delivers")
    for queue, to in metrics.references.items():
        for target, kind in ((to.reply_queue, "replies"), (to.failure_queue, "failures"), (to.error_queue, _ERRORS)):
            if target is not None:
                add(queue, (_QUEUE, target), kind)
    found = [
        Edge(source, target, tuple(words), _depth(metrics, source[1], target, words),
             (source[1], target[1]) in down and target[0] == _SERVICE)
        for (source, target), words in kinds.items()
    ]  # fmt: skip
    return sorted(found, key=lambda edge: (edge.source, edge.target))


def _depth(metrics: "SpaceMetrics", source: str, target: Node, words: list[str]) -> int:
    """Return the number of messages that wait at an arrow's queue; at an arrow to an error queue, only the messages
    that failed in the arrow's source."""
    if target[0] == _SERVICE:
        return waiting(metrics, source)
    if words == [_ERRORS] and target[1] in metrics.origins:
        return metrics.origins[target[1]].get(source, 0)
    return waiting(metrics, target[1])


def parts(
    metrics: "SpaceMetrics", drawn: Iterable[Edge], troubled: Iterable[str], most: int
) -> tuple[list[Component], int]:
    """Return at most `most` connected parts, first the parts in trouble; and the number of the other parts.

    troubled: the queues in trouble.
    """
    bad = {(_QUEUE, name) for name in troubled}
    found = []
    for nodes, inside in _components(drawn):
        down = {edge.target for edge in inside if edge.is_down}
        troubles = down | (bad & nodes)
        found.append((not troubles, _name(nodes, inside), nodes, inside, troubles))
    found.sort(key=lambda part: part[:2])
    shown = []
    for _, name, nodes, inside, troubles in found[:most]:
        chosen = _chosen(metrics, nodes, inside, troubles)
        kept = [edge for edge in inside if edge.source in chosen and edge.target in chosen]
        shown.append(Component(name, chosen, kept, troubles, len(nodes) - len(chosen)))
    return shown, max(0, len(found) - most)


def near(drawn: Collection[Edge], text: str) -> list[Edge]:
    """Return the arrows of each connected part in which the name of a node contains the text."""
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


def _name(nodes: set[Node], inside: list[Edge]) -> str:
    """Return the queue at which a part begins: the queue without arriving arrows from which most arrows leave."""
    entered = {edge.target for edge in inside}
    leaving = Counter(edge.source for edge in inside if edge.look != _ERRORS)
    queues = [node for node in nodes if node[0] == _QUEUE]
    return min(queues, key=lambda node: (node in entered, -leaving[node], node))[1]


def _chosen(metrics: "SpaceMetrics", nodes: set[Node], inside: list[Edge], bad: set[Node]) -> set[Node]:
    """Return the nodes to draw. For a large part, first the nodes in trouble, then the nodes with most connections."""
    if len(nodes) <= _MOST_DRAWN:
        return nodes
    degree: dict[Node, int] = defaultdict(int)
    for edge in inside:
        degree[edge.source] += 1
        degree[edge.target] += 1

    def weight(node: Node) -> tuple[bool, int, int, Node]:
        return node not in bad, -degree[node], -waiting(metrics, node[1]), node

    return set(sorted(nodes, key=weight)[:_MOST_DRAWN])


def summary(count: int) -> str:
    """Return the sentence about the nodes that a picture leaves out."""
    return f"The picture leaves out {plural(count, 'queue or service', 'queues and services')}; the table has all."
