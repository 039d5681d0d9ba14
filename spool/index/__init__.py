"""The queues in memory: what every commit that was applied has left in them."""

from spool.index.index import Index

__all__ = ["Index"]
