"""The state of the queues after all applied commits, in memory."""

from spool.index.index import Index

__all__ = ["Index"]
