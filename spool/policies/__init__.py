"""Policies: counted attempts and retries, expiry, deduplication, capacity commands, and the states of dropped files."""
