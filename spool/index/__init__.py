"""The queues in memory, as they are after all applied commits."""

from spool.index.index import Index

__all__ = ["Index"]
