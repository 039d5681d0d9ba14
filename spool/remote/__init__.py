"""Branches that processes write without opening the space, and their commit."""
