"""The state that live processes share in ``run/``: locks, counters, claims, and notifications for readers."""
