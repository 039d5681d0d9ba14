"""Tests of the queue space: what is on disk, what is in memory, and the moves between them."""
