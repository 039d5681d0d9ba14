"""The events of ``spool-forward --json``: one object a line, as they happen."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from xaspool_scripts.output import write_json

if TYPE_CHECKING:
    from forwarder.events import Event


class EventLines:
    """Writes events to standard output. When it cannot be written, nothing more is, and the forwarder is stopped.

    stop: stops the forwarder.
    """

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None
        self._is_broken = False

    def show(self, event: "Event") -> None:
        """Write what has happened."""
        from forwarder.events import as_json

        if self._is_broken:
            return
        try:
            write_json(as_json(event, time.time()))
        except OSError:  # the summary, which cannot be written either, tells it
            self._is_broken = True
            self.stop()
