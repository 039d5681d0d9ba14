"""The buckets in which the meters of a space count durations."""

BOUNDS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""The upper bounds of the buckets, in seconds. A further bucket has all longer durations."""
