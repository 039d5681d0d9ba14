"""The metrics of a space in the text format of Prometheus.

``METRICS`` is the table of all metrics. The text and the table in docs/metrics.md are made from ``METRICS``.

Some label values come from other programs, e.g. the URLs of services. A label value therefore has no control
characters, no passwords and at most 256 characters, and a metric has at most 2,000 sets of labels.
"""

import math
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spool.model.durations import BOUNDS_SECONDS
from spool.model.settings import WORK
from spool.watch.consumers import consumers
from spool.watch.failures import by_task
from spool.watch.health import Cause, routes, troubles
from spool.watch.histograms import Histogram, histograms
from xaspool_scripts.terminal.wording import printable

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

    from spool import SpaceMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
MOST_LABEL_SETS = 2_000  # the most sets of labels of one metric
OMITTED = "xaspool_omitted_label_sets"
_MOST_TASKS = 100  # the most pairs of a queue and a task in the metric of failures
MOST_CHARACTERS = 256  # the most characters of one label value


@dataclass(frozen=True, eq=False)
class Collection:
    """A collector of prometheus_client: the figures of a space at one moment, or the failure to get the figures.

    space: the directory of the space.
    metrics: the figures; None if the space raised an error.
    is_stopped: whether the space raised the error ``SpaceStopped``.
    seconds: the time of the read.
    """

    space: str
    metrics: "SpaceMetrics | None"
    is_stopped: bool = False
    seconds: float = 0.0

    def collect(self) -> "Iterator[Family]":
        """Yield the families of all metrics that have samples.

        If a metric has too many label sets, the first in alphabetical order are kept, so that each call keeps the same.
        """
        omitted = 0
        for metric in METRICS:
            values = values_of(metric, self)
            if metric.name == OMITTED:
                values[()] = omitted
            kept = sorted(values)[:MOST_LABEL_SETS]
            omitted += len(values) - len(kept)
            if kept:
                yield _family(metric, label_value(self.space), {key: values[key] for key in kept})


Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]


@dataclass(frozen=True)
class Metric:
    """A row of the table.

    kind: "counter", "gauge" or "histogram".
    labels: the names of the labels besides ``space``.
    help: a sentence.
    samples: returns the values of the labels, and the value of the metric, for each set of labels.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Collection], Samples]


# -- the values of the labels ------------------------------------------------------------------------------------------

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)([^?#]*)")
_HOSTS = re.compile(r"(?:\[[^\[\]]*\]|[^:,\[\]]*)(?::\d*)?(?:,(?:\[[^\[\]]*\]|[^:,\[\]]*)(?::\d*)?)*")


def label_value(text: str) -> str:
    """Return a text without control characters, and with at most 256 characters.

    The end of a longer text is replaced by its checksum, so that two long texts remain different.
    """
    shown = printable(text[: MOST_CHARACTERS + 1])
    if len(text) <= MOST_CHARACTERS and len(shown) <= MOST_CHARACTERS:
        return shown
    checksum = f"…{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
    return shown[: MOST_CHARACTERS - len(checksum)] + checksum


def without_secrets(service: str) -> str:
    """Return the name of a service without user, password, query and the arguments of a command.

    The arguments of a command may also contain a password. So only the program of ``exec:`` remains.
    """
    scheme, colon, rest = service.partition(":")
    if not colon or scheme in ("python", "file"):
        return service
    if scheme == "queue":
        name, at, space = service.partition("@")
        return f"{name}{at}{without_secrets(space) if '://' in space else space}"
    if scheme == "exec":
        return f"exec:{(rest.split() or [''])[0]}"
    url = _URL.match(service)
    if url is None:
        return f"{scheme}:…"
    name, hosts, path = url.groups()
    hosts = hosts.rpartition("@")[2]
    # A password with a slash makes an invalid URL: the beginning of the password is in the place of the port.
    return f"{name}://{hosts}{path}" if _HOSTS.fullmatch(hosts) else f"{name}://…"


# -- the figures -------------------------------------------------------------------------------------------------------


def _of_space(found: "Callable[[SpaceMetrics], Samples]") -> Callable[[Collection], Samples]:
    """Return a function that yields samples, or no samples if the space raised an error."""
    return lambda collection: () if collection.metrics is None else found(collection.metrics)


def _number(found: "Callable[[SpaceMetrics], float | None]") -> Callable[[Collection], Samples]:
    """Return a function that yields one sample without labels, or no sample if the figure is None."""

    def samples(metrics: "SpaceMetrics") -> Samples:
        value = found(metrics)
        return () if value is None else [((), value)]

    return _of_space(samples)


def _queues(field: str) -> Callable[[Collection], Samples]:
    """Return a function that yields a figure of each queue. A missing figure, e.g. an age without messages, is 0."""
    return _of_space(lambda metrics: [((name,), getattr(stats, field) or 0) for name, stats in metrics.queues.items()])


def _count(name: str) -> Callable[[Collection], Samples]:
    """Return a function that yields a count of all processes, or 0 if no process has counted."""
    return _number(lambda metrics: _whole(metrics.counts.get((name,), 0)))


def _counts(name: str, labels: int) -> Callable[[Collection], Samples]:
    """Return a function that yields the counts of this name. ``labels``: the number of labels of a count."""
    return _of_space(lambda metrics: [(of, _whole(count)) for of, count in _keys(metrics.counts, name, labels)])


def _states(name: str) -> Callable[[Collection], Samples]:
    """Return a function that yields the states of this name, which have the label ``queue``."""
    return _of_space(lambda metrics: [(of, _whole(number)) for of, number in _keys(metrics.states, name, 1)])


def _durations(name: str, labels: int = 0) -> Callable[[Collection], Samples]:
    """Return a function that yields the durations of this name. Without labels, it always yields a sample."""

    def samples(metrics: "SpaceMetrics") -> Samples:
        found = histograms(metrics.counts)
        if not labels:
            return [((), found.get((name,), Histogram()))]
        return [(tuple(of), each) for (family, *of), each in found.items() if family == name and len(of) == labels]

    return _of_space(samples)


def _keys(meters: Mapping[tuple[str, ...], int], name: str, labels: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the labels and values of the meters of this name. Skip keys of another length, e.g. from a damaged file."""
    for key, value in meters.items():
        if key[0] == name and len(key) == labels + 1:
            yield key[1:], value


def _whole(count: int) -> int:
    """Return a count, but 0 for a negative number, which a damaged file may have."""
    return max(0, count)


def _up(collection: Collection) -> Samples:
    return [((), float(collection.metrics is not None))]


def _build(collection: Collection) -> Samples:
    import spool

    return [((spool.__version__,), 1.0)]


def _stopped(collection: Collection) -> Samples:
    if collection.metrics is None and not collection.is_stopped:
        return ()  # unknown
    return [((), float(collection.is_stopped or (collection.metrics is not None and collection.metrics.is_stopped)))]


def _depths(metrics: "SpaceMetrics") -> Samples:
    for name, stats in metrics.queues.items():
        for state in ("ready", "delayed", "claimed", "in_doubt"):
            yield (name, state), getattr(stats, state)


def _roles(metrics: "SpaceMetrics") -> Samples:
    """Yield the roles that alerts select: error and state queues, and another queue's reply and failure queues."""
    yield from (((name, role), 1.0) for name, role in metrics.roles.items() if role != WORK)
    for role in ("reply", "failure"):
        names = {getattr(of, f"{role}_queue") for of in metrics.references.values()} - {None}
        yield from (((name, role), 1.0) for name in names)


def _transactions(metrics: "SpaceMetrics") -> Samples:
    claimed = sum(each.state == "claimed" for each in metrics.transactions)
    return [] if metrics.is_stopped else [(("claimed",), claimed), (("in_doubt",), metrics.in_doubt)]


def _oldest_transactions(metrics: "SpaceMetrics") -> Samples:
    for state in () if metrics.is_stopped else ("claimed", "in doubt"):
        begun = [each.since for each in metrics.transactions if each.state == state and each.since is not None]
        yield (state.replace(" ", "_"),), max(0.0, metrics.at - min(begun, default=metrics.at))


def _held(metrics: "SpaceMetrics") -> Samples:
    for each in metrics.transactions:
        for queue, number in each.takes.items():
            yield (queue, each.state.replace(" ", "_"), each.program or ""), number


def _consumers(metrics: "SpaceMetrics") -> Samples:
    for queue, found in consumers(metrics.states, metrics.transactions).items():
        busy = sum(each.is_busy for each in found)
        yield from [((queue, "busy"), busy), ((queue, "idle"), len(found) - busy)]


def _failures(metrics: "SpaceMetrics") -> Samples:
    """Yield the failures of the last day. Names of tasks may be many, so the rarest are one sample, "other"."""
    for each in by_task(metrics.failures, _MOST_TASKS):
        yield (each.queue, each.task), each.count


def _decisions(metrics: "SpaceMetrics") -> Samples:
    found = Counter(decision.replace(" ", "_") for decision in metrics.decisions.values())
    return [((decision,), found[decision]) for decision in ("committed", "rolled_back")]


def _subscriptions(field: str) -> Callable[[Collection], Samples]:
    return _of_space(
        lambda metrics: [((name,), getattr(each, field)) for name, each in sorted(metrics.subscriptions.items())]
    )


def _quarantine(metrics: "SpaceMetrics") -> Samples:
    return [(("damaged",), metrics.damaged), (("other",), metrics.quarantined - metrics.damaged)]


def _folder_bytes(metrics: "SpaceMetrics") -> Samples:
    return [((name,), usage.bytes) for name, usage in metrics.folders.items() if usage.bytes is not None]


def _routes(metrics: "SpaceMetrics") -> Samples:
    """Return whether each route is up. A route that is down in one of several processes counts as down."""
    up: dict[tuple[str, ...], float] = {}
    for (queue, service), is_down in sorted(routes(metrics).items(), key=lambda route: route[1]):
        up[queue, without_secrets(service)] = float(not is_down)
    return up.items()


def _troubles(metrics: "SpaceMetrics") -> Samples:
    """Count the troubles of each cause, also if the count is 0. Omit failing queues, because Prometheus has their
    rates."""
    found = Counter(trouble.cause for trouble in troubles(metrics, time.time(), {}))
    severity = {True: "critical", False: "warning"}
    causes = [cause for cause in Cause if cause is not Cause.FAILING]
    return [((cause.replace(" ", "_"), severity[cause.is_bad]), found[cause]) for cause in causes]


def _destinations(metrics: "SpaceMetrics") -> Samples:
    """Yield each pair of a queue and a target to which it forwards. Several processes may report the same target."""
    found = {(queue, without_secrets(to)) for (queue, to), n in _keys(metrics.states, "destination", 2) if n > 0}
    return [(of, 1.0) for of in sorted(found)]


def _findings(metrics: "SpaceMetrics") -> Samples:
    found = Counter(finding.kind.value for finding in metrics.recovery.findings) if metrics.recovery else Counter()
    return [((kind,), number) for kind, number in sorted(found.items())]


# -- the table ---------------------------------------------------------------------------------------------------------

METRICS = (
    Metric("xaspool_up", GAUGE, (), "1 if the space gave its figures; 0 if it gave an error.", _up),
    Metric("xaspool_build_info", GAUGE, ("version",), "Always 1. The program that serves the metrics has this version.",
           _build),
    Metric("xaspool_collected_timestamp_seconds", GAUGE, (), "The time of the figures, in seconds since 1970.",
           _number(lambda metrics: metrics.at)),
    Metric("xaspool_collection_duration_seconds", GAUGE, (), "How long the space took to give its figures.",
           lambda collection: [((), collection.seconds)]),
    Metric("xaspool_stopped", GAUGE, (), "1 if a flush has failed, so that no process can commit.", _stopped),
    Metric("xaspool_troubles", GAUGE, ("cause", "severity"),
           "The troubles by cause, as `spool-admin top` and the console show them; without `failing`.",
           _of_space(_troubles)),
    Metric("xaspool_processes", GAUGE, (), "The processes with the space open, as far as the user may see them.",
           _number(lambda metrics: len(metrics.processes))),

    Metric("xaspool_queue_messages", GAUGE, ("queue", "state"),
           "The messages of a queue by state: `ready`, `delayed`, `claimed`, `in_doubt`.", _of_space(_depths)),
    Metric("xaspool_queue_bytes", GAUGE, ("queue",), "The size of all bodies in a queue.", _queues("bytes")),
    Metric("xaspool_queue_oldest_age_seconds", GAUGE, ("queue",),
           "The age of the oldest ready message; 0 without a ready message.", _queues("oldest_age")),
    Metric("xaspool_queue_enqueued_total", COUNTER, ("queue",), "The messages that were put into a queue.",
           _queues("enqueued")),
    Metric("xaspool_queue_dequeued_total", COUNTER, ("queue",), "The messages that were taken from a queue.",
           _queues("dequeued")),
    Metric("xaspool_queue_failed_total", COUNTER, ("queue",), "The messages whose attempts were used up.",
           _queues("failed")),
    Metric("xaspool_queue_expired_total", COUNTER, ("queue",), "The messages that expired.", _queues("expired")),
    Metric("xaspool_queue_deleted_total", COUNTER, ("queue",),
           "The messages that were deleted, purged, redriven or moved to another queue.", _queues("deleted")),
    Metric("xaspool_queue_quarantined_files", GAUGE, ("queue",),
           "The files in quarantine with a damaged message of a queue, or with a refused dropped file.",
           _queues("quarantined")),
    Metric("xaspool_queue_role", GAUGE, ("queue", "role"),
           "1: the queue has the role `error` or `state`, or is the `reply` or `failure` queue of another queue.",
           _of_space(_roles)),

    Metric("xaspool_commits_total", COUNTER, (), "The commits since the space was created.",
           _number(lambda metrics: metrics.commits)),
    Metric("xaspool_commit_duration_seconds", HISTOGRAM, (),
           "The duration of each commit.", _durations("commit_seconds")),
    Metric("xaspool_commit_requests_total", COUNTER, (),
           "The puts, gets and transactions that were committed; several of them share one commit.",
           _count("commit_requests")),
    Metric("xaspool_flush_duration_seconds", HISTOGRAM, (), "The duration of each flush of a commit to the disk.",
           _durations("flush_seconds")),
    Metric("xaspool_unflushed_commits", GAUGE, (), "The commits that a power cut may lose, as their durability allows.",
           _number(lambda metrics: metrics.unflushed)),

    Metric("xaspool_transactions", GAUGE, ("state",),
           "The transactions that hold messages (`claimed`, at most 1,000), or that are `in_doubt`.",
           _of_space(_transactions)),
    Metric("xaspool_transaction_oldest_age_seconds", GAUGE, ("state",),
           "The age of the oldest such transaction; 0 without one.", _of_space(_oldest_transactions)),
    Metric("xaspool_held_messages", GAUGE, ("queue", "state", "program"),
           "The messages that these transactions hold, by the program that began the transaction.", _of_space(_held)),
    Metric("xaspool_unforgotten_decisions", GAUGE, ("decision",),
           "The decisions of administrators that no coordinator has acknowledged: `committed`, `rolled_back`.",
           _of_space(_decisions)),

    Metric("xaspool_compactions_total", COUNTER, (), "The compactions of all processes.", _count("compactions")),
    Metric("xaspool_compacted_files_total", COUNTER, (), "The files that compactions wrote.",
           _count("compacted_files")),
    Metric("xaspool_reclaims_total", COUNTER, (), "The passes that remove files without messages.", _count("reclaims")),
    Metric("xaspool_reclaimed_commits_total", COUNTER, (), "The commits whose files these passes removed.",
           _count("reclaimed_commits")),
    Metric("xaspool_folder_files", GAUGE, ("folder",), "The files in a directory of the space.",
           _of_space(lambda metrics: [((name,), usage.files) for name, usage in metrics.folders.items()])),
    Metric("xaspool_folder_bytes", GAUGE, ("folder",), "The size of the bodies in a directory of the space.",
           _of_space(_folder_bytes)),
    Metric("xaspool_filesystem_free_bytes", GAUGE, (), "The free bytes of the file system.",
           _number(lambda metrics: metrics.free_bytes)),
    Metric("xaspool_filesystem_free_inodes", GAUGE, (),
           "The free inodes of the file system; no sample if it has no limit.",
           _number(lambda metrics: metrics.free_inodes)),
    Metric("xaspool_quarantined_files", GAUGE, ("kind",),
           "The files in quarantine: `damaged` ones had acknowledged messages, the `other` ones had none.",
           _of_space(_quarantine)),

    Metric("xaspool_subscription_unread_messages", GAUGE, ("subscription",),
           "The greatest possible number of unread messages.", _subscriptions("unread")),
    Metric("xaspool_subscription_kept_bytes", GAUGE, ("subscription",),
           "The size of the bodies that only subscriptions keep.", _subscriptions("kept_bytes")),
    Metric("xaspool_subscription_expiry_timestamp_seconds", GAUGE, ("subscription",),
           "The time at which a subscription ends if its reader does not read, in seconds since 1970.",
           _subscriptions("expires_at")),

    Metric("xaspool_recent_failures", GAUGE, ("queue", "task"),
           "The tasks and messages that failed in the last day and that the space still has, by the queue in which "
           "they failed and the name of the task; after the 100 most frequent pairs, the rest is `other`.",
           _of_space(_failures)),
    Metric("xaspool_queue_consumers", GAUGE, ("queue", "state"),
           "The live processes that serve a queue: `busy` ones hold messages of the queue, `idle` ones hold none.",
           _of_space(_consumers)),
    Metric("xaspool_workers", GAUGE, ("queue",), "The threads of the workers of a queue, in live processes.",
           _states("workers")),
    Metric("xaspool_paused_workers", GAUGE, ("queue",),
           "The workers of a queue that pause, e.g. because a service cannot be reached.", _states("workers_paused")),
    Metric("xaspool_rounds_total", COUNTER, ("queue",), "The rounds of `spool-forward` with Spark.",
           _counts("rounds", 1)),
    Metric("xaspool_outcomes_total", COUNTER, ("program", "queue", "effect"),
           "The messages that a `forwarder` or `worker` handled, by effect, e.g. `delivered`, `retried`, `rejected`.",
           _counts("outcomes", 3)),
    Metric("xaspool_service_duration_seconds", HISTOGRAM, ("queue",),
           "How long the calls of each round with Spark took.", _durations("service_seconds", 1)),
    Metric("xaspool_service_calls_total", COUNTER, ("queue", "service", "result"),
           "The calls of a service by `spool-forward`: `succeeded`, `failed`, or `unreached` if the service was not "
           "reached, so that no attempt was counted.", _counts("service_calls", 3)),
    Metric("xaspool_route_up", GAUGE, ("queue", "service"),
           "1 if the route of a live `spool-forward` is up; 0 if a process reports it down.", _of_space(_routes)),
    Metric("xaspool_destination_info", GAUGE, ("queue", "target"),
           "Always 1: messages of the queue go to the target.", _of_space(_destinations)),

    Metric("xaspool_recovery_timestamp_seconds", GAUGE, (),
           "The time of the last recovery that found something, in seconds since 1970.",
           _number(lambda metrics: None if metrics.recovery is None else metrics.recovery.at)),
    Metric("xaspool_recovery_duration_seconds", GAUGE, (), "How long this recovery took.",
           _number(lambda metrics: None if metrics.recovery is None else metrics.recovery.seconds)),
    Metric("xaspool_recovery_findings", GAUGE, ("kind",), "The findings of this recovery by kind, at most 1,000.",
           _of_space(_findings)),

    Metric(OMITTED, GAUGE, (), "The sets of labels that are left out, because a metric has more than 2,000.",
           lambda collection: ()),  # the collector counts omitted sets
)  # fmt: skip


# -- the text ----------------------------------------------------------------------------------------------------------


def values_of(metric: Metric, collection: Collection) -> dict[tuple[str, ...], Value]:
    """Return the values of a metric by label values. Values whose labels became equal are added."""
    found: dict[tuple[str, ...], Value] = {}
    for labels, value in metric.samples(collection):
        key = tuple(map(label_value, labels))
        before = found.get(key)
        found[key] = value if before is None else before + value  # type: ignore[operator]
    return found


def _family(metric: Metric, space: str, values: Mapping[tuple[str, ...], Value]) -> "Family":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names, help = ("space", *metric.labels), metric.help.replace("`", "")
    if metric.kind == HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, help, labels=names)
        for labels, value in values.items():
            assert isinstance(value, Histogram)
            histogram.add_metric((space, *labels), _cumulative(value), value.total)
        return histogram
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = kind(metric.name, help, labels=names)
    for labels, value in values.items():
        assert not isinstance(value, Histogram)
        family.add_metric((space, *labels), value)
    return family


def _cumulative(durations: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds as text, each with the number of durations up to the bound."""
    number, found = 0, []
    # (yield all buckets from the first sample on, because Prometheus computes wrong rates for buckets that appear
    # later)
    for bound in sorted({*BOUNDS_SECONDS, *durations.buckets, math.inf}):
        number += durations.buckets[bound]
        found.append(("+Inf" if bound == math.inf else f"{bound:g}", float(number)))
    return found


def text_of(collection: Collection) -> bytes:
    """Return the metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collection)
    return generate_latest(registry)
