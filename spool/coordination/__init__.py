"""What live processes share in ``run/``: locks, counters, claims, and the wake-up of readers."""
