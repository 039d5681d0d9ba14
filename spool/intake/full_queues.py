"""Full queues: dropped files that wait, in order, until their queue has room.

A full queue costs little. While the first waiting file of a queue has no room, the intake reads no file of the queue's
folder, and does not list the folder. The log gets one line when files begin to wait, and one line when all files are
taken.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spool.disk.quarantine import FileCause
from spool.errors import Full
from spool.intake.dropfile import NotTaken
from spool.log.quota import Usage, UsageByQueue, check_room, combined, never_fits, prepared_usage
from spool.log.visibility import catch_up, list_prepared
from spool.model.text import plural
from spool.runtime.call_guard import step
from spool.store.store import Store

log = logging.getLogger("spool")


@dataclass
class _WaitingFiles:
    """The files of one queue that wait for room.

    first: the room that the first file needs.
    in_folder: the number of files that wait in the folder. Other waiting files are already captured.
    """

    first: Usage
    in_folder: int = 0


class FullQueues:
    """The queues whose files wait for room."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, _WaitingFiles] = {}
        self._told: set[str] = set()  # the queues that the log names as full

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def __contains__(self, queue: str) -> bool:
        return queue in self._waiting

    def begin(self, queue: str, first: Usage) -> None:
        """Let the files of a queue wait. ``first``: the room that the first file needs."""
        self._waiting[queue] = _WaitingFiles(first)

    def note_folder(self, queue: str, files: int) -> None:
        """Record how many files wait in the folder of a full queue."""
        self._waiting[queue].in_folder = files

    @step("looking for room in a queue")
    def end_if_room(self, queue: str) -> bool:
        """End the wait of a full queue's files if the first file has room. Return whether it has room."""
        if not self._obstacle(queue):
            del self._waiting[queue]
        return queue not in self._waiting

    def _obstacle(self, queue: str) -> str:
        """Return why the first file of a queue has no room now; "" if it has room."""
        try:
            CommitRoom(self._store).check(queue, self._waiting[queue].first)
        except NotTaken:  # the limit is lower now, and the intake will refuse the file
            pass
        except Full as error:
            return str(error).removesuffix("; nothing was put")
        return ""

    @step("looking for room in a queue")
    def tell(self, captured: Counter[str]) -> int:
        """Log the queues that have become full, and the queues that have taken all their files.

        ``captured``: for each queue, the number of captured files that wait. Returns the number of all files that wait
        for room.
        """
        files = {queue: waiting.in_folder + captured[queue] for queue, waiting in self._waiting.items()}
        for queue in files.keys() - self._told:
            count = f"{plural(files[queue], 'file')} {'waits' if files[queue] == 1 else 'wait'}"
            log.warning("drop/%s: %s for room: %s", queue, count, self._obstacle(queue) or "the queue was full")
        for queue in self._told - files.keys():
            log.warning("drop/%s: there was room for all files that waited", queue)
        self._told = set(files)
        return sum(files.values())


class CommitRoom:
    """The room for one commit, according to this process's index. The commit itself checks the limits again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = store.settings.current()
        self._is_limited = self._settings.config.has_limits
        self._added: UsageByQueue = {}
        self._prepared: UsageByQueue = {}
        if self._is_limited:
            catch_up(store, list_prepared(store))
            with store.view.mutex:
                self._prepared = prepared_usage(store.view.prepared)

    def check(self, queue: str, usage: Usage) -> None:
        """Raise Full unless this usage fits in addition to the earlier added usage.

        Raises NotTaken if the usage exceeds a limit even in an empty queue.
        """
        if self._is_limited:
            if exceeded := self._exceeded_limit(queue, usage):
                raise NotTaken(f"{exceeded}: raise the limit, then restore the file", FileCause.QUEUE_LIMIT)
            check_room(self._store.view, self._settings, combined(self._added, {queue: usage}), self._prepared)

    def add(self, queue: str, usage: Usage) -> None:
        if self._is_limited:
            self._added = combined(self._added, {queue: usage})

    def _exceeded_limit(self, queue: str, usage: Usage) -> str:
        """Return a text about the limit that this usage exceeds even in an empty queue; "" if it exceeds no limit.

        A limit of 0 never counts as exceeded, because it means that an administrator has closed a queue or a space for
        a while.
        """
        config = self._settings.config
        limits = [(of.max_messages, of.max_bytes) for of in (config, config.queues.get(queue)) if of is not None]
        is_closed = len(limits) < 2 or any(0 in each for each in limits)
        return "" if is_closed else never_fits(config, {queue: usage})
