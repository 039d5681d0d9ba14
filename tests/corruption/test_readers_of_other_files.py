"""Readers of claim journals, counters, settings and dropped files accept values within the limits, or raise the
documented error."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spool.coordination.counters import CounterPage, Counters
from spool.disk import Disk
from spool.disk.quarantine import MAX_REASON_BYTES, FileCause, FileReason, decode_reason, quarantine
from spool.model import layout
from tests.corruption import readers
from tests.corruption.hostile import BOMBS, changed, damaged, each_changed, pack

# -- journals and counters --------------------------------------------------------------------------------------------


@readers.OPTIONS
@given(records=changed(readers.NOTE))
@example(records=[readers.NOTE[0], [0.5, 0, 3]])
def test_x06_a_note_with_any_value_in_it_names_possible_messages_only(
    records: Any, tmp_path: Path, tried: dict[str, int]
) -> None:
    _, ranges = readers.read_note(tmp_path, readers.note_bytes(records if isinstance(records, list) else [records]))
    tried["accepted" if len(ranges) == 3 else "refused"] += 1


def test_x06_a_note_with_each_value_at_its_edges_names_possible_messages_only(tmp_path: Path, tried: dict[str, int]):
    for records in each_changed(readers.NOTE):
        if isinstance(records, list):
            _, ranges = readers.read_note(tmp_path, readers.note_bytes(records))
            tried["accepted" if len(ranges) == 3 else "refused"] += 1


@readers.OPTIONS
@given(data=damaged(readers.note_bytes(readers.NOTE)) | damaged(readers.note_bytes(readers.NOTE[:1]) + readers.SLOTS))
@example(data=readers.note_bytes(readers.NOTE).replace(b"\x93\x05\x00\x03", b"\x93\x05\x00\x04"))
def test_x06_a_damaged_note_names_noted_messages_or_fewer(data: bytes, tmp_path: Path, tried: dict[str, int]) -> None:
    _, ranges = readers.read_note(tmp_path, data)
    assert {*ranges} <= {(5, 0, 3), (5, 9, 1), (6, 2, 7)}
    tried["accepted" if len(ranges) == 3 else "refused"] += 1


def test_x06_no_record_of_a_note_is_a_bomb(tmp_path: Path, tried: dict[str, int]) -> None:
    for bomb in BOMBS.values():
        assert readers.read_note(tmp_path, readers.note_bytes([*readers.NOTE[:2], bomb]))[1] in ([(5, 0, 3)], [])
        tried["refused"] += 1


@readers.OPTIONS
@given(data=st.binary(max_size=400))
def test_x05_any_bytes_are_counters(data: bytes, tried: dict[str, int]) -> None:
    page = Counters.read(SimpleNamespace(_memory=data.ljust(320, b"\0"), _last=CounterPage(), _stopped_here=False))
    assert isinstance(page.boot_id, str)
    for value in (page.issued, page.published, page.durable, page.prepared, page.settings, page.owner):
        assert readers.whole(value, 0, 2**64 - 1)
    tried["accepted"] += 1


# -- settings ---------------------------------------------------------------------------------------------------------

TOML_BOMBS = {
    "arrays in arrays": "a = " + "[" * 100_000,
    "tables in tables": "a = " + "{a=" * 100_000,
    "arrays in arrays, line by line": "a = " + "[\n" * 100_000,
    "tables in tables, in a short line": "a = " + "{a=" * 600,
    "key of many parts": "a." * 100_000 + "a = 1",
    "table of many parts": "[" + "a." * 100_000 + "a]",
    "long number": "a = " + "9" * 100_000,
    "long text": 'a = "' + "x" * 100_000,
    "year 9999": "format = 9999-99-99T99:99:99Z",
    "surrogate": 'a = "\\ud800"',
}


@readers.OPTIONS
@given(data=damaged(readers.TOML))
def test_a08_damaged_settings_are_read_or_refused_by_name(data: bytes, tried: dict[str, int]) -> None:
    readers.parse_settings(data.decode("utf-8", "replace"), tried)


def test_a08_settings_are_no_bomb(tried: dict[str, int]) -> None:
    for bomb in TOML_BOMBS.values():
        readers.parse_settings("format = 1\n" + bomb, tried)


# -- dropped files ----------------------------------------------------------------------------------------------------


@readers.OPTIONS
@given(found=changed(readers.PUTS))
def test_t09_a_dropped_stream_with_any_value_in_it_is_taken_or_refused(found: Any, tried: dict[str, int]) -> None:
    readers.try_dropped(b"".join(map(pack, found if isinstance(found, list) else [found])), tried)


def test_t09_a_dropped_stream_with_each_value_at_its_edges_is_taken_or_refused(tried: dict[str, int]) -> None:
    for found in each_changed(readers.PUTS):
        if isinstance(found, list):
            readers.try_dropped(b"".join(map(pack, found)), tried)


@readers.OPTIONS
@given(data=damaged(b"".join(map(pack, readers.PUTS))))
def test_t09_a_damaged_dropped_stream_is_taken_or_refused(data: bytes, tried: dict[str, int]) -> None:
    readers.try_dropped(data, tried)


def test_t09_no_dropped_stream_is_a_bomb(tried: dict[str, int]) -> None:
    for bomb in BOMBS.values():
        for start in (b"", b"\x81\xa4body", b"\x82\xa4body\xa1x\xa7headers"):
            readers.try_dropped(pack(readers.PUTS[0]) + start + bomb, tried)


@readers.OPTIONS
@example(data=b'text\n{"kind": "refused", "queue": "orders", "dropped": "a/b"}')
@example(data=b'text\n{"kind": "refused", "queue": "orders", "dropped": ".."}')
@example(data=b'text\n{"kind": "refused", "queue": "a/b", "dropped": "one"}')
@given(
    data=st.binary(max_size=100)
    | st.builds(
        lambda *fields: b"text\n" + json.dumps(dict(zip(("kind", "queue", "dropped"), fields, strict=True))).encode(),
        *(st.sampled_from(["refused", "a/b", "..", "", "\0", "orders", None, 7, ["refused"]]) for _ in range(3)),
    )
)
def test_no_reason_of_another_program_leads_out_of_the_folder_of_a_queue(data: bytes, tried: dict[str, int]) -> None:
    found = decode_reason(data)
    assert found.queue is None or layout.is_queue_name(found.queue)
    assert found.dropped is None or (found.queue and "/" not in found.dropped and found.dropped not in (".", "..", ""))
    tried["accepted" if found.cause else "refused"] += 1


# -- names and reasons ------------------------------------------------------------------------------------------------


@readers.OPTIONS
@given(
    name=st.binary(min_size=1, max_size=250).filter(lambda raw: not {0, 47} & {*raw} and raw not in (b".", b"..")),
    reason=st.text(max_size=200) | st.sampled_from(["\ud800", "x" * MAX_REASON_BYTES, "\n{}", '{"kind": "damaged"}']),
    cause=st.sampled_from(FileCause),
)
def test_r08_a_file_with_any_name_is_quarantined_with_its_reason(
    name: bytes, reason: str, cause: FileCause, tmp_path_factory: pytest.TempPathFactory, tried: dict[str, int]
) -> None:
    root = tmp_path_factory.mktemp("space")
    for directory in (layout.ACTIVE, layout.QUARANTINE):
        (root / directory).mkdir()
    path = f"{layout.ACTIVE}/" + name.decode("utf-8", "surrogateescape")
    (root / path).write_bytes(b"kept")
    dropped = path.removeprefix(f"{layout.ACTIVE}/")
    target = quarantine(Disk(str(root)), path, FileReason(reason, cause, "orders", dropped))
    assert (root / target).read_bytes() == b"kept"
    found = decode_reason((root / (target + layout.REASON_SUFFIX)).read_bytes()[:MAX_REASON_BYTES])
    assert (found.cause, found.queue, found.dropped) == (cause, "orders", dropped)
    assert not (root / path).exists()
    tried["accepted"] += 1
