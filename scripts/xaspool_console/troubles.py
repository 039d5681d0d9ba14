"""The troubles of a space for the overview: the sentences of the verdict, each with a link to a page."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from spool.watch.health import Cause, Trouble
from spool.watch.sentences import told
from xaspool_console.formatting import short
from xaspool_console.samples import Snapshot

if TYPE_CHECKING:
    from spool import SpaceMetrics

_MOST_CHARACTERS = 80  # the longest name in a sentence
_PAGES = {
    Cause.STOPPED: "/recovery", Cause.RECOVERY: "/recovery", Cause.UNREADABLE: "/recovery", Cause.ROUTE_DOWN: "/flow",
    Cause.DISK_FULL: "/activity#disk", Cause.DISK_LOW: "/activity#disk", Cause.FEW_INODES: "/activity#disk",
    Cause.DAMAGE: "/quarantine", Cause.QUARANTINE: "/quarantine", Cause.REFUSED: "/quarantine",
    Cause.IN_DOUBT: "/transactions", Cause.DECISIONS: "/transactions#decisions", Cause.STALE: "/activity",
}  # fmt: skip


@dataclass(frozen=True)
class LinkedTrouble:
    """level: "bad" or "warning". link: the page with more about the trouble."""

    level: str
    sentence: str
    link: str


def queue_link(queue: str) -> str:
    return f"/queues/{quote(queue, safe='')}"


def findings(snapshot: Snapshot) -> list[LinkedTrouble]:
    """Return the troubles of the space, with the worst first."""
    return [
        LinkedTrouble("bad" if trouble.cause.is_bad else "warning", sentence, _link(trouble))
        for trouble, sentence in told(snapshot.troubles, lambda name: short(name, _MOST_CHARACTERS))
    ]


def _link(trouble: Trouble) -> str:
    return _PAGES.get(trouble.cause) or queue_link(trouble.queue)


def quarantine_summary(metrics: "SpaceMetrics") -> str:
    """Return the number of all files in quarantine, and the number of files with acknowledged messages."""
    count, damaged = metrics.quarantined, metrics.damaged
    if count == 1:
        return f"1 file is in quarantine. It had {'' if damaged else 'no '}acknowledged messages."
    which = {0: "None of them", count: "All of them"}.get(damaged, f"{damaged:,} of them")
    return f"{count:,} files are in quarantine. {which} had acknowledged messages."
