"""Forward queues to services in parallel through Spark; run pipelines; read and write queues as Spark's DataFrames."""

from typing import TYPE_CHECKING

from forwarder.dataframes import register

if TYPE_CHECKING:
    from forwarder.dataframes.decoding import decode
    from forwarder.events import Event
    from forwarder.forwarder import Forwarder
    from forwarder.pipelines.dispositions import Continue, Error, Kill, Send
    from forwarder.pipelines.pipeline import MessagesLeft, Pipeline
    from forwarder.result import Summary
    from forwarder.round import Route
    from forwarder.routes.arguments import as_routes
    from forwarder.routes.in_threads import ThreadForwarder
    from forwarder.services import Caller, MissingQueue, Request, Service, ServiceError
    from forwarder.session import SparkUnavailable
    from forwarder.time_limits import TookTooLong
    from forwarder.web.endpoint import Endpoint
    from spool.workers.effects import Effect
    from spool.workers.outcome import Outcome, Reject, Rejected, Replied, Retried, Retry

__all__ = [
    "Caller", "Continue", "Effect", "Endpoint", "Error", "Event", "Forwarder", "Kill", "MessagesLeft", "MissingQueue",
    "Outcome", "Pipeline", "Reject", "Rejected", "Replied", "Request", "Retried", "Retry", "Route", "Send", "Service",
    "ServiceError", "SparkUnavailable", "Summary", "ThreadForwarder", "TookTooLong", "as_routes", "decode", "register",
]  # fmt: skip

# Spark starts a process for each step of a read or a write. Such a process needs none of these modules, so each module
# is imported at its first use.
_MODULES = {
    "forwarder.dataframes.decoding": ("decode",),
    "forwarder.web.endpoint": ("Endpoint",),
    "forwarder.forwarder": ("Forwarder",),
    "forwarder.pipelines.dispositions": ("Continue", "Error", "Kill", "Send"),
    "forwarder.routes.in_threads": ("ThreadForwarder",),
    "forwarder.pipelines.pipeline": ("MessagesLeft", "Pipeline"),
    "forwarder.round": ("Route",),
    "forwarder.routes.arguments": ("as_routes",),
    "forwarder.events": ("Event",),
    "forwarder.services": ("Caller", "MissingQueue", "Request", "Service", "ServiceError"),
    "forwarder.session": ("SparkUnavailable",),
    "forwarder.result": ("Summary",),
    "forwarder.time_limits": ("TookTooLong",),
    "spool.workers.effects": ("Effect",),
    "spool.workers.outcome": ("Outcome", "Reject", "Rejected", "Replied", "Retried", "Retry"),
}


def __getattr__(name: str) -> object:
    """Import the object of this name at its first use, and make it an attribute of the module."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module 'forwarder' has no attribute {name!r}")
