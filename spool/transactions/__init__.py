"""Transactions: puts and gets that are committed together, two-phase commit, and branches of other coordinators."""
