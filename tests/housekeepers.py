"""A space without its housekeeping thread, for tests that do the steps themselves."""

import threading

import spool
from tests import door


def end_housekeeping(space: spool.Space) -> None:
    """End the housekeeping thread of the space, and wait until it has ended."""
    housekeeper = door.housekeeper(space)
    housekeeper._round = lambda *, due: False  # type: ignore[method-assign]
    housekeeper.end()
    for thread in threading.enumerate():
        if getattr(thread, "_target", None) == housekeeper._run:
            thread.join(60)
            assert not thread.is_alive()
