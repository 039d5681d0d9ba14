"""What happens to messages by itself: retries, expiry, deduplication, capacity alarms, orphaned claims."""
