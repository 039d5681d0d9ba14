"""The figures of a space, for tests of its health and of the views."""

from typing import Any

import spool

NOW = 1_000_000.0


def queue_stats(**given: Any) -> spool.QueueStats:
    zero = dict.fromkeys(
        ("ready", "delayed", "claimed", "in_doubt", "bytes", "enqueued", "dequeued", "failed", "expired", "deleted",
         "quarantined"), 0,
    )  # fmt: skip
    return spool.QueueStats(**{**zero, "oldest_age": None, **given})


def metrics(**given: Any) -> spool.SpaceMetrics:
    """Return the metrics of a space without trouble, except for the given fields."""
    queues = given.get("queues", {"errors": queue_stats(), "orders": queue_stats()})
    base: dict[str, Any] = {
        "space": "/var/spool/shop", "at": NOW, "is_stopped": False, "commits": 7, "unflushed": 0, "queues": queues,
        "roles": {name: "error" if name == "errors" else "work" for name in queues},
        "references": {name: spool.QueueReferences("errors" if name == "orders" else None) for name in queues},
        "transactions": (), "in_doubt": 0, "decisions": {}, "subscriptions": {}, "quarantine": (), "quarantined": 0,
        "damaged": 0, "recovery": None, "processes": ("process 1 (python)",), "folders": {}, "free_bytes": 10**12,
        "free_inodes": None, "failures": (), "failed": (), "origins": {}, "counts": {}, "states": {},
    }  # fmt: skip
    return spool.SpaceMetrics(**{**base, **given})


def transaction(**given: Any) -> spool.OpenTransaction:
    base = {
        "state": "claimed",
        "xid": "7.aa.bb",
        "pid": 17,
        "program": "worker",
        "since": NOW - 60,
        "takes": {"orders": 2},
    }
    return spool.OpenTransaction(**{**base, **given})  # type: ignore[arg-type]
