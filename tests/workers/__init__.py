"""``space.work``: outcomes, time limits and ends."""
