"""``spool-forward --json`` prints an object for each event, as the page of services describes it."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import forwarder
import spool
from forwarder import Forwarder
from forwarder import forwarder as driver
from forwarder.events import Begun, Claimed, Done, Down, Event, Paused, Stopping, Up, as_json
from forwarder.routes import arguments
from spool.workers.outcome import Replied, Retried
from tests.forwarder.rounds import SPARK, Scripted, answers, in_process
from tests.spaces import space_with
from xaspool_scripts.forward import EventLines, main

PAGE = Path(__file__).parents[2] / "docs" / "forwarding.md"


space = space_with("work")


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))
    monkeypatch.setattr(arguments, "parse", lambda url, **_: Scripted(url))
    monkeypatch.setattr(Forwarder, "_start", lambda self, server: SPARK)
    monkeypatch.setattr(driver, "stop", lambda spark: None)
    monkeypatch.setattr("xaspool_scripts.forward._stop_on_signals", lambda forwarder: None)


def printed(space: spool.Space, *words: str) -> list[dict[str, Any]]:
    run = CliRunner().invoke(main, ["-s", space.path, "--route", "work=it", "--json", *words])
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_each_thing_that_happens_is_a_line_and_the_last_one_is_the_summary(space: spool.Space) -> None:
    answers["it"] = lambda request: Replied() if request.message.body else Retried("busy")
    space.put_many("work", range(3))
    begun, claimed, done, stopped = printed(space, "--once")
    assert begun == {"event": "begun", "time": begun["time"], "queues": ["work"]}
    assert claimed == {
        "event": "claimed", "time": claimed["time"], "queue": "work", "round": done["round"], "messages": 3,
        "ahead": False,
    }  # fmt: skip
    assert (done["event"], done["effects"]) == ("done", {"retried": 1, "delivered": 2})
    assert done["seconds"] > 0
    assert begun["time"] <= claimed["time"] <= done["time"] <= stopped["time"]
    assert (stopped["event"], stopped["effects"]) == ("stopped", {"work": done["effects"]})


def test_q12_a_service_that_is_down_is_told_with_each_pause_and_when_it_is_up(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter([Retried("refused", counted=False), Retried("refused", counted=False), Replied()])
    answers["it"] = lambda request: next(tries)
    monkeypatch.setattr("spool.workers.pauses.FIRST_PAUSE_SECONDS", 0.01)
    space.put("work", "x")
    told = printed(space, "--idle-exit", "1")
    names = [event["event"] for event in told]
    assert names == [
        "begun", "claimed", "done", "down", "paused", "claimed", "done", "paused", "claimed", "done", "up", "stopping",
        "stopped",
    ]  # fmt: skip
    assert [event["seconds"] for event in told if event["event"] == "paused"] == [0.01, 0.02]
    assert told[3]["reason"] == told[4]["reason"] == "the service was not reached (refused)"
    assert told[-2]["reason"] == "no message for 1 s"
    assert told[-1]["down"] == {}


def test_a_forwarder_whose_events_find_no_reader_stops(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its standard output is, for example, a pipe whose other end is closed. Otherwise no reader would notice
    failures."""
    answers["it"] = lambda request: Replied()
    space.put("work", "x")
    lines = EventLines()
    written: list[object] = []

    def write(value: object) -> None:
        written.append(value)
        raise BrokenPipeError

    monkeypatch.setattr("xaspool_scripts.forward.write_json", write)
    run = Forwarder(space.path, {"work": "it"}, on_event=lines.show)
    lines.stop = run.stop
    assert run.run().handled == 0
    assert len(written) == 1
    assert (space.stats("work").ready, space.stats("work").claimed) == (1, 0)


def test_the_page_of_forwarding_has_each_event_with_its_fields() -> None:
    kinds = get_args(Event.__value__ if hasattr(Event, "__value__") else Event)
    described = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    for kind in kinds:
        wanted = ", ".join(f"`{name}`" for name in kind.__dataclass_fields__)
        assert described[kind.__name__.lower()] == wanted
    assert "`stopped`" in PAGE.read_text()


def test_an_event_is_an_object_for_json() -> None:
    events = [
        Begun(["work"]), Claimed("work", "1f", 3, ahead=True), Done("work", "1f", {"delivered": 3}, 0.12345678),
        Down("work", "refused"), Paused("work", "refused", 1.0), Up("work", 2.0), Stopping("no message for 10 s"),
    ]  # fmt: skip
    assert {type(event) for event in events} == set(get_args(Event))
    for event in events:
        told = json.loads(json.dumps(as_json(event, 1.5)))
        assert list(told)[:2] == ["event", "time"]
        assert list(told)[2:] == list(type(event).__dataclass_fields__)
    assert as_json(events[2], 1.5)["seconds"] == 0.123457
    assert forwarder.Event is Event
