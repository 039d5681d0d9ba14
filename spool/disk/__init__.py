"""The only way to the operating system: every call that touches a space's files goes through ``Disk``."""

from spool.disk.disk import Disk

__all__ = ["Disk"]
