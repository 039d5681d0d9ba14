"""What happens to messages without a call: retries, expiry, deduplication, capacity alarms, claims of the dead."""
