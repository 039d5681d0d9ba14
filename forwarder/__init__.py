"""Forwarding queues to services, in parallel, through Spark; and queues as Spark's DataFrames."""

from typing import TYPE_CHECKING

from forwarder.dataframes import register

if TYPE_CHECKING:
    from forwarder.forwarder import Forwarder
    from forwarder.round import RoundResult
    from forwarder.services import Caller, MissingQueue, Request, Service, ServiceError
    from forwarder.session import SparkUnavailable
    from forwarder.summary import Summary
    from forwarder.time_limits import TookTooLong
    from spool.workers.effects import Effect
    from spool.workers.outcome import Outcome, Reject, Rejected, Replied, Retried, Retry

__all__ = [
    "Caller",
    "Effect",
    "Forwarder",
    "MissingQueue",
    "Outcome",
    "Reject",
    "Rejected",
    "Replied",
    "Request",
    "Retried",
    "Retry",
    "RoundResult",
    "Service",
    "ServiceError",
    "SparkUnavailable",
    "Summary",
    "TookTooLong",
    "register",
]

# Spark starts a process for each step of a read or a write, which needs little of this package and none of these.
_MODULES = {
    "forwarder.forwarder": ("Forwarder",),
    "forwarder.round": ("RoundResult",),
    "forwarder.services": ("Caller", "MissingQueue", "Request", "Service", "ServiceError"),
    "forwarder.session": ("SparkUnavailable",),
    "forwarder.summary": ("Summary",),
    "forwarder.time_limits": ("TookTooLong",),
    "spool.workers.effects": ("Effect",),
    "spool.workers.outcome": ("Outcome", "Reject", "Rejected", "Replied", "Retried", "Retry"),
}


def __getattr__(name: str) -> object:
    """Import what has this name when it is first asked for; it is an attribute from then on."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module 'forwarder' has no attribute {name!r}")
