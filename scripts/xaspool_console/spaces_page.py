"""The first page of a console of several spaces: the spaces with their verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from spool.errors import SpoolError
from spool.model.settings import STATE, WORK
from xaspool_console.console import Console, page_routes
from xaspool_console.troubles import findings


@dataclass(frozen=True)
class SpaceRow:
    """A space. level: "bad", "warning" or "". verdict: the worst trouble in a sentence. others: the number of further
    troubles. The numbers are None if the space cannot be read."""

    name: str
    title: str
    link: str
    level: str
    verdict: str
    others: int = 0
    ready: int | None = None
    claimed: int | None = None
    failures: int | None = None
    consumers: int | None = None


def routes(start: Console, consoles: Sequence[Console]) -> list[BaseRoute]:
    def page(console: Console, request: Request) -> Response:
        return console.page(request, "spaces.html", rows=[_row(each) for each in consoles])

    return page_routes(start, {"/": page})


def _row(console: Console) -> SpaceRow:
    link = f"/@{console.prefix}/"
    try:
        snapshot = console.samples.snapshot()
    except (SpoolError, OSError) as error:
        return SpaceRow(console.name, console.title, link, "bad", f"The space cannot be read: {error}")
    metrics, found = snapshot.metrics, findings(snapshot)
    counted = [stats for name, stats in metrics.queues.items() if metrics.roles.get(name) != STATE]
    work = [each for name, each in snapshot.consumers.items() if metrics.roles.get(name) == WORK]
    return SpaceRow(
        console.name, console.title, link, found[0].level if found else "",
        found[0].sentence if found else "Nothing needs your attention.", max(0, len(found) - 1),
        sum(stats.ready for stats in counted), sum(stats.claimed for stats in counted),
        sum(each.count for each in metrics.failures), len({one.pid for each in work for one in each}),
    )  # fmt: skip
