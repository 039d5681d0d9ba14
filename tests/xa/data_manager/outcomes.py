"""One piece of work in a space, and checks that a transaction committed it or rolled it back."""

import os

import spool
from spool.model.xid import Xid
from tests.shown import bodies


def attempts(space: spool.Space) -> dict[str, int]:
    return {message.body: message.attempts for message in space.browse("in")}


def work(space: spool.Space) -> None:
    """Move one message from ``in`` to ``out``."""
    space.put("out", space.get("in").body)


def check_committed(space: spool.Space) -> None:
    """Check that ``work`` was committed, and that the space holds nothing for the transaction any more."""
    assert bodies(space, "out") == ["1"]
    assert attempts(space) == {"2": 0, "3": 0}
    check_ended(space)


def check_rolled_back(space: spool.Space, failed: int = 1) -> None:
    """Check that ``work`` was rolled back. ``failed``: the number of attempts that were counted."""
    assert bodies(space, "out") == []
    assert attempts(space) == {"1": failed, "2": 0, "3": 0}
    check_ended(space)


def undecided(space: spool.Space) -> list[Xid]:
    names = os.listdir(os.path.join(space.path, "prepared"))
    xids = [Xid.parse(name.removesuffix(".msgpack")) for name in names]
    return [xid for xid in xids if space.engine.is_prepared(xid)]


def check_ended(space: spool.Space) -> None:
    assert undecided(space) == []
    assert [space.stats(queue).in_doubt for queue in ("in", "out")] == [0, 0]
    assert space.engine.joined() is None
    assert space.put("in", "alone") in {message.id for message in space.browse("in")}, "a put outside is a commit"
    assert space.get("in", message_id=next(m.id for m in space.browse("in") if m.body == "alone")).body == "alone"
