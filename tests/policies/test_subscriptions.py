"""Subscriptions as another process left them a moment ago: registered, read on, deleted."""

import spool


def test_x05_a_subscription_that_another_process_registered_keeps_its_start(space: spool.Space, other: spool.Space):
    since = space.engine.register_subscription("seen", [], 60.0)
    assert other.engine.register_subscription("seen", [], 60.0) == since


def test_x05_a_subscription_that_another_process_registered_is_read_on(space: spool.Space, other: spool.Space) -> None:
    since = space.engine.register_subscription("seen", [], 60.0)
    assert other.engine.advance_subscription("seen", since, since, 60.0)
    space.delete_subscription("seen")
    assert not other.engine.advance_subscription("seen", since, since, 60.0)
