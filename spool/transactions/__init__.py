"""Transactions: messages put and taken together, two-phase commit, and branches of other coordinators."""
