"""Branches that processes write without opening the space, and the lock of their coordinator."""
