"""Xids, and branches that have voted."""

import xa


def xid(name: bytes = b"transaction") -> xa.Xid:
    return xa.Xid(7, name, b"branch")


def voted(rm: xa.ResourceManager, one: xa.Xid, queue: str = "replies") -> None:
    """A branch with one put, which has voted."""
    rm.start(one)
    rm.space.put(queue, one.gtrid)
    rm.end(one)
    assert rm.prepare(one) == xa.XA_OK
