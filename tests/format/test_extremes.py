"""Writers and readers have the same limits: every reader accepts each message that a put accepts."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spool
from tests import door
from tests.clocks import MovedClock, timed
from tests.conftest import in_memory

extremes = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([1, 100]),
        "delay": st.sampled_from([5e-324, 0.5, 1e12 - 1]),
        "user_code": st.sampled_from([-(2**63), -1, 2**63 - 1]),
        "correlation_id": st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
        "headers": st.dictionaries(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
            st.text(st.characters(codec="utf-8"), max_size=9), max_size=2,
        ),
        "content_type": st.just("text/plain"),
        "failure_queue": st.just("errors"),
    },
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(options=extremes)
def test_e12_an_accepted_put_can_be_read_also_after_a_failed_attempt(options: dict[str, Any]) -> None:
    with in_memory() as directory:
        with spool.create(timed(directory / "space", MovedClock(wall=4e11))) as space:
            space.create_queue("q", retries=3, retry_delay=1e9)
            message_id = space.put("q", "body", **options)
            with space.transaction() as transaction:
                transaction.get("q", message_id=message_id)
                transaction.set_rollback_only()
        with spool.open(timed(directory / "space", MovedClock(wall=4e11))) as space:
            assert space.check() == []
            assert space.show(message_id).attempts == 1


@pytest.mark.parametrize("wrong", [{"priority": None}, {"attempts": 1.5}, {"failed_at": math.inf}, {"unknown": 1}])
def test_control_fields_that_no_reader_accepts_are_not_written(space: spool.Space, wrong: dict[str, Any]) -> None:
    """A reader would refuse the whole commit, with the messages of other threads."""
    for action in (("put", "orders", [b""], wrong), ("update", 1, 0, 1, wrong)):
        with pytest.raises(ValueError, match=r"field|number of seconds"):
            door.commit(space, action)
    assert space.check() == []
