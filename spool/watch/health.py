"""The verdict on the health of a space: its troubles, the worst first. Pure: figures in, values out.

``spool-admin top``, the console and the metrics for Prometheus show this verdict. ``sentences`` has the words.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spool.model.settings import ERROR, WORK

if TYPE_CHECKING:
    from spool.watch.figures import SpaceMetrics

LATE_SECONDS = 300.0  # a queue is late if its oldest ready message is older
STALE_SECONDS = 30.0  # an open process publishes the figures every few seconds
_FEW_INODES = 1_000
_RECENT_SECONDS = 86_400.0  # an older recovery is no trouble any more
_REFUSALS = {"refused", "too-large", "queue-limit", "no-queue"}  # the reasons of dropped files that were refused


class Cause(enum.StrEnum):
    """The cause of a trouble, the worst first."""

    STOPPED = "stopped"  # a flush failed
    STALE = "stale"  # the published figures are old
    DISK_FULL = "disk full"
    DAMAGE = "damage"  # files in quarantine had acknowledged messages
    UNREADABLE = "unreadable"  # a recovery found damage that no repair has ended
    QUARANTINE = "quarantine"  # files in quarantine had no acknowledged messages; for a queue: any files
    REFUSED = "refused"  # like QUARANTINE, and an intake refused all these files
    IN_DOUBT = "in doubt"
    ROUTE_DOWN = "route down"
    NO_ERROR_QUEUE = "no queue"  # the error queue of a queue is missing, so failed messages remain
    ERRORS = "errors"  # an error queue has messages that wait
    FAILING = "failing"  # messages fail for good now
    LATE = "late"
    DISK_LOW = "disk low"  # the free room is less than twice the bodies of all messages
    FEW_INODES = "few inodes"
    DECISIONS = "decisions"  # no coordinator has acknowledged a decision of an administrator
    RECOVERY = "recovery"  # a recovery of the last day had findings

    @property
    def is_bad(self) -> bool:
        """Whether messages wait, are lost or cannot be put until a person acts. Otherwise the cause is a warning."""
        return self in _BAD


_BAD = {
    Cause.STOPPED, Cause.STALE, Cause.DISK_FULL, Cause.DAMAGE, Cause.UNREADABLE, Cause.IN_DOUBT, Cause.ROUTE_DOWN,
    Cause.NO_ERROR_QUEUE, Cause.ERRORS,
}  # fmt: skip


@dataclass(frozen=True)
class Trouble:
    """One trouble of the space.

    queue, service: the queue and its service, for a trouble of one queue.
    count: the number of files, transactions, messages, decisions, findings, free inodes or free bytes.
    seconds: the age of the figures, of the oldest message or transaction, or of the recovery.
    missing: the error queue that does not exist.
    """

    cause: Cause
    queue: str = ""
    service: str = ""
    count: int = 0
    seconds: float | None = None
    missing: str = ""


class Rates(NamedTuple):
    """The messages per second of a queue; None if no earlier sample exists."""

    enqueued: float | None = None
    dequeued: float | None = None
    failed: float | None = None


class Counted(Protocol):
    """The counts of a queue: a ``QueueStats``, or a part of one."""

    @property
    def enqueued(self) -> int: ...
    @property
    def dequeued(self) -> int: ...
    @property
    def failed(self) -> int: ...


def rates_between(was: Counted, now: Counted, seconds: float) -> Rates:
    """Return the rates of a queue. If a queue was created again, its counts may be smaller: the rate is 0."""
    pairs = ((was.enqueued, now.enqueued), (was.dequeued, now.dequeued), (was.failed, now.failed))
    return Rates(*(max(0, new - old) / seconds for old, new in pairs))


# -- figures that the verdict and the views share ----------------------------------------------------------------------


def missing_error_queue(metrics: "SpaceMetrics", queue: str) -> str:
    """Return the error queue of a queue if the error queue does not exist; otherwise ""."""
    references = metrics.references.get(queue)
    found = None if references is None else references.error_queue
    return "" if found is None or found in metrics.queues else found


def waiting(metrics: "SpaceMetrics", queue: str) -> int:
    """Return the number of the queue's messages that no transaction holds."""
    stats = metrics.queues.get(queue)
    return 0 if stats is None else stats.ready + stats.delayed


def routes(metrics: "SpaceMetrics") -> dict[tuple[str, str], bool]:
    """Return, by the queue and the service of each route, whether the service is down.

    A route that is down in one of several processes is down.
    """
    found = {}
    for state in ("route", "route_down"):
        for key, value in metrics.states.items():
            if len(key) == 3 and key[0] == state and value > 0:
                found[key[1], key[2]] = state == "route_down"
    return dict(sorted(found.items()))


def down_routes(metrics: "SpaceMetrics") -> list[tuple[str, str]]:
    """Return the queue and the service of each route whose service is down."""
    return [route for route, is_down in routes(metrics).items() if is_down]


# -- the verdict -------------------------------------------------------------------------------------------------------


def queue_causes(metrics: "SpaceMetrics", rates: Mapping[str, Rates]) -> dict[str, tuple[Cause, ...]]:
    """Return the causes of each queue in trouble, the worst first. ``rates``: the rates, where known."""
    down = {queue for queue, _ in down_routes(metrics)}
    found = {}
    for name, stats in metrics.queues.items():
        role = metrics.roles.get(name)
        kinds = (
            (Cause.QUARANTINE, stats.quarantined), (Cause.IN_DOUBT, stats.in_doubt), (Cause.ROUTE_DOWN, name in down),
            (Cause.NO_ERROR_QUEUE, missing_error_queue(metrics, name)),
            (Cause.ERRORS, role == ERROR and stats.ready + stats.delayed),
            (Cause.FAILING, name in rates and rates[name].failed),
            (Cause.LATE, role == WORK and (stats.oldest_age or 0.0) > LATE_SECONDS),
        )  # fmt: skip
        if causes := tuple(cause for cause, is_so in kinds if is_so):
            found[name] = causes
    return found


def troubles(metrics: "SpaceMetrics", now: float, rates: Mapping[str, Rates]) -> list[Trouble]:
    """Return the troubles of the space: the bad troubles first, and the worst of them first.

    Args:
        now: the time of the verdict, in seconds since the epoch.
        rates: the rates of the queues, as far as they are known.
    """
    order = list(Cause)
    found = [*_of_the_space(metrics, now), *_of_queues(metrics, rates)]

    def rank(each: Trouble) -> tuple[bool, int, float, int]:
        return not each.cause.is_bad, order.index(each.cause), -(each.seconds or 0.0), -each.count

    return sorted(found, key=rank)


def _of_the_space(metrics: "SpaceMetrics", now: float) -> Iterator[Trouble]:
    if metrics.is_stopped:
        yield Trouble(Cause.STOPPED)
    if now - metrics.at > STALE_SECONDS:
        yield Trouble(Cause.STALE, seconds=now - metrics.at)
    if metrics.damaged:
        yield Trouble(Cause.DAMAGE, count=metrics.damaged)
    if others := metrics.quarantined - metrics.damaged:
        yield Trouble(Cause.REFUSED if _are_refused(metrics) else Cause.QUARANTINE, count=others)
    if metrics.in_doubt:
        since = [each.since for each in metrics.transactions if each.state == "in doubt" and each.since is not None]
        yield Trouble(Cause.IN_DOUBT, count=metrics.in_doubt, seconds=now - min(since) if since else None)
    if metrics.decisions:
        yield Trouble(Cause.DECISIONS, count=len(metrics.decisions))
    if metrics.recovery is not None:
        findings, age = metrics.recovery.findings, now - metrics.recovery.at
        if damage := sum(finding.is_damage_left for finding in findings):
            yield Trouble(Cause.UNREADABLE, count=damage, seconds=age)
        elif age < _RECENT_SECONDS:
            yield Trouble(Cause.RECOVERY, count=len(findings), seconds=age)
    yield from _of_the_disk(metrics)


def _are_refused(metrics: "SpaceMetrics") -> bool:
    """Return whether an intake refused all files in quarantine that had no acknowledged messages."""
    reasons = {each.reason for each in metrics.quarantine if each.kind != "damaged"}
    return reasons <= _REFUSALS and len(metrics.quarantine) == metrics.quarantined


def _of_the_disk(metrics: "SpaceMetrics") -> Iterator[Trouble]:
    inodes = metrics.free_inodes
    if not metrics.free_bytes or inodes == 0:
        yield Trouble(Cause.DISK_FULL)
        return
    if metrics.free_bytes < 2 * sum(stats.bytes for stats in metrics.queues.values()):
        yield Trouble(Cause.DISK_LOW, count=metrics.free_bytes)
    if inodes is not None and inodes < _FEW_INODES:
        yield Trouble(Cause.FEW_INODES, count=inodes)


def _of_queues(metrics: "SpaceMetrics", rates: Mapping[str, Rates]) -> Iterator[Trouble]:
    for queue, service in down_routes(metrics):  # (also of a queue that was deleted)
        yield Trouble(Cause.ROUTE_DOWN, queue, service, waiting(metrics, queue))
    for name, causes in sorted(queue_causes(metrics, rates).items()):
        for cause in causes:
            if cause is Cause.LATE:
                yield Trouble(cause, name, count=waiting(metrics, name), seconds=metrics.queues[name].oldest_age)
            elif cause is Cause.NO_ERROR_QUEUE:
                yield Trouble(cause, name, missing=missing_error_queue(metrics, name))
            elif cause in (Cause.ERRORS, Cause.FAILING):
                yield Trouble(cause, name, count=waiting(metrics, name))
