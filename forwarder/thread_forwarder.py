"""Forward queues to services in threads of this process: the same routes as a ``Forwarder``, without Spark and Java."""

from collections.abc import Callable, Mapping, Sequence

from forwarder.events import Event
from forwarder.round import Route
from forwarder.routes.base import BaseForwarder
from forwarder.routes.given import as_routes, check_routes
from forwarder.routes.thread_loop import ThreadLoop
from forwarder.services import Service
from forwarder.summary import Summary
from spool.opening import open as open_space


class ThreadForwarder(BaseForwarder):
    """Take messages from queues and call a service for each, in threads. Arguments as of ``Forwarder``.

    A queue has as many threads as its service allows calls at a time; services that are watched have one.

    Raises:
        ServiceError: a route cannot work.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str | Service] | Sequence[Route],
        *,
        idle: float | None = None,
        on_event: Callable[[Event], object] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(path, as_routes(routes), idle=idle, on_event=on_event, say=say)

    def run(self, once: bool = False) -> Summary:
        """Forward until ``stop`` is called, and return what was done. An error that ends one route ends all.

        Args:
            once: end when each message that can be forwarded now was tried in this run.
        """
        with open_space(self.path) as space:
            check_routes(space, self.routes, sent=False)
            self._forward(space, once, lambda route, options: ThreadLoop(space, route, **options))
        return self.summary
