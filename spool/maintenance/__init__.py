"""Maintenance of an open space: reclaim files, compact slow queues, and merge tombstones."""
