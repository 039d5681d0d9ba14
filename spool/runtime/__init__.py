"""Time, calls and signals: what a call of the library runs in."""
