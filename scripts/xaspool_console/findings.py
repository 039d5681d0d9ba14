"""The troubles of a space, the worst first, as sentences for the overview."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from spool.model.text import plural
from xaspool_console.formatting import age, short, size

if TYPE_CHECKING:
    from spool import SpaceMetrics

BAD, WARNING = "bad", "warning"
_MOST_OF_A_KIND = 10
_REFUSALS = {"refused", "too-large", "queue-limit", "no-queue"}  # the kinds of dropped files that were refused


@dataclass(frozen=True)
class Trouble:
    """level: "bad" or "warning". link: the page with more about it."""

    level: str
    sentence: str
    link: str


def queue_link(queue: str) -> str:
    return f"/queues/{quote(queue, safe='')}"


def error_queues(metrics: "SpaceMetrics") -> set[str]:
    """Return the queues to which other queues move their failed messages."""
    return {role.error_queue for role in metrics.roles.values() if role.error_queue is not None}


def waiting(metrics: "SpaceMetrics", queue: str) -> int:
    """Return the number of the queue's messages that no transaction holds."""
    stats = metrics.queues.get(queue)
    return 0 if stats is None else stats.ready + stats.delayed


def down_routes(metrics: "SpaceMetrics") -> list[tuple[str, str]]:
    """Return the queue and the service of each route whose service is down."""
    return sorted((key[1], key[2]) for key, value in metrics.states.items() if key[0] == "route_down" and value
                  and len(key) == 3)  # fmt: skip


def troubled(metrics: "SpaceMetrics") -> set[str]:
    """Return the queues in trouble: with failed messages, damage, messages in doubt, or a service that is down."""
    failing = {name for name in error_queues(metrics) if waiting(metrics, name)}
    down = {queue for queue, _ in down_routes(metrics)}
    held = {name for name, stats in metrics.queues.items() if stats.quarantined or stats.in_doubt}
    return held | ((failing | down) & metrics.queues.keys())


def troubles(metrics: "SpaceMetrics") -> list[Trouble]:
    """Return the troubles of the space, the worst first."""
    found = [*_of_the_space(metrics), *_some(_of_routes(metrics)), *_some(_of_error_queues(metrics)), *_minor(metrics)]
    return sorted(found, key=lambda each: each.level != BAD)


def _some(found: Iterable[Trouble]) -> Iterator[Trouble]:
    listed = list(found)
    yield from listed[:_MOST_OF_A_KIND]
    if len(listed) > _MOST_OF_A_KIND:
        more = listed[_MOST_OF_A_KIND]
        yield Trouble(more.level, f"{plural(len(listed) - _MOST_OF_A_KIND, 'finding')} more of this kind.", more.link)


def _of_the_space(metrics: "SpaceMetrics") -> Iterator[Trouble]:
    if metrics.is_stopped:
        sentence = "A flush of the disk failed, so no process can commit: end all programs of the space, check the "
        yield Trouble(BAD, f"{sentence}disk, and run spool-recover.", "/recovery")
    if not metrics.free_bytes:
        sentence = "The disk is full: free space on it, e.g. with spool-admin queue purge, which works without room."
        yield Trouble(BAD, sentence, "/activity#disk")
    if metrics.damaged:
        sentence = f"{plural(metrics.damaged, 'damaged file')} in quarantine had acknowledged messages."
        yield Trouble(BAD, sentence, "/quarantine")
    if metrics.in_doubt:
        since = [each.since for each in metrics.transactions if each.state == "in doubt" and each.since is not None]
        oldest = f"; the oldest was prepared {age(metrics.at - min(since))} ago" if since else ""
        sentence = f"{plural(metrics.in_doubt, 'transaction is', 'transactions are')} in doubt{oldest}."
        yield Trouble(BAD, sentence, "/transactions")


def _of_routes(metrics: "SpaceMetrics") -> Iterator[Trouble]:
    for queue, service in down_routes(metrics):
        left = plural(waiting(metrics, queue), "message waits", "messages wait")
        yield Trouble(BAD, f"The service {short(service, 80)} of queue {queue} is down; {left}.", "/flow")


def _of_error_queues(metrics: "SpaceMetrics") -> Iterator[Trouble]:
    names = sorted(error_queues(metrics), key=lambda name: (-waiting(metrics, name), name))
    for name in names:
        if count := waiting(metrics, name):
            yield Trouble(BAD, f"Error queue {name} has {plural(count, 'failed message')}.", queue_link(name))


def _word_of_the_others(metrics: "SpaceMetrics") -> str:
    """Return the adjective of the files in quarantine that had no acknowledged messages, with a blank, or ""."""
    reasons = {each.reason for each in metrics.quarantine if each.kind != "damaged"}
    if reasons <= _REFUSALS and len(metrics.quarantine) == metrics.quarantined:
        return "refused "
    return "other " if metrics.damaged else ""


def quarantine_summary(metrics: "SpaceMetrics") -> str:
    """Return how many files are in quarantine, and how many of them had acknowledged messages."""
    count, damaged = metrics.quarantined, metrics.damaged
    if count == 1:
        return f"1 file is in quarantine. It had {'' if damaged else 'no '}acknowledged messages."
    which = {0: "None of them", count: "All of them"}.get(damaged, f"{damaged:,} of them")
    return f"{count:,} files are in quarantine. {which} had acknowledged messages."


def _minor(metrics: "SpaceMetrics") -> Iterator[Trouble]:
    if others := metrics.quarantined - metrics.damaged:
        word = _word_of_the_others(metrics)
        sentence = f"{plural(others, f'{word}file is', f'{word}files are')} in quarantine."
        yield Trouble(WARNING, sentence, "/quarantine")
    if metrics.decisions:
        named = plural(len(metrics.decisions), "decision")
        sentence = f"No coordinator has acknowledged {named} of an administrator yet."
        yield Trouble(WARNING, sentence, "/transactions#decisions")
    needed = 2 * sum(stats.bytes for stats in metrics.queues.values())
    if 0 < metrics.free_bytes < needed:
        sentence = f"The disk has {size(metrics.free_bytes)} free, less than twice the bodies of all messages."
        yield Trouble(WARNING, sentence, "/activity#disk")
    if metrics.recovery is not None:
        count = plural(len(metrics.recovery.findings), "finding")
        sentence = f"The last recovery, {age(metrics.at - metrics.recovery.at)} ago, had {count}."
        yield Trouble(WARNING, sentence, "/recovery")
