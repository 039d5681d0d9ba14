"""Maintenance of an open space: it reclaims files, compacts slow queues, and merges tombstones."""
