"""The status line of ``spool-forward`` on a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from forwarder.events import Begun, Claimed, Done, Down, Stopping, Up
from spool.workers.effects import Effect

if TYPE_CHECKING:
    from forwarder.events import Event

_STARTING = "starting"


class _Count(ProgressColumn):
    """A column: the numbers of handled messages and of messages that waited at the start, and the rate per second."""

    def render(self, task: Task) -> Text:
        done, waiting = int(task.completed), task.total
        count = f"{done:,}" if waiting is None else f"{done:,}/{int(waiting):,}"
        return Text(f"{count}, {task.speed:,.0f}/s" if task.speed else count)


class ForwardBar:
    """A progress bar and the state of the routes. ``waiting``: the number of messages at the start.

    The bar has no length while Spark starts and while the queues are empty.
    """

    def __init__(self, waiting: int, console: Console | None = None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), _Count(), TextColumn("{task.fields[under_way]}"))
        self.bar = Progress(*columns, TimeElapsedColumn(), console=console or Console(stderr=True))
        self._waiting = waiting
        self._has_begun = False
        self._done = self._over_network = 0
        self._sizes: dict[str, int] = {}
        self._down: list[str] = []
        self._task = self.bar.add_task(_STARTING, total=None, under_way="")

    def __enter__(self) -> "ForwardBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._done:
            self.bar.update(self._task, visible=False)
        elif self._total() is None:
            self.bar.tasks[0].total = self._done
        self.bar.stop()

    def say(self, text: str) -> None:
        """Show the current step, in a few words."""
        self.bar.update(self._task, description=text)
        self._show()

    def show(self, event: "Event") -> None:
        """Show an event."""
        match event:
            case Begun():
                self._has_begun = True
            case Claimed():
                self._sizes[event.round] = event.messages
            case Done():
                self._sizes.pop(event.round, None)
                self._done += sum(count for effect, count in event.effects.items() if effect != Effect.KEPT)
                self._over_network += event.over_network
            case Down():
                self._down.append(event.queue)
            case Up():
                self._down.remove(event.queue)
            case Stopping():
                self.bar.update(self._task, description="finishing")
        if isinstance(event, Down | Up):
            down = f"; down: {', '.join(self._down)}" if self._down else ""
            self.bar.update(self._task, description=f"forwarding{down}")
        self._show()

    def _show(self) -> None:
        self.bar.tasks[0].total = self._total()  # (``update`` ignores None)
        claimed, sent = sum(self._sizes.values()), self._over_network
        parts = [f"{claimed:,} under way"] if claimed else []
        parts += [f"{sent:,} over the network"] if sent else []
        self.bar.update(self._task, completed=self._done, under_way=", ".join(parts))

    def _total(self) -> int | None:
        return self._waiting if self._has_begun and self._done < self._waiting else None
