"""The suffix of a dropped file, and its queue, tell whether it becomes a value, a text or bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.intake.intake import Intake
from spool.model.codecs import Encoded
from tests.shown import bodies
from tests.spaces import space_with

NESTED = 300
CUT_OFF = b'{"count": 2'


space = space_with("orders", defaults={})


def drop(space: spool.Space, name: str, data: bytes) -> None:
    Path(space.path, "drop", "orders", name).write_bytes(data)
    Intake(space).run(once=True)


@pytest.mark.parametrize(
    ("name", "data", "body", "content_type"),
    [
        ("order.json", b'{"count": 2}\n', {"count": 2}, "application/json"),
        ("ORDER.JSON", b"[1, 2.5, null]", [1, 2.5, None], "application/json"),
        ("from an editor.json", b'\xef\xbb\xbf{"a": "\xc3\xa4"}', {"a": "ä"}, "application/json"),
        ("large.json", b"9" * 4000, int("9" * 4000), "application/json"),
        ("deep.json", b"[" * NESTED + b"]" * NESTED, json.loads("[" * NESTED + "]" * NESTED), "application/json"),
        ("note.txt", b"two t\xc3\xa9as\n", "two téas\n", "text/plain; charset=utf-8"),
        ("from an editor.TXT", b"\xef\xbb\xbfhello", "hello", "text/plain; charset=utf-8"),
        ("empty.txt", b"", "", "text/plain; charset=utf-8"),
        ("latin.txt", b"caf\xe9", b"caf\xe9", "text/plain"),
        ("order.xml", b"<a/>", b"<a/>", "application/octet-stream"),
        ("no suffix", b"x", b"x", "application/octet-stream"),
        ("jsontxt", b"x", b"x", "application/octet-stream"),
    ],
)
def test_a_suffix_decides_the_body_and_content_type_of_a_dropped_file(
    space: spool.Space, name: str, data: bytes, body: object, content_type: str
) -> None:
    drop(space, name, data)
    message = space.get("orders")
    assert (message.body, message.content_type, message.headers["filename"]) == (body, content_type, name)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (CUT_OFF, "Expecting ',' delimiter"),
        (b"", "Expecting value"),
        (b"{'count': 2}", "Expecting property name"),
        (b'{"count": NaN}', "not JSON compliant"),
        (b"-Infinity", "not JSON compliant"),
        (b"[1e999]", "not JSON compliant"),
        (rb'{"name": "\ud800"}', "surrogates not allowed"),
        (b"9" * 5000, "limit"),
        ('{"a": 1}'.encode("utf-16"), "utf-8"),
        (b'{"a": "\xe9"}', "utf-8"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ],
)
def test_a_json_file_without_json_moves_to_quarantine_whole(space: spool.Space, data: bytes, reason: str) -> None:
    drop(space, "bad.json", data)
    [found] = space.quarantined()
    assert "it is not json" in found.detail
    assert reason in found.detail
    assert "spool-admin queue change orders --drop-type .json=bytes" in found.detail
    assert Path(space.path, "quarantine", "active.bad.json").read_bytes() == data
    assert bodies(space) == []


def test_a_quarantined_file_can_be_restored_unchanged_once_the_queue_takes_it(space: spool.Space) -> None:
    drop(space, "bad.json", CUT_OFF)
    space.change_queue("orders", drop_types={".json": "bytes"})
    space.restore_quarantined("active.bad.json")
    Intake(space).run(once=True)
    assert bodies(space) == [CUT_OFF]


def test_a_queue_says_otherwise(space: spool.Space) -> None:
    types = {".CSV": "text/csv", ".txt": "bytes", ".msgpack": "application/msgpack", ".big.json": "bytes", ".x": "a/b"}
    made = space.create_queue("more", drop_types=types)
    assert made.drop_types == {suffix.lower(): kind for suffix, kind in types.items()}
    assert space.create_queue("more", exist_ok=True, drop_types=types) == made
    found = {}
    for name, data in {
        "a.csv": b"a,b", "latin.csv": b"\xe9", "a.txt": b"x", "a.msgpack": b"\x93\x01\x02\x03", "a.big.json": CUT_OFF,
        "a.json": b"1", "a.x": b"y",
    }.items():  # fmt: skip
        Path(space.path, "drop", "more", name).write_bytes(data)
    assert Intake(space).run(once=True).messages == 7
    found = {message.headers["filename"]: (message.body, message.content_type) for message in space.browse("more")}
    plain = "application/octet-stream"
    assert found == {
        "a.csv": ("a,b", "text/csv"), "latin.csv": (b"\xe9", "text/csv"), "a.txt": (b"x", plain),
        "a.msgpack": ([1, 2, 3], "application/msgpack"), "a.big.json": (CUT_OFF, plain),
        "a.json": (1, "application/json"), "a.x": (b"y", "a/b"),
    }  # fmt: skip
    assert space.change_queue("more", drop_types=None).drop_types == {}


def test_the_types_stand_in_the_file_and_are_read_again(space: spool.Space) -> None:
    space.create_queue("more", drop_types={".csv": "text/csv", ".tar.gz": "application/gzip"})
    space.change_queue("more", retries=3)
    text = Path(space.path, "space.toml").read_text()
    assert 'drop_types = {".csv" = "text/csv", ".tar.gz" = "application/gzip"}' in text
    with spool.open(space.path) as again:
        assert again.queues()["more"] == space.queues()["more"]
        assert hash(again.queues()["more"]) == hash(space.queues()["more"])


@pytest.mark.parametrize(
    "types",
    [
        ".csv=text/csv", ["text/csv"], {"csv": "text/csv"}, {".": "bytes"}, {".csv": "csv"}, {".csv": ""},
        {".csv": None}, {".tmp": "bytes"}, {".a/b": "bytes"}, {".csv": "text/csv\n"}, {".a": "bytes", ".A": "text/csv"},
        {f".{n}": "application/octet-stream" for n in range(100)},
    ],
)  # fmt: skip
def test_types_that_are_none_are_refused(space: spool.Space, types: Any) -> None:
    with pytest.raises(spool.InvalidArgument, match="drop_types is suffixes with a content type"):
        space.create_queue("more", drop_types=types)


def test_json_that_was_accepted_can_be_read_by_a_consumer_with_a_deeper_stack(space: spool.Space) -> None:
    depth = 0
    with pytest.raises(spool.InvalidArgument, match="nested too deeply"):
        while True:
            depth += 20
            space.put("orders", Encoded(b"[" * depth + b"]" * depth, "json"))

    def consume(frames: int) -> list[spool.Message]:
        return consume(frames - 1) if frames else space.get_many("orders", depth)

    assert len(consume(100)) == depth // 20 - 1
    assert space.quarantined() == []
