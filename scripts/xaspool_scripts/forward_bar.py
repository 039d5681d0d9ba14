"""The progress bar of ``spool-forward`` on a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from forwarder import RoundResult

_STARTING = "starting"


class _Count(ProgressColumn):
    """The number of messages handled, of those that were waiting when the program began."""

    def render(self, task: Task) -> Text:
        done, waiting = int(task.completed), task.total
        return Text(f"{done:,}" if waiting is None else f"{done:,}/{int(waiting):,}")


class ForwardBar:
    """A progress bar without a length while Spark starts and while the queues are empty.

    Args:
        waiting: how many messages wait when the program begins.
    """

    def __init__(self, waiting: int, console: Console | None = None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), _Count(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console or Console(stderr=True))
        self._waiting = waiting
        self._done = 0
        self._task = self.bar.add_task(_STARTING, total=None)

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
        """Show in a few words what is being done."""
        self.bar.update(self._task, description=text)
        self._show()

    def advance(self, queue: str, result: "RoundResult") -> None:
        """Count the messages of a round that has ended."""
        self._done += result.messages
        self._show()

    def _show(self) -> None:
        self.bar.tasks[0].total = self._total()  # (``update`` ignores None)
        self.bar.update(self._task, completed=self._done)

    def _total(self) -> int | None:
        begun = self.bar.tasks[0].description == "forwarding"
        return self._waiting if begun and self._done < self._waiting else None
