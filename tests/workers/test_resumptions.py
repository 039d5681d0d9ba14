"""An administrator who has removed the cause of failures lets the messages of a queue be attempted at once."""

from pathlib import Path

import pytest

import spool
import spool.aio
from forwarder import Route, ThreadForwarder
from spool.coordination.resumptions import Resumptions, request_resumption
from spool.workers.outcome import Replied
from tests.clocks import SimulatedClock, timed
from tests.forwarder.rounds import Scripted, answers
from tests.spaces import path_with

pytestmark = pytest.mark.timeout(120)


path = path_with(replies={"max_messages": 1}, work={"reply_queue": "replies"}, errors={})


def test_e06_failed_messages_that_wait_are_ready_at_once_and_other_delayed_ones_are_not(path: Path) -> None:
    with spool.open(path) as space:
        space.create_queue("calls", retry_delay=3600.0, first_delay=0.0)
        failed = [space.put("calls", number) for number in range(3)]

        def fail(message: spool.Message) -> None:
            raise ValueError("the service is down")

        space.work("calls", fail, once=True)
        space.put("calls", "later", delay=3600)
        assert (space.stats("calls").ready, space.stats("calls").delayed) == (0, 4)
        with pytest.raises(spool.QueueNotFound):
            space.resume("nowhere")
        assert space.resume("calls") == 3
        assert (space.stats("calls").ready, space.stats("calls").delayed) == (3, 1)
        assert space.resume("calls") == 0
        found = space.get_many("calls", 9)
        assert [(message.id, message.attempts) for message in found] == [(id, 1) for id in failed]


def test_a_request_is_for_one_queue_and_is_reported_once_and_read_twice_a_second(path: Path) -> None:
    with spool.open(path) as space:
        clock = SimulatedClock(100.0)
        disk = timed(path, clock)
        early = Resumptions(disk, "work")
        request_resumption(disk, "errors")  # (this creates the file)
        assert not early.is_requested()
        request_resumption(disk, "work")
        assert not early.is_requested()  # it has just read the file
        clock.sleep(0.5)
        assert early.is_requested()
        clock.sleep(0.5)
        assert not early.is_requested()
        assert not Resumptions(disk, "work").is_requested()
        assert space.check() == []  # the file belongs to the space


def test_a_forwarder_without_spark_is_counted_as_a_forwarder(path: Path) -> None:
    answers["it"] = lambda request: Replied(None)
    with spool.open(path) as space:
        space.create_queue("calls")
        space.put_many("calls", ["tea", "rye"])
        states: list[dict[tuple[str, ...], int]] = []
        forwarder = ThreadForwarder(
            space.path, [Route("calls", Scripted("it"))],
            on_event=lambda event: states.append(space.engine.meters.read().states),
        )  # fmt: skip
        forwarder.run(once=True)
        assert any(("route", "calls", "Scripted") in found for found in states)
        assert not any(key[0].startswith("workers") for found in states for key in found)
        counts = space.engine.meters.read().counts
        expected = {("outcomes", "forwarder", "calls", "delivered"): 2}
        assert {key: count for key, count in counts.items() if key[0] == "outcomes"} == expected
