"""Forwarding queues to services, in parallel, through Spark."""

from forwarder.effects import Effect
from forwarder.forwarder import Forwarder, Summary
from forwarder.outcome import Reject, Retry
from forwarder.round import RoundResult
from forwarder.services import ServiceError
from forwarder.session import SparkUnavailable

__all__ = ["Effect", "Forwarder", "Reject", "Retry", "RoundResult", "ServiceError", "SparkUnavailable", "Summary"]
