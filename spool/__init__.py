"""Transactional queues in a directory.

``create`` creates a queue space, ``open`` opens an existing one, and ``shared`` returns the open space of the process.
They return a ``Space``, which puts and gets each ``Message`` directly or in a ``Transaction``. ``aio`` has the same
calls for asyncio. ``connect`` returns a space of a server, by HTTP.

``PutOptions``, ``GetOptions``, ``QueueOptions``, ``SpaceOptions`` and ``MessageFilters`` list the
options of the calls. Every error is a ``SpoolError``.

docs/words.md (``spool-admin docs words``) explains our terms by the terms of SQS, Kafka, JMS, Celery and RabbitMQ.
Applications may use the names of ``__all__``. The modules of the package are internal.
"""

import sys
from typing import TYPE_CHECKING

if not (sys.platform == "linux" and sys.maxsize > 2**32):
    raise ImportError("xaspool needs 64-bit Linux: its locks are open-file-description locks (fcntl, F_OFD_SETLK)")

from spool.errors import (
    AccessDenied,
    BadMessageId,
    CommitUnknown,
    CorruptedFile,
    DiskFailure,
    Empty,
    Full,
    InvalidArgument,
    MessageInUse,
    MirrorMismatch,
    NewerFormat,
    NotASpace,
    NotOpen,
    ProtocolError,
    QueueExists,
    QueueNotEmpty,
    QueueNotFound,
    RequestFailed,
    SpaceExists,
    SpaceMismatch,
    SpaceStopped,
    SpoolError,
    SystemFailure,
    TransactionRolledBack,
    TransactionTimeout,
    UnknownCodec,
    UnsafeFileSystem,
)

if TYPE_CHECKING:
    from spool import aio as aio
    from spool import mirrors as mirrors
    from spool.admin.findings import Finding, RecoveryRecord, RecoveryReport
    from spool.admin.holders import Holder
    from spool.admin.listing import QueueEntry
    from spool.admin.manifest import ExportReport
    from spool.admin.quarantined import QuarantinedFile
    from spool.admin.stats import QueueStats
    from spool.admin.unpack import verify_export
    from spool.client.space import connect
    from spool.model.codecs import Codec, decode, register_codec
    from spool.model.message import Message, MessageId
    from spool.model.options import JOIN, GetOptions, MessageFilters, PutOptions, QueueOptions, SpaceOptions
    from spool.model.position import Position
    from spool.model.schedule import Schedule
    from spool.model.settings import QueueConfig, SpaceConfig
    from spool.opening import create, import_space, open, plan_recovery
    from spool.policies.subscriptions import SubscriptionState
    from spool.sharing import shared
    from spool.space import Space, current_space
    from spool.transactions.arrivals import QueueArrivals
    from spool.transactions.claims import Claims
    from spool.transactions.transaction import Transaction
    from spool.watch.figures import FolderUsage, OpenTransaction, QueueReferences, SpaceMetrics
    from spool.watch.published import read_metrics
    from spool.workers.handler import Handler
    from spool.workers.outcome import NewMessage, Reject, Retry, Translated
    from spool.workers.worker import Worker, WorkSummary

    __version__: str

__all__ = [
    "JOIN", "AccessDenied", "BadMessageId", "Claims", "Codec", "CommitUnknown", "CorruptedFile", "DiskFailure", "Empty",
    "ExportReport", "Finding", "FolderUsage", "Full", "GetOptions", "Handler", "Holder", "InvalidArgument", "Message",
    "MessageFilters", "MessageId", "MessageInUse", "MirrorMismatch", "NewMessage", "NewerFormat", "NotASpace",
    "NotOpen", "OpenTransaction", "Position", "ProtocolError", "PutOptions", "QuarantinedFile", "QueueArrivals",
    "QueueConfig", "QueueEntry", "QueueExists", "QueueNotEmpty", "QueueNotFound", "QueueOptions", "QueueReferences",
    "QueueStats", "RecoveryRecord", "RecoveryReport", "Reject", "RequestFailed", "Retry", "Schedule", "Space",
    "SpaceConfig", "SpaceExists", "SpaceMetrics", "SpaceMismatch", "SpaceOptions", "SpaceStopped", "SpoolError",
    "SubscriptionState", "SystemFailure", "Transaction", "TransactionRolledBack", "TransactionTimeout", "Translated",
    "UnknownCodec", "UnsafeFileSystem", "WorkSummary", "Worker", "aio", "connect", "create", "current_space", "decode",
    "import_space", "mirrors", "open", "plan_recovery", "read_metrics", "register_codec", "shared", "verify_export",
]  # fmt: skip


# The modules that define the other names. A name is imported at its first use, because importing the engine takes
# several times as long as starting Python, and a program may never use the engine.
_MODULES = {
    "admin.findings": ("Finding", "RecoveryRecord", "RecoveryReport"),
    "admin.holders": ("Holder",),
    "admin.listing": ("QueueEntry",),
    "admin.manifest": ("ExportReport",),
    "admin.quarantined": ("QuarantinedFile",),
    "admin.stats": ("QueueStats",),
    "admin.unpack": ("verify_export",),
    "client.space": ("connect",),
    "model.codecs": ("Codec", "decode", "register_codec"),
    "model.message": ("Message", "MessageId"),
    "model.options": ("JOIN", "GetOptions", "MessageFilters", "PutOptions", "QueueOptions", "SpaceOptions"),
    "model.position": ("Position",),
    "model.schedule": ("Schedule",),
    "model.settings": ("QueueConfig", "SpaceConfig"),
    "opening": ("create", "import_space", "open", "plan_recovery"),
    "policies.subscriptions": ("SubscriptionState",),
    "sharing": ("shared",),
    "space": ("Space", "current_space"),
    "transactions.arrivals": ("QueueArrivals",),
    "transactions.claims": ("Claims",),
    "transactions.transaction": ("Transaction",),
    "watch.figures": ("FolderUsage", "OpenTransaction", "QueueReferences", "SpaceMetrics"),
    "watch.published": ("read_metrics",),
    "workers.handler": ("Handler",),
    "workers.outcome": ("NewMessage", "Reject", "Retry", "Translated"),
    "workers.worker": ("WorkSummary", "Worker"),
}


def __getattr__(name: str) -> object:
    """Import a name at its first use; afterwards the name is an attribute of the module."""
    from importlib import import_module

    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("xaspool")
        except metadata.PackageNotFoundError:
            return "unknown"  # a source tree that is not installed
    if name in ("aio", "mirrors"):
        return import_module(f"spool.{name}")  # the import also sets the attribute
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"spool.{module}"), name)
            return found
    raise AttributeError(f"module 'spool' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", *(name for name in globals() if name.startswith("__"))]
