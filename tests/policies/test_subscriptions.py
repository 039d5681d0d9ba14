"""Subscriptions as another process left them a moment ago: registered, read on, deleted."""

import spool
from spool.policies.subscriptions import advance, register
from tests import door


def test_x05_a_subscription_that_another_process_registered_keeps_its_start(
    space: spool.Space, other: spool.Space
) -> None:
    since = register(door.store(space), "seen", [], 60.0)
    assert register(door.store(other), "seen", [], 60.0) == since


def test_x05_a_subscription_that_another_process_registered_is_read_on(space: spool.Space, other: spool.Space) -> None:
    since = register(door.store(space), "seen", [], 60.0)
    assert advance(door.store(other), "seen", since, since, 60.0)
    space.delete_subscription("seen")
    assert not advance(door.store(other), "seen", since, since, 60.0)
