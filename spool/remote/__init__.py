"""Branches of processes that have not opened the space: how such branches are written and committed."""
