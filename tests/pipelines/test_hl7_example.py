"""examples/hl7: each message of a file is delivered once and in order, or the whole file waits in the error queue."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder import Pipeline, Summary
from tests.pipelines.conftest import Run

pytest.importorskip("hl7")
pytestmark = pytest.mark.every(5)

DIRECTORY = Path(__file__).parents[2] / "examples/hl7"
FHS, BHS = (f"{name}|^~\\&|KIS|NORTH|XASPOOL|NORTH|20261122120000" for name in ("FHS", "BHS"))


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(DIRECTORY)
    yield importlib.import_module("adt")
    for name in ("adt", "hl7_batches"):
        sys.modules.pop(name, None)


def adt(control_id: str, event: str = "A01", processing: str = "P", separators: str = "|^~\\&") -> list[str]:
    """Return the segments of a message."""
    segments = [
        f"MSH|^~\\&|KIS|NORTH|XASPOOL|NORTH|20261122120000||ADT^{event}|{control_id}|{processing}|2.5",
        "PID|1||100200^^^NORTH^MR||Curie^Marie||18671107|F",
        "PV1|1|I|WARD3^12^1",
    ]
    return [segment.translate(str.maketrans("|^~\\&", separators)) for segment in segments]


def file(*segments: str | list[str], end: str = "\r") -> bytes:
    flat = [one for each in segments for one in ([each] if isinstance(each, str) else each)]
    return "".join(f"{segment}{end}" for segment in flat).encode()


@pytest.fixture
def deliver(run: Run, space: spool.Space, tmp_path: Path) -> Callable[[bytes], Summary]:
    """Run a pipeline of the example's functions with one file. Its destination keeps its messages in their queue."""

    def deliver(data: bytes) -> Summary:
        pipeline = Pipeline(
            name="adt",
            inbound=["adt:split", "adt:read_header"],
            routes=[{"name": "ward", "translate": "adt:to_json", "to": "ward"}],
            destinations={"ward": {"service": f"file:{tmp_path}", "stopped": True}},
            retries=0,
        )
        pipeline.create_queues(space)
        space.put("adt", data)
        return run(pipeline)

    return deliver


def delivered(space: spool.Space) -> list[str]:
    return [message.body["control_id"] for message in space.browse("adt.to.ward")]


def refused(space: spool.Space) -> dict[bytes, str]:
    return {message.body: message.failure_reason or "" for message in space.browse("adt.errors")}


BATCH = [FHS, BHS, *adt("1"), *adt("2"), "BTS|2", BHS, *adt("3"), "BTS|1|a comment", "FTS|2"]


@pytest.mark.parametrize(
    "data",
    [
        file(adt("1"), adt("2"), adt("3")),
        file(adt("1"), adt("2"), adt("3"), end="\n"),
        file(adt("1"), adt("2"), adt("3"), end="\r\n"),
        file(adt("1"), "", adt("2"), "", adt("3"), end="\r\n"),
        file(adt("1"), adt("2"), adt("3")).rstrip(),
        b"\xef\xbb\xbf" + file(adt("1"), adt("2"), adt("3")),
        b"".join(b"\x0b" + file(adt(number)) + b"\x1c\r" for number in "123"),
        file(BATCH),
        file(BATCH, end="\n"),
        file(BHS, adt("1"), adt("2"), adt("3"), "BTS|3"),
        file(BHS, adt("1"), adt("2"), adt("3"), "BTS"),
        file(BHS, adt("1"), "BTS|1", BHS, adt("2"), adt("3"), "BTS|2"),
        file(FHS, adt("1"), adt("2"), adt("3"), "FTS"),
        file(FHS, adt("1"), adt("2"), adt("3"), "FTS|1"),
        file("FHS#*~\\&", "BHS#*~\\&", adt("1", separators="#*~\\&"), adt("2"), adt("3"), "BTS#3", "FTS#1"),
    ],
    ids=["CR", "LF", "CR LF", "empty lines", "no end", "byte order mark", "MLLP", "batches", "batches, LF", "one batch",
         "no count", "two batches", "no batch", "a file of one batch", "other separators"],
)  # fmt: skip
def test_each_message_of_a_file_is_delivered_in_order(
    deliver: Callable[[bytes], Summary], space: spool.Space, data: bytes
) -> None:
    deliver(data)
    assert refused(space) == {}
    assert delivered(space) == ["1", "2", "3"]


def test_the_messages_of_a_file_are_the_results_of_one_call(example: Any, space: spool.Space) -> None:
    """All results of one call of a hook are put in the commit that removes the file."""
    space.create_queue("files")
    space.put("files", file(BATCH, end="\n"))
    found = example.split(space.get("files"))
    assert [one.body for one in found] == [file(adt(number)).decode() for number in "123"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (file(BHS, adt("1"), adt("2"), "BTS|3"), "BTS counts 3 messages, and there are 2"),
        (file(BHS, adt("1"), adt("2"), "BTS|1"), "BTS counts 1 messages, and there are 2"),
        (file(BHS, adt("1"), "BTS|one"), "BTS counts one messages"),
        (file(FHS, BHS, adt("1"), "BTS|1", "FTS|2"), "FTS counts 2 batches, and there are 1"),
        (file(FHS, BHS, adt("1"), "BTS|1"), "FHS without FTS: the end of the file may be missing"),
        (file(BHS, adt("1"), adt("2")), "BHS without BTS: the end of the file may be missing"),
        (file(adt("1"), "BTS|1"), "BTS is out of place"),
        (file(adt("1"), "FTS|1"), "FTS is out of place"),
        (file(BHS, BHS, adt("1"), "BTS|1", "BTS|1"), "BHS is out of place"),
        (file(adt("1"), FHS, "FTS"), "FHS is out of place"),
        (file(FHS, BHS, adt("1"), "FTS|1", "BTS|1"), "FTS is out of place"),
        (file(FHS, adt("1"), "FTS|1", adt("2")), "MSH follows the end of the file"),
        (file("PID|1", adt("1")), "PID does not belong to a message"),
        (file(BHS, adt("1"), "BTS|1", "PID|1"), "PID does not belong to a message"),
        (file(adt("1"), "a line of another file"), "'a line of another file' is no segment"),
        (file("MSH"), "it is no HL7 v2 message"),
        (b"\r\n", "it has no MSH"),
        (b"", "it has no MSH"),
        (b"MSH|\xff", "it is no file of HL7 v2 messages: 'utf-8'"),
        (file(adt("1"), "MSH|^~\\&|KIS", adt("3")), "it is no HL7 v2 message"),
        (file(adt("1"), adt("2", processing=""), adt("3")), "its processing id (MSH-11) is , not P, T or D"),
        (file(adt("1", processing="X")), "its processing id (MSH-11) is X"),
        (file(adt("1", processing="P^X")), "its processing id (MSH-11) is P^X"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_may_be_incomplete_is_kept_whole_in_the_error_queue(
    deliver: Callable[[bytes], Summary], space: spool.Space, data: bytes, reason: str
) -> None:
    deliver(data)
    assert delivered(space) == []
    [(body, why)] = refused(space).items()
    assert body == data
    assert reason in why


@pytest.mark.parametrize("processing", ["P", "P^T", "P^", "P^A", "P^R", "P^I"])
def test_a_message_of_production_is_delivered_in_each_processing_mode(
    deliver: Callable[[bytes], Summary], space: spool.Space, processing: str
) -> None:
    deliver(file(adt("1", processing=processing)))
    [message] = space.browse("adt.to.ward")
    assert message.body["control_id"] == "1"
    assert message.headers["processing-mode"] == (processing[2:] or "T")


@pytest.mark.parametrize("processing", ["T", "T^T", "D", "D^A"])
def test_a_message_for_tests_is_dropped_alone(deliver: Callable[[bytes], Summary], space: spool.Space, processing: str):
    deliver(file(BHS, adt("1"), adt("2", processing=processing), adt("3"), "BTS|3"))
    assert delivered(space) == ["1", "3"]
    assert refused(space) == {}


def test_an_empty_batch_is_no_failure(deliver: Callable[[bytes], Summary], space: spool.Space) -> None:
    deliver(file(FHS, BHS, "BTS|0", "FTS|1"))
    assert (delivered(space), refused(space)) == ([], {})
