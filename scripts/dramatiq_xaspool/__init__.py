"""A broker, a result backend and a rate limiter backend for Dramatiq: queues in a directory, without a server.

``dramatiq.set_broker(XaspoolBroker("/var/spool/shop"))``; see docs/dramatiq.md (``spool-admin docs dramatiq``).
"""

try:
    from dramatiq_xaspool.broker import XaspoolBroker
    from dramatiq_xaspool.limits import XaspoolRateLimiterBackend
    from dramatiq_xaspool.results import XaspoolResults
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"dramatiq_xaspool needs {error.name}: pip install './xaspool[dramatiq]'") from error

__all__ = ["XaspoolBroker", "XaspoolRateLimiterBackend", "XaspoolResults"]
