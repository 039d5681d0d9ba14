"""Forwarding queues to services, in parallel, through Spark; and queues as Spark's DataFrames."""

from forwarder.dataframes import register
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
