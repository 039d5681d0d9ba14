"""Time, calls, signals and processors: what a call of the library runs in."""
