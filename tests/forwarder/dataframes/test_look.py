"""Plans and tasks read the current state of a space that other processes change meanwhile."""

import pytest

import spool
from forwarder.dataframes.columns import StreamOptions, columns
from forwarder.dataframes.stream import StreamReader
from spool.reading.backlog import Backlog, locate
from tests import door
from tests.spaces import opened_again

other = opened_again()


def _newest(space: spool.Space) -> int:
    return door.counters(space).published


def test_x05_backlog_of_a_subscription_counts_puts_of_each_kept_commit(space: spool.Space, other: spool.Space) -> None:
    backlog = Backlog(door.store(other))
    space.put_many("orders", [b"one", b"two"])
    number = _newest(space)
    assert [(commit.number, commit.messages) for commit in backlog.kept_sizes(1, number)] == [(number, 2)]


def test_x05_a_message_consumed_since_the_last_look_is_in_no_other_file(space: spool.Space, other: spool.Space) -> None:
    space.put("orders", b"one")
    number = _newest(space)
    assert locate(door.store(other), "orders", number, 0, 1)[0] is not None
    space.get("orders")
    assert locate(door.store(other), "orders", number, 0, 1) == (None, 1)


def test_x05_a_stream_has_no_offset_of_a_space_that_has_stopped(space: spool.Space) -> None:
    reader = StreamReader(StreamOptions.of({"path": space.path}), columns(True))
    reader.reportLatestOffset()
    door.store(space).stop()
    with pytest.raises(spool.SpaceStopped):
        reader.reportLatestOffset()
    reader.stop()
