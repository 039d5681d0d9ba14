"""The environment of a call of the library: time, calls, and signals."""
