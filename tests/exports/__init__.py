"""Exports: every damage is noticed, and other processes may use the space meanwhile."""
