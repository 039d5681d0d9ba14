"""The consumers of each queue: the live processes that serve it, and the messages that each of them holds. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spool.admin.holders import CLAIMED
from spool.store.consumer_registry import CONSUMER
from spool.store.meters import Key

if TYPE_CHECKING:
    from spool.watch.figures import OpenTransaction


@dataclass(frozen=True, slots=True)
class Consumer:
    """A process that serves a queue.

    threads: the number of threads, tasks and calls that serve the queue.
    since: when the process began to serve the queue, in seconds since the epoch.
    held: the number of the queue's messages that the process holds.
    """

    queue: str
    pid: int
    program: str
    threads: int
    since: float
    held: int = 0

    @property
    def is_busy(self) -> bool:
        return self.held > 0


def consumers(states: Mapping[Key, int], transactions: "Iterable[OpenTransaction]") -> dict[str, list[Consumer]]:
    """Return the consumers by queue, those that have served longest first. Keys of a damaged file are left out.

    states, transactions: of the metrics of a space.
    """
    held = Counter[tuple[str, int | None]]()
    for each in transactions:
        if each.state == CLAIMED:
            for queue, number in each.takes.items():
                held[queue, each.pid] += number
    found: dict[str, list[Consumer]] = {}
    for key, threads in states.items():
        if len(key) == 5 and key[0] == CONSUMER and threads > 0 and key[2].isdecimal() and key[4].isdecimal():
            _, queue, pid, program, since = key
            one = Consumer(queue, int(pid), program, threads, float(since), held[queue, int(pid)])
            found.setdefault(queue, []).append(one)
    return {queue: sorted(each, key=lambda one: (one.since, one.pid)) for queue, each in sorted(found.items())}
