"""``spool-admin subscription`` lists the messages that are kept for readers, and deletes subscriptions."""

from pathlib import Path

import spool
from tests import door
from tests.scripts.conftest import Run, one_line


def test_x05_subscriptions_are_listed_and_deleted(run: Run, path: Path) -> None:
    one_line(run("subscription", "list"), "there are no subscriptions", "option subscription")
    with spool.open(path) as space:
        since = space.engine.register_subscription("seen", ("orders",), 3600.0)
        space.engine.register_subscription("all", (), 3600.0)
        space.put_many("orders", [b"abc", b"d"])
        space.get_many("orders", 2)
    listed = run("subscription", "list").text
    assert all(word in listed for word in ("seen", "orders", "all", "unread", "kept bytes"))
    every, seen = run("subscription", "list", "--json").objects
    assert (every["name"], every["queues"]) == ("all", [])
    expected = {"name": "seen", "queues": ["orders"], "since": since, "read_to": since, "unread": 2, "kept_bytes": 4}
    assert seen.items() >= expected.items()
    one_line(run("subscription", "delete", "sen", "--yes"), "no subscription 'sen'; did you mean seen?")
    for name in ("seen", "all"):
        one_line(run("subscription", "delete", name, "--yes"), f"deleted {name}")
    assert run("subscription", "list", "--json").objects == []
    with spool.open(path) as space:
        space.put("orders", b"the newest commit stays")
        while door.reclaim(space):
            pass
        assert len(door.index(space).files) <= 3
