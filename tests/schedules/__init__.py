"""Schedules: each due time puts one message, whatever happens to the processes, the clocks, the queue and the disk."""
