"""Forwarding queues to services, in parallel, through Spark; and queues as Spark's DataFrames."""

from forwarder.dataframes import register
from forwarder.forwarder import Forwarder
from forwarder.round import RoundResult
from forwarder.services import MissingQueue, ServiceError
from forwarder.session import SparkUnavailable
from forwarder.summary import Summary
from forwarder.time_limits import TookTooLong
from spool.workers.effects import Effect
from spool.workers.outcome import Reject, Retry

__all__ = [
    "Effect",
    "Forwarder",
    "Reject",
    "Retry",
    "RoundResult",
    "MissingQueue",
    "ServiceError",
    "SparkUnavailable",
    "Summary",
    "TookTooLong",
    "register",
]
