"""The space that a command watches: an open space, or the metrics that another process publishes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.program import opened, space_path

if TYPE_CHECKING:
    import spool

published_option = click.option(
    "--published", is_flag=True,
    help="Read the metrics that another process publishes, and do not open the space. For users of the monitoring "
    "group, who may not open it.",
)  # fmt: skip


@dataclass(frozen=True)
class Watched:
    """metrics: returns the current ``spool.SpaceMetrics``. space: the open space; None for published metrics."""

    metrics: "Callable[[], spool.SpaceMetrics]"
    space: "spool.Space | None"

    @property
    def spaces(self) -> "list[spool.Space]":
        return [] if self.space is None else [self.space]


@contextmanager
def watched_space(path: str | None = None, *, published: bool) -> Iterator[Watched]:
    """Yield the space at a path, or the space of ``-s``. The errors are the same as in ``opened``."""
    if published:
        import spool

        path = space_path() if path is None else path
        yield Watched(lambda: spool.read_metrics(path), None)
        return
    with opened(path) as space:
        yield Watched(space.metrics, space)
