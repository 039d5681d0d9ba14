"""The queues in memory, as the commits that were applied have left them."""

from spool.index.index import Index

__all__ = ["Index"]
