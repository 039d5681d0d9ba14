"""What becomes of messages without being asked: retries, expiry, deduplication, capacity alarms, orphaned claims."""
