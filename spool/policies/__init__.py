"""Policies: retries, expiry, deduplication, capacity commands, and the claims of dead processes."""
