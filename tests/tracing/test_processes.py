"""Spans of several processes: each has its own SDK, and the headers of the messages are all that connects them."""

from pathlib import Path

import pytest

import spool
from tests.tracing.spans import TO_A_FILE, Recorder, Written, id_of, run, trace_of, written

CONSUMER = (
    TO_A_FILE
    + """
import sys
import spool

with spool.open(sys.argv[1]) as space:
    with tracer.start_as_current_span("consumer"):
        space.get("orders")
    space.work("orders", lambda message: space.put("next", "more"), once=True)
"""
)
SERVICE = (
    TO_A_FILE
    + """
import spool

def call(message):
    with tracer.start_as_current_span("in the function"):
        if message.body == "bad":
            raise ValueError("no such article")
        return message.body.upper()
"""
)


def by_name(file: Path) -> dict[str, Written]:
    return {span.name: span for span in written(file)}


def test_a_second_process_continues_the_trace(space: spool.Space, recorder: Recorder, tmp_path: Path) -> None:
    with recorder.tracer.start_as_current_span("producer"):
        space.put("orders", "to get")
        space.put("orders", "to work with")
    first, second = recorder.all("send orders")
    run("-c", CONSUMER, space.path, SPANS=str(tmp_path / "spans"))
    found = by_name(tmp_path / "spans")
    received, processed, further = found["receive orders"], found["process orders"], found["send next"]
    assert (received.trace, received.parent) == (found["consumer"].trace, found["consumer"].id)
    assert received.links == (f"{id_of(first):016x}",)
    assert (processed.trace, processed.parent) == (f"{trace_of(second):032x}", f"{id_of(second):016x}")
    assert (further.trace, further.parent) == (processed.trace, processed.id)
    assert space.get("next").headers["traceparent"].startswith(f"00-{further.trace}-{further.id}-")


def test_spool_worker_calls_with_spans(space: spool.Space, recorder: Recorder, tmp_path: Path) -> None:
    with recorder.tracer.start_as_current_span("producer"):
        space.put("orders", "good")
    put = recorder.one("send orders")
    (tmp_path / "traced_service.py").write_text(SERVICE)
    run(
        "-m", "xaspool_scripts.worker", "-s", space.path, "orders=traced_service:call", "--once",
        cwd=tmp_path, SPANS=str(tmp_path / "spans"),
    )  # fmt: skip
    assert space.get("replies").body == "GOOD"
    _check(by_name(tmp_path / "spans"), f"{trace_of(put):032x}", f"{id_of(put):016x}")


def _check(found: dict[str, Written], trace: str, put: str) -> None:
    processed, inside = found["process orders"], found["in the function"]
    assert (processed.trace, processed.parent, processed.links) == (trace, put, (put,))
    assert (inside.trace, inside.parent) == (trace, processed.id)
    assert processed.attributes["xaspool.outcome"] == "replied"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_service_in_a_task_of_spark_runs_within_the_span(space: spool.Space, recorder: Recorder, tmp_path: Path):
    with recorder.tracer.start_as_current_span("producer"):
        space.put("orders", "good")
    (tmp_path / "traced_service.py").write_text(SERVICE)
    space.close()
    command = ("-m", "xaspool_scripts.forward", "-s", space.path, "--master", "local[2]", "--once")
    run(
        *command, "--route", "orders=python:traced_service:call", cwd=tmp_path, SPANS=str(tmp_path / "spans"),
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    put = recorder.one("send orders")
    found = by_name(tmp_path / "spans")
    _check(found, f"{trace_of(put):032x}", f"{id_of(put):016x}")
    with spool.open(space.path) as again:
        reply = again.get("replies")
    assert reply.body == "GOOD"
    processed = found["process orders"]
    assert reply.headers["traceparent"].startswith(f"00-{processed.trace}-{processed.id}-")
