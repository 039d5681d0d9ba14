"""Published metrics: a copy of the space's metrics in ``run/status``, for users who may not open the space.

If the space's option ``monitor_group`` names a group, an open process writes the copy for this group every few seconds.
The copy has the names of queues, the counts, the ids of transactions and the kinds of findings. The copy has no
message, and no name or reason of a file, because a reason may quote a message. Other users can then pass through the
directories of the space and ``run/``, but cannot list these directories.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from spool.admin.findings import Finding
from spool.admin.queues import group_id
from spool.admin.stats import QueueStats
from spool.coordination.locks import PUBLISHING
from spool.disk.advice import as_failure, is_directory
from spool.disk.disk import DIRECTORY_MODE, PASSAGE_MODE, PUBLISHED_MODE, Disk
from spool.disk.read_only import ReadOnlyDisk
from spool.errors import CorruptedFile, DiskFailure, NotASpace
from spool.model import layout
from spool.policies.subscriptions import SubscriptionState
from spool.runtime.async_exceptions import raise_if_torn
from spool.store import run_files
from spool.store.store import Store
from spool.watch.failures import TaskFailures, by_task
from spool.watch.figures import FolderUsage, KeptFigures, OpenTransaction, QueueReferences, SpaceMetrics, space_metrics
from spool.watch.last_recovery import finding_of, recovery_of

log = logging.getLogger("spool")


class Publisher:
    """Writes the copy of one open space. A failure is logged once, and the next call tries again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failure = ""
        self._kept = KeptFigures()

    def __call__(self) -> None:
        """Write the copy, or remove it if the option has no value any more."""
        group, disk = self._store.settings.known.config.monitor_group, self._store.files.disk
        with self._store.shared.control.trying(PUBLISHING) as ours:
            if not ours:
                return
            try:
                if group is not None:
                    publish(disk, space_metrics(self._store, self._kept), group)
                else:
                    withdraw(disk)
            except Exception as error:  # (an error of the metrics must not end the housekeeping)
                raise_if_torn(error)
                if str(error) != self._failure:
                    log.warning("%s: the metrics are not published: %s", disk.root, error)
                self._failure = str(error)
            else:
                self._failure = ""


def publish(disk: Disk, metrics: SpaceMetrics, group: str) -> None:
    """Write the copy for a group. Raises InvalidArgument if the group does not exist, and OSError."""
    plain = asdict(_without_texts(metrics))
    for meters in ("counts", "states"):
        plain[meters] = list(plain[meters].items())
    run_files.write(disk, layout.STATUS, plain, mode=PUBLISHED_MODE, group=group_id(group))
    for passage in ("", layout.RUN):
        found = disk.identity(passage)
        if found is not None and found.permissions != PASSAGE_MODE:
            disk.set_mode(passage, PASSAGE_MODE)


def _without_texts(metrics: SpaceMetrics) -> SpaceMetrics:
    """Return the metrics without names and reasons of files, and without causes of failures: they may quote a
    message."""
    if (recovery := metrics.recovery) is not None:
        findings = tuple(Finding(finding.kind, "", "", finding.action) for finding in recovery.findings)
        recovery = replace(recovery, findings=findings)
    failures = by_task(metrics.failures, len(metrics.failures))
    return replace(metrics, quarantine=(), recovery=recovery, failures=failures, failed=())


def withdraw(disk: Disk) -> None:
    """Remove the copy, and close ``run/`` to other users. The space itself remains passable for drop folders."""
    if disk.exists(layout.STATUS):
        disk.unlink(layout.STATUS)
        disk.set_mode(layout.RUN, DIRECTORY_MODE)


def read_metrics(path: str | os.PathLike[str]) -> SpaceMetrics:
    """Return the metrics that a process with the space open has published for the group ``monitor_group``.

    The space is not opened, and the caller needs no right to open it. While a process
    has the space open, the metrics are some five seconds old; ``at`` has their time.

    Args:
        path: the directory of the space.

    Raises:
        NotASpace: the directory has no published metrics.
        DiskFailure: the caller is not in the group, or the file cannot be read.
        NewerFormat: a later version of the library published the metrics.
        CorruptedFile: the bytes of the file are damaged.
    """
    disk = ReadOnlyDisk(os.fspath(path))
    if not is_directory(disk.root):
        raise NotASpace(f"{disk.root} is not a directory")
    try:
        value = run_files.read(disk, layout.STATUS)
    except PermissionError as error:
        advice = "only the group monitor_group may read the metrics, once a process published them: ask the owner"
        raise DiskFailure(error.errno, advice, disk.path(layout.STATUS)) from None
    except OSError as error:
        raise as_failure("reading the published metrics", error) from error
    finally:
        disk.close_all()
    if value is None:
        raise NotASpace(
            f"{disk.root} publishes no metrics: set monitor_group in its space.toml, and open it in a process"
        )
    try:
        return _metrics(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptedFile(f"{disk.path(layout.STATUS)} has other fields than expected: {error!r}") from None


def _metrics(value: Mapping[str, Any]) -> SpaceMetrics:
    recovery = value["recovery"]
    return SpaceMetrics(**{
        **value,
        "queues": {name: QueueStats(**each) for name, each in value["queues"].items()},
        "roles": dict(value["roles"]),
        "references": {name: QueueReferences(**each) for name, each in value["references"].items()},
        "transactions": tuple([OpenTransaction(**each) for each in value["transactions"]]),
        "subscriptions": {name: SubscriptionState(**each) for name, each in value["subscriptions"].items()},
        "quarantine": tuple(map(finding_of, value["quarantine"])),
        "recovery": None if recovery is None else recovery_of(recovery),
        "failures": tuple([TaskFailures(**each) for each in value["failures"]]),
        "failed": (),
        "origins": {name: dict(each) for name, each in value["origins"].items()},
        "folders": {name: FolderUsage(**each) for name, each in value["folders"].items()},
        "counts": dict(value["counts"]),
        "states": dict(value["states"]),
    })  # fmt: skip
