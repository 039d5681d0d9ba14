"""The figures of a space at one moment, for metrics, the console and ``spool-admin top``.

The figures come from the index, the claims of all processes, the prepared branches, the directories, and the meters of
all processes. The cost depends on the number of queues, held messages and files, but not on the number of other
messages.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spool.admin import quarantined
from spool.admin.findings import Finding, Kind, RecoveryRecord
from spool.admin.holders import CLAIMED, IN_DOUBT, Holder, by_position, name_processes, typed
from spool.admin.in_doubt import describe_all
from spool.admin.stats import QueueStats, last_stats, queue_stats
from spool.disk.disk import Disk
from spool.model import layout
from spool.model.settings import roles
from spool.policies.heuristics import heuristic_outcomes
from spool.policies.subscriptions import SubscriptionState, states
from spool.store.meters import Key
from spool.store.store import Store
from spool.watch.failures import FailedTask, FailureReport, RecentFailures, TaskFailures
from spool.watch.last_recovery import last_recovery

_LISTED_SECONDS = 30.0
_MOST_LISTED = 1_000  # the most listed transactions, and the most listed files in quarantine


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that holds messages, or that is in doubt.

    state: "claimed" (an active transaction) or "in doubt" (prepared and undecided).
    xid, pid, program, since: see ``Holder``.
    takes, puts: the number of messages by queue. ``puts`` is known only in doubt.
    """

    state: str
    xid: str | None
    pid: int | None
    program: str | None
    since: float | None
    takes: Mapping[str, int]
    puts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FolderUsage:
    """The number of the files in a directory of the space, and their size in bytes; None if the size is not counted."""

    files: int
    bytes: int | None = None


@dataclass(frozen=True)
class QueueReferences:
    """The queues to which a queue's settings refer. None: the setting has no value."""

    error_queue: str | None = None
    reply_queue: str | None = None
    failure_queue: str | None = None


@dataclass(frozen=True)
class SpaceMetrics:
    """The figures of a space at one moment.

    space: the directory of the space.
    at: the moment, in seconds since the epoch.
    is_stopped: whether a flush has failed, so that no process can commit.
    commits: the number of the last published commit.
    unflushed: the number of published commits that a power cut may lose.
    queues: the figures of each queue, by name.
    roles: the role of each queue: "work", "error" or "state".
    references: the queues to which each queue refers.
    transactions: the transactions that hold messages or are in doubt, at most 1,000.
    in_doubt: the number of transactions in doubt.
    decisions: the decisions of administrators that no coordinator has acknowledged, by xid: "committed" or "rolled
        back".
    subscriptions: the state of each subscription, by name.
    quarantine: the files in quarantine, at most 1,000.
    quarantined: the number of files in quarantine.
    damaged: the number of files in quarantine that had acknowledged messages.
    recovery: the last recovery that found something; None if no recovery did.
    processes: the processes that have the space open, as far as this user may see them.
    folders: the usage of the directories ``active``, ``prepared``, ``committed``, ``drop``, ``quarantine`` and
        ``free``. The number of dropped files is at most 30 seconds old.
    free_bytes, free_inodes: the room on the file system. ``free_inodes`` is None if the file system has no limit.
    failures: the failures of the last day by task, queue and kind of cause, the most frequent first; at most 200.
    failed: the newest of these failures, at most 50.
    origins: for each error queue, the number of its failed messages by the queue in which they failed.
    counts: the counts of all processes since ``run/`` was created.
    states: the states that live processes report.
    """

    space: str
    at: float
    is_stopped: bool
    commits: int
    unflushed: int
    queues: Mapping[str, QueueStats]
    roles: Mapping[str, str]
    references: Mapping[str, QueueReferences]
    transactions: tuple[OpenTransaction, ...]
    in_doubt: int
    decisions: Mapping[str, str]
    subscriptions: Mapping[str, SubscriptionState]
    quarantine: tuple[Finding, ...]
    quarantined: int
    damaged: int
    recovery: RecoveryRecord | None
    processes: tuple[str, ...]
    folders: Mapping[str, FolderUsage]
    free_bytes: int
    free_inodes: int | None
    failures: tuple[TaskFailures, ...]
    failed: tuple[FailedTask, ...]
    origins: Mapping[str, Mapping[str, int]]
    counts: Mapping[Key, int]
    states: Mapping[Key, int]


def space_metrics(store: Store, kept: "KeptFigures") -> SpaceMetrics:
    """Return the current figures of an open space. ``kept``: an object that is shared by all calls.

    After a failed flush has stopped the space, the figures include only the commits that this process has applied. The
    transactions, decisions and subscriptions are then left out.
    """
    if store.misplaced:
        store.check_usable()
    page = store.shared.counters.read()
    configs = store.settings.current(page).config.queues
    queues, role = (last_stats if page.is_stopped else queue_stats)(store, tuple(configs)), roles(configs)
    failures = FailureReport() if page.is_stopped else kept.recent_failures(store, role)
    doubts, held = ([], []) if page.is_stopped else (_in_doubt(store), claims(store))
    found, system, reading = quarantined.findings(store.files.disk), store.files.disk.file_system(), store.meters.read()
    return SpaceMetrics(
        space=store.files.disk.root,
        at=store.clock.now(),
        is_stopped=page.is_stopped,
        commits=page.published,
        unflushed=sum(number > page.durable for number in list(store.view.index.unflushed)),
        queues=queues,
        roles=role,
        references={
            name: QueueReferences(one.error_queue, one.reply_queue, one.failure_queue) for name, one in configs.items()
        },
        transactions=tuple((doubts + held)[:_MOST_LISTED]),
        in_doubt=len(doubts),
        decisions={} if page.is_stopped else heuristic_outcomes(store),
        subscriptions={} if page.is_stopped else states(store),
        quarantine=tuple(found[:_MOST_LISTED]),
        quarantined=len(found),
        damaged=sum(finding.kind is Kind.DAMAGED for finding in found),
        recovery=last_recovery(store.files.disk),
        processes=tuple(store.shared.open_lock.holders()),
        folders=_folders(store, kept.drops),
        free_bytes=system.free_bytes,
        free_inodes=system.free_inodes,
        failures=failures.groups,
        failed=failures.failed,
        origins=failures.origins,
        counts=reading.counts,
        states=reading.states,
    )


def _in_doubt(store: Store) -> list[OpenTransaction]:
    """List the prepared branches that wait for their coordinators, the oldest first."""
    return [
        OpenTransaction(
            state=IN_DOUBT,
            xid=branch.xid,
            pid=typed(int, branch.writer.get("pid")),
            program=typed(str, branch.writer.get("program")),
            since=branch.prepared_at,
            takes=dict(branch.takes),
            puts=dict(branch.puts),
        )
        for branch in describe_all(store)
    ]


def claims(store: Store) -> list[OpenTransaction]:
    """List the active transactions that hold messages, the oldest first."""
    held = by_position(store.files.disk, store.shared, store.view)
    name_processes(store.shared, held, list(held))
    taken: dict[Holder, Counter[str]] = {}
    with store.view.mutex:
        for position, holder in held.items():
            run = store.view.index.messages.find(position) if holder.state == CLAIMED else None
            if run is not None:
                taken.setdefault(holder, Counter())[run.queue.name] += 1
    found = [
        OpenTransaction(CLAIMED, each.xid, each.pid, each.program, each.since, dict(takes))
        for each, takes in taken.items()
    ]
    return sorted(found, key=lambda each: each.since or float("inf"))


def _names(disk: Disk, directory: str) -> list[str]:
    """List a directory. A removed or replaced directory counts as empty; a check reports the problem."""
    try:
        return disk.names(directory)
    except OSError:
        return []


def _folders(store: Store, drops: "DropFolders") -> dict[str, FolderUsage]:
    disk, index = store.files.disk, store.view.index
    with store.view.mutex:
        committed = FolderUsage(len(index.files), sum(kept.body_bytes for kept in index.files.values()))
    counted = {name: FolderUsage(len(_names(disk, name))) for name in (layout.ACTIVE, layout.PREPARED, layout.FREE)}
    quarantine = FolderUsage(sum(not name.endswith(layout.REASON_SUFFIX) for name in _names(disk, layout.QUARANTINE)))
    dropped = FolderUsage(drops.count(store))
    return {**counted, layout.COMMITTED: committed, layout.DROP: dropped, layout.QUARANTINE: quarantine}


class KeptFigures:
    """The figures that each call would compute too slowly: the calls for one open space share them."""

    def __init__(self) -> None:
        self.drops = DropFolders()
        self._failures = RecentFailures()
        self._mutex = threading.Lock()

    def recent_failures(self, store: Store, roles: Mapping[str, str]) -> FailureReport:
        with self._mutex:
            return self._failures.find(store, roles)


class DropFolders:
    """The number of files in the drop folders of all queues. A listing of a thousand folders takes longer than all
    other figures, so the folders are listed at most every 30 s."""

    def __init__(self) -> None:
        self._files, self._until = 0, float("-inf")

    def count(self, store: Store) -> int:
        now = store.clock.monotonic()
        if now >= self._until:
            disk, queues = store.files.disk, store.settings.known.config.queues
            folders = queues.keys() & set(_names(disk, layout.DROP))
            self._files = sum(len(_names(disk, f"{layout.DROP}/{queue}")) for queue in folders)
            self._until = now + _LISTED_SECONDS
        return self._files
